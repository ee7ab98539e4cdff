#include "thresher/ops/conv_weight_gradient.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "thresher/kernels/arithmetic.h"
#include "thresher/kernels/kernel_params.h"
#include "thresher/kernels/weight_gradient.h"
#include "thresher/ops/common.h"
#include "thresher/ops/conv_geometry.h"

namespace thresher::ops {
namespace {

using kernels::Windows;
using thresher::ToString;  // of Dims

enum WeightGradientOperand { kGradient, kSeen };

Result<std::vector<TensorType>> InferWeightGradient(const InferContext& c) {
  THRESHER_TRY(WantFloat(c, kGradient, "gradient"));
  THRESHER_TRY(WantFloatLike0(c, kSeen, "x"));
  const Dims& gradient = c.inputs[kGradient].shape;
  const Dims& x = c.inputs[kSeen].shape;
  const std::string shapes = "gradient " + ToString(gradient) + " and x " + ToString(x);
  if (x.size() < 3 || x.size() > 5 || gradient.size() != x.size() || gradient[0] != x[0]) {
    return InvalidArgument(
        "expected gradient [N, positions..., K] and x [N, spatial..., C] with one to three spatial dimensions, got " +
        shapes);
  }
  const size_t rank = x.size() - 2;
  THRESHER_ASSIGN(const Geometry g, GeometryOf(c.attrs, rank));
  THRESHER_ASSIGN(const Dims kernel, PerDimension(c.attrs, "kernel", rank, 1, 1));
  const auto large = [](int64_t size) { return size >= kMostSize; };
  if (std::any_of(x.begin(), x.end(), large) || std::any_of(gradient.begin(), gradient.end(), large)) {
    return InvalidArgument("expected sizes below 2^31, got " + shapes);
  }
  if (g.groups < 1 || x.back() == 0 || gradient.back() == 0 || x.back() % g.groups != 0 ||
      gradient.back() % g.groups != 0) {
    return InvalidArgument("expected C and K that are multiples of groups, got " + shapes + " and groups " +
                           std::to_string(g.groups));
  }
  TensorType out{c.inputs[kGradient].dtype, {gradient.back()}};
  int64_t taps = 1;
  for (size_t d = 0; d < rank; ++d) {
    taps *= kernel[d];
    const int64_t room = x[d + 1] + g.before[d] + g.after[d] - g.dilation[d] * (kernel[d] - 1) - 1;
    if (room < 0 || gradient[d + 1] > room / g.stride[d] + 1 || taps > kMostAttr) {
      return InvalidArgument("expected no more positions of gradient than a kernel " + ToString(kernel) +
                             " has in the padded x, got " + shapes + " with padding " + ToString(g.before) +
                             ", stride " + ToString(g.stride) + " and dilation " + ToString(g.dilation));
    }
    out.shape.push_back(kernel[d]);
  }
  out.shape.push_back(x.back() / g.groups);
  return std::vector<TensorType>{std::move(out)};
}

Cost CostWeightGradient(const InferContext& c, std::span<const TensorType> outputs) {
  Cost cost = ElementwiseCost(c, outputs, 0);
  const Dims& gradient = c.inputs[kGradient].shape;
  const int64_t positions = NumElements(gradient) / gradient.back();
  cost.flops = 2.0 * static_cast<double>(NumElements(outputs[0].shape)) * static_cast<double>(positions);
  return cost;
}

// Sizes and strides are those of the operands.
struct WeightGradientParams {
  int64_t groups;
  int64_t kernel[3], stride[3], padding[3], dilation[3];
  int slabs, cuts;
  friend bool operator==(const WeightGradientParams&, const WeightGradientParams&) = default;
};

kernels::WeightGradientArgs ArgsOf(const WeightGradientParams& p, const View& gradient, const View& x) {
  kernels::WeightGradientArgs args;
  Windows& w = args.windows;
  const int last = x.rank - 1, outer = 4 - last;  // dimensions that x does not have
  w.channels = x.shape[last] / p.groups;
  w.x_batch = x.strides[0];
  for (int d = 0; d < 3; ++d) {
    w.kernel[d] = p.kernel[d];
    w.stride[d] = p.stride[d];
    w.padding[d] = p.padding[d];
    w.dilation[d] = p.dilation[d];
    if (d < outer) continue;
    const int from = d - outer + 1;
    w.in[d] = x.shape[from];
    w.x_strides[d] = x.strides[from];
    w.out[d] = gradient.shape[from];
    args.gradient_strides[d] = gradient.strides[from];
  }
  args.groups = p.groups;
  args.outputs = gradient.shape[last];
  args.batch = x.shape[0];
  args.x = x.as<const float>();
  args.x_channel = x.strides[last];
  args.gradient = gradient.as<const float>();
  args.gradient_batch = gradient.strides[0];
  args.gradient_channel = gradient.strides[last];
  args.slabs = p.slabs;
  args.cuts = p.cuts;
  return args;
}

Status WeightGradientStep(const StepContext& c) {
  kernels::WeightGradientArgs args = ArgsOf(c.as<WeightGradientParams>(), c.in(kGradient), c.in(kSeen));
  args.out = c.out().as<float>();
  kernels::WeightGradient(args, c.scratch, c.part, c.num_parts);
  return Status::Ok();
}

size_t WeightGradientScratch(const StepContext&) { return kernels::WeightGradientScratchBytes(); }

Status LowerWeightGradient(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (Empty(out)) return Status::Ok();
  if (!lowering.target().packs_weights()) return Unsupported("the device has no kernel for gradients of weights");
  const TensorRef gradient = lowering.Ref(node.inputs[kGradient]);
  const TensorRef x = lowering.Ref(node.inputs[kSeen]);
  if (Empty(gradient) || Empty(x)) {
    lowering.AddStep(KernelId::kFill, {}, {out}, kernels::FillParams{0});
    return Status::Ok();
  }
  const auto rank = static_cast<size_t>(x.view.rank - 2);
  THRESHER_ASSIGN(const Geometry g, GeometryOf(node.attrs, rank));
  THRESHER_ASSIGN(const Dims kernel, PerDimension(node.attrs, "kernel", rank, 1, 1));
  WeightGradientParams p{};
  p.groups = g.groups;
  for (size_t d = 0; d < 3; ++d) {
    const bool has = d + rank >= 3;
    const size_t from = d + rank - 3;
    p.kernel[d] = has ? kernel[from] : 1;
    p.stride[d] = has ? g.stride[from] : 1;
    p.padding[d] = has ? g.before[from] : 0;
    p.dilation[d] = has ? g.dilation[from] : 1;
  }
  const auto split = kernels::SplitWeightGradient(ArgsOf(p, gradient.view, x.view), lowering.num_threads());
  p.slabs = split.slabs;
  p.cuts = split.cuts;
  TensorRef slabs = out;
  if (p.slabs > 1) {
    Dims shape = ShapeOf(out.view);
    shape.insert(shape.begin(), p.slabs);
    slabs = lowering.AllocateTemporary(DType::kF32, shape);
  }
  lowering.AddStep(KernelId::kWeightGradient, {gradient, x}, {slabs}, p);
  if (p.slabs == 1) return Status::Ok();
  Step& sum = lowering.AddStep(KernelId::kReduce, {slabs}, {out}, kernels::ReduceParams{kernels::ReduceOp::kSum, 1});
  sum.name = "sum";
  sum.flops = static_cast<double>(slabs.view.size());
  sum.bytes = static_cast<double>(sizeof(float)) * static_cast<double>(slabs.view.size() + out.view.size());
  return Status::Ok();
}

}  // namespace

OpDef WeightGradientOp() {
  return {
      "convolution_weight_gradient",
      "The gradient of a convolution as to its weight: gradient of the result [N, positions..., K], x [N, spatial..., "
      "C], result [K, kernel..., C / groups].",
      {"gradient", "x"},
      {{"kernel", AttrType::kInts, true, "sizes of the weight, one a spatial dimension"},
       {"stride", AttrType::kInts, false, "as of convolution"},
       {"padding", AttrType::kInts, false, "as of convolution"},
       {"dilation", AttrType::kInts, false, "as of convolution"},
       {"groups", AttrType::kInt, false, "as of convolution"}},
      Section::kForward,
      InferWeightGradient,
      CostWeightGradient,
      LowerWeightGradient};
}

CpuKernel WeightGradientKernel() { return {KernelId::kWeightGradient, WeightGradientStep, WeightGradientScratch}; }

}  // namespace thresher::ops
