// Element-wise operators one after the other read and write memory for every one of them; as one loop over tiles they
// read what comes in and write what goes out. What is stored in 16 bits they widen as they read it and round as they
// write it, so that no copy of it in f32 is made.
#include <algorithm>
#include <cmath>

#include "thresher/graph/operator.h"
#include "thresher/graph/program.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

// As many as the operator takes. More operands would also crowd the L1 cache.
constexpr size_t kMaxOperands = 8;
constexpr size_t kMaxSteps = 16;

constexpr size_t kNotEligible = static_cast<size_t>(-1);

size_t Index(ValueId id) { return static_cast<size_t>(id); }

// Nodes that become one, by their positions, in order; the last one's result is the group's.
using Group = std::vector<size_t>;

bool IsCast(const Node& node) { return node.op->name == std::string_view("cast"); }

// The operand as it is stored: of a value widened from 16 bits, these.
ValueId AsStored(const Graph& graph, ValueId id) {
  const Node* node = graph.producer(id);
  if (node == nullptr || !IsCast(*node) || graph.value(id).dtype != DType::kF32) return id;
  return IsHalf(graph.value(node->inputs[0]).dtype) ? node->inputs[0] : id;
}

bool IsChainNode(const Graph& graph, const Node& node) {
  if (!node.op->Has(Trait::kFuses)) return false;
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
    const DType dtype = graph.value(id).dtype;
    return dtype == DType::kF32 || dtype == DType::kBool;
  });
}

// The position of the one operand that may stand in the program as a number, or the number of operands.
size_t NumberAt(const Graph& graph, const Node& node) {
  const size_t none = node.inputs.size();
  const bool first_is_tensor = node.op->name == std::string_view("where") || node.op->name == std::string_view("pow");
  for (size_t i = first_is_tensor ? 1 : 0; none > 1 && i < none; ++i) {
    if (graph.value(node.inputs[i]).dtype != DType::kF32) continue;
    // Of a power, several exponents that happen to be equal are computed otherwise than one.
    if (node.op->name == std::string_view("pow") && NumElements(graph.value(node.inputs[i]).shape) != 1) continue;
    const std::optional<double> number = UniformConstant(graph, node.inputs[i]);
    if (!number || std::isnan(*number)) continue;
    // A number has no shape to give to the result.
    Dims shape;
    for (size_t j = 0; j < none; ++j) {
      if (j != i) shape = BroadcastShapes(shape, graph.value(node.inputs[j]).shape);
    }
    if (shape == graph.value(node.outputs[0]).shape) return i;
  }
  return none;
}

class Finder {
 public:
  explicit Finder(const Graph& graph)
      : graph_(graph),
        uses_(graph.UseCounts()),
        position_(uses_.size(), 0),
        rounded_at_(uses_.size(), kNotEligible),
        taken_(graph.nodes().size(), false) {
    for (size_t at = 0; at < graph.nodes().size(); ++at) {
      const Node& node = graph.nodes()[at];
      number_at_.push_back(IsChainNode(graph, node) ? NumberAt(graph, node) : kNotEligible);
      for (const ValueId id : node.outputs) position_[Index(id)] = at;
      if (IsCast(node) && IsHalf(graph.value(node.outputs[0]).dtype) && uses_[Index(node.inputs[0])] == 1) {
        rounded_at_[Index(node.inputs[0])] = at;
      }
    }
  }

  // The groups, by the position of their last node.
  std::vector<Group> Run() {
    std::vector<Group> groups(graph_.nodes().size());
    for (size_t at = graph_.nodes().size(); at-- > 0;) {
      const Node& last = graph_.nodes()[at];
      if (taken_[at] || !Eligible(at) || graph_.value(last.outputs[0]).dtype != DType::kF32) continue;
      if (!ComputesItsConditions(last)) continue;
      Group group = Grow(at);
      if (group.empty()) continue;
      if (group.size() == 1 && RoundedAt(at) == kNotEligible && !ReadsHalves(group)) continue;
      for (const size_t member : group) taken_[member] = true;
      std::sort(group.begin(), group.end());
      groups[at] = std::move(group);
    }
    return groups;
  }

  // The position of the one node that reads the result of the node at `at`, where that rounds it to 16 bits.
  size_t RoundedAt(size_t at) const { return rounded_at_[Index(graph_.nodes()[at].outputs[0])]; }

 private:
  bool Eligible(size_t at) const { return number_at_[at] != kNotEligible; }

