// Texts as files of models store them.
#include <cstring>
#include <span>
#include <string>

#include "thresher/bindings/convert.h"
#include "thresher/bindings/module.h"

namespace thresher::bindings {
namespace {

nb::tuple ReadTexts(const Array& array, size_t at, size_t count) {
  const std::span<const uint8_t> bytes = BytesOf(array);
  nb::list found;
  uint64_t length = 0;
  while (found.size() < count && at <= bytes.size() && bytes.size() - at >= sizeof(length)) {
    std::memcpy(&length, bytes.data() + at, sizeof(length));
    if (length > bytes.size() - at - sizeof(length)) break;
    const auto* const text = reinterpret_cast<const char*>(bytes.data() + at + sizeof(length));
    // Single tokens of a vocabulary may be parts of characters.
    PyObject* const decoded = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(length), "surrogateescape");
    if (decoded == nullptr) throw nb::python_error();
    found.append(nb::steal(decoded));
    at += sizeof(length) + length;
  }
  return nb::make_tuple(found, at);
}

nb::list SplitPairs(const nb::list& texts) {
  nb::list found;
  for (const nb::handle text : texts) {
    PyObject* const whole = text.ptr();
    const Py_ssize_t length = PyUnicode_Check(whole) ? PyUnicode_GetLength(whole) : 0;
    const Py_ssize_t space = length > 0 ? PyUnicode_FindChar(whole, ' ', 0, length, 1) : -1;
    if (space == -2) throw nb::python_error();
    if (space < 0) {
      throw nb::value_error(
          ("expected two texts with a space between them, got " + std::string(nb::repr(text).c_str())).c_str());
    }
    PyObject* const left = PyUnicode_Substring(whole, 0, space);
    if (left == nullptr) throw nb::python_error();
    const nb::object first = nb::steal(left);
    PyObject* const right = PyUnicode_Substring(whole, space + 1, length);
    if (right == nullptr) throw nb::python_error();
    found.append(nb::make_tuple(first, nb::steal(right)));
  }
  return found;
}

}  // namespace

void BindTexts(nb::module_& m) {
  m.def("read_texts", &ReadTexts, nb::arg("data"), nb::arg("at"), nb::arg("count"),
        nb::sig("def read_texts(data: object, at: int, count: int) -> tuple[list[str], int]"),
        "Texts from byte `at` on, each behind its length in 8 bytes, and where they end: fewer than `count` where the "
        "data end before. Bytes that are no UTF-8 become surrogates.");
  m.def("split_pairs", &SplitPairs, nb::arg("texts"),
        nb::sig("def split_pairs(texts: list[str]) -> list[tuple[str, str]]"),
        "What stands before and behind the first space of each text. ValueError for one without a space.");
}

}  // namespace thresher::bindings
