// Products of runs of rows, each with a weight of its own: the experts of a mixture.
#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/kernel_params.h"
#include "thresher/ops/common.h"
#include "thresher/ops/linear.h"

namespace thresher {
namespace {

enum Operand : size_t { kX, kEnds, kWeights };

bool IsNk(const Attrs& attrs) { return GetAttr<std::string>(attrs, "layout", "nk") == "nk"; }

Result<std::vector<TensorType>> InferGroupedLinear(const InferContext& c) {
  if (const std::string layout = GetAttr<std::string>(c.attrs, "layout", "nk"); layout != "nk" && layout != "kn") {
    return InvalidArgument("expected layout \"nk\" ([out, in], torch's) or \"kn\", got \"" + layout + "\"");
  }
  THRESHER_TRY(ops::WantFloat(c, kX, "x"));
  const Dims& x = c.inputs[kX].shape;
  const OperandType& ends = c.inputs[kEnds];
  const size_t groups = c.inputs.size() - kWeights;
  if (x.size() != 2 || groups == 0) {
    return InvalidArgument("expected x [rows, K] and at least one weight, got x " + ToString(x) + " and " +
                           std::to_string(groups) + " weights");
  }
  if ((ends.dtype != DType::kI32 && ends.dtype != DType::kI64) || ends.shape != Dims{static_cast<int64_t>(groups)}) {
    return InvalidArgument("expected ends i32 or i64 [" + std::to_string(groups) + "], one a weight, got " +
                           ops::ToString(ends));
  }
  const bool nk = IsNk(c.attrs);
  for (size_t i = kWeights; i < c.inputs.size(); ++i) {
    THRESHER_TRY(ops::WantFloat(c, i, "every weight"));
    if (c.inputs[i].blocks != c.inputs[kWeights].blocks || (c.inputs[i].blocks && !nk)) {
      return Unsupported("expected weights in blocks with layout \"nk\" and all of one format");
    }
    const Dims& w = c.inputs[i].shape;
    if (w.size() != 2 || w != c.inputs[kWeights].shape || w[nk ? 1 : 0] != x[1]) {
      return InvalidArgument("expected weights of one shape " + std::string(nk ? "[N, K]" : "[K, N]") + " for x " +
                             ToString(x) + ", got " + ToString(w));
    }
  }
  return ops::One(c.inputs[kX].dtype, {x[0], c.inputs[kWeights].shape[nk ? 0 : 1]});
}

// Every row is multiplied once.
Cost CostGroupedLinear(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ElementwiseCost(c, outputs, 2 * static_cast<double>(c.inputs[kX].shape.back()));
}

struct GroupedParams {
  int64_t rows, n, k, lda;
  int groups;
  Precision precision;  // of the panels

