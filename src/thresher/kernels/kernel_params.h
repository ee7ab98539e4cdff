// What kernels want besides the views of their operands, where the CPU is not the only device that has them. Plain
// structs: a step of a plan holds their bytes, and libraries of other devices (device_api.h) read them.
// KernelId::kCopy, kCat, kCast and kWhere want nothing, kPointwise a Chain (pointwise_chain.h).
#pragma once

#include <cstdint>
#include <tuple>

#include "thresher/base/encoding.h"
#include "thresher/base/view.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/norm.h"
#include "thresher/kernels/pointwise.h"
#include "thresher/kernels/reduce.h"

namespace thresher {

struct NoParams {
  friend bool operator==(const NoParams&, const NoParams&) = default;
};

namespace kernels {

// KernelId::kUnary. Operands: x; out.
struct UnaryParams {
  UnaryOp op;
  friend bool operator==(const UnaryParams&, const UnaryParams&) = default;
};

// KernelId::kBinary. Operands: a, b; out, whose shape they have.
struct BinaryParams {
  BinaryOp op;
  friend bool operator==(const BinaryParams&, const BinaryParams&) = default;
};

// KernelId::kFill. Operands: out, row-major. `bits`: an element's bytes in its low end; an integer may follow the
// sizes.
struct FillParams {
  int64_t bits;

  static constexpr auto Sizes() { return std::tuple(&FillParams::bits); }
  friend bool operator==(const FillParams&, const FillParams&) = default;
};

// KernelId::kArange. Operands: out.
struct ArangeParams {
  double start, step;

  static constexpr auto Sizes() { return std::tuple(&ArangeParams::start, &ArangeParams::step); }
  friend bool operator==(const ArangeParams&, const ArangeParams&) = default;
};

// KernelId::kEmbedding. Operands: table, indices; out.
struct EmbeddingParams {
  Encoding blocks;  // of the table; kF32: its elements lie one by one, of whatever type
  friend bool operator==(const EmbeddingParams&, const EmbeddingParams&) = default;
};

// KernelId::kGather. Operands: x, indices; out.
struct GatherParams {
  int dim;
  friend bool operator==(const GatherParams&, const GatherParams&) = default;
};

// KernelId::kIndexPut. Operands: values, index tensors; out, which holds x. KernelId::kIndex wants nothing; operands:
// x, index tensors; out. See index.h.
struct IndexPutParams {
  bool accumulate;
  friend bool operator==(const IndexPutParams&, const IndexPutParams&) = default;
};

// KernelId::kReduce. Operands: x; out. `mask`: as Reduce (reduce.h) has it.
struct ReduceParams {
  ReduceOp op;
  uint32_t mask;
  friend bool operator==(const ReduceParams&, const ReduceParams&) = default;
};

// KernelId::kCumSum. Operands: x; out.
struct CumSumParams {
  int dim;
  friend bool operator==(const CumSumParams&, const CumSumParams&) = default;
};

// KernelId::kSort. Operands: x; values, indices.
struct SortParams {
  int dim;
  bool descending;
  friend bool operator==(const SortParams&, const SortParams&) = default;
};

// KernelId::kArgExtreme. Operands: x; out.
struct ArgExtremeParams {
  int dim;
  bool greatest;
  friend bool operator==(const ArgExtremeParams&, const ArgExtremeParams&) = default;
};

// KernelId::kLayerNorm, kRmsNorm. Operands: x, weight, bias, residual; out, sum. All but x and out may be absent; out,
// sum, weight and bias are row-major.
struct NormParams {
  int64_t rows, cols, row_stride, residual_row_stride;
  float eps;

  static constexpr auto Sizes() {
    return std::tuple(&NormParams::rows, &NormParams::cols, &NormParams::row_stride, &NormParams::residual_row_stride);
  }
  friend bool operator==(const NormParams&, const NormParams&) = default;
};

inline NormArgs ArgsOf(const NormParams& p, const View* operands) {
  NormArgs args;
  args.x = operands[0].as<const float>();
  args.row_stride = p.row_stride;
  args.weight = operands[1].as<const float>();
  args.bias = operands[2].as<const float>();
  args.residual = operands[3].as<const float>();
  args.residual_row_stride = p.residual_row_stride;
  args.eps = p.eps;
  args.out = operands[4].as<float>();
  args.out_row_stride = p.cols;
  args.sum = operands[5].as<float>();
  args.sum_row_stride = p.cols;
  args.rows = p.rows;
  args.cols = p.cols;
  return args;
}

// KernelId::kSoftmax. Operands: x; out. Both are row-major [outer, dim, inner].
struct SoftmaxParams {
  int64_t outer, dim, inner;
  bool log;

