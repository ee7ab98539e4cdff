// What one run of a plan reads and writes beside the plan itself.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "thresher/plan/extent.h"
#include "thresher/plan/weights_ahead.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/band_runner.h"
#include "thresher/run/device.h"
#include "thresher/run/pauses.h"

namespace thresher {

struct RunContext {
  explicit RunContext(std::shared_ptr<const Plan> plan)
      : sized(std::move(plan)),
        ahead(sized.plan()),
        rounds(RoundsOf(sized.plan())),
        step_ends(sized.plan().steps.size()),
        took(sized.plan().bands.empty() ? 0 : sized.plan().steps.size()) {}

  SizedPlan sized;  // the steps' operands with their addresses filled in
  WeightsAhead ahead;
  std::vector<StepRange> rounds;
  DeviceMemory arena;         // stays where it is as long as its size suffices
  int64_t scratch_bytes = 0;  // of one thread
  std::byte* scratch = nullptr;

  // Of the run in progress.
  Pauses* pauses = nullptr;                      // of one that is done in pieces
  size_t next_step = 0;                          // which a piece begins with, and where it has paused
  bool recorded = false;                         // by the caller: whoever plays it back uses the arena
  uint64_t execution = 0;                        // its number; 0: nothing is recorded
  int64_t begin = 0;                             // when it began
  std::vector<int64_t> step_ends;                // when each step ended, where records are made
  std::vector<std::atomic<int64_t>> took;        // what bands have taken of each step, where there are any and records
  const std::vector<uint32_t>* sites = nullptr;  // of the steps at these sizes; null: those of the plan

  uint32_t SiteOf(size_t step) const { return sites == nullptr ? sized.plan().steps[step].site : (*sites)[step]; }
};

// For tools that listen to ranges: operator and kernel variant; null where the plan's steps are not shown.
inline const char* NameOfStep(const RunContext& context, size_t step) {
  if (!context.sized.plan().recorded) return nullptr;
  return profile::SiteOf(context.SiteOf(step)).kernel.c_str();
}

}  // namespace thresher
