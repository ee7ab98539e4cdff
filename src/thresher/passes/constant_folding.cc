#include <algorithm>
#include <utility>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

// A folded result may take this much memory, or else no more than its operands do.
constexpr int64_t kMaxFoldedBytes = int64_t{1} << 20;

int64_t Bytes(const Value& value) { return NumElements(value.shape) * static_cast<int64_t>(SizeOf(value.dtype)); }

// ---- what needs no arithmetic ----

// A constant of `shape` on the memory of `id`, `offset` elements in.
ValueId Alias(RuleRewriter& r, ValueId id, const std::string& name, Dims shape, int64_t offset) {
  const Value base = r.graph().value(id);
  Constant constant = base.constant;
  constant.data = static_cast<const char*>(constant.data) + offset * static_cast<int64_t>(SizeOf(base.dtype));
  return r.graph().AddConstant(name, base.dtype, std::move(shape), std::move(constant));
}

// reshape of a constant, and slice or select of its outermost dimension, are constants on the same memory. No bytes are
// copied, so weights take part: a part of a stacked projection becomes a weight in its own right.
Result<ValueId> AliasConstant(RuleRewriter& r, const Operation& op) {
  const bool cut = op.op == "slice" || op.op == "select";
  if ((!cut && op.op != "reshape") || !r.graph().is_constant(op.inputs[0])) return kNoValue;
  const Value x = r.graph().value(op.inputs[0]);
  const int64_t elements = NumElements(x.shape);
  if (elements == 0) return kNoValue;
  if (!cut) {
    Dims shape = GetAttr<Dims>(op.attrs, "shape", {});
    int64_t known = 1;
    for (const int64_t d : shape) known *= d == -1 ? 1 : d;
    for (int64_t& d : shape) {
      if (d == -1) d = elements / known;
    }
    return Alias(r, op.inputs[0], x.name, std::move(shape), 0);
  }
  const auto dim = static_cast<size_t>(FromFront(GetAttr<int64_t>(op.attrs, "dim", 0), x.shape.size()));
  const int64_t size = x.shape[dim];
  if (std::any_of(x.shape.begin(), x.shape.begin() + static_cast<std::ptrdiff_t>(dim),
                  [](int64_t d) { return d != 1; })) {
    return kNoValue;
  }
  int64_t inner = 1;
  for (size_t i = dim + 1; i < x.shape.size(); ++i) inner *= x.shape[i];
  Dims shape = x.shape;
  int64_t start, end;
  if (op.op == "select") {
    start = FromFront(GetAttr<int64_t>(op.attrs, "index", 0), static_cast<size_t>(size));
    end = start + 1;
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(dim));
  } else {
    if (GetAttr<int64_t>(op.attrs, "step", 1) != 1) return kNoValue;
    const auto clamp = [size](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
    start = clamp(GetAttr<int64_t>(op.attrs, "start", 0));
    end = clamp(GetAttr<int64_t>(op.attrs, "end", size));
    if (end <= start) return kNoValue;
    shape[dim] = end - start;
  }
  const std::string range = "[" + std::to_string(start) + ":" + std::to_string(end) + "]";
  return Alias(r, op.inputs[0], x.name + range, std::move(shape), start * inner);
}

// full of many elements is an expanded scalar: four bytes instead of a tensor that is written in every run.
Result<ValueId> ShrinkFull(RuleRewriter& r, const Operation& op) {
  if (op.op != "full") return kNoValue;
  const Dims shape = GetAttr<Dims>(op.attrs, "shape", {});
  if (shape.empty() || NumElements(shape) == 0) return kNoValue;
  Operation scalar = op;
  scalar.attrs["shape"] = Dims{};
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(scalar)));
  return r.Expand(value, shape, op.source);
}

constexpr RuleRewriter::Rule kRules[] = {AliasConstant, ShrinkFull};

// ---- what an evaluator computes ----

// Neither its result nor what it hides is computed ahead.
constexpr std::string_view kBarrier = "barrier";

// Rearranging costs nothing when the plan runs, but would cost memory here; what is wanted is its operand.
bool IsView(const Node& node) { return node.op->Has(Trait::kView); }

class Folder {
 public:
  Folder(const Graph& graph, const Evaluator& evaluate)
      : graph_(graph),
        evaluate_(evaluate),
        folds_(graph.values().size(), false),
        wanted_(graph.values().size(), false) {}

