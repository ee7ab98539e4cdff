// Normalisations along rows: layer_norm, rms_norm, softmax, log_softmax.
#include "thresher/kernels/norm.h"

#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/kernel_params.h"
#include "thresher/kernels/softmax.h"
#include "thresher/ops/common.h"
#include "thresher/ops/linear.h"

namespace thresher {
namespace {

using kernels::NormArgs;
using kernels::NormParams;
using kernels::SoftmaxParams;

// ---- layer_norm, rms_norm ----

// Operands are x, weight, then the bias (layer_norm only), then the residual.
template <bool kRms>
constexpr size_t kResidual = kRms ? 2 : 3;

// Of a step's operands; without a bias or a residual there is an empty one (kernels::ArgsOf).
constexpr size_t kNormResidual = 3, kNormOut = 4;

template <bool kRms>
Result<std::vector<TensorType>> InferNorm(const InferContext& c) {
  static constexpr const char* kNames[] = {"x", "weight", kRms ? "residual" : "bias", "residual"};
  for (size_t i = 0; i <= kResidual<kRms>; ++i) THRESHER_TRY(ops::WantFloat(c, i, kNames[i]));
  THRESHER_TRY(ops::WantFloatLike0(c, kResidual<kRms>, "residual"));
  const Dims& x = c.inputs[0].shape;
  const int64_t dims = GetAttr<int64_t>(c.attrs, "dims", 1);
  if (dims < 1 || dims > static_cast<int64_t>(x.size())) {
    return InvalidArgument("expected dims in [1, " + std::to_string(x.size()) + "], got " + std::to_string(dims));
  }
  const Dims tail(x.end() - dims, x.end());
  for (size_t i = 1; i < kResidual<kRms>; ++i) {
    if (c.inputs[i].present && c.inputs[i].shape != tail) {
      return InvalidArgument("expected weight and bias " + ToString(tail) + ", got " + ToString(c.inputs[i].shape));
    }
  }
  const OperandType& residual = c.inputs[kResidual<kRms>];
  if (residual.present && residual.shape != x) {
    return InvalidArgument("expected residual of the shape of x, " + ToString(x) + ", got " + ToString(residual.shape));
  }
  std::vector<TensorType> outputs(GetAttr<bool>(c.attrs, "sum", false) ? 2 : 1, TensorType{c.inputs[0].dtype, x});
  if (outputs.size() > 1 && !residual.present) {
    return InvalidArgument("expected a residual where the sum with it is asked for, got none");
  }
  return outputs;
}

// layer_norm: mean (1), variance (2), difference and scale (2), weight and bias (2). rms_norm: squares (2), scale (1),
// weight (1).
template <bool kRms>
Cost CostNorm(const InferContext& c, std::span<const TensorType> outputs) {
  Cost cost = ops::ElementwiseCost(c, outputs, 0);
  const double per_element = (kRms ? 4 : 7) + (c.inputs[kResidual<kRms>].present ? 1 : 0);
  cost.flops = per_element * static_cast<double>(NumElements(outputs[0].shape));
  return cost;
}

template <bool kRms>
Status NormStep(const StepContext& c) {
  NormArgs args = kernels::ArgsOf(c.as<NormParams>(), c.operands);
  if (const View& out = c.operands[kNormOut]; out.dtype == DType::kBF16) {
    args.out = nullptr;
    args.out_bf16 = out.as<BF16>();
    args.out_row_stride = out.strides[0];
  }
  (kRms ? kernels::RmsNorm : kernels::LayerNorm)(args, c.part, c.num_parts);
  return Status::Ok();
}

bool NormLines(const Step& norm, StepLines& lines) {
  constexpr int64_t kBytes = sizeof(float);
  const auto& p = ops::ParamsOf<NormParams>(norm);
  lines = {.positions = p.rows,
           .x_line = p.row_stride * kBytes,
           .added_line = p.residual_row_stride * kBytes,
           .line = ops::ResultRowBytes(norm.operands[kNormOut].view, p.cols),
           .added = kNormResidual};
  return true;
}

void CutNorm(void* params, const LineCut& cut) { static_cast<NormParams*>(params)->rows = cut.positions; }

// Where all who read the result would round it, and the sum with a residual does not wait in its place.
bool NormStoresRows(Step& norm, StoredRows& rows) {
  const auto& p = ops::ParamsOf<NormParams>(norm);
  rows.whole = true;
  return norm.operands[kNormResidual].buffer < 0 && p.cols % kernels::kStoredColumns == 0 &&
         ops::StoresResultAsRows(norm, p.rows, p.cols, rows);
}

// The operand as rows of `cols` elements; a copy where its strides do not allow it.
TensorRef NormRows(TensorRef ref, int64_t dims, int64_t cols, Lowering& lowering, int64_t* row_stride) {
  int64_t rows, last;
  if (dims == 1 && AsRows(ref.view, &rows, &last, row_stride)) return ref;
  *row_stride = cols;
  return lowering.Contiguous(ref);
}

template <bool kRms>
Status LowerNorm(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  const TensorRef sum = node.outputs.size() > 1 ? lowering.Allocate(node.outputs[1]) : TensorRef{};
  if (ops::Empty(out)) return Status::Ok();
  const Dims& shape = graph.value(node.inputs[0]).shape;
  const int64_t dims = GetAttr<int64_t>(node.attrs, "dims", 1);
  NormParams p{};
  p.eps = static_cast<float>(GetAttr<double>(node.attrs, "eps", 1e-5));
  p.cols = NumElements(Dims(shape.end() - dims, shape.end()));
  p.rows = NumElements(shape) / p.cols;
  const TensorRef x = NormRows(lowering.Ref(node.inputs[0]), dims, p.cols, lowering, &p.row_stride);
  const TensorRef weight = lowering.Contiguous(lowering.Ref(node.inputs[1]));
  const TensorRef bias = kRms ? TensorRef{} : lowering.Contiguous(lowering.Ref(node.inputs[2]));
  TensorRef residual = lowering.Ref(node.inputs[kResidual<kRms>]);
  if (residual.buffer >= 0) residual = NormRows(residual, dims, p.cols, lowering, &p.residual_row_stride);
  lowering.AddStep(kRms ? KernelId::kRmsNorm : KernelId::kLayerNorm, {x, weight, bias, residual}, {out, sum}, p);
  return Status::Ok();
}

bool NormCopiesRows(const InferContext& c, std::span<const TensorType>) {
  return GetAttr<int64_t>(c.attrs, "dims", 1) != 1;
}

const std::vector<AttrSpec>& NormAttrs() {
  static const std::vector<AttrSpec> attrs = {
      {"eps", AttrType::kFloat, false, "added to the variance or mean square; default 1e-5"},
      {"dims", AttrType::kInt, false, "how many trailing dimensions are normalised; default 1"},
      {"sum", AttrType::kBool, false, "x + residual as a second output"}};
  return attrs;
}

// ---- softmax ----

Result<std::vector<TensorType>> InferSoftmax(const InferContext& c) {
  THRESHER_TRY(ops::WantFloat(c, 0, "x"));
  const Result<int> dim = ops::NormalizeDim(GetAttr<int64_t>(c.attrs, "dim", -1), ops::Rank(c.inputs[0]), "dim");
  if (!dim.ok()) return dim.status();
  return ops::One(c.inputs[0].dtype, c.inputs[0].shape);
}

// Maximum, difference, exp (counted as one), sum and division.
Cost CostSoftmax(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ElementwiseCost(c, outputs, 5);
}

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
  lowering.AddStep(KernelId::kSoftmax, {lowering.Contiguous(lowering.Ref(node.inputs[0]))}, {out}, p);
  return Status::Ok();
}

bool SoftmaxCopiesRows(const InferContext&, std::span<const TensorType>) { return true; }

}  // namespace

