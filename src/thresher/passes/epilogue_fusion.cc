#include <algorithm>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

enum LinearOperand : size_t { kX, kWeight, kBias, kResidual };

// A linear that nothing else reads, seen through a reshape that nothing else reads either.
struct OpenLinear {
  Operation linear;
  Dims shape;       // of the linear's own result
  Dims seen_shape;  // after the reshape
  ValueId id = kNoValue;
};

std::optional<OpenLinear> FindOpenLinear(const RuleRewriter& r, ValueId id) {
  OpenLinear open;
  open.seen_shape = r.shape(id);
  if (!r.SingleUse(id)) return std::nullopt;
  std::string source;
  if (const auto reshape = r.Producer(id, "reshape")) {
    id = reshape->inputs[0];
    source = reshape->source;
    if (!r.SingleUse(id)) return std::nullopt;
  }
  const auto node = r.Producer(id, "linear");
  if (!node || node->inputs[kResidual] != kNoValue) return std::nullopt;
  open.id = id;
  open.shape = r.shape(id);
  open.linear = {"linear", node->inputs, node->attrs, MergeSources(node->source, source), node->module};
  return open;
}

std::string ActivationOf(const OpenLinear& open) {
  return GetAttr<std::string>(open.linear.attrs, "activation", "none");
}

Result<ValueId> Close(RuleRewriter& r, OpenLinear open, const std::string& source) {
  open.linear.source = MergeSources(open.linear.source, source);
  const std::string merged = open.linear.source;
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(open.linear)));
  if (open.shape == open.seen_shape) return value;
  return r.Reshape(value, open.seen_shape, merged);
}

// linear + vector over the last dimension. A reshape between them must keep that dimension.
Result<ValueId> FuseBias(RuleRewriter& r, const Operation& op) {
  if (op.op != "add") return kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const ValueId bias = op.inputs[1 - side];
    const Dims bias_shape = r.shape(bias);
    std::optional<OpenLinear> open = FindOpenLinear(r, op.inputs[side]);
    if (!open || open->linear.inputs[kBias] != kNoValue || ActivationOf(*open) != "none") continue;
    const int64_t n = open->shape.back();
    const bool vector = !bias_shape.empty() && bias_shape.back() == n && NumElements(bias_shape) == n &&
                        bias_shape.size() <= open->seen_shape.size();
    if (!vector || open->seen_shape.empty() || open->seen_shape.back() != n) continue;
    open->linear.inputs[kBias] = bias;
    if (bias_shape.size() != 1) {
      THRESHER_ASSIGN(open->linear.inputs[kBias], r.Reshape(bias, {n}, op.source));
    }
    return Close(r, std::move(*open), op.source);
  }
  return kNoValue;
}

Result<ValueId> FuseActivation(RuleRewriter& r, const Operation& op) {
  static constexpr std::string_view kActivations[] = {"relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"};
  if (std::find(std::begin(kActivations), std::end(kActivations), op.op) == std::end(kActivations)) return kNoValue;
  std::optional<OpenLinear> open = FindOpenLinear(r, op.inputs[0]);
  if (!open || ActivationOf(*open) != "none") return kNoValue;
  open->linear.attrs["activation"] = op.op;
  return Close(r, std::move(*open), op.source);
}

// act(linear) + residual of the same shape.
Result<ValueId> FuseResidual(RuleRewriter& r, const Operation& op) {
  if (op.op != "add" || r.shape(op.inputs[0]) != r.shape(op.inputs[1])) return kNoValue;
  std::optional<OpenLinear> best;
  ValueId residual = kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    std::optional<OpenLinear> open = FindOpenLinear(r, op.inputs[side]);
    // Of two candidates the later one: the other is computed by then and need not be kept waiting.
    if (!open || (best && best->id > open->id)) continue;
    best = std::move(open);
    residual = op.inputs[1 - side];
  }
  if (!best) return kNoValue;
  if (best->shape != best->seen_shape) {
    THRESHER_ASSIGN(residual, r.Reshape(residual, best->shape, op.source));
  }
  best->linear.inputs[kResidual] = residual;
  return Close(r, std::move(*best), op.source);
}

}  // namespace

Result<Graph> EpilogueFusion(const Graph& graph, const PassContext&) {
  static constexpr RuleRewriter::Rule kRules[] = {FuseBias, FuseActivation, FuseResidual};
  return RuleRewriter(graph, kRules).Run();
}

}  // namespace thresher::passes
