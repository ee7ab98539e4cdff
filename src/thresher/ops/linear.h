// What linear and linears share: the product of x with packed weights.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "thresher/base/precision.h"
#include "thresher/base/status.h"
#include "thresher/graph/operator.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/plan/cpu_kernel.h"
#include "thresher/plan/lowering.h"

namespace thresher::ops {

// act(x [W0 W1 ...] + [b0 b1 ...]) + residual. Several weights, and then their biases too, are constants.
struct Product {
  ValueId x = kNoValue;
  std::vector<ValueId> weights;
  std::vector<ValueId> biases;  // one a weight, or none at all
  ValueId residual = kNoValue;
  ValueId wide_from = kNoValue;  // i32 [1]: the first row that may be multiplied by weights in blocks as bf16
};

// Packs `batch` matrices of k x n that lie batch_stride elements apart, in as many taps as Weight has them.
struct PackParams {
  int64_t k, n, stride_k, stride_n;
  int64_t batch, batch_stride;
  int64_t taps = 1, stride_tap = 0;
  int64_t first = 0;                            // element of the operand that the first matrix begins with
  WinogradTile winograd = WinogradTile::kNone;  // as Weight's

  static constexpr auto Sizes() {
    return std::tuple(&PackParams::k, &PackParams::n, &PackParams::stride_k, &PackParams::stride_n, &PackParams::batch,
                      &PackParams::batch_stride, &PackParams::taps, &PackParams::stride_tap, &PackParams::first);
  }
  friend bool operator==(const PackParams&, const PackParams&) = default;
};

// Adds a step that packs a 2-D or batched [batch, k, n] window at run time.
TensorRef AddPack(const TensorRef& b, const PackParams& params, Lowering& lowering);

// A product of rows of floats, which are lda apart, with a result without gaps; what it reads and writes is to be set.
inline kernels::GemmArgs FloatProduct(int64_t m, int64_t n, int64_t k, int64_t lda) {
  kernels::GemmArgs args;
  args.m = m;
  args.n = n;
  args.k = k;
  args.lda = lda;
  args.ldc = n;
  return args;
}

// The rows of attributes that both operators have: layout, activation, precision.
const std::vector<AttrSpec>& ProductAttrs();
// Whether their values are known.
Status CheckProductAttrs(const Attrs& attrs);

// Whether an operand may be a product's wide_from.
Status CheckWideFrom(const OperandType& type);

// The type of x times one weight, or what does not fit. The bias may be absent.
Result<TensorType> ProductType(const Attrs& attrs, const OperandType& x, const OperandType& weight,
                               const OperandType& bias);

// `added`: how many tensors are added to each product.
Cost ProductCost(const InferContext& c, std::span<const TensorType> outputs, int added);

// Where each weight's columns begin in the result of one product, and, as the last entry, its width. Where weights are
// packed, each begins with a panel of its own; the columns up to there hold zeros put through the activation.
std::vector<int64_t> ProductColumns(const std::vector<int64_t>& n, const Target& target);

// What weights are stored in and multiplied as: what the attribute says, else what they are stored in.
Precision PrecisionOf(const Product& product, const Attrs& attrs, const Graph& graph);

// Elements from one row of `columns` bf16 to the next.
int64_t RowStride(int64_t columns);
// Whether products of rows or windows in this form take and store rows of bf16 (kernels::StoresRows()).
constexpr bool HasStoredRows(kernels::RowForm form) {
  return form == kernels::RowForm::kBF16 || form == kernels::RowForm::kInt8;
}
// StoreRowsFn of a step whose one result is m x n.
bool StoresResultAsRows(Step& writer, int64_t m, int64_t n, StoredRows& rows);
// TakeRowsFn of a product with a result of so many rows and columns that HasStoredRows(), for its residual, whose rows
// lie ldr apart.
Taken TakesResidualAsRows(Step& product, int buffer, int64_t& ldr, StoredRows& rows);
// Bytes from one row of a result to the next, once it is decided whether such rows are stored.
int64_t ResultRowBytes(const View& out, int64_t columns);
// How many times as fast as floats such rows are multiplied, about.
double TimesFloats(kernels::RowForm form);
// What both have decided.
void SetRows(const StepContext& c, kernels::GemmDotArgs& args);

// x, whose rows lie lda apart, as products with weights in blocks take it; converted once for all that do.
TensorRef RowsInBlocks(ValueId id, const TensorRef& x, int64_t m, int64_t k, int64_t lda, Lowering& lowering);

// Emits the step that computes `out`: row-major, rows as many as x has, as wide as ProductColumns says.
Status LowerProduct(const Product& product, const Attrs& attrs, const TensorRef& out, Lowering& lowering);
// The same for targets that take weights as they are stored; as wide as all weights are.
Status LowerStoredProduct(const Product& product, const Attrs& attrs, const TensorRef& out, Lowering& lowering);

// `ref` in the type, by a step where it is not; once for all that want it where it is value `id`.
TensorRef AsType(DType dtype, const TensorRef& ref, ValueId id, Lowering& lowering);
// The step that multiplies x and weight as `p` tells of them and of the activation, and adds the product's biases and
// residual; x is no other than the rows are to be multiplied as.
Status AddStoredProduct(const Product& product, kernels::StoredProductParams p, const TensorRef& x,
                        const TensorRef& weight, const TensorRef& out, Lowering& lowering);

// Products of two batches with equal leading dimensions, of which each has one stride, for such targets.
Status LowerStoredMatmul(const TensorRef& a, const TensorRef& b, const TensorRef& out, Lowering& lowering);

// The distance from one matrix of a batch to the next, where its leading dimensions have one stride; 0 for a single one
// that stands for all.
int64_t BatchStride(const View& view);

// Forms of a value that lowering keeps (Lowering::Derived): those of a kernels::RowForm, from here on other types, and
// rows in blocks of which some are bf16, by the value that says from which on.
inline constexpr int kDerivedTypes = 64;
inline constexpr int kDerivedWide = 128;

}  // namespace thresher::ops
