// Helpers shared by the operator rows: shape arithmetic, cost, and windows on windows.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/graph/graph.h"
#include "thresher/graph/operator.h"
#include "thresher/kernels/kernel_params.h"
#include "thresher/plan/cpu_kernel.h"
#include "thresher/plan/lowering.h"

namespace thresher::ops {

template <class Params>
const Params& ParamsOf(const Step& step) {
  return *reinterpret_cast<const Params*>(step.params.data());
}
template <class Params>
Params& ParamsOf(Step& step) {
  return *reinterpret_cast<Params*>(step.params.data());
}

inline int Rank(const TensorType& type) { return static_cast<int>(type.shape.size()); }

inline int64_t Bytes(const TensorType& type) {
  return NumElements(type.shape) * static_cast<int64_t>(SizeOf(type.dtype));
}
inline int64_t Bytes(const OperandType& type) {
  return type.blocks ? EncodedBytes(*type.blocks, NumElements(type.shape))
                     : Bytes(static_cast<const TensorType&>(type));
}

inline Dims ShapeOf(const View& view) { return Dims(view.shape, view.shape + view.rank); }

// "f32[2, 3]".
std::string ToString(const TensorType& type);

// One output: what every row but a few returns.
inline Result<std::vector<TensorType>> One(DType dtype, Dims shape) {
  return std::vector<TensorType>{TensorType{dtype, std::move(shape)}};
}

// numpy's rule; an error names both shapes.
Result<Dims> Broadcast(const Dims& a, const Dims& b);

// `dim` counted from the front, or an error that states the legal range. Rank 0 counts as 1.
Result<int> NormalizeDim(int64_t dim, int rank, const char* what);

// Same data, expanded to `shape` with strides of 0 (shape must be a legal broadcast of the view's own).
TensorRef ExpandTo(const TensorRef& ref, const Dims& shape);

// `ref`, or a row-major copy when AsRows refuses it.
TensorRef RowsOrCopy(const TensorRef& ref, Lowering& lowering);

// Bytes of all operands and outputs, `flops_per_output` for each output element.
Cost ElementwiseCost(const InferContext& c, std::span<const TensorType> outputs, double flops_per_output);
// Data movement: no arithmetic.
Cost MoveCost(const InferContext& c, std::span<const TensorType> outputs);

// Wants f32 for operand `index`.
Status WantF32(const InferContext& c, size_t index, const char* name);
// Wants a float of any width for operand `index`.
Status WantFloat(const InferContext& c, size_t index, const char* name);
// Wants a float for operand `index`, and the same one as operand 0.
Status WantFloatLike0(const InferContext& c, size_t index, const char* name);

// Whether a window has no element, so that no step is needed.
inline bool Empty(const TensorRef& ref) { return ref.view.size() == 0; }

}  // namespace thresher::ops
