// Texts as files of models store them.
#include <cstring>
#include <span>

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

}  // namespace

void BindTexts(nb::module_& m) {
  m.def("read_texts", &ReadTexts, nb::arg("data"), nb::arg("at"), nb::arg("count"),
        nb::sig("def read_texts(data: object, at: int, count: int) -> tuple[list[str], int]"),
        "Texts from byte `at` on, each behind its length in 8 bytes, and where they end: fewer than `count` where the "
        "data end before. Bytes that are no UTF-8 become surrogates.");
}

}  // namespace thresher::bindings
