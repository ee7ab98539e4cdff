// Products of many rows with all that follows them in one kernel, for what cuBLASLt has no epilogue of: the erf form of
// gelu, silu and others. Which of the two a product gets is measured (cublaslt.cc).
#pragma once

#include <cstdint>

#include "thresher/cuda/convolution_kernel.h"
#include "thresher/cuda/gemm_layout.h"
#include "thresher/cuda/half_tilings.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

// Rows one after the other, as kernels of tiles read them.
struct PlainRows {
  using Beginning = int64_t;  // elements from the first of x; -1: there is no such row
  static constexpr bool kPieces = true;
  int64_t stride;
  int32_t m, k;

  THRESHER_DEVICE int64_t OfGroup(int32_t) const { return 0; }
  THRESHER_DEVICE int64_t Start(int32_t row) const { return row < m ? row * stride : -1; }
  THRESHER_DEVICE void TapOf(int32_t number, int32_t (&)[3], int32_t& channel) const { channel = number; }
  THRESHER_DEVICE int64_t At(int64_t start, const int32_t (&)[3]) const { return start; }
};

template <class Half, int kRowTiles, int kColTiles, int kRowWarps, int kColWarps>
struct TileProductKernel : ConvolutionKernel<PlainRows, Half, kRowTiles, kColTiles, kRowWarps, kColWarps> {};

// Whether the kernel above computes it, and cuBLASLt would leave something to a second one: halves whose rows can be
// copied 16 bytes at a time, and a result without gaps.
inline bool IsTileProduct(const Gemm& g) {
  constexpr int64_t kPiece = 8, kMost = INT32_MAX / 2;
  return IsHalf(g.type) && g.batch == 1 && g.transpose_b && !g.transpose_a && !IsBlocked(g.encoding) &&
         !EpilogueOf(g).complete() && g.ldc == g.n && g.k % kPiece == 0 && g.lda % kPiece == 0 && g.ldb % kPiece == 0 &&
         IsAligned(g.a) && IsAligned(g.b) && g.m <= kMost && g.n <= kMost && g.k <= kMost;
}

// For what IsTileProduct() says.
template <class Launch>
auto LaunchTileProduct(Launch&& launch, const Gemm& g) {
  TileWork<PlainRows> work{};
  work.windows = {g.lda, static_cast<int32_t>(g.m), static_cast<int32_t>(g.k)};
  work.result = ConvolutionResult::Of(g);
  work.x = g.a;
  work.weight = g.b;
  work.ldb = g.ldb;
  work.n = static_cast<int32_t>(g.n);
  work.groups = work.splits = 1;
  work.x_pieces = work.weight_pieces = true;
  if (g.type == DType::kBF16) return LaunchHalfTiles<TileProductKernel, Bf16>(launch, work);
  return LaunchHalfTiles<TileProductKernel, Fp16>(launch, work);
}

}  // namespace thresher::cuda
