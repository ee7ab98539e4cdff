// From a graph as a front end built it to a session: passes, then the plan.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/base/tensor.h"
#include "thresher/graph/graph.h"
#include "thresher/graph/graph_family.h"
#include "thresher/passes/pass_manager.h"
#include "thresher/plan/builder.h"
#include "thresher/run/cpu_device.h"
#include "thresher/run/session.h"

namespace thresher {

struct CompileOptions {
  std::string level = "O2";                        // which list of passes: O0, O1, O2, O3
  std::optional<std::vector<std::string>> passes;  // instead of the level's list
  PrecisionOptions precision;
  CustomPasses custom_passes;  // what `passes` names beyond the engine's own
  PlanOptions plan;            // whose target is that of the device
  std::shared_ptr<Device> device = CpuDevice();
  bool graphs = false;  // runs become graphs of the device; see Session::Create
  // Called with the graph as it came ("input") and after every pass; of a plan for many sizes with that at the seed.
  std::function<void(std::string_view pass, const Graph& graph)> dump;
};

struct CompiledPlan {
  std::shared_ptr<const Plan> plan;
  std::vector<PrecisionDecision> decisions;  // of precision_assignment, for the plan's products
};

// Errors: unknown level or pass, whatever a pass or an operator's lowering refuses, kernels that the device lacks.
Result<CompiledPlan> CompilePlan(const Graph& graph, WeightStore& weights, const CompileOptions& options);
Result<std::unique_ptr<Session>> Compile(const Graph& graph, WeightStore& weights, const CompileOptions& options);

// One session for all sizes near `seed` up to `capacity`: plans are made at a few sizes, and what a run reads of them
// is told from those. Never for sizes at which the plan would look different; CheckSizes says which. Errors: as
// Compile, and where no such plan can be found.
Result<std::unique_ptr<Session>> CompileExtent(const GraphFamily& family, WeightStore& weights,
                                               const CompileOptions& options, const Dims& seed, const Dims& capacity);

// Runs a graph as it stands, on one thread, for constant folding and tests. `inputs` fit graph.inputs().
Result<std::vector<OwnedTensor>> Evaluate(const Graph& graph, const std::vector<View>& inputs = {});

}  // namespace thresher
