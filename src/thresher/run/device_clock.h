// A device's time on the profiler's clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

namespace thresher {

// One moment that both clocks have seen, and what was learnt since. The device's moment is an event; times are given as
// nanoseconds since it.
class DeviceClock {
 public:
  // The event happened between two readings of the profiler's clock. Of several attempts the shortest one counts.
  // Returns whether this is the one to keep.
  bool Calibrate(int64_t before_ns, int64_t after_ns) {
    if (after_ns - before_ns >= span_ns_) return false;
    span_ns_ = after_ns - before_ns;
    base_ns_.store(before_ns + span_ns_ / 2, std::memory_order_relaxed);
    return true;
  }

  // On the profiler's clock, for work that was not launched before `launched_ns`: were it earlier, the two moments
  // would not be the same one, and the clock moves on for good.
  int64_t ToHost(double since_base_ns, int64_t launched_ns) {
    const int64_t since = static_cast<int64_t>(since_base_ns);
    int64_t base = base_ns_.load(std::memory_order_relaxed);
    while (base + since < launched_ns && !base_ns_.compare_exchange_weak(base, launched_ns - since)) {
    }
    return base_ns_.load(std::memory_order_relaxed) + since;
  }

  int64_t base_ns() const { return base_ns_.load(std::memory_order_relaxed); }
  int64_t span_ns() const { return span_ns_; }

 private:
  std::atomic<int64_t> base_ns_{0};
  int64_t span_ns_ = std::numeric_limits<int64_t>::max();
};

}  // namespace thresher
