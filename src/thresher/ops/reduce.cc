// Reductions: sum, mean, amax, amin; and the running sum.
#include "thresher/kernels/reduce.h"

#include <utility>

#include "thresher/kernels/scan.h"
#include "thresher/ops/common.h"

namespace thresher {
namespace {

using kernels::CumSumParams;
using kernels::ReduceOp;
using kernels::ReduceParams;

// The dimensions as a bit set; an empty list means all, as in torch.
Result<uint32_t> DimsMask(const Attrs& attrs, int rank) {
  const auto dims = GetAttr<std::vector<int64_t>>(attrs, "dims", {});
  uint32_t mask = 0;
  if (dims.empty()) return rank == 0 ? 0u : (1u << rank) - 1;
  for (const int64_t d : dims) {
    THRESHER_ASSIGN(const int dim, ops::NormalizeDim(d, rank, "a dimension"));
    if ((mask >> dim) & 1) return InvalidArgument("dimension " + std::to_string(dim) + " appears twice");
    mask |= 1u << dim;
  }
  return rank == 0 ? 0u : mask;
}

template <ReduceOp op>
Result<std::vector<TensorType>> InferReduce(const InferContext& c) {
  const OperandType& x = c.inputs[0];
  if (!kernels::Supports(op, ComputeType(x.dtype))) {
    return Unsupported("type " + std::string(Name(x.dtype)) + " is not supported; cast first");
  }
  THRESHER_ASSIGN(const uint32_t mask, DimsMask(c.attrs, ops::Rank(x)));
  const bool keepdim = GetAttr<bool>(c.attrs, "keepdim", false);
  Dims shape;
  for (size_t i = 0; i < x.shape.size(); ++i) {
    const bool reduced = (mask >> i) & 1;
    if ((op == ReduceOp::kMax || op == ReduceOp::kMin) && reduced && x.shape[i] == 0) {
      return InvalidArgument("cannot reduce over dimension " + std::to_string(i) + " of size 0: it has no extreme");
    }
    if (!reduced) {
      shape.push_back(x.shape[i]);
    } else if (keepdim) {
      shape.push_back(1);
    }
  }
  return ops::One(x.dtype, std::move(shape));
}

Cost CostReduce(const InferContext& c, std::span<const TensorType> outputs) {
  Cost cost = ops::ElementwiseCost(c, outputs, 0);
  cost.flops = static_cast<double>(NumElements(c.inputs[0].shape));
  return cost;
}

Status ReduceStep(const StepContext& c) {
  const auto& p = c.as<ReduceParams>();
  kernels::Reduce(p.op, c.in(0), p.mask, c.out(), c.part, c.num_parts);
  return Status::Ok();
}

template <ReduceOp op>
Status LowerReduce(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  const TensorRef x = lowering.Ref(node.inputs[0]);
  THRESHER_ASSIGN(const uint32_t mask, DimsMask(node.attrs, x.view.rank));
  lowering.AddStep(KernelId::kReduce, {x}, {out}, ReduceParams{op, mask});
  return Status::Ok();
}

template <ReduceOp op>
OpDef Row() {
  return {kernels::Name(op),
          kernels::Doc(op),
          {"x"},
          {{"dims", AttrType::kInts, false, "the dimensions to reduce; none or empty means all"},
           {"keepdim", AttrType::kBool, false, "keep them with size 1"}},
          Section::kForward,
          InferReduce<op>,
          CostReduce,
          LowerReduce<op>};
}

// ---- cumsum ----

Result<std::vector<TensorType>> InferCumSum(const InferContext& c) {
  const OperandType& x = c.inputs[0];
  if (!kernels::SupportsCumSum(ComputeType(x.dtype))) {
    return Unsupported("type " + std::string(Name(x.dtype)) + " is not supported; cast first");
  }
  THRESHER_ASSIGN(const int dim, ops::NormalizeDim(GetAttr<int64_t>(c.attrs, "dim", 0), ops::Rank(x), "dim"));
  static_cast<void>(dim);
  return ops::One(x.dtype, x.shape);
}

Status CumSumStep(const StepContext& c) {
  kernels::CumSum(c.in(0), c.as<CumSumParams>().dim, c.out(), c.part, c.num_parts);
  return Status::Ok();
}

Status LowerCumSum(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  const TensorRef x = lowering.Ref(node.inputs[0]);
  THRESHER_ASSIGN(const int dim, ops::NormalizeDim(GetAttr<int64_t>(node.attrs, "dim", 0), x.view.rank, "dim"));
  lowering.AddStep(KernelId::kCumSum, {x}, {out}, CumSumParams{dim});
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> ReduceKernels() {
  static const CpuKernel kernels[] = {{KernelId::kReduce, ReduceStep}, {KernelId::kCumSum, CumSumStep}};
  return kernels;
}

std::span<const OpDef> ReduceOps() {
  static const std::vector<OpDef> rows = {Row<ReduceOp::kSum>(),
                                          Row<ReduceOp::kMean>(),
                                          Row<ReduceOp::kMax>(),
                                          Row<ReduceOp::kMin>(),
                                          {"cumsum",
                                           "Running sums along one dimension.",
                                           {"x"},
                                           {{"dim", AttrType::kInt, true, "the dimension summed along"}},
                                           Section::kForward,
                                           InferCumSum,
                                           CostReduce,
                                           LowerCumSum}};
  return rows;
}

}  // namespace thresher
