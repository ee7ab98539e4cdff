// A constant matrix as it is stored, before it is packed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "thresher/base/dtype.h"

namespace thresher {

// How the numbers of a weight are stored.
enum class Encoding : uint8_t { kF32, kBf16, kF16 };

inline constexpr std::string_view kEncodingNames[] = {"f32", "bf16", "f16"};

inline std::string_view Name(Encoding encoding) { return kEncodingNames[static_cast<size_t>(encoding)]; }

inline std::optional<Encoding> EncodingOf(DType dtype) {
  if (dtype == DType::kF32) return Encoding::kF32;
  if (dtype == DType::kBF16) return Encoding::kBf16;
  if (dtype == DType::kF16) return Encoding::kF16;
  return std::nullopt;
}

// Bytes of `elements` numbers.
constexpr int64_t EncodedBytes(Encoding encoding, int64_t elements) {
  return elements * (encoding == Encoding::kF32 ? 4 : 2);
}

// The k x n matrix whose element (i, j) lies i * stride_k + j * stride_n elements behind the first.
struct Weight {
  const void* data = nullptr;
  Encoding encoding = Encoding::kF32;
  int64_t k = 0;
  int64_t n = 0;
  int64_t stride_k = 0;
  int64_t stride_n = 0;

  const void* At(int64_t i, int64_t j) const {
    return static_cast<const std::byte*>(data) + EncodedBytes(encoding, i * stride_k + j * stride_n);
  }

  Weight Columns(int64_t begin, int64_t count) const {
    Weight columns = *this;
    columns.data = At(0, begin);
    columns.n = count;
    return columns;
  }
};

// A matrix without gaps, stored [n, k] (as torch's Linear does) if `transposed`, else [k, n].
inline Weight DenseWeight(const void* data, int64_t k, int64_t n, bool transposed, Encoding encoding = Encoding::kF32) {
  return {data, encoding, k, n, transposed ? 1 : n, transposed ? k : 1};
}

}  // namespace thresher
