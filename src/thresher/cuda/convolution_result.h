// What kernels of convolutions, and of products in tiles, do with a sum: bias, activation and residual, and where it
// goes.
#pragma once

#include <cstdint>

#include "thresher/base/view.h"
#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/gemv_kernel.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/stored.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/convolution_params.h"

namespace thresher::cuda {

// Rows are output positions, columns the outputs of all groups.
struct ConvolutionResult {
  const void* bias;      // or null
  const void* residual;  // or null; of the type of c
  void* c;
  float* partial;  // [splits, rows, cols]: sums of a part of k, which a kernel of their own adds up; null: none
  int64_t rows, cols, ldr;
  int32_t aligned;  // so many elements of c can be stored at once: 8, 4, 2 or 1
  DType bias_dtype, dtype;
  kernels::Activation activation;
  bool residual_first;

  static ConvolutionResult Of(const kernels::ConvolutionParams& p, const View* operands) {
    const View &b = operands[2], &r = operands[3], &out = operands[4];
    ConvolutionResult result{};
    result.bias = b.data;
    result.bias_dtype = b.dtype;
    result.residual = r.data;
    result.c = out.data;
    result.dtype = out.dtype;
    result.rows = p.m;
    result.cols = p.n * p.shape.groups;
    result.ldr = p.ldr;
    result.activation = p.shape.activation;
    result.residual_first = p.shape.residual_first;
    result.Align();
    return result;
  }

  // Of a product whose rows of c have no gaps.
  static ConvolutionResult Of(const Gemm& g) {
    ConvolutionResult result{};
    result.bias = g.bias;
    result.bias_dtype = result.dtype = g.c_type;
    result.residual = g.residual;
    result.c = g.c;
    result.rows = g.m;
    result.cols = g.n;
    result.ldr = g.ldr;
    result.activation = g.activation;
    result.residual_first = g.residual_first;
    result.Align();
    return result;
  }

  THRESHER_DEVICE float Finish(int64_t row, int64_t col, float sum) const {
    if (bias != nullptr) sum += LoadElement(bias, bias_dtype, col);
    const float added = residual != nullptr ? LoadElement(residual, dtype, row * ldr + col) : 0.0f;
    if (residual_first) sum += added;
    // Its error is far below what a float of 16 bits keeps.
    const bool quick = activation == kernels::Activation::kGelu && dtype != DType::kF32;
    sum = quick ? GeluOf(sum) : Activate(activation, sum);
    return residual_first ? sum : sum + added;
  }

  // The sums of `count` neighbouring columns, of kCount that a thread has; all of them where memory allows it.
  template <int kCount>
  THRESHER_DEVICE void Store(int64_t row, int64_t col, int count, const float (&sums)[kCount]) const {
    float out[kCount];
    THRESHER_UNROLL
    for (int i = 0; i < kCount; ++i) out[i] = i < count ? Finish(row, col + i, sums[i]) : 0.0f;
    const int64_t at = row * cols + col;
    if (kCount > 1 && count == kCount && aligned >= kCount && at % kCount == 0) {
      if (dtype == DType::kF32) {
        StoreRun<kCount>(out, at);
      } else {
        uint32_t words[kCount / 2 + kCount % 2];
        THRESHER_UNROLL
        for (int i = 0; i < kCount / 2; ++i) {
          words[i] = dtype == DType::kBF16 ? BF16Pair(out[2 * i], out[2 * i + 1]) : F16Pair(out[2 * i], out[2 * i + 1]);
        }
        StoreWords<(kCount > 1 ? kCount / 2 : 1)>(words, c, at / kCount);
      }
      return;
    }
    THRESHER_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (i < count) StoreElement(c, dtype, at + i, out[i]);
    }
  }

  // The same, or a part of the sums, of split `split`.
  template <int kCount>
  THRESHER_DEVICE void Take(int split, int64_t row, int64_t col, int count, const float (&sums)[kCount]) const {
    if (partial == nullptr) return Store(row, col, count, sums);
    float* const to = partial + (split * rows + row) * cols + col;
    THRESHER_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (i < count) to[i] = sums[i];
    }
  }

 private:
  void Align() {
    aligned = dtype == DType::kF32 ? 4 : 8;
    while (cols % aligned != 0) aligned /= 2;
    if (!IsAligned(c)) aligned = 1;
  }

  template <int kCount>
  THRESHER_DEVICE void StoreRun(const float (&out)[kCount], int64_t at) const {
    constexpr int kPiece = kCount < 4 ? kCount : 4;
    uint32_t words[kCount];
    THRESHER_UNROLL
    for (int i = 0; i < kCount; ++i) words[i] = BitsOf(out[i]);
    THRESHER_UNROLL
    for (int i = 0; i < kCount; i += kPiece) StoreWords<kPiece>(words + i, c, (at + i) / kPiece);
  }
};

// What follows sums that are rounded already, in place: those of another library.
struct ConvolutionEndKernel {
  static constexpr int kMostThreads = 256;
  ConvolutionResult result;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t size = result.rows * result.cols, first = t.block() * t.width() + t.x();
    const int64_t step = t.num_blocks() * t.width();
    if (result.aligned >= 4) {
      for (int64_t i = first; i < size / 4; i += step) Finish<4>(i * 4);
    } else {
      for (int64_t i = first; i < size; i += step) Finish<1>(i);
    }
  }

 private:
  template <int kRun>
  THRESHER_DEVICE void Finish(int64_t at) const {
    Floats::Raw raw[kRun];
    float sums[kRun];
    Floats::Load<kRun>(result.dtype, result.c, at, false, raw);
    Floats::Widen<kRun>(result.dtype, raw, sums);
    result.Store(at / result.cols, at % result.cols, kRun, sums);
  }
};

// Adds up what `splits` blocks left of each sum.
struct ConvolutionMergeKernel {
  static constexpr int kMostThreads = 256;
  ConvolutionResult result;
  int32_t splits;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t size = result.rows * result.cols;
    for (int64_t i = t.block() * t.width() + t.x(); i < size; i += t.num_blocks() * t.width()) {
      float sum[1] = {0.0f};
      for (int s = 0; s < splits; ++s) sum[0] += result.partial[s * size + i];
      result.Store(i / result.cols, i % result.cols, 1, sum);
    }
  }
};

}  // namespace thresher::cuda
