#include <cmath>
#include <initializer_list>
#include <utility>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

// Fills this low drown every score they are added to: score + fill rounds to fill.
constexpr double kDrowningFill = -1e30;

// What feeds one sdpa. Ids are the source graph's.
struct Attention {
  ValueId q = kNoValue;
  ValueId k = kNoValue;
  ValueId k_transposed = kNoValue;  // k with its last two dimensions exchanged
  ValueId v = kNoValue;
  double scale = 1;
  ValueId mask = kNoValue;  // f32, added to the scores
  // where(choice, ...) around the scores: positions that keep their score are those where `choice` equals `keep`.
  ValueId choice = kNoValue;
  bool keep = true;
  double fill = 0;
  std::string source;
  std::string module;
};

// What a mul or a div makes of x and a constant.
struct Scaled {
  ValueId x;
  double constant;
  bool divides;
  double Times(double scale) const { return divides ? scale / constant : scale * constant; }
};

std::optional<Scaled> ScaledBy(const Graph& graph, const Node& node) {
  const bool divides = node.op->name == "div";
  for (const size_t side : {size_t{1}, size_t{0}}) {
    if (divides && side == 0) continue;
    const std::optional<double> c = UniformConstant(graph, node.inputs[side]);
    const ValueId x = node.inputs[1 - side];
    if (!c || !std::isfinite(*c) || *c == 0 || graph.value(x).shape != graph.value(node.outputs[0]).shape) continue;
    return Scaled{x, *c, divides};
  }
  return std::nullopt;
}

class Matcher {
 public:
  explicit Matcher(const Graph& graph) : graph_(graph), uses_(graph.UseCounts()) {}

  // softmax(scores) v, where `product` is the last product.
  std::optional<Attention> Match(const Node& product) const {
    if (product.op->name != "matmul") return std::nullopt;
    const Node* softmax = Inner(product.inputs[0], "softmax");
    if (softmax == nullptr) return std::nullopt;
    const Dims& scores = Shape(softmax->inputs[0]);
    if (FromFront(GetAttr<int64_t>(softmax->attrs, "dim", -1), scores.size()) + 1 !=
        static_cast<int64_t>(scores.size())) {
      return std::nullopt;
    }
    Attention found;
    found.v = product.inputs[1];
    found.source = MergeSources(softmax->source, product.source);
    found.module = softmax->module.empty() ? product.module : softmax->module;
    if (!MatchScores(softmax->inputs[0], found) || !ShapesFit(found, scores)) return std::nullopt;
    return found;
  }

 private:
  const Dims& Shape(ValueId id) const { return graph_.value(id).shape; }

  // The node that makes `id`, if it is `op` and nothing else reads it.
  const Node* Inner(ValueId id, std::string_view op) const {
    const Node* node = graph_.producer(id);
    return node != nullptr && node->op->name == op && uses_[static_cast<size_t>(id)] == 1 ? node : nullptr;
  }

  // where(choice, scores, fill), scores + mask, or the scores alone.
  bool MatchScores(ValueId id, Attention& found) const {
    if (MatchScaled(id, found)) return true;
    const Dims& shape = Shape(id);
    if (const Node* where = Inner(id, "where")) {
      for (const size_t side : {size_t{1}, size_t{2}}) {
        const std::optional<double> fill = UniformConstant(graph_, where->inputs[3 - side]);
        // A milder fill would leave its positions a share that no mask gives them.
        if (!fill || !(*fill <= kDrowningFill) || Shape(where->inputs[side]) != shape) continue;
        if (!MatchScaled(where->inputs[side], found)) continue;
        found.choice = where->inputs[0];
        found.keep = side == 1;
        found.fill = *fill;
        found.source = MergeSources(where->source, found.source);
        return true;
      }
    }
    if (const Node* add = Inner(id, "add")) {
      for (const size_t side : {size_t{0}, size_t{1}}) {
        if (Shape(add->inputs[side]) != shape || !MatchScaled(add->inputs[side], found)) continue;
        found.mask = add->inputs[1 - side];
        found.source = MergeSources(add->source, found.source);
        return true;
      }
    }
    return false;
  }

  // q kT, times or divided by a constant.
  bool MatchScaled(ValueId id, Attention& found) const {
    double scale = 1;
    std::string source;
    const ValueId inner = StripScale(id, scale, source);
    const Node* product = Inner(inner, "matmul");
    if (product == nullptr) return false;
    std::string inner_source;
    found.q = StripScale(product->inputs[0], scale, inner_source);
    const ValueId k = StripScale(product->inputs[1], scale, inner_source);
    const Node* permute = graph_.producer(k);
    if (permute == nullptr || permute->op->name != "permute") return false;
    if (SwapsLastTwo(PermuteDims(*permute))) {
      found.k = StripScale(permute->inputs[0], scale, inner_source);
    } else {
      found.k_transposed = k;
    }
    found.scale = scale;
    found.source = MergeSources(MergeSources(MergeSources(inner_source, product->source), source), found.source);
    return true;
  }

