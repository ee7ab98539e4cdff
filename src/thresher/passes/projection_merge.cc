// Queries, keys and values are three products of one x: as a single one they read x once, and threads share one larger
// matrix. So are the two of a gated layer, act(gate(x)) * up(x), though one of them has an activation: it moves to the
// operator that reads both, which computes it on its way.
#include <algorithm>
#include <optional>
#include <utility>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

enum LinearOperand : size_t { kX, kWeight, kBias, kResidual, kWideFrom };

// Of larger weights than of so many elements, products take so long that one more hardly counts, while the joined ones
// take memory where a program holds its own as well.
constexpr int64_t kMostElementsOfGate = int64_t{1} << 24;

std::string ActivationOf(const Attrs& attrs) { return GetAttr<std::string>(attrs, "activation", "none"); }

// Linears that become one product, by their positions among the nodes.
struct Group {
  Attrs attrs;  // of the product; a member with another activation has it behind the product
  std::vector<size_t> members;
  std::vector<bool> dependents;  // per value: is computed from a member's result
  bool open = true;
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), users_(graph.values().size()), is_output_(users_.size(), false) {
    for (const Node& node : graph.nodes()) {
      for (const ValueId id : node.inputs) {
        if (id != kNoValue) users_[Index(id)].push_back(&node);
      }
    }
    for (const ValueId id : graph.outputs()) is_output_[Index(id)] = true;
  }

  std::vector<Group> Run() {
    std::vector<Group> groups;
    for (size_t at = 0; at < graph_.nodes().size(); ++at) {
      const Node& node = graph_.nodes()[at];
      // A product that reads a group's results ends the group: what came after it would be computed too early and
      // wait in memory, as in a decoder, all of whose layers read what the encoder made.
      for (Group& group : groups) {
        if (!group.open || !Depends(node, group)) continue;
        if (node.op->Has(Trait::kProduct)) group.open = false;
        for (const ValueId id : node.outputs) group.dependents[Index(id)] = true;
      }
      if (!Eligible(node)) continue;
      Attrs attrs = AttrsOfProduct(node);
      Group* home = nullptr;
      for (Group& group : groups) {
        if (group.open && group.attrs == attrs && Fits(graph_.nodes()[group.members[0]], node)) home = &group;
      }
      if (home == nullptr) {
        groups.push_back({std::move(attrs), {}, std::vector<bool>(users_.size(), false), true});
        home = &groups.back();
      }
      home->members.push_back(at);
      home->dependents[Index(node.outputs[0])] = true;
    }
    std::erase_if(groups, [](const Group& group) { return group.members.size() < 2; });
    return groups;
  }

 private:
  static size_t Index(ValueId id) { return static_cast<size_t>(id); }

  static bool Depends(const Node& node, const Group& group) {
    return std::any_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId id) { return id != kNoValue && group.dependents[Index(id)]; });
  }

  bool Fits(const Node& first, const Node& node) const {
    return first.inputs[kX] == node.inputs[kX] && first.inputs[kWideFrom] == node.inputs[kWideFrom] &&
           graph_.value(first.inputs[kWeight]).dtype == graph_.value(node.inputs[kWeight]).dtype &&
           graph_.value(first.inputs[kWeight]).constant.blocks == graph_.value(node.inputs[kWeight]).constant.blocks;
  }

  bool Eligible(const Node& node) const {
    return node.op->name == "linear" && graph_.is_constant(node.inputs[kWeight]) &&
           (node.inputs[kBias] == kNoValue || graph_.is_constant(node.inputs[kBias])) &&
           node.inputs[kResidual] == kNoValue && ReadsWindow(node.outputs[0]);
  }

  // The linear's attributes, less an activation that moves behind it.
  Attrs AttrsOfProduct(const Node& node) const {
    Attrs attrs = node.attrs;
    if (ActivationOf(attrs) == "none" || IsGate(node)) attrs.erase("activation");
    return attrs;
  }

  // Whether the linear's weights are few, and all that reads it is one element-wise operator, which reads another
  // linear of the same x as well and may as well compute the activation: both are steps of one loop then.
  bool IsGate(const Node& node) const {
    const std::string activation = ActivationOf(node.attrs);
    const std::vector<const Node*>& users = users_[Index(node.outputs[0])];
    if (NumElements(graph_.value(node.inputs[kWeight]).shape) > kMostElementsOfGate) return false;
    if (!HasTrait(activation, Trait::kFuses) || users.size() != 1 || !users[0]->op->Has(Trait::kFuses) ||
        graph_.value(users[0]->outputs[0]).shape != graph_.value(node.outputs[0]).shape) {
      return false;
    }
    return std::any_of(users[0]->inputs.begin(), users[0]->inputs.end(), [&](ValueId id) {
      const Node* other = graph_.producer(id);
      return other != nullptr && other != &node && Eligible(*other) && Fits(node, *other) &&
             ActivationOf(other->attrs) != activation;
    });
  }

  // The merged results are windows with gaps between the rows. Whether all that reads this one, also through views,
  // takes it as it is.
  bool ReadsWindow(ValueId id) const {
    if (is_output_[Index(id)]) return false;
    return std::all_of(users_[Index(id)].begin(), users_[Index(id)].end(), [&](const Node* user) {
      return !CopiesRows(*user) && (!user->op->Has(Trait::kView) || ReadsWindow(user->outputs[0]));
    });
  }

  bool CopiesRows(const Node& node) const {
    if (node.op->copies_rows == nullptr) return false;
    const NodeTypes types(graph_, node);
    return node.op->copies_rows({types.inputs, node.attrs}, types.outputs);
  }

  const Graph& graph_;
  std::vector<std::vector<const Node*>> users_;  // per value
  std::vector<bool> is_output_;
};

