// A constant matrix as it is stored, before it is packed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/base/encoding.h"

namespace thresher {

// The tiles, height by width, in which Winograd's kernel computes results (kernels/winograd.h). Their numbers are those
// of the elements of the patch of positions that a tile meets, each of which has a matrix of weights.
enum class WinogradTile : int64_t { kNone = 0, k1x4 = 6, k2x2 = 16, k4x4 = 36 };
constexpr int64_t WinogradMatrices(WinogradTile tile) { return static_cast<int64_t>(tile); }

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
  // If there are any, what is packed in fp32 are matrices made of three taps in width and, but for tiles of one line,
  // as many in height: of each element of a patch those of all taps in depth, one below the other. k and taps are those
  // of what is packed.
  WinogradTile winograd = WinogradTile::kNone;

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
