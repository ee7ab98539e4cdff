// From a graph to a plan: lowering, memory planning and the choice of what runs on several threads.
#pragma once

#include <memory>
#include <string>

#include "thresher/base/status.h"
#include "thresher/graph/graph.h"
#include "thresher/plan/bands.h"
#include "thresher/plan/plan.h"
#include "thresher/plan/tuning.h"
#include "thresher/plan/weight_store.h"

namespace thresher {

struct PlanOptions {
  std::shared_ptr<const Target> target = CpuTarget();  // what the plan is for
  int num_threads = 1;
  bool share_memory = true;  // false: every buffer gets memory of its own, to tell planner faults from others
  const TuningTable* tuning = nullptr;    // what to choose blockings from; null: the defaults
  std::string name;                       // of the graph, for profiles
  bool allow_tf32 = false;                // products in f32 may round to 10 bits of fraction where the target has that
  NearCache cache = NearCache::OfCore();  // in which steps are computed band by band
  bool recorded = true;                   // false: runs of the plan are nobody's business but the compiler's
};

// Places the buffers in the arena and finds how much memory a run takes. `share`: those that are not needed at the same
// time may lie in the same place.
Status PlanMemory(Plan& plan, bool share);

// Tells the profiler about the plan and its steps.
void AssignSites(Plan& plan);

// How many parts a step of this cost is cut into for so many threads: for short ones as many as pay, for long ones a
// few for every thread. It follows from the plan and the sizes alone, and results from it: not from who does the parts.
int PartsFor(double flops, double bytes, int num_threads);
inline int PartsOf(const Step& step, double flops, double bytes, int num_threads) {
  return step.data_decides ? num_threads : PartsFor(flops, bytes, num_threads);
}

// Lowers `graph` as it stands; passes run before.
Result<std::shared_ptr<const Plan>> BuildPlan(const Graph& graph, WeightStore& weights, const PlanOptions& options);

}  // namespace thresher
