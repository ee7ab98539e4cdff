// From the engine's clock to the one of PyTorch's operators.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace thresher::torch_shim {

// PyTorch stamps operators with the processor's counter and converts them when the profile ends, by pairs of counter
// and wall clock read at both ends. The engine's stamps take the same way: engine to counter by pairs read at the same
// two moments, counter to wall clock by PyTorch's own class. So a wall clock that is corrected in between moves both
// alike, and a launch never lies outside its operator.
class ClockMap {
 public:
  // `engine_now`: reads the engine's clock.
  explicit ClockMap(int64_t (*engine_now)());

  // At the end of the session; ToUnixNs is valid from here on.
  void Stop();

  int64_t ToUnixNs(int64_t engine_ns) const;

 private:
  struct Pair {
    int64_t engine_ns = 0;
    c10::approx_time_t counter = 0;
  };
  Pair Read() const;

  int64_t (*engine_now_)();
  c10::ApproximateClockToUnixTimeConverter converter_;
  std::function<c10::time_t(c10::approx_time_t)> counter_to_unix_;
  Pair start_;
  double counts_per_ns_ = 1;
};

}  // namespace thresher::torch_shim
