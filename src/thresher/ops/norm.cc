// Normalisations along rows: layer_norm, softmax, log_softmax.
#include "thresher/kernels/norm.h"

#include "thresher/kernels/softmax.h"
#include "thresher/ops/common.h"

namespace thresher {
namespace {

// ---- layer_norm ----

Result<std::vector<TensorType>> InferLayerNorm(const InferContext& c) {
  THRESHER_TRY(ops::WantF32(c, 0, "x"));
  THRESHER_TRY(ops::WantF32(c, 1, "weight"));
  THRESHER_TRY(ops::WantF32(c, 2, "bias"));
  const Dims& x = c.inputs[0].shape;
  const int64_t dims = GetAttr<int64_t>(c.attrs, "dims", 1);
  if (dims < 1 || dims > static_cast<int64_t>(x.size())) {
    return InvalidArgument("wanted dims in [1, " + std::to_string(x.size()) + "], found " + std::to_string(dims));
  }
  const Dims tail(x.end() - dims, x.end());
  for (size_t i = 1; i < 3; ++i) {
    if (c.inputs[i].present && c.inputs[i].shape != tail) {
      return InvalidArgument("wanted weight and bias " + ToString(tail) + ", found " + ToString(c.inputs[i].shape));
    }
  }
  return ops::One(DType::kF32, x);
}

// Mean (1), variance (2), difference and scale (2), weight and bias (2).
Cost CostLayerNorm(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ElementwiseCost(c, outputs, 7);
}

struct LayerNormParams {
  int64_t rows, cols, row_stride;
  float eps;
};

Status LayerNormStep(const StepContext& c) {
  const auto& p = c.as<LayerNormParams>();
  kernels::LayerNormArgs args;
  args.x = c.in(0).as<const float>();
  args.row_stride = p.row_stride;
  args.weight = c.in(1).as<const float>();
  args.bias = c.in(2).as<const float>();
  args.eps = p.eps;
  args.out = c.out().as<float>();
  args.out_row_stride = p.cols;
  args.rows = p.rows;
  args.cols = p.cols;
  kernels::LayerNorm(args, c.part, c.num_parts);
  return Status::Ok();
}

Status LowerLayerNorm(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  const int64_t dims = GetAttr<int64_t>(node.attrs, "dims", 1);
  LayerNormParams p{};
  p.eps = static_cast<float>(GetAttr<double>(node.attrs, "eps", 1e-5));
  TensorRef x = lowering.Ref(node.inputs[0]);
  int64_t cols;
  if (dims != 1 || !ops::AsRows(x.view, &p.rows, &cols, &p.row_stride)) x = lowering.Contiguous(x);
  if (dims == 1) {
    ops::AsRows(x.view, &p.rows, &p.cols, &p.row_stride);
  } else {
    p.cols = 1;
    for (int64_t i = 0; i < dims; ++i) p.cols *= x.view.shape[x.view.rank - 1 - i];
    p.rows = x.view.size() / p.cols;
    p.row_stride = p.cols;
  }
  const TensorRef weight = lowering.Contiguous(lowering.Ref(node.inputs[1]));
  const TensorRef bias = lowering.Contiguous(lowering.Ref(node.inputs[2]));
  lowering.AddStep(LayerNormStep, {x, weight, bias}, {out}, p);
  return Status::Ok();
}

// ---- softmax ----

Result<std::vector<TensorType>> InferSoftmax(const InferContext& c) {
  THRESHER_TRY(ops::WantF32(c, 0, "x"));
  const Result<int> dim = ops::NormalizeDim(GetAttr<int64_t>(c.attrs, "dim", -1), ops::Rank(c.inputs[0]), "dim");
  if (!dim.ok()) return dim.status();
  return ops::One(DType::kF32, c.inputs[0].shape);
}

// Maximum, difference, exp (counted as one), sum and division.
Cost CostSoftmax(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ElementwiseCost(c, outputs, 5);
}

struct SoftmaxParams {
  int64_t outer, dim, inner;
  bool log;
};

Status SoftmaxStep(const StepContext& c) {
  const auto& p = c.as<SoftmaxParams>();
  kernels::Softmax(c.in(0).as<const float>(), c.out().as<float>(), p.outer, p.dim, p.inner, p.log, c.part, c.num_parts);
  return Status::Ok();
}

template <bool kLog>
Status LowerSoftmax(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  const View& v = out.view;
  THRESHER_ASSIGN(const int dim, ops::NormalizeDim(GetAttr<int64_t>(node.attrs, "dim", -1), v.rank, "dim"));
  SoftmaxParams p{1, v.rank == 0 ? 1 : v.shape[dim], 1, kLog};
  for (int i = 0; i < dim; ++i) p.outer *= v.shape[i];
  for (int i = dim + 1; i < v.rank; ++i) p.inner *= v.shape[i];
  lowering.AddStep(SoftmaxStep, {lowering.Contiguous(lowering.Ref(node.inputs[0]))}, {out}, p);
  return Status::Ok();
}

}  // namespace

std::span<const OpDef> NormOps() {
  static const std::vector<OpDef> rows = {
      {"layer_norm",
       "(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions.",
       {"x", "weight?", "bias?"},
       {{"eps", AttrType::kFloat, false, "added to the variance; default 1e-5"},
        {"dims", AttrType::kInt, false, "how many trailing dimensions are normalised; default 1"}},
       Section::kForward,
       InferLayerNorm,
       CostLayerNorm,
       LowerLayerNorm},
      {"softmax",
       "exp(x) / sum(exp(x)) along one dimension.",
       {"x"},
       {{"dim", AttrType::kInt, false, "default -1"}},
       Section::kForward,
       InferSoftmax,
       CostSoftmax,
       LowerSoftmax<false>},
      {"log_softmax",
       "log(softmax(x)) along one dimension.",
       {"x"},
       {{"dim", AttrType::kInt, false, "default -1"}},
       Section::kForward,
       InferSoftmax,
       CostSoftmax,
       LowerSoftmax<true>},
  };
  return rows;
}

}  // namespace thresher