  static constexpr auto Sizes() {
    return std::tuple(&GroupedParams::rows, &GroupedParams::n, &GroupedParams::k, &GroupedParams::lda);
  }
  friend bool operator==(const GroupedParams&, const GroupedParams&) = default;
};

int64_t EndAt(const View& ends, int64_t i) {
  const int64_t offset = i * ends.strides[0];
  return ends.dtype == DType::kI64 ? ends.as<int64_t>()[offset] : ends.as<int32_t>()[offset];
}

// The product of all rows with one weight, without its matrices.
kernels::GemmArgs ArgsOf(const GroupedParams& p) {
  kernels::GemmArgs args = ops::FloatProduct(p.rows, p.n, p.k, p.lda);
  args.precision = p.precision;
  return args;
}

// The same where the weights are in blocks.
kernels::GemmDotArgs BlockArgsOf(const GroupedParams& p) {
  kernels::GemmDotArgs args;
  args.form = kernels::RowForm::kBlocks;
  args.precision = p.precision;
  args.m = p.rows;
  args.n = p.n;
  args.k = p.k;
  args.ldc = p.n;
  return args;
}

size_t GroupedScratch(const StepContext& c) {
  const auto& p = c.as<GroupedParams>();
  return IsBlocked(p.precision) ? kernels::GemmDotScratchBytes(BlockArgsOf(p)) : kernels::GemmScratchBytes(ArgsOf(p));
}

// Rows [begin, end) times weight `g`.
void MultiplyGroup(const StepContext& c, int g, int64_t begin, int64_t end) {
  const auto& p = c.as<GroupedParams>();
  const auto multiply = [&](auto args, const auto& product) {
    args.m = end - begin;
    args.packed_b = c.in(static_cast<int>(kWeights) + g).data;
    args.c = c.out().as<float>() + begin * p.n;
    product(args, c.scratch, c.part, c.num_parts);
  };
  if (IsBlocked(p.precision)) {
    kernels::GemmDotArgs args = BlockArgsOf(p);
    args.rows = c.in(kX).as<const uint8_t>() + begin * kernels::RowBytes(args.form, p.k);
    multiply(args, kernels::GemmDot);
  } else {
    kernels::GemmArgs args = ArgsOf(p);
    args.a = c.in(kX).as<const float>() + begin * p.lda;
    multiply(args, kernels::Gemm);
  }
}

// Operands: x (with weights in blocks its rows as those want them), the ends, then packed weights.
Status GroupedStep(const StepContext& c) {
  const auto& p = c.as<GroupedParams>();
  int64_t begin = 0;
  for (int g = 0; g < p.groups; ++g) {
    const int64_t end = EndAt(c.in(kEnds), g);
    if (end < begin || end > p.rows) {
      return OutOfRange("grouped_linear: expected ends that do not fall, from 0 to " + std::to_string(p.rows) +
                        ", got " + std::to_string(end) + " for group " + std::to_string(g) + " after " +
                        std::to_string(begin));
    }
    if (end > begin) MultiplyGroup(c, g, begin, end);
    begin = end;
  }
  // What belongs to no group is 0.
  const int64_t rest = p.rows - begin;
  float* const from = c.out().as<float>() + (begin + rest * c.part / c.num_parts) * p.n;
  std::fill(from, c.out().as<float>() + (begin + rest * (c.part + 1) / c.num_parts) * p.n, 0.0f);
  return Status::Ok();
}

// The weight's panels: packed once where it is a constant, else by a step.
TensorRef Packed(ValueId id, const GroupedParams& p, bool nk, Lowering& lowering) {
  if (lowering.graph().is_constant(id)) return lowering.PackedWeight({id}, nk, p.precision);
  const TensorRef raw = lowering.Ref(id);
  const int64_t s0 = raw.view.strides[0], s1 = raw.view.strides[1];
  return ops::AddPack(raw, {p.k, p.n, nk ? s1 : s0, nk ? s0 : s1, 1, 0}, lowering);
}

// For targets that take weights as they are stored.
Status LowerStoredGroups(const Graph& graph, const Node& node, const TensorRef& out, Lowering& lowering) {
  const std::span<const ValueId> weights(node.inputs.begin() + kWeights, node.inputs.end());
  const Value& first = graph.value(weights[0]);
  const bool constant = std::all_of(weights.begin(), weights.end(), [&](ValueId id) { return graph.is_constant(id); });
  const bool alike = constant && std::all_of(weights.begin(), weights.end(),
                                             [&](ValueId id) { return StoredAs(graph.value(id)) == StoredAs(first); });
  kernels::StoredGroupsParams p{};
  p.groups = static_cast<int32_t>(weights.size());
  p.n = out.view.shape[1];
  p.encoding = alike ? StoredAs(first) : EncodingOf(first.dtype).value_or(Encoding::kF32);
  if (!constant && first.constant.blocks) return Unsupported("expected weights in blocks to be constants");
  DType dtype = DType::kF32;
  if (IsBlocked(p.encoding)) dtype = graph.value(node.inputs[kX]).dtype;
  if (p.encoding == Encoding::kBf16) dtype = DType::kBF16;
  if (p.encoding == Encoding::kF16) dtype = DType::kF16;
  const TensorRef x =
      ops::RowsOrCopy(ops::AsType(dtype, lowering.Ref(node.inputs[kX]), node.inputs[kX], lowering), lowering);
  AsRows(x.view, &p.rows, &p.k, &p.lda);
  if (p.k == 0) return Unsupported("expected K of at least 1 on this device, got 0");
  std::vector<TensorRef> inputs = {x, lowering.Ref(node.inputs[kEnds])};
  const bool nk = IsNk(node.attrs);
  for (const ValueId id : weights) {
    if (constant) {
      inputs.push_back(lowering.StoredWeight({id}, nk, p.encoding, kernels::kInt4Group));
      continue;
    }
    TensorRef rows = ops::AsType(dtype, lowering.Ref(id), id, lowering);
    if (!nk) {
      std::swap(rows.view.shape[0], rows.view.shape[1]);
      std::swap(rows.view.strides[0], rows.view.strides[1]);
    }
    inputs.push_back(lowering.Contiguous(rows));
  }
  lowering.AddStep(KernelId::kGroupedProduct, std::move(inputs), {out}, p);
  return Status::Ok();
}

Status LowerGroupedLinear(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  if (!lowering.target().packs_weights()) return LowerStoredGroups(graph, node, out, lowering);
  const TensorRef x = ops::RowsOrCopy(lowering.Ref(node.inputs[kX]), lowering);
  GroupedParams p{};
  p.groups = static_cast<int>(node.inputs.size() - kWeights);
  p.n = out.view.shape[1];
  AsRows(x.view, &p.rows, &p.k, &p.lda);
  const bool nk = IsNk(node.attrs);
  const Encoding stored = StoredAs(graph.value(node.inputs[kWeights]));
  const bool alike = std::all_of(node.inputs.begin() + kWeights, node.inputs.end(), [&](ValueId id) {
    return graph.is_constant(id) && StoredAs(graph.value(id)) == stored;
  });
  p.precision = alike ? StoredPrecision(stored) : Precision::kFp32;
  const bool blocked = IsBlocked(p.precision);
  const TensorRef rows = blocked ? ops::RowsInBlocks(node.inputs[kX], x, p.rows, p.k, p.lda, lowering) : x;
  std::vector<TensorRef> inputs = {rows, lowering.Ref(node.inputs[kEnds])};
  for (size_t i = kWeights; i < node.inputs.size(); ++i) inputs.push_back(Packed(node.inputs[i], p, nk, lowering));
  lowering.AddStep(KernelId::kGroupedProduct, std::move(inputs), {out}, p);
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> GroupedLinearKernels() {
  static const CpuKernel kernels[] = {{KernelId::kGroupedProduct, GroupedStep, GroupedScratch}};
  return kernels;
}

std::span<const OpDef> GroupedLinearOps() {
  static const std::vector<OpDef> rows = {
      {"grouped_linear",
       "Rows up to the first end times the first weight, from there to the second end times the second, and so on; 0 "
       "beyond the last end.",
       {"x", "ends", "weights*"},
       {{"layout", AttrType::kString, false, "how weights are stored: \"nk\" ([out, in], default) or \"kn\""}},
       Section::kForward,
       InferGroupedLinear,
       CostGroupedLinear,
       LowerGroupedLinear,
       Trait::kProduct,
       nullptr,
       [](const Attrs&, size_t num_operands) { return std::pair<size_t, size_t>(kWeights, num_operands); },
       [](const Attrs&, size_t num_operands) { return std::pair<size_t, size_t>(kWeights, num_operands); }},
  };
  return rows;
}

}  // namespace thresher
