// What passes are written with: copy a graph node by node, putting other values in the place of some.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thresher/graph/graph.h"

namespace thresher {

// Copies `source` into a new graph. Inputs are there from the start, constants come when first mapped.
class Rewriter {
 public:
  explicit Rewriter(const Graph& source);

  const Graph& source() const { return source_; }
  Graph& graph() { return graph_; }
  const Graph& graph() const { return graph_; }

  // The new value that stands for the source's `id`; its node must have been copied or replaced.
  ValueId Map(ValueId id);
  std::vector<ValueId> MapAll(const std::vector<ValueId>& ids);
  // Whether Map can answer for `id`.
  bool IsMapped(ValueId id) const;
  void Replace(ValueId id, ValueId with);
  // The node as it is, on mapped operands.
  Status Copy(const Node& node);
  // The new graph with the source's outputs, less what became dead.
  Result<Graph> Finish();

 private:
  const Graph& source_;
  Graph graph_;
  std::vector<ValueId> map_;
};

// The graph without nodes and constants that no output depends on and no state that is written. Inputs all stay:
// callers pass them by position.
Result<Graph> WithoutDeadNodes(const Graph& graph);

// An operation about to be added to a graph.
struct Operation {
  std::string op;
  std::vector<ValueId> inputs;
  Attrs attrs;
  std::string source;
  std::string module = {};  // left empty by a rule: that of the operation the rule replaces
};

// Rewrites by local rules: every node of `source`, on operands that were rewritten already, is offered to the rules in
// turn. What a rule emits is offered again, so chains collapse in one walk.
class RuleRewriter {
 public:
  // The value that replaces the operation, or kNoValue where the rule does not apply.
  using Rule = Result<ValueId> (*)(RuleRewriter&, const Operation&);

  RuleRewriter(const Graph& source, std::span<const Rule> rules);
  Result<Graph> Run();

  // For rules.
  Result<ValueId> Emit(Operation operation);
  Graph& graph() { return rewriter_.graph(); }
  // These return copies: what a rule emits moves the nodes and values of the graph.
  Dims shape(ValueId id) const { return rewriter_.graph().value(id).shape; }
  DType dtype(ValueId id) const { return rewriter_.graph().value(id).dtype; }
  // The node that defines `id` if its operator is `op`.
  std::optional<Node> Producer(ValueId id, std::string_view op) const;
  // How many operands and outputs of the source use the value; 0 for what a rule made.
  int Uses(ValueId id) const;
  // Whether at most one does.
  bool SingleUse(ValueId id) const { return Uses(id) <= 1; }
  Result<ValueId> Reshape(ValueId x, Dims shape, const std::string& source);
  Result<ValueId> Permute(ValueId x, Dims dims, const std::string& source);
  Result<ValueId> Expand(ValueId x, Dims shape, const std::string& source);

 private:
  Rewriter rewriter_;
  std::vector<Rule> rules_;
  std::vector<int> uses_;  // per new value: uses in the source of all values it stands for
  std::string module_;     // of the operation that rules are working on
  int depth_ = 0;
};

// ---- what patterns ask ----

// `dim` of an attribute counted from the front. Rows have checked its range.
inline int64_t FromFront(int64_t dim, size_t rank) { return dim < 0 ? dim + static_cast<int64_t>(rank) : dim; }
// The "dims" of a permute, counted from the front.
Dims PermuteDims(const Node& permute);
// Output dims of applying `first`, then `second`.
Dims ComposePermutes(const Dims& first, const Dims& second);
// Whether `dims` exchanges the last two dimensions and nothing else.
bool SwapsLastTwo(const Dims& dims);
// numpy's rule, for shapes that are known to broadcast.
Dims BroadcastShapes(const Dims& a, const Dims& b);

// The one value of a constant all of whose elements are equal, or of a full, seen through reshape, expand and barrier;
// for others and for weights, whose contents may change. Integers beyond 2^53 are nullopt, as a double would round
// them.
std::optional<double> UniformConstant(const Graph& graph, ValueId id);

// "a, b" without repeating parts; what would get unreadably long stays as it was.
std::string MergeSources(const std::string& a, const std::string& b);

}  // namespace thresher
