// Packed weights.
#include <nanobind/stl/shared_ptr.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "thresher/base/thread_pool.h"
#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"
#include "thresher/plan/packed_layout.h"
#include "thresher/plan/weight_store.h"
#include "thresher/run/device_constant.h"

namespace thresher::bindings {
namespace {

// The bytes, as long as the array; its destructor takes the interpreter's lock by itself.
std::shared_ptr<const void> Owned(const Array& array) {
  return {std::make_shared<Array>(array), BytesOf(array).data()};
}

Digest WantDigest(const std::string& text) {
  const std::optional<Digest> digest = ParseDigest(text);
  if (!digest) throw nb::value_error(("expected 32 hexadecimal digits, got '" + text + "'").c_str());
  return *digest;
}

nb::object Bytes(const WeightStore::Packed& packed) {
  auto* const owner = new std::shared_ptr<const void>(packed.owner);
  const nb::capsule held(owner, [](void* p) noexcept { delete static_cast<std::shared_ptr<const void>*>(p); });
  const size_t shape[] = {static_cast<size_t>(packed.bytes)};
  const auto* const data = static_cast<const uint8_t*>(packed.data);
  return nb::cast(nb::ndarray<nb::numpy, const uint8_t>(data, 1, shape, held));
}

nb::list Parts(const WeightStore& store) {
  nb::list found;
  for (const WeightStore::Part& part : store.parts()) {
    found.append(nb::make_tuple(ToHex(part.name), Bytes(part.packed), part.given));
  }
  return found;
}

std::vector<std::string> Digests(const std::vector<Array>& arrays) {
  std::vector<std::span<const uint8_t>> bytes;
  bytes.reserve(arrays.size());
  for (const Array& array : arrays) bytes.push_back(BytesOf(array));
  std::vector<std::string> digests(bytes.size());
  const GilRelease release;
  std::atomic<size_t> next{0};
  ThreadPool::Global().Run(
      [&](int, int) {
        for (size_t i = next++; i < bytes.size(); i = next++) {
          digests[i] = ToHex(HashBytes(bytes[i].data(), bytes[i].size()));
        }
      },
      static_cast<int>(std::max<size_t>(bytes.size(), 1)));
  return digests;
}

}  // namespace

void BindWeights(nb::module_& m) {
  m.def("digests", &Digests, nb::arg("arrays"), nb::sig("def digests(arrays: Sequence[object]) -> list[str]"),
        "Digests of bytes (uint8), 32 hexadecimal digits each: against accidents, not against attackers.");
  m.def(
      "packed_layout", [] { return ToHex(PackedLayout()); },
      "A digest of how weights are packed here: engines with the same one can use each other's.");
  nb::class_<DeviceConstant>(m, "DeviceConstant", "A constant in the memory of a device.")
      .def_prop_ro("copies", &DeviceConstant::copies, "How often its bytes have been copied to the host.");
  nb::class_<WeightStore>(m, "WeightStore", "Packed weights, shared between the plans of one model.")
      .def(nb::init<bool>(), nb::arg("named") = false)
      .def(
          "place",
          [](WeightStore& store, Device& device, uintptr_t address, size_t nbytes, nb::object owner) {
            // Whoever is last to let go of the owner may not hold the interpreter's lock.
            auto* const held = new nb::object(std::move(owner));
            const auto release = [held](const void*) {
              const GilAcquire lock;
              delete held;
            };
            const auto* const place = std::bit_cast<const void*>(address);
            const std::shared_ptr<const void> memory(place, release);
            const std::shared_ptr<DeviceConstant> constant =
                Unwrap(DeviceConstant::Create(device.shared_from_this(), place, nbytes, memory));
            store.AddPlaced(&device, constant->data(), static_cast<int64_t>(nbytes), memory);
            return constant;
          },
          nb::arg("device"), nb::arg("address"), nb::arg("nbytes"), nb::arg("owner"),
          "A constant that lies at an address of the device, which `owner` keeps alive: plans for the device read it "
          "there, and the host has a copy only while something else reads it.")
      .def(
          "add_source",
          [](WeightStore& store, const Array& bytes, const std::string& digest) {
            const std::span<const uint8_t> source = BytesOf(bytes);
            store.AddSource(source.data(), static_cast<int64_t>(source.size()), WantDigest(digest), Owned(bytes));
          },
          nb::arg("bytes"), nb::arg("digest"), nb::sig("def add_source(self, bytes: object, digest: str) -> None"),
          "Weights among these bytes (uint8), whose digest this is, are named by their place there.")
      .def(
          "add_part",
          [](WeightStore& store, const std::string& name, const Array& bytes) {
            const std::span<const uint8_t> part = BytesOf(bytes);
            if (reinterpret_cast<uintptr_t>(part.data()) % 64 != 0) {
              throw nb::value_error("expected bytes at a multiple of 64");
            }
            store.AddPart(WantDigest(name), {Owned(bytes), part.data(), static_cast<int64_t>(part.size())});
          },
          nb::arg("name"), nb::arg("bytes"), nb::sig("def add_part(self, name: str, bytes: object) -> None"),
          "These bytes (uint8) are taken where the matrix of that name would be packed.")
      .def("parts", &Parts, nb::sig("def parts(self) -> list[tuple[str, npt.NDArray[Any], bool]]"),
           "Of a store that names: what each packed matrix is called, its bytes, and whether they were given.")
      .def_prop_ro("bytes", &WeightStore::bytes);
}

}  // namespace thresher::bindings
