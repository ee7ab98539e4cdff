#include "thresher/base/clock.h"

#include <time.h>

#include <limits>

namespace thresher {
namespace {

int64_t Read(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Wall clock minus monotonic clock, from the pair of readings that lie closest together.
int64_t SampleOffset() {
  int64_t offset = 0;
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 16; ++i) {
    const int64_t before = Read(CLOCK_MONOTONIC);
    const int64_t wall = Read(CLOCK_REALTIME);
    const int64_t after = Read(CLOCK_MONOTONIC);
    if (after - before < shortest) {
      shortest = after - before;
      offset = wall - (before + (after - before) / 2);
    }
  }
  return offset;
}

}  // namespace

int64_t NowNs() {
  static const int64_t offset = SampleOffset();
  return Read(CLOCK_MONOTONIC) + offset;
}

}  // namespace thresher
