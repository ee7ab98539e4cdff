// A constant matrix as it is stored, before it is packed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/base/encoding.h"

namespace thresher {

// Elements of the patch of positions that a tile of so many results a side meets, each of which has a matrix of weights
// (kernels/winograd.h).
constexpr int64_t WinogradMatrices(int64_t side) { return (side + 2) * (side + 2); }

// The k x n matrix whose element (i, j) lies i * stride_k + j * stride_n elements behind the first. Blocks run along k:
// stride_k is 1, k and stride_n are whole blocks. That of a convolution is `taps` such matrices, each k / taps high,
// one below the other, stride_tap elements apart.
struct Weight {
  const void* data = nullptr;
  Encoding encoding = Encoding::kF32;
  int64_t k = 0;
  int64_t n = 0;
  int64_t stride_k = 0;
  int64_t stride_n = 0;
  int64_t taps = 1;  // k is as many whole matrices
  int64_t stride_tap = 0;
  Encoding rounding = Encoding::kF32;  // kBf16, kF16: what is packed in fp32 is rounded to it
  // Side of Winograd's tiles, or 0. If not, there are nine taps, and what is packed in fp32 are WinogradMatrices made
  // of them; k and taps are those of what is packed.
  int64_t winograd = 0;

  const void* At(int64_t i, int64_t j) const {
    const int64_t offset = taps == 1 ? i * stride_k : i / (k / taps) * stride_tap + i % (k / taps) * stride_k;
    return static_cast<const std::byte*>(data) + EncodedBytes(encoding, offset + j * stride_n);
  }

  Weight Columns(int64_t begin, int64_t count) const {
    Weight columns = *this;
    columns.data = At(0, begin);
    columns.n = count;
    return columns;
  }

  // Of one tap.
  Weight Rows(int64_t begin, int64_t count) const {
    Weight rows = *this;
    rows.data = At(begin, 0);
    rows.k = count;
    return rows;
  }

  Weight Tap(int64_t tap) const {
    Weight one = *this;
    one.data = static_cast<const std::byte*>(data) + EncodedBytes(encoding, tap * stride_tap);
    one.k = k / taps;
    one.taps = 1;
    return one;
  }
};

// A matrix without gaps, stored [n, k] (as torch's Linear does) if `transposed`, else [k, n].
inline Weight DenseWeight(const void* data, int64_t k, int64_t n, bool transposed, Encoding encoding = Encoding::kF32) {
  return {data, encoding, k, n, transposed ? 1 : n, transposed ? k : 1};
}

}  // namespace thresher
