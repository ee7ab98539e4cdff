// Operators that order elements: sort, argmax, argmin.
#include "thresher/kernels/sort.h"

#include <utility>

#include "thresher/ops/common.h"

namespace thresher {
namespace {

using kernels::ArgExtremeParams;
using kernels::SortParams;

Result<int> DimOf(const Attrs& attrs, int rank) {
  return ops::NormalizeDim(GetAttr<int64_t>(attrs, "dim", -1), rank, "dim");
}

// ---- sort ----

Result<std::vector<TensorType>> InferSort(const InferContext& c) {
  const OperandType& x = c.inputs[0];
  if (!kernels::SupportsSort(ComputeType(x.dtype))) {
    return Unsupported("type " + std::string(Name(x.dtype)) + " is not supported; cast first");
  }
  THRESHER_ASSIGN(const int dim, DimOf(c.attrs, ops::Rank(x)));
  const int64_t size = x.shape.empty() ? 1 : x.shape[static_cast<size_t>(dim)];
  const int64_t kept = GetAttr<int64_t>(c.attrs, "k", size);
  if (kept < 0 || kept > size) {
    return InvalidArgument("expected k in [0, " + std::to_string(size) + "], got " + std::to_string(kept));
  }
  Dims shape = x.shape;
  if (!shape.empty()) {
    shape[static_cast<size_t>(dim)] = kept;
  } else if (kept == 0) {
    return InvalidArgument("expected k 1 for a scalar, got 0");
  }
  return std::vector<TensorType>{{x.dtype, shape}, {DType::kI64, shape}};
}

// A comparison is taken for an operation: n log n of them a line.
Cost CostSort(const InferContext& c, std::span<const TensorType> outputs) {
  Cost cost = ops::ElementwiseCost(c, outputs, 0);
  const Dims& x = c.inputs[0].shape;
  const Result<int> dim = DimOf(c.attrs, static_cast<int>(x.size()));
  const int64_t size = x.empty() || !dim.ok() ? 1 : x[static_cast<size_t>(dim.value())];
  cost.flops = static_cast<double>(NumElements(x)) * (64 - __builtin_clzll(static_cast<uint64_t>(size) | 1));
  return cost;
}

Status SortStep(const StepContext& c) {
  const auto& p = c.as<SortParams>();
  kernels::Sort(c.in(0), p.dim, p.descending, c.out(0), c.out(1), c.scratch, c.part, c.num_parts);
  return Status::Ok();
}

size_t SortScratch(const StepContext& c) {
  const View& x = c.in(0);
  return kernels::SortScratchBytes(x.dtype, x.rank == 0 ? 1 : x.shape[c.as<SortParams>().dim]);
}

Status LowerSort(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef values = lowering.Allocate(node.outputs[0]);
  const TensorRef indices = lowering.Allocate(node.outputs[1]);
  if (ops::Empty(values)) return Status::Ok();
  const TensorRef x = lowering.Ref(node.inputs[0]);
  THRESHER_ASSIGN(const int dim, DimOf(node.attrs, x.view.rank));
  lowering.AddStep(KernelId::kSort, {x}, {values, indices},
                   SortParams{dim, GetAttr<bool>(node.attrs, "descending", false)});
  return Status::Ok();
}

// ---- argmax, argmin ----

Result<std::vector<TensorType>> InferArgExtreme(const InferContext& c) {
  const OperandType& x = c.inputs[0];
  if (!kernels::SupportsArgExtreme(ComputeType(x.dtype))) {
    return Unsupported("type " + std::string(Name(x.dtype)) + " is not supported; cast first");
  }
  THRESHER_ASSIGN(const int dim, DimOf(c.attrs, ops::Rank(x)));
  Dims shape = x.shape;
  if (!shape.empty()) {
    if (shape[static_cast<size_t>(dim)] == 0) {
      return InvalidArgument("cannot reduce over dimension " + std::to_string(dim) + " of size 0: it has no extreme");
    }
    shape.erase(shape.begin() + dim);
  }
  return ops::One(DType::kI64, std::move(shape));
}

Cost CostArgExtreme(const InferContext& c, std::span<const TensorType> outputs) {
  Cost cost = ops::ElementwiseCost(c, outputs, 0);
  cost.flops = static_cast<double>(NumElements(c.inputs[0].shape));
  return cost;
}

Status ArgExtremeStep(const StepContext& c) {
  const auto& p = c.as<ArgExtremeParams>();
  kernels::ArgExtreme(p.greatest, c.in(0), p.dim, c.out(), c.part, c.num_parts);
  return Status::Ok();
}

template <bool greatest>
Status LowerArgExtreme(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  const TensorRef x = lowering.Ref(node.inputs[0]);
  THRESHER_ASSIGN(const int dim, DimOf(node.attrs, x.view.rank));
  lowering.AddStep(KernelId::kArgExtreme, {x}, {out}, ArgExtremeParams{dim, greatest});
  return Status::Ok();
}

template <bool greatest>
OpDef ArgExtremeRow() {
  return {greatest ? "argmax" : "argmin",
          greatest ? "Where the greatest element of one dimension lies, the first of equal ones; NaN wins."
                   : "Where the least element of one dimension lies, the first of equal ones; NaN wins.",
          {"x"},
          {{"dim", AttrType::kInt, false, "the dimension, which disappears; default the last"}},
          Section::kForward,
          InferArgExtreme,
          CostArgExtreme,
          LowerArgExtreme<greatest>};
}

}  // namespace

std::span<const CpuKernel> SortKernels() {
  static const CpuKernel kernels[] = {{KernelId::kSort, SortStep, SortScratch},
                                      {KernelId::kArgExtreme, ArgExtremeStep}};
  return kernels;
}

std::span<const OpDef> SortOps() {
  static const std::vector<OpDef> rows = {
      {"sort",
       "One dimension in order, and where each element was; equal ones keep their order, NaN counts as the greatest.",
       {"x"},
       {{"dim", AttrType::kInt, false, "default the last"},
        {"descending", AttrType::kBool, false, "the greatest first"},
        {"k", AttrType::kInt, false, "how many to keep; default all"}},
       Section::kForward,
       InferSort,
       CostSort,
       LowerSort},
      ArgExtremeRow<true>(),
      ArgExtremeRow<false>(),
  };
  return rows;
}

}  // namespace thresher