// The module that all are part of.
std::string CommonModule(const std::string& a, const std::string& b) {
  if (a == b) return a;
  size_t end = 0;
  for (size_t i = 0; i <= a.size() && i <= b.size(); ++i) {
    const bool a_ends = i == a.size() || a[i] == '.';
    const bool b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) end = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, end);
}

Status Merge(const Group& group, Rewriter& rewriter) {
  const Graph& source = rewriter.source();
  const auto member = [&](size_t i) -> const Node& { return source.nodes()[group.members[i]]; };
  std::vector<ValueId> inputs = {rewriter.Map(member(0).inputs[kX])};
  std::string from = member(0).source;
  std::string module = member(0).module;
  bool any_bias = false;
  for (size_t i = 0; i < group.members.size(); ++i) {
    inputs.push_back(rewriter.Map(member(i).inputs[kWeight]));
    any_bias |= member(i).inputs[kBias] != kNoValue;
    from = MergeSources(from, member(i).source);
    module = CommonModule(module, member(i).module);
  }
  for (size_t i = 0; any_bias && i < group.members.size(); ++i) {
    const ValueId bias = member(i).inputs[kBias];
    if (bias != kNoValue) {
      inputs.push_back(rewriter.Map(bias));
      continue;
    }
    const int64_t n = source.value(member(i).outputs[0]).shape.back();
    const std::vector<float> zeros(static_cast<size_t>(n), 0.0f);
    inputs.push_back(rewriter.graph().AddOwnedConstant("no bias", DType::kF32, {n}, zeros.data()));
  }
  Attrs attrs = group.attrs;
  attrs["weights"] = static_cast<int64_t>(group.members.size());
  if (const ValueId wide_from = member(0).inputs[kWideFrom]; wide_from != kNoValue) {
    inputs.push_back(rewriter.Map(wide_from));
    attrs["wide_from"] = true;
  }
  THRESHER_ASSIGN(const std::vector<ValueId> outputs,
                  rewriter.graph().Add("linears", std::move(inputs), std::move(attrs), from, module));
  for (size_t i = 0; i < outputs.size(); ++i) {
    rewriter.Replace(member(i).outputs[0], outputs[i]);  // tells both values how the model has them
    const std::string activation = ActivationOf(member(i).attrs);
    if (activation == ActivationOf(group.attrs)) continue;
    THRESHER_ASSIGN(const ValueId activated,
                    rewriter.graph().Add1(activation, {outputs[i]}, {}, member(i).source, member(i).module));
    rewriter.Replace(member(i).outputs[0], activated);
  }
  return Status::Ok();
}

}  // namespace

Result<Graph> ProjectionMerge(const Graph& graph, const PassContext&) {
  const std::vector<Group> groups = Finder(graph).Run();
  Rewriter rewriter(graph);
  for (size_t at = 0; at < graph.nodes().size(); ++at) {
    const Node& node = graph.nodes()[at];
    for (const Group& group : groups) {
      if (group.members[0] == at) THRESHER_TRY(Merge(group, rewriter));
    }
    if (!rewriter.IsMapped(node.outputs[0])) THRESHER_TRY(rewriter.Copy(node));
  }
  return rewriter.Finish();
}

}  // namespace thresher::passes
