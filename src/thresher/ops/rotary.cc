// Rotary positions.
#include "thresher/kernels/rotary.h"

#include "thresher/ops/common.h"

namespace thresher {
namespace {

Result<std::vector<TensorType>> InferRotary(const InferContext& c) {
  for (size_t i = 0; i < 3; ++i) {
    static constexpr const char* kNames[] = {"x", "cos", "sin"};
    THRESHER_TRY(ops::WantFloat(c, i, kNames[i]));
  }
  const Dims& x = c.inputs[0].shape;
  const Dims& cos = c.inputs[1].shape;
  const Dims& sin = c.inputs[2].shape;
  if (x.size() != 3 || cos.size() != 2 || cos != sin || cos[0] != x[0] || cos[1] < 1 || 2 * cos[1] > x[2]) {
    return InvalidArgument(
        "expected x [tokens, heads, head size] and cos and sin [tokens, pairs], at most head size / 2 of them, got " +
        ToString(x) + ", " + ToString(cos) + ", " + ToString(sin));
  }
  return ops::One(c.inputs[0].dtype, x);
}

Cost CostRotary(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ElementwiseCost(c, outputs, 3);
}

using kernels::RotaryParams;

Status RotaryStep(const StepContext& c) {
  kernels::Rotary({c.in(0), c.in(1), c.in(2), c.out(), c.as<RotaryParams>().interleaved}, c.part, c.num_parts);
  return Status::Ok();
}

Status LowerRotary(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  std::vector<TensorRef> operands;
  for (const ValueId id : node.inputs) operands.push_back(lowering.InnerContiguous(lowering.Ref(id)));
  lowering.AddStep(KernelId::kRotary, std::move(operands), {out},
                   RotaryParams{GetAttr<bool>(node.attrs, "interleaved", false)});
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> RotaryKernels() {
  static const CpuKernel kernels[] = {{KernelId::kRotary, RotaryStep}};
  return kernels;
}

std::span<const OpDef> RotaryOps() {
  static const std::vector<OpDef> rows = {
      {"rotary",
       "Pairs (a, b) of each head's elements turned by their token's angles: (a cos - b sin, b cos + a sin).",
       {"x", "cos", "sin"},
       {{"interleaved", AttrType::kBool, false,
         "a pair is elements 2i and 2i + 1; default: i and i + pairs. Elements behind the pairs stay"}},
       Section::kForward,
       InferRotary,
       CostRotary,
       LowerRotary},
  };
  return rows;
}

}  // namespace thresher