  // Operands of the group are f32: what is bool has to be computed inside.
  bool ComputesItsConditions(const Node& node) const {
    return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) {
      if (graph_.value(id).dtype == DType::kF32) return true;
      const Node* condition = graph_.producer(id);
      return condition != nullptr && Eligible(position_[Index(id)]) && uses_[Index(id)] == 1 &&
             graph_.value(id).shape == graph_.value(node.outputs[0]).shape && ComputesItsConditions(*condition);
    });
  }

  bool ReadsHalves(const Group& group) const {
    const std::vector<ValueId> operands = Operands(group);
    return std::any_of(operands.begin(), operands.end(), [&](ValueId id) { return IsHalf(graph_.value(id).dtype); });
  }

  // Takes in what produces the operands, as long as nothing outside reads it. The latest goes first: then those who
  // read an operand have been looked at before its producer is.
  Group Grow(size_t last) const {
    Group best;
    Group group = {last};
    std::vector<bool> seen(graph_.nodes().size(), false);
    while (true) {
      const std::vector<ValueId> operands = Operands(group);
      if (Fits(group, operands)) best = group;
      size_t next = 0;
      bool found = false;
      for (const ValueId id : operands) {
        if (graph_.producer(id) == nullptr) continue;
        const size_t at = position_[Index(id)];
        if (seen[at] || (found && at < next)) continue;
        next = at;
        found = true;
      }
      if (!found || group.size() == kMaxSteps) return best;
      seen[next] = true;
      if (Joins(group, next)) group.push_back(next);
    }
  }

  bool Joins(const Group& group, size_t at) const {
    const Node& node = graph_.nodes()[at];
    if (taken_[at] || !Eligible(at) || !ComputesItsConditions(node)) return false;
    const ValueId result = node.outputs[0];
    if (graph_.value(result).shape != graph_.value(graph_.nodes()[group.front()].outputs[0]).shape) return false;
    int inside = 0;
    for (const size_t member : group) {
      const std::vector<ValueId>& inputs = graph_.nodes()[member].inputs;
      inside += static_cast<int>(std::count(inputs.begin(), inputs.end(), result));
    }
    return inside == uses_[Index(result)];
  }

  // Whether the operator takes the group as it is: what comes in is floats and not too much.
  bool Fits(const Group& group, const std::vector<ValueId>& operands) const {
    return operands.size() <= kMaxOperands && group.size() <= kMaxSteps &&
           std::all_of(operands.begin(), operands.end(), [&](ValueId id) { return IsFloat(graph_.value(id).dtype); });
  }

  // What the group reads that it does not compute.
  std::vector<ValueId> Operands(const Group& group) const {
    std::vector<ValueId> operands;
    Group ordered = group;
    std::sort(ordered.begin(), ordered.end());
    for (const size_t member : ordered) {
      const Node& node = graph_.nodes()[member];
      const size_t number = number_at_[member];
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const ValueId id = AsStored(graph_, node.inputs[i]);
        if (i == number || std::find(operands.begin(), operands.end(), id) != operands.end()) continue;
        const bool inside = graph_.producer(id) != nullptr &&
                            std::find(group.begin(), group.end(), position_[Index(id)]) != group.end();
        if (!inside) operands.push_back(id);
      }
    }
    return operands;
  }

  const Graph& graph_;
  std::vector<int> uses_;
  std::vector<size_t> position_;    // per value: of the node that defines it
  std::vector<size_t> rounded_at_;  // per value: of its one reader, where that rounds it to 16 bits, or kNotEligible
  std::vector<bool> taken_;         // per node
  std::vector<size_t> number_at_;   // per node: NumberAt, or kNotEligible
};

// `rounding`: of the group's result, which is then stored so, or nullptr.
Status Fuse(const Group& group, const Node* rounding, Rewriter& rewriter) {
  const Graph& source = rewriter.source();
  const Node& last = source.nodes()[group.back()];
  Program program;
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  std::string from = last.source;
  for (const size_t member : group) {
    const Node& node = source.nodes()[member];
    const size_t number = NumberAt(source, node);
    ProgramStep step{std::string(node.op->name), {}};
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId id = node.inputs[i];
      if (i == number) {
        step.args.push_back(ProgramArg::Number(static_cast<float>(UniformConstant(source, id).value())));
        continue;
      }
      const auto result = std::find(results.begin(), results.end(), id);
      if (result != results.end()) {
        step.args.push_back(ProgramArg::Step(static_cast<int>(result - results.begin())));
        continue;
      }
      const ValueId stored = AsStored(source, id);
      const auto operand = std::find(operands.begin(), operands.end(), stored);
      step.args.push_back(ProgramArg::Operand(static_cast<int>(operand - operands.begin())));
      if (operand == operands.end()) operands.push_back(stored);
    }
    program.push_back(std::move(step));
    results.push_back(node.outputs[0]);
    from = MergeSources(from, node.source);
  }
  Attrs attrs = {{"program", PrintProgram(program)}};
  if (rounding != nullptr) attrs["dtype"] = GetAttr<std::string>(rounding->attrs, "dtype", "");
  THRESHER_ASSIGN(const ValueId value,
                  rewriter.graph().Add1("pointwise", rewriter.MapAll(operands), std::move(attrs), from, last.module));
  rewriter.Replace((rounding != nullptr ? *rounding : last).outputs[0], value);
  return Status::Ok();
}

}  // namespace

Result<Graph> PointwiseFusion(const Graph& graph, const PassContext&) {
  Finder finder(graph);
  const std::vector<Group> groups = finder.Run();
  std::vector<const Node*> rounding(graph.nodes().size(), nullptr);
  std::vector<bool> inside(graph.nodes().size(), false);
  for (size_t at = 0; at < groups.size(); ++at) {
    for (const size_t member : groups[at]) inside[member] = true;
    const size_t rounded_at = groups[at].empty() ? kNotEligible : finder.RoundedAt(at);
    if (rounded_at == kNotEligible) continue;
    rounding[at] = &graph.nodes()[rounded_at];
    inside[rounded_at] = true;
  }
  Rewriter rewriter(graph);
  for (size_t at = 0; at < graph.nodes().size(); ++at) {
    if (!groups[at].empty()) {
      THRESHER_TRY(Fuse(groups[at], rounding[at], rewriter));
    } else if (!inside[at]) {
      THRESHER_TRY(rewriter.Copy(graph.nodes()[at]));
    }
  }
  return rewriter.Finish();
}

}  // namespace thresher::passes
