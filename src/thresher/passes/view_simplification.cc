#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"
#include "thresher/passes/view_rules.h"

namespace thresher::passes {

Result<Graph> ViewSimplification(const Graph& graph, const PassContext&) {
  return RuleRewriter(graph, ViewRules()).Run();
}

}  // namespace thresher::passes