  // x of x * c, c * x or x / c, if nothing else reads the product; `id` itself otherwise.
  ValueId StripScale(ValueId id, double& scale, std::string& source) const {
    for (const char* op : {"mul", "div"}) {
      const Node* node = Inner(id, op);
      const std::optional<Scaled> scaled = node == nullptr ? std::nullopt : ScaledBy(graph_, *node);
      if (!scaled) continue;
      scale = scaled->Times(scale);
      source = MergeSources(node->source, source);
      return scaled->x;
    }
    return id;
  }

  // Equal batches (broadcasting between q, k and v is not sdpa's) of at most two dimensions.
  bool ShapesFit(const Attention& found, const Dims& scores) const {
    const Dims& q = Shape(found.q);
    const Dims& v = Shape(found.v);
    Dims k = Shape(found.k == kNoValue ? found.k_transposed : found.k);
    const size_t rank = q.size();
    if (rank < 2 || rank > 4 || k.size() != rank || v.size() != rank || scores.size() != rank) return false;
    if (found.k == kNoValue) std::swap(k[rank - 1], k[rank - 2]);
    for (size_t i = 0; i + 2 < rank; ++i) {
      if (q[i] != k[i] || q[i] != v[i]) return false;
    }
    for (const ValueId mask : {found.mask, found.choice}) {
      if (mask != kNoValue && BroadcastShapes(scores, Shape(mask)) != scores) return false;
    }
    return NumElements(q) > 0 && NumElements(k) > 0 && NumElements(v) > 0;
  }

  const Graph& graph_;
  std::vector<int> uses_;
};

// `id` with dimensions of size 1 put in front until it has four.
Result<ValueId> ToRank4(Graph& graph, ValueId id, const Attention& found) {
  Dims shape = graph.value(id).shape;
  if (shape.size() == 4) return id;
  shape.insert(shape.begin(), 4 - shape.size(), 1);
  return graph.Add1("reshape", {id}, {{"shape", shape}}, found.source, found.module);
}

Result<ValueId> ScalarF32(Graph& graph, double value, const Attention& found) {
  return graph.Add1("full", {}, {{"shape", Dims{}}, {"value", value}, {"dtype", std::string("f32")}}, found.source,
                    found.module);
}

// The mask operand of sdpa: bool where true keeps a position, or f32 to be added.
Result<ValueId> MaskOperand(Rewriter& rewriter, const Attention& found) {
  Graph& graph = rewriter.graph();
  if (found.choice == kNoValue) return rewriter.Map(found.mask);
  ValueId choice = rewriter.Map(found.choice);
  if (std::isinf(found.fill)) {
    if (found.keep) return choice;
    return graph.Add1("logical_not", {choice}, {}, found.source, found.module);
  }
  // A finite fill leaves a row that is masked throughout its equal shares, which a bool mask would not.
  THRESHER_ASSIGN(const ValueId zero, ScalarF32(graph, 0, found));
  THRESHER_ASSIGN(const ValueId fill, ScalarF32(graph, found.fill, found));
  return graph.Add1("where", {choice, found.keep ? zero : fill, found.keep ? fill : zero}, {}, found.source,
                    found.module);
}

Result<ValueId> BuildSdpa(Rewriter& rewriter, const Attention& found, const Dims& out) {
  Graph& graph = rewriter.graph();
  ValueId k = rewriter.Map(found.k);
  if (k == kNoValue) {
    Dims dims;
    for (size_t i = 0; i < out.size(); ++i) dims.push_back(static_cast<int64_t>(i));
    std::swap(dims[out.size() - 1], dims[out.size() - 2]);
    THRESHER_ASSIGN(
        k, graph.Add1("permute", {rewriter.Map(found.k_transposed)}, {{"dims", dims}}, found.source, found.module));
  }
  std::vector<ValueId> inputs = {rewriter.Map(found.q), k, rewriter.Map(found.v)};
  for (ValueId& id : inputs) {
    THRESHER_ASSIGN(id, ToRank4(graph, id, found));
  }
  if (found.mask != kNoValue || found.choice != kNoValue) {
    THRESHER_ASSIGN(const ValueId mask, MaskOperand(rewriter, found));
    inputs.push_back(mask);
  }
  Attrs attrs{{"scale", found.scale}, {"causal", false}};
  THRESHER_ASSIGN(const ValueId value,
                  graph.Add1("sdpa", std::move(inputs), std::move(attrs), found.source, found.module));
  if (out.size() == 4) return value;
  return graph.Add1("reshape", {value}, {{"shape", out}}, found.source, found.module);
}