std::span<const CpuKernel> NormKernels() {
  static const CpuKernel kernels[] = {{.id = KernelId::kLayerNorm,
                                       .run = NormStep<false>,
                                       .stores_rows = NormStoresRows,
                                       .replaced = 0,
                                       .lines = NormLines,
                                       .cut = CutNorm},
                                      {.id = KernelId::kRmsNorm,
                                       .run = NormStep<true>,
                                       .stores_rows = NormStoresRows,
                                       .replaced = 0,
                                       .lines = NormLines,
                                       .cut = CutNorm},
                                      {.id = KernelId::kSoftmax, .run = SoftmaxStep}};
  return kernels;
}

std::span<const OpDef> NormOps() {
  static const std::vector<OpDef> rows = {
      {"layer_norm",
       "(x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions of x, or of x + residual.",
       {"x", "weight?", "bias?", "residual?"},
       NormAttrs(),
       Section::kForward,
       InferNorm<false>,
       CostNorm<false>,
       LowerNorm<false>,
       Trait::kNone,
       NormCopiesRows},
      {"rms_norm",
       "x / sqrt(mean(x^2) + eps) * weight over the last dimensions of x, or of x + residual.",
       {"x", "weight?", "residual?"},
       NormAttrs(),
       Section::kForward,
       InferNorm<true>,
       CostNorm<true>,
       LowerNorm<true>,
       Trait::kNone,
       NormCopiesRows},
      {"softmax",
       "exp(x) / sum(exp(x)) along one dimension.",
       {"x"},
       {{"dim", AttrType::kInt, false, "default -1"}},
       Section::kForward,
       InferSoftmax,
       CostSoftmax,
       LowerSoftmax<false>,
       Trait::kNone,
       SoftmaxCopiesRows},
      {"log_softmax",
       "log(softmax(x)) along one dimension.",
       {"x"},
       {{"dim", AttrType::kInt, false, "default -1"}},
       Section::kForward,
       InferSoftmax,
       CostSoftmax,
       LowerSoftmax<true>,
       Trait::kNone,
       SoftmaxCopiesRows},
  };
  return rows;
}

}  // namespace thresher
