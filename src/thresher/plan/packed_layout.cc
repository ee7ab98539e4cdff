#include "thresher/plan/packed_layout.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "thresher/base/encoding.h"
#include "thresher/base/precision.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/weight.h"

namespace thresher {
namespace {

constexpr int64_t kInputs = 512;  // whole blocks of every format
constexpr size_t kAlignment = 64;

// Finite as floats of 32 and 16 bits alike, and no two words that follow each other are the same.
std::vector<uint32_t> Numbers(size_t count) {
  std::vector<uint32_t> numbers(count);
  uint32_t state = 1;
  for (uint32_t& number : numbers) {
    state = state * 1664525 + 1013904223;
    number = (state & 0x83ff83ff) | 0x3c003c00;
  }
  return numbers;
}

Digest LayoutOf(Encoding encoding, Precision precision, int64_t outputs, const std::vector<uint32_t>& numbers) {
  const auto bytes = static_cast<size_t>(kernels::PackedBytes(precision, kInputs, outputs));
  std::vector<std::byte> room(bytes + kAlignment);  // of zeros: not all of a panel need be written
  void* packed = room.data();
  size_t left = room.size();
  std::align(kAlignment, bytes, packed, left);
  kernels::PackWeight(precision, DenseWeight(numbers.data(), kInputs, outputs, true, encoding), packed);
  return HashBytes(packed, bytes);
}

}  // namespace

Digest PackedLayout() {
  const int64_t outputs = 2 * kernels::PackedColumns() + 3;  // with a panel that is not full
  const std::vector<uint32_t> numbers = Numbers(static_cast<size_t>(kInputs * outputs));
  std::vector<Digest> layouts;
  layouts.reserve(std::size(kPrecisionNames) + static_cast<size_t>(kNumEncodings));
  for (size_t i = 0; i < std::size(kPrecisionNames); ++i) {
    layouts.push_back(LayoutOf(Encoding::kF32, static_cast<Precision>(i), outputs, numbers));
  }
  for (int i = static_cast<int>(Encoding::kQ8_0); i < kNumEncodings; ++i) {
    const auto encoding = static_cast<Encoding>(i);
    layouts.push_back(LayoutOf(encoding, StoredPrecision(encoding), outputs, numbers));
  }
  return HashBytes(layouts.data(), layouts.size() * sizeof(Digest));
}

}  // namespace thresher
