// Texts as files of models store them.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"

namespace thresher::bindings {
namespace {

// Vocabularies have hundreds of thousands: a text is made when it is asked for.
class Texts {
 public:
  // As many of `count` texts from byte `at` on as there are.
  Texts(const Array& file, size_t at, size_t count) : file_(file), bytes_(BytesOf(file)), end_(at) {
    begins_.reserve(std::min(count, bytes_.size() / sizeof(uint64_t)));
    while (begins_.size() < count && end_ <= bytes_.size() && bytes_.size() - end_ >= sizeof(uint64_t)) {
      const size_t begin = end_ + sizeof(uint64_t);
      const uint64_t length = Length(begin);
      if (length > bytes_.size() - begin) break;
      begins_.push_back(begin);
      end_ = begin + length;
    }
  }

  size_t size() const { return begins_.size(); }
  size_t end() const { return end_; }
  std::string_view operator[](size_t i) const {
    return {reinterpret_cast<const char*>(bytes_.data() + begins_[i]), Length(begins_[i])};
  }

 private:
  uint64_t Length(size_t begin) const {
    uint64_t length = 0;
    std::memcpy(&length, bytes_.data() + begin - sizeof(length), sizeof(length));
    return length;
  }

  Array file_;  // keeps the bytes
  std::span<const uint8_t> bytes_;
  std::vector<size_t> begins_;
  size_t end_;
};

// A new reference, or nullptr with an exception.
PyObject* Decode(std::string_view text) {
  // Single tokens of a vocabulary may be parts of characters.
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
}

nb::object Decoded(std::string_view text) {
  PyObject* const decoded = Decode(text);
  if (decoded == nullptr) throw nb::python_error();
  return nb::steal(decoded);
}

nb::tuple ReadTexts(const Array& array, size_t at, size_t count) {
  Texts found(array, at, count);
  const size_t end = found.end();
  return nb::make_tuple(std::move(found), end);
}

// Which of some texts one is. With std::unordered_map a vocabulary of 152,000 tokens takes 0.07 s longer, which is a
// sixth of such a model's start.
class Places {
 public:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  explicit Places(const Texts& texts)
      : texts_(texts), slots_(std::bit_ceil(texts.size() + texts.size() / 2 + 1), kNone) {
    for (size_t i = 0; i < texts.size(); ++i) {
      uint32_t& slot = slots_[SlotOf(texts[i])];
      if (slot == kNone) slot = static_cast<uint32_t>(i);
    }
  }

  uint32_t Find(std::string_view text) const { return slots_[SlotOf(text)]; }

 private:
  // Where the text is, or would be.
  size_t SlotOf(std::string_view text) const {
    size_t slot = std::hash<std::string_view>{}(text);
    do {
      slot &= slots_.size() - 1;
      if (slots_[slot] == kNone || texts_[slots_[slot]] == text) return slot;
      ++slot;
    } while (true);
  }

  const Texts& texts_;
  std::vector<uint32_t> slots_;
};

// Pairs of texts. A pair is made when it is asked for, of texts that are there: most are many times the half of a pair.
struct Pairs {
  std::vector<nb::object> texts;
  std::vector<std::array<uint32_t, 2>> halves;
};

// The texts of the halves of each merge, by their places: those that are no tokens follow the tokens. Nothing where the
// merge at `wrong` is none.
std::optional<std::vector<std::array<uint32_t, 2>>> Split(const Texts& tokens, const Texts& merges,
                                                          std::vector<std::string_view>& others, size_t& wrong) {
  const Places places(tokens);
  const auto place = [&](std::string_view text) {
    const uint32_t found = places.Find(text);
    if (found != Places::kNone) return found;
    others.push_back(text);
    return static_cast<uint32_t>(tokens.size() + others.size() - 1);
  };
  std::vector<std::array<uint32_t, 2>> halves;
  halves.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string_view merge = merges[i];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos) {
      wrong = i;
      return std::nullopt;
    }
    const uint32_t left = place(merge.substr(0, space));
    halves.push_back({left, place(merge.substr(space + 1))});
  }
  return halves;
}

