// Measures which blocking of a product is fastest on this machine.
#pragma once

#include <cstdint>

#include "thresher/base/function_ref.h"
#include "thresher/base/status.h"
#include "thresher/kernels/blocking.h"
#include "thresher/plan/tuning.h"

namespace thresher {

struct TuneOptions {
  int64_t sample_ns = 2'000'000;   // least time of one measurement, several calls if need be
  int64_t stage_ns = 600'000'000;  // for comparing candidates, within the bounds of rounds
  int least_rounds = 3;
  int most_rounds = 21;
  int confirm_rounds = 41;  // of the last comparison, default against winner
};

// Times of one call, in nanoseconds.
struct Quartiles {
  double lower = 0;
  double median = 0;
  double upper = 0;
};

struct TuneResult {
  kernels::Blocking blocking;  // the default where nothing was faster beyond doubt
  Quartiles by_default;
  Quartiles tuned;     // equal to by_default where the default is kept
  Quartiles ratio;     // of the best candidate's time to the default's within a round, before the verdict
  int candidates = 0;  // that were measured, the default included
  int rounds = 0;      // of the last comparison
};

// Measures with the instruction set in use, which key.isa must name. Candidates are timed in turns, round by round, so
// that what disturbs the machine disturbs all alike. The winner replaces the default only if it is faster by more than
// 2 % in the median of the rounds and faster in three rounds out of four. `progress` gets numbers from 0 to 1 on the
// calling thread and may throw to end the measurement. Errors: a size below 1, another instruction set, no memory.
Result<TuneResult> TuneProduct(const ProductKey& key, const TuneOptions& options,
                               FunctionRef<void(double done)> progress);

}  // namespace thresher
