// The passes themselves, each in the file of its name. passes/pass_manager.cc says what they do in a sentence.
#pragma once

#include "thresher/graph/graph.h"
#include "thresher/passes/pass_manager.h"

namespace thresher::passes {

Result<Graph> ValueWidening(const Graph& graph, const PassContext& context);
Result<Graph> DeadCode(const Graph& graph, const PassContext& context);
Result<Graph> ConstantFolding(const Graph& graph, const PassContext& context);
Result<Graph> CommonSubexpressions(const Graph& graph, const PassContext& context);
Result<Graph> ViewSimplification(const Graph& graph, const PassContext& context);
Result<Graph> LinearRecognition(const Graph& graph, const PassContext& context);
Result<Graph> EpilogueFusion(const Graph& graph, const PassContext& context);
Result<Graph> NormRecognition(const Graph& graph, const PassContext& context);
Result<Graph> NormFusion(const Graph& graph, const PassContext& context);
Result<Graph> LayoutMotion(const Graph& graph, const PassContext& context);
Result<Graph> AttentionRecognition(const Graph& graph, const PassContext& context);
Result<Graph> RotaryRecognition(const Graph& graph, const PassContext& context);
Result<Graph> ProductMotion(const Graph& graph, const PassContext& context);
Result<Graph> PrecisionAssignment(const Graph& graph, const PassContext& context);
Result<Graph> ProjectionMerge(const Graph& graph, const PassContext& context);
Result<Graph> PointwiseFusion(const Graph& graph, const PassContext& context);
Result<Graph> ValueNarrowing(const Graph& graph, const PassContext& context);

}  // namespace thresher::passes