  static constexpr auto Sizes() {
    return std::tuple(&SoftmaxParams::outer, &SoftmaxParams::dim, &SoftmaxParams::inner);
  }
  friend bool operator==(const SoftmaxParams&, const SoftmaxParams&) = default;
};

// KernelId::kSdpa. Operands: q, k, v, mask (or absent); out: as SdpaArgs (attention.h) has them. Devices take q, k, v
// and out of f32 or all of one type of 16 bits.
struct SdpaParams {
  float scale;
  bool causal;
  bool masked;
  Precision precision;  // as in SdpaArgs
  friend bool operator==(const SdpaParams&, const SdpaParams&) = default;
};

// KernelId::kPagedAttention, kPagedAttentionMerge. Operands: state, q, starts, lengths, tables; out, partial: as
// PagedAttentionArgs (paged_attention.h) has them; on devices q and out are of any floats.
struct PagedAttentionParams {
  int64_t window, partial_rows;
  float scale, softcap;
  Encoding blocks;  // of the state; kF32: its type says it
  bool wide;        // the last operand is PagedAttentionArgs::wide_from
  friend bool operator==(const PagedAttentionParams&, const PagedAttentionParams&) = default;
};

// KernelId::kKvWrite. Operands: state, k, v, slots; on devices also cos and sin, by which keys are turned on the way
// (kRotary), or both absent.
struct KvWriteParams {
  Encoding blocks;   // as of PagedAttentionParams
  bool interleaved;  // as of RotaryParams
  friend bool operator==(const KvWriteParams&, const KvWriteParams&) = default;
};

// KernelId::kRotary. Operands: x, cos, sin; out: as RotaryArgs (rotary.h) has them; on devices all are of any floats.
struct RotaryParams {
  bool interleaved;
  friend bool operator==(const RotaryParams&, const RotaryParams&) = default;
};

// KernelId::kResample. Operands: x, the starts of all dimensions and then the positions of all taps, the weights of the
// taps; out, of the type of x. As ResampleArgs (resample.h) has them.
struct ResampleParams {
  int64_t batch, channels, x_batch, x_d, x_h, x_w, out_d, out_h, out_w;
  bool greatest;

  static constexpr auto Sizes() {
    using P = ResampleParams;
    return std::tuple(&P::batch, &P::channels, &P::x_batch, &P::x_d, &P::x_h, &P::x_w, &P::out_d, &P::out_h, &P::out_w);
  }
  friend bool operator==(const ResampleParams&, const ResampleParams&) = default;
};

// KernelId::kStoredProduct: C = act(A B + bias) + residual for each product of a batch, all row-major. Operands: a, b,
// bias (or absent), residual (or absent); c. Sums are f32. a and b have one float type, or b is in blocks; c is f32 or
// the float type of a; bias and residual have the type of c.
struct StoredProductParams {
  int64_t m, n, k;                       // at least 1
  int64_t lda, ldb, ldc, ldr;            // elements from row to row; ldr: of the residual
  int64_t batch;                         // at least 1; beyond that neither bias nor residual
  int64_t stride_a, stride_b, stride_c;  // elements from one product's matrix to the next one's; 0: one for all
  Activation activation;
  Encoding encoding;    // of b; in blocks it is [n, k] without gaps
  bool transpose_a;     // a is [k, m], else [m, k]
  bool transpose_b;     // b is [n, k], else [k, n]
  bool residual_first;  // the residual is added before the activation
  bool allow_tf32;      // f32 may be rounded to 10 bits of fraction on the way in

  static constexpr auto Sizes() {
    using P = StoredProductParams;
    return std::tuple(&P::m, &P::n, &P::k, &P::lda, &P::ldb, &P::ldc, &P::ldr, &P::batch, &P::stride_a, &P::stride_b,
                      &P::stride_c);
  }
  friend bool operator==(const StoredProductParams&, const StoredProductParams&) = default;
};

// KernelId::kGroupedProduct on devices that take weights as they are stored. Operands: x [rows, k], the end of each
// group's rows (i64 or i32), the weights [n, k] without gaps; c [rows, n]. Rows behind the last end become 0.
struct StoredGroupsParams {
  int64_t rows, n, k, lda;  // lda: elements from row to row of x
  int32_t groups;
  Encoding encoding;  // of the weights: that of x, or blocks

  static constexpr auto Sizes() {
    using P = StoredGroupsParams;
    return std::tuple(&P::rows, &P::n, &P::k, &P::lda);
  }
  friend bool operator==(const StoredGroupsParams&, const StoredGroupsParams&) = default;
};

}  // namespace kernels
}  // namespace thresher
