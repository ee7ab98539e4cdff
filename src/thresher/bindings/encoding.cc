// Numbers in the formats that constants may be stored in.
#include <string>
#include <vector>

#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"
#include "thresher/kernels/block_format.h"

namespace thresher::bindings {
namespace {

nb::list Encodings() {
  nb::list rows;
  for (int i = 0; i < kNumEncodings; ++i) {
    const auto encoding = static_cast<Encoding>(i);
    nb::dict row;
    row["name"] = std::string(Name(encoding));
    row["numbers"] = BlockNumbers(encoding);
    row["bytes"] = BlockBytes(encoding);
    rows.append(row);
  }
  return rows;
}

template <class T>
nb::object Owned(std::vector<T> elements) {
  auto* const held = new std::vector<T>(std::move(elements));
  const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  const size_t shape[] = {held->size()};
  return nb::cast(nb::ndarray<nb::numpy, T>(held->data(), 1, shape, owner));
}

nb::object Decode(const std::string& name, const Array& array) {
  const Encoding encoding = WantEncoding(name);
  const std::span<const uint8_t> bytes = BytesOf(array);
  const auto block = static_cast<size_t>(BlockBytes(encoding));
  if (bytes.size() % block != 0) {
    throw nb::value_error(("expected blocks of " + std::to_string(block) + " bytes of " + name + ", got " +
                           std::to_string(bytes.size()) + " bytes")
                              .c_str());
  }
  const auto numbers = static_cast<int64_t>(bytes.size() / block) * BlockNumbers(encoding);
  std::vector<float> out(static_cast<size_t>(numbers));
  {
    const GilRelease release;
    kernels::DecodeNumbers(encoding, bytes.data(), numbers, out.data());
  }
  return Owned(std::move(out));
}

nb::object Encode(const std::string& name, const Array& array, int64_t group) {
  const Encoding encoding = WantEncoding(name);
  const View view = ViewOf(array);
  if (view.dtype != DType::kF32 || view.rank != 1 || !view.contiguous()) {
    throw nb::value_error("expected float32 of one dimension without gaps");
  }
  std::vector<uint8_t> blocks(static_cast<size_t>(EncodedBytes(encoding, view.size())));
  Status status = Status::Ok();
  {
    const GilRelease release;
    status = kernels::EncodeNumbers(encoding, view.as<const float>(), view.size(), group, blocks.data());
  }
  Check(status);
  return Owned(std::move(blocks));
}

}  // namespace

void BindEncoding(nb::module_& m) {
  m.def("encodings", &Encodings, nb::sig("def encodings() -> list[dict[str, Any]]"),
        "How constants of floats may be stored: name, and numbers and bytes of a block.");
  m.def("decode", &Decode, nb::arg("encoding"), nb::arg("data"),
        nb::sig("def decode(encoding: str, data: object) -> npt.NDArray[Any]"),
        "The float32 numbers that bytes (uint8, whole blocks) stand for.");
  m.def("encode", &Encode, nb::arg("encoding"), nb::arg("numbers"), nb::arg("group") = 32,
        nb::sig("def encode(encoding: str, numbers: object, group: int = 32) -> npt.NDArray[Any]"),
        "float32 numbers as blocks of q8_0, q4_0, q4_1, q5_0 or q5_1, of which `group` share a scale.");
}

}  // namespace thresher::bindings