  Result<Graph> Run() {
    for (const Node& node : graph_.nodes()) {
      if (!Folds(node)) continue;
      for (const ValueId id : node.outputs) folds_[Index(id)] = true;
    }
    for (const ValueId id : graph_.outputs()) Want(id);
    for (const Node& node : graph_.nodes()) {
      if (folds_[Index(node.outputs[0])] || node.op->name == kBarrier) continue;
      for (const ValueId id : node.inputs) Want(id);
    }
    std::vector<ValueId> wanted;
    for (ValueId id = 0; id < static_cast<ValueId>(wanted_.size()); ++id) {
      if (wanted_[Index(id)]) wanted.push_back(id);
    }
    if (wanted.empty()) return graph_;
    Rewriter rewriter(graph_);
    // One that fails (an index out of range) must not keep the others from being folded: it fails when it runs.
    if (!Evaluate(wanted, rewriter).ok()) {
      for (const ValueId id : wanted) static_cast<void>(Evaluate({id}, rewriter).ok());
    }
    for (const Node& node : graph_.nodes()) {
      const bool done =
          std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return rewriter.IsMapped(id); });
      if (!done) THRESHER_TRY(rewriter.Copy(node));
    }
    return rewriter.Finish();
  }

 private:
  static size_t Index(ValueId id) { return static_cast<size_t>(id); }

  // Whether a constant's numbers lie in memory, one by one, and a node that `moves` them may have a copy.
  static bool IsAtHand(const Constant& constant, bool moves) {
    return !constant.is_weight || (!moves && !constant.blocks && constant.source == nullptr);
  }

  bool Folds(const Node& node) const {
    if (node.op->name == kBarrier) return false;
    // What only moves a weight would keep a second copy of it. What computes with one is how a model says what its
    // weights are (weight norm, a standardised kernel, 1 + w), and is the same in every run.
    const bool moves = IsView(node) || node.op->Has(Trait::kMoves);
    int64_t operand_bytes = 0;
    for (const ValueId id : node.inputs) {
      if (id == kNoValue) continue;
      const Value& value = graph_.value(id);
      if (!(graph_.is_constant(id) ? IsAtHand(value.constant, moves) : folds_[Index(id)])) return false;
      operand_bytes += Bytes(value);
    }
    int64_t result_bytes = 0;
    for (const ValueId id : node.outputs) result_bytes += Bytes(graph_.value(id));
    return result_bytes <= kMaxFoldedBytes || result_bytes <= operand_bytes;
  }

  // Marks what must exist as a constant for `id` to exist: itself or, of views, their operand.
  void Want(ValueId id) {
    while (id != kNoValue && folds_[Index(id)]) {
      const Node* node = graph_.producer(id);
      if (!IsView(*node)) {
        wanted_[Index(id)] = true;
        return;
      }
      id = node->inputs[0];
    }
  }

  // Replaces the values by constants that hold their contents.
  Status Evaluate(const std::vector<ValueId>& ids, Rewriter& rewriter) {
    std::vector<bool> needed(graph_.values().size(), false);
    for (const ValueId id : ids) needed[Index(id)] = true;
    std::vector<const Node*> nodes;
    for (auto node = graph_.nodes().rbegin(); node != graph_.nodes().rend(); ++node) {
      if (std::none_of(node->outputs.begin(), node->outputs.end(), [&](ValueId id) { return needed[Index(id)]; }))
        continue;
      for (const ValueId id : node->inputs) {
        if (id != kNoValue) needed[Index(id)] = true;
      }
      nodes.push_back(&*node);
    }
    Graph part;
    std::vector<ValueId> map(graph_.values().size(), kNoValue);
    const auto mapped = [&](ValueId id) {
      if (id == kNoValue) return kNoValue;
      if (map[Index(id)] == kNoValue && graph_.is_constant(id)) {
        const Value& constant = graph_.value(id);
        map[Index(id)] = part.AddConstant(constant.name, constant.dtype, constant.shape, constant.constant);
      }
      return map[Index(id)];
    };
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
      std::vector<ValueId> inputs;
      for (const ValueId id : (*node)->inputs) inputs.push_back(mapped(id));
      THRESHER_ASSIGN(const std::vector<ValueId> outputs,
                      part.Add(std::string((*node)->op->name), std::move(inputs), (*node)->attrs, (*node)->source));
      for (size_t i = 0; i < outputs.size(); ++i) map[Index((*node)->outputs[i])] = outputs[i];
    }
    std::vector<ValueId> outputs;
    outputs.reserve(ids.size());
    for (const ValueId id : ids) outputs.push_back(mapped(id));
    part.SetOutputs(std::move(outputs));
    THRESHER_ASSIGN(std::vector<Constant> contents, evaluate_(part));
    if (contents.size() != ids.size()) {
      return Internal("the evaluator gave " + std::to_string(contents.size()) + " of " + std::to_string(ids.size()) +
                      " constants");
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      const Value& value = graph_.value(ids[i]);
      rewriter.Replace(ids[i],
                       rewriter.graph().AddConstant("folded", value.dtype, value.shape, std::move(contents[i])));
    }
    return Status::Ok();
  }

  const Graph& graph_;
  const Evaluator& evaluate_;
  std::vector<bool> folds_;   // per value: depends on constants alone
  std::vector<bool> wanted_;  // per value: is needed by something that does not fold
};

}  // namespace

Result<Graph> ConstantFolding(const Graph& graph, const PassContext& context) {
  THRESHER_ASSIGN(Graph simple, RuleRewriter(graph, kRules).Run());
  if (!context.evaluate) return simple;
  THRESHER_ASSIGN(const Graph folded, Folder(simple, context.evaluate).Run());
  // Views of what was folded are views of constants now.
  return RuleRewriter(folded, kRules).Run();
}

}  // namespace thresher::passes
