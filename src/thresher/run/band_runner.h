// Computes bands of a plan on the CPU.
#pragma once

#include <atomic>
#include <cstdint>

#include "thresher/plan/cpu_kernel.h"
#include "thresher/plan/extent.h"

namespace thresher {

// Computes band `part`. `context`: of this thread, its memory and what is read next. `took`: one a step, to which what
// this band took of it is added; null: nobody wants to know.
Status RunBand(const SizedPlan& sized, const Bands& bands, int part, const StepContext& context,
               std::atomic<int64_t>* took);

}  // namespace thresher
