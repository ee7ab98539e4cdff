#include "thresher/torch_shim/clock_map.h"

#include <cmath>
#include <limits>

namespace thresher::torch_shim {
namespace {

constexpr int kReadings = 64;

}  // namespace

ClockMap::ClockMap(int64_t (*engine_now)()) : engine_now_(engine_now), start_(Read()) {}

// The reading least disturbed by whatever else the processor does.
ClockMap::Pair ClockMap::Read() const {
  Pair best;
  auto shortest = std::numeric_limits<c10::approx_time_t>::max();
  for (int i = 0; i < kReadings; ++i) {
    const c10::approx_time_t before = c10::getApproximateTime();
    const int64_t engine_ns = engine_now_();
    const c10::approx_time_t after = c10::getApproximateTime();
    if (after >= before && after - before < shortest) {
      shortest = after - before;
      best = {.engine_ns = engine_ns, .counter = before + (after - before) / 2};
    }
  }
  return best;
}

void ClockMap::Stop() {
  const Pair stop = Read();
  counter_to_unix_ = converter_.makeConverter();
  const int64_t ns = stop.engine_ns - start_.engine_ns;
  const double counts = static_cast<double>(static_cast<int64_t>(stop.counter - start_.counter));
  if (ns > 0 && counts > 0) counts_per_ns_ = counts / static_cast<double>(ns);
}

int64_t ClockMap::ToUnixNs(int64_t engine_ns) const {
  // Differences from the start are small enough for a double to hold to the nanosecond: 2^53 ns are 104 days.
  const double counts = static_cast<double>(engine_ns - start_.engine_ns) * counts_per_ns_;
  return counter_to_unix_(start_.counter + static_cast<c10::approx_time_t>(std::llround(counts)));
}

}  // namespace thresher::torch_shim
