// What the profiler is told about the steps of a plan.
#pragma once

#include <string>
#include <string_view>

#include "thresher/graph/graph.h"
#include "thresher/plan/plan.h"
#include "thresher/profile/site.h"

namespace thresher {

// "mul+add+gelu" for a chain of pointwise operators; else the operator's name.
std::string OperatorsOf(const Node& node);

// What is shown of a step of `plan` that `node` was lowered to; null: one of none, such as a copy into an output.
StepShown ShownOf(const Graph& graph, const Node* node, const Step& step, const Plan& plan);

// The place of a step. `number` is its own in its plan, `variant` that of the plan's target.
profile::Site SiteOfStep(const Step& step, const std::string& graph_name, int number, std::string_view variant);

}  // namespace thresher
