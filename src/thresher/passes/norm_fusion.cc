// layer_norm(a + b) and rms_norm(a + b) add on the way: the sum is normalised while it is still in the cache.
#include <algorithm>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

size_t Index(ValueId id) { return static_cast<size_t>(id); }

// The operand that stands for the residual, or 0 where the operator has none.
size_t ResidualOf(std::string_view op) {
  if (op == "layer_norm") return 3;
  if (op == "rms_norm") return 2;
  return 0;
}

bool AddsWhole(const Graph& graph, const Node& node) {
  return node.op->name == "add" && graph.value(node.outputs[0]).dtype == DType::kF32 &&
         graph.value(node.inputs[0]).shape == graph.value(node.inputs[1]).shape;
}

}  // namespace

Result<Graph> NormFusion(const Graph& graph, const PassContext&) {
  const std::vector<int> uses = graph.UseCounts();
  // Per value: the first norm that reads it as x.
  std::vector<const Node*> norms(graph.values().size(), nullptr);
  for (const Node& node : graph.nodes()) {
    const size_t residual = ResidualOf(node.op->name);
    if (residual == 0 || node.inputs[residual] != kNoValue) continue;
    const Node*& norm = norms[Index(node.inputs[0])];
    if (norm == nullptr) norm = &node;
  }
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (rewriter.IsMapped(node.outputs[0])) continue;  // a norm that was computed with its sum
    const Node* norm = AddsWhole(graph, node) ? norms[Index(node.outputs[0])] : nullptr;
    // The norm moves up to the sum, so that all who read the sum come after it; the weight and bias must be there.
    if (norm == nullptr ||
        !std::all_of(norm->inputs.begin() + 1, norm->inputs.end(), [&](ValueId id) { return rewriter.IsMapped(id); })) {
      THRESHER_TRY(rewriter.Copy(node));
      continue;
    }
    std::vector<ValueId> inputs = rewriter.MapAll(norm->inputs);
    inputs[0] = rewriter.Map(node.inputs[0]);
    inputs[ResidualOf(norm->op->name)] = rewriter.Map(node.inputs[1]);
    Attrs attrs = norm->attrs;
    if (uses[Index(node.outputs[0])] > 1) attrs["sum"] = true;
    THRESHER_ASSIGN(const std::vector<ValueId> outputs,
                    rewriter.graph().Add(std::string(norm->op->name), std::move(inputs), std::move(attrs),
                                         MergeSources(node.source, norm->source), norm->module));
    rewriter.Replace(norm->outputs[0], outputs[0]);
    if (outputs.size() > 1) rewriter.Replace(node.outputs[0], outputs[1]);
  }
  return rewriter.Finish();
}

}  // namespace thresher::passes
