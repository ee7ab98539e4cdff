#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {

Result<Graph> DeadCode(const Graph& graph, const PassContext&) { return WithoutDeadNodes(graph); }

}  // namespace thresher::passes
