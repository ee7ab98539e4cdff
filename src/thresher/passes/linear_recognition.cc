#include <algorithm>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"
#include "thresher/passes/view_rules.h"

namespace thresher::passes {
namespace {

bool IsMatrixConstant(const RuleRewriter& r, const Graph& graph, ValueId id) {
  return graph.is_constant(id) && r.shape(id).size() == 2 && IsFloat(r.dtype(id));
}

// What was widened, or `id` itself: a product takes its weight as it is stored.
ValueId Stored(const RuleRewriter& r, ValueId id) {
  const auto cast = r.Producer(id, "cast");
  return cast && r.dtype(id) == DType::kF32 && IsHalf(r.dtype(cast->inputs[0])) ? cast->inputs[0] : id;
}

// matmul(x, W) with W [K, N], or the transpose of a constant [N, K].
Result<ValueId> MatmulToLinear(RuleRewriter& r, const Operation& op) {
  if (op.op != "matmul") return kNoValue;
  const ValueId x = op.inputs[0];
  const ValueId w = Stored(r, op.inputs[1]);
  if (IsMatrixConstant(r, r.graph(), w)) {
    return r.Emit({"linear", {x, w}, {{"layout", "kn"}}, op.source});
  }
  const auto transpose = r.Producer(w, "permute");
  if (!transpose || !IsMatrixConstant(r, r.graph(), transpose->inputs[0]) || !SwapsLastTwo(PermuteDims(*transpose))) {
    return kNoValue;
  }
  return r.Emit({"linear", {x, transpose->inputs[0]}, {{"layout", "nk"}}, MergeSources(transpose->source, op.source)});
}

// The transpose of a constant under linear is the other layout.
Result<ValueId> AbsorbTranspose(RuleRewriter& r, const Operation& op) {
  if (op.op != "linear") return kNoValue;
  const ValueId w = Stored(r, op.inputs[1]);
  if (w != op.inputs[1] && IsMatrixConstant(r, r.graph(), w)) {
    Operation linear = op;
    linear.inputs[1] = w;
    return r.Emit(std::move(linear));
  }
  const auto transpose = r.Producer(w, "permute");
  if (!transpose || !IsMatrixConstant(r, r.graph(), transpose->inputs[0]) || !SwapsLastTwo(PermuteDims(*transpose))) {
    return kNoValue;
  }
  Operation linear = op;
  linear.inputs[1] = transpose->inputs[0];
  linear.attrs["layout"] = std::string(GetAttr<std::string>(op.attrs, "layout", "nk") == "nk" ? "kn" : "nk");
  return r.Emit(std::move(linear));
}

// linear(reshape(x)), where the reshape only regroups the rows, works on x: linear takes any number of dimensions. A
// reshape that merges the last dimensions too (heads after attention) is cut into the merge and the regrouping.
Result<ValueId> LookThroughReshape(RuleRewriter& r, const Operation& op) {
  if (op.op != "linear" || (op.inputs.size() > 3 && op.inputs[3] != kNoValue)) return kNoValue;
  const auto reshape = r.Producer(op.inputs[0], "reshape");
  if (!reshape) return kNoValue;
  const Dims rows = r.shape(op.inputs[0]);
  const Dims from = r.shape(reshape->inputs[0]);
  if (NumElements(rows) == 0) return kNoValue;
  size_t lead = from.size();
  int64_t last = 1;
  while (lead > 0 && last < rows.back()) last *= from[--lead];
  if (last != rows.back() || lead == from.size()) return kNoValue;
  Dims to(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(lead));
  to.push_back(last);
  if (to == rows) return kNoValue;
  const std::string source = MergeSources(reshape->source, op.source);
  Operation linear = op;
  THRESHER_ASSIGN(linear.inputs[0], r.Reshape(reshape->inputs[0], to, reshape->source));
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(linear)));
  Dims out = rows;
  out.back() = r.shape(value).back();
  return r.Reshape(value, out, source);
}

bool AllAre(const Attrs& attrs, const std::string& name, int64_t number) {
  const Dims values = GetAttr<Dims>(attrs, name, {});
  return std::all_of(values.begin(), values.end(), [number](int64_t value) { return value == number; });
}

// A convolution of one tap at every position is a linear.
Result<ValueId> ConvolutionToLinear(RuleRewriter& r, const Operation& op) {
  if (op.op != "convolution") return kNoValue;
  const Dims shape = r.shape(op.inputs[1]);
  const bool plain = GetAttr<int64_t>(op.attrs, "groups", 1) == 1 && !GetAttr<bool>(op.attrs, "transposed", false) &&
                     AllAre(op.attrs, "stride", 1) && AllAre(op.attrs, "padding", 0) &&
                     NumElements(shape) == shape[0] * shape[1];
  if (!plain) return kNoValue;
  Operation linear{"linear", op.inputs, {{"layout", std::string("nk")}}, op.source, op.module};
  for (const char* name : {"activation", "residual_first", "precision"}) {
    if (const auto attr = op.attrs.find(name); attr != op.attrs.end()) linear.attrs.insert(*attr);
  }
  const Dims matrix = {shape[0], shape[1]};
  if (r.graph().is_constant(op.inputs[1])) {
    const Value weight = r.graph().value(op.inputs[1]);
    linear.inputs[1] = r.graph().AddConstant(weight.name, weight.dtype, matrix, weight.constant);
  } else {
    THRESHER_ASSIGN(linear.inputs[1], r.Reshape(op.inputs[1], matrix, op.source));
  }
  return r.Emit(std::move(linear));
}

}  // namespace

Result<Graph> LinearRecognition(const Graph& graph, const PassContext&) {
  std::vector<RuleRewriter::Rule> rules = {ConvolutionToLinear, MatmulToLinear, AbsorbTranspose, LookThroughReshape};
  rules.insert(rules.end(), ViewRules().begin(), ViewRules().end());
  return RuleRewriter(graph, rules).Run();
}

}  // namespace thresher::passes