// sdpa on queries or keys that were scaled before they were cut into heads scales its scores instead.
Result<ValueId> BareOperands(RuleRewriter& r, const Operation& op) {
  if (op.op != "sdpa") return kNoValue;
  // The node that makes `id`, if it is one of these and nothing else reads what it makes.
  const auto made_by = [&r](ValueId id, std::initializer_list<const char*> names) -> std::optional<Node> {
    for (const char* const name : names) {
      if (std::optional<Node> node = r.SingleUse(id) ? r.Producer(id, name) : std::nullopt) return node;
    }
    return std::nullopt;
  };
  for (const size_t side : {size_t{0}, size_t{1}}) {
    std::vector<Node> views;  // the last one first
    ValueId id = op.inputs[side];
    while (const std::optional<Node> view = made_by(id, {"reshape", "permute"})) {
      views.push_back(*view);
      id = view->inputs[0];
    }
    const std::optional<Node> node = made_by(id, {"mul", "div"});
    const std::optional<Scaled> scaled = node ? ScaledBy(r.graph(), *node) : std::nullopt;
    if (!scaled) continue;
    Operation lean = op;
    lean.attrs["scale"] = scaled->Times(GetAttr<double>(op.attrs, "scale", 1));
    lean.source = MergeSources(node->source, op.source);
    lean.inputs[side] = scaled->x;
    for (auto view = views.rbegin(); view != views.rend(); ++view) {
      THRESHER_ASSIGN(
          lean.inputs[side],
          r.Emit({std::string(view->op->name), {lean.inputs[side]}, view->attrs, view->source, view->module}));
    }
    return r.Emit(std::move(lean));
  }
  return kNoValue;
}

// sdpa with the mask where(keep, 0, -inf) takes `keep` itself.
Result<ValueId> BoolMask(RuleRewriter& r, const Operation& op) {
  if (op.op != "sdpa" || op.inputs.size() < 4 || op.inputs[3] == kNoValue) return kNoValue;
  const auto where = r.Producer(op.inputs[3], "where");
  if (!where) return kNoValue;
  const std::optional<double> kept = UniformConstant(r.graph(), where->inputs[1]);
  const std::optional<double> fill = UniformConstant(r.graph(), where->inputs[2]);
  if (!kept || !fill || *kept != 0 || !(std::isinf(*fill) && *fill < 0)) return kNoValue;
  Operation lean = op;
  lean.inputs[3] = where->inputs[0];
  lean.source = MergeSources(where->source, op.source);
  return r.Emit(std::move(lean));
}

// sdpa broadcasts its mask, so it can do without an expand in front.
Result<ValueId> BareMask(RuleRewriter& r, const Operation& op) {
  if (op.op != "sdpa" || op.inputs.size() < 4 || op.inputs[3] == kNoValue) return kNoValue;
  const auto expand = r.Producer(op.inputs[3], "expand");
  if (!expand) return kNoValue;
  Operation lean = op;
  lean.inputs[3] = expand->inputs[0];
  return r.Emit(std::move(lean));
}

// Where the heads of `id` were each repeated `repeats` times: what was repeated, as [B, heads, S, D].
Result<ValueId> Unrepeated(RuleRewriter& r, ValueId id, int64_t& repeats) {
  const auto reshape = r.Producer(id, "reshape");
  const auto expand = reshape ? r.Producer(reshape->inputs[0], "expand") : std::nullopt;
  if (!expand) return kNoValue;
  const Dims full = r.shape(reshape->inputs[0]), shape = r.shape(id);
  Dims own = r.shape(expand->inputs[0]);
  if (full.size() != 5 || own.size() != 5 || own[2] != 1 || shape.size() != 4 || shape[1] != full[1] * full[2]) {
    return kNoValue;
  }
  own[2] = full[2];
  if (own != full || shape[2] != full[3] || shape[3] != full[4]) return kNoValue;
  repeats = full[2];
  return r.Reshape(expand->inputs[0], {full[0], full[1], full[3], full[4]}, reshape->source);
}

// sdpa on keys and values whose heads were repeated for the queries that share them.
Result<ValueId> SharedHeads(RuleRewriter& r, const Operation& op) {
  if (op.op != "sdpa" || r.shape(op.inputs[0])[1] != r.shape(op.inputs[1])[1]) return kNoValue;
  int64_t keys = 0, values = 0;
  THRESHER_ASSIGN(const ValueId k, Unrepeated(r, op.inputs[1], keys));
  if (k == kNoValue) return kNoValue;
  THRESHER_ASSIGN(const ValueId v, Unrepeated(r, op.inputs[2], values));
  if (v == kNoValue || keys != values) return kNoValue;
  Operation lean = op;
  lean.inputs[1] = k;
  lean.inputs[2] = v;
  return r.Emit(std::move(lean));
}

}  // namespace

Result<Graph> AttentionRecognition(const Graph& graph, const PassContext&) {
  const Matcher matcher(graph);
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    const std::optional<Attention> found = matcher.Match(node);
    if (!found) {
      THRESHER_TRY(rewriter.Copy(node));
      continue;
    }
    THRESHER_ASSIGN(const ValueId value, BuildSdpa(rewriter, *found, graph.value(node.outputs[0]).shape));
    rewriter.Replace(node.outputs[0], value);
  }
  THRESHER_ASSIGN(const Graph recognized, rewriter.Finish());
  static constexpr RuleRewriter::Rule kRules[] = {BareMask, BoolMask, SharedHeads, BareOperands};
  return RuleRewriter(recognized, kRules).Run();
}

}  // namespace thresher::passes
