// Computes bands of a plan on the CPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "thresher/plan/cpu_kernel.h"
#include "thresher/plan/extent.h"

namespace thresher {

// Steps of a plan that a run does in one round.
struct StepRange {
  size_t first = 0, end = 0;
  const Bands* bands = nullptr;  // null: one step
};

// All of them, in order.
std::vector<StepRange> RoundsOf(const Plan& plan);

// Computes band `part`. `context`: of this thread, its memory and what is read next. `took`: one a step, to which what
// this band took of it is added; null: nobody wants to know.
Status RunBand(const SizedPlan& sized, const Bands& bands, int part, const StepContext& context,
               std::atomic<int64_t>* took);

}  // namespace thresher