nb::tuple PairsVocabulary(const Texts& tokens, const Texts& merges) {
  // So that places have 32 bits; a file of so many texts has 32 GB of their lengths alone.
  if (tokens.size() + 2 * merges.size() >= Places::kNone) throw nb::value_error("expected fewer texts");
  Pairs pairs;
  std::vector<std::string_view> others;
  size_t wrong = 0;
  auto halves = [&] {
    const GilRelease release;
    return Split(tokens, merges, others, wrong);
  }();
  if (!halves) {
    const nb::object text = Decoded(merges[wrong]);
    throw nb::value_error(
        ("expected two texts with a space between them, got " + std::string(nb::repr(text).c_str())).c_str());
  }
  pairs.halves = std::move(*halves);
  pairs.texts.reserve(tokens.size() + others.size());
  nb::dict numbers;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const nb::object& text = pairs.texts.emplace_back(Decoded(tokens[i]));
    const nb::object number = nb::steal(PyLong_FromSize_t(i));
    if (!number.is_valid() || PyDict_SetItem(numbers.ptr(), text.ptr(), number.ptr()) != 0) throw nb::python_error();
  }
  for (const std::string_view other : others) pairs.texts.push_back(Decoded(other));
  return nb::make_tuple(numbers, std::move(pairs));
}

PyObject* Item(const Texts& texts, size_t at) { return Decode(texts[at]); }

PyObject* Item(const Pairs& pairs, size_t at) {
  const auto [left, right] = pairs.halves[at];
  return PyTuple_Pack(2, pairs.texts[left].ptr(), pairs.texts[right].ptr());
}

size_t Size(const Texts& texts) { return texts.size(); }
size_t Size(const Pairs& pairs) { return pairs.halves.size(); }

// What makes a type a sequence. As slots, since a call of a method would take longer than what it does.
template <class T>
struct Slots {
  static Py_ssize_t Length(PyObject* self) { return static_cast<Py_ssize_t>(Size(*nb::inst_ptr<T>(self))); }
  static PyObject* At(PyObject* self, Py_ssize_t at) {
    if (at >= 0 && at < Length(self)) return Item(*nb::inst_ptr<T>(self), static_cast<size_t>(at));
    PyErr_SetString(PyExc_IndexError, "expected the number of a text");
    return nullptr;
  }
  static inline PyType_Slot all[] = {
      {Py_sq_length, reinterpret_cast<void*>(&Length)}, {Py_sq_item, reinterpret_cast<void*>(&At)}, {0, nullptr}};
};

}  // namespace

void BindTexts(nb::module_& m) {
  const nb::class_<Texts> texts(m, "Texts", "A sequence of texts in a file, made when they are asked for.",
                                nb::type_slots(Slots<Texts>::all));
  const nb::class_<Pairs> pairs(m, "TextPairs", "A sequence of pairs of texts, made when they are asked for.",
                                nb::type_slots(Slots<Pairs>::all));
  m.def("read_texts", &ReadTexts, nb::arg("data"), nb::arg("at"), nb::arg("count"),
        nb::sig("def read_texts(data: object, at: int, count: int) -> tuple[Texts, int]"),
        "Texts from byte `at` on, each behind its length in 8 bytes, and where they end: fewer than `count` where the "
        "data end before. Bytes that are no UTF-8 become surrogates. The bytes have to stay as they are.");
  m.def(
      "pairs_vocabulary", &PairsVocabulary, nb::arg("tokens"), nb::arg("merges"),
      nb::sig("def pairs_vocabulary(tokens: Texts, merges: Texts) -> tuple[dict[str, int], Sequence[tuple[str, str]]]"),
      "The numbers of tokens, and what stands before and behind the first space of each merge. ValueError for one "
      "without a space.");
}

}  // namespace thresher::bindings
