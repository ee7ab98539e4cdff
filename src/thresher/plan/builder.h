// From a graph to a plan: lowering, memory planning and the choice of what runs on several threads.
#pragma once

#include <memory>
#include <string>

#include "thresher/base/status.h"
#include "thresher/graph/graph.h"
#include "thresher/plan/plan.h"
#include "thresher/plan/tuning.h"
#include "thresher/plan/weight_store.h"

namespace thresher {

struct PlanOptions {
  int num_threads = 1;
  bool share_memory = true;  // false: every buffer gets memory of its own, to tell planner faults from others
  const TuningTable* tuning = nullptr;  // what to choose blockings from; null: the defaults
  std::string name;                     // of the graph, for profiles
  bool recorded = true;                 // false: runs of the plan are nobody's business but the compiler's
};

// Whether a step of this cost is shared between threads.
bool WorthThreads(double flops, double bytes);

// Lowers `graph` as it stands; passes run before.
Result<std::shared_ptr<const Plan>> BuildPlan(const Graph& graph, WeightStore& weights, const PlanOptions& options);

}  // namespace thresher
