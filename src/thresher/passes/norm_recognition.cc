// RMS normalisation arrives written out, as x * rsqrt(mean(x^2) + eps) and a product with the weight.
#include <cmath>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

// The eps of `id` = mean(x^2) + eps over the last dimension, if it is that.
std::optional<double> MatchMeanSquare(RuleRewriter& r, ValueId id, ValueId x, std::string& source) {
  const auto add = r.Producer(id, "add");
  if (!add) return std::nullopt;
  for (const size_t side : {size_t{1}, size_t{0}}) {
    const std::optional<double> eps = UniformConstant(r.graph(), add->inputs[side]);
    const auto mean = r.Producer(add->inputs[1 - side], "mean");
    // The constant must not broadcast the mean to another shape.
    if (!eps || !(*eps >= 0) || !std::isfinite(*eps) || !mean || r.shape(id) != r.shape(add->inputs[1 - side]))
      continue;
    const size_t rank = r.shape(x).size();
    const Dims dims = GetAttr<Dims>(mean->attrs, "dims", {});
    if (dims.size() != 1 || FromFront(dims[0], rank) + 1 != static_cast<int64_t>(rank) ||
        !GetAttr<bool>(mean->attrs, "keepdim", false)) {
      continue;
    }
    const auto product = r.Producer(mean->inputs[0], "mul");
    const auto power = r.Producer(mean->inputs[0], "pow");
    const bool squares = (product && product->inputs[0] == x && product->inputs[1] == x) ||
                         (power && power->inputs[0] == x && UniformConstant(r.graph(), power->inputs[1]) == 2.0 &&
                          r.shape(mean->inputs[0]) == r.shape(x));
    if (!squares) continue;
    const std::string inner = product ? product->source : power->source;
    source = MergeSources(MergeSources(inner, mean->source), MergeSources(add->source, source));
    return eps;
  }
  return std::nullopt;
}

Result<ValueId> EmitRmsNorm(RuleRewriter& r, const Operation& op, ValueId x, double eps, const std::string& source) {
  return r.Emit({"rms_norm", {x}, {{"eps", eps}, {"dims", int64_t{1}}}, MergeSources(source, op.source)});
}

// x * rsqrt(mean(x^2) + eps), and x / sqrt(mean(x^2) + eps).
Result<ValueId> Recognize(RuleRewriter& r, const Operation& op) {
  if (op.op != "mul" && op.op != "div") return kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const bool divides = op.op == "div";
    if (divides && side == 1) continue;
    const ValueId x = op.inputs[side];
    const auto root = r.Producer(op.inputs[1 - side], divides ? "sqrt" : "rsqrt");
    if (!root || r.shape(x).empty()) continue;
    std::string source = root->source;
    const std::optional<double> eps = MatchMeanSquare(r, root->inputs[0], x, source);
    if (eps) return EmitRmsNorm(r, op, x, *eps, source);
  }
  return kNoValue;
}

// rms_norm(x) * weight, where nothing else reads the first.
Result<ValueId> TakeWeight(RuleRewriter& r, const Operation& op) {
  if (op.op != "mul") return kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const auto norm = r.Producer(op.inputs[side], "rms_norm");
    const ValueId weight = op.inputs[1 - side];
    if (!norm || !r.SingleUse(op.inputs[side]) || norm->inputs[1] != kNoValue || norm->outputs.size() != 1 ||
        GetAttr<int64_t>(norm->attrs, "dims", 1) != 1 || r.shape(weight) != Dims{r.shape(op.inputs[side]).back()}) {
      continue;
    }
    Operation fused{"rms_norm", norm->inputs, norm->attrs, MergeSources(norm->source, op.source)};
    fused.inputs[1] = weight;
    return r.Emit(std::move(fused));
  }
  return kNoValue;
}

}  // namespace

Result<Graph> NormRecognition(const Graph& graph, const PassContext&) {
  static constexpr RuleRewriter::Rule kRules[] = {Recognize, TakeWeight};
  return RuleRewriter(graph, kRules).Run();
}

}  // namespace thresher::passes
