#include "thresher/base/waking_place.h"

#include <unistd.h>

namespace thresher {

void WakingPlace::LieDown(int waker_cpu) {
  const std::lock_guard lock(mutex_);
  thread_ = gettid();
  // There are no places on a machine with more CPUs than the mask has bits.
  lying_ = sched_getaffinity(thread_, sizeof(mask_), &mask_) == 0;
  if (lying_ && waker_cpu >= 0) LeaveOut(waker_cpu);
}

void WakingPlace::GetUp() {
  const std::lock_guard lock(mutex_);
  lying_ = false;
  if (left_out_.load() >= 0 && !SomebodyHasSet()) (void)sched_setaffinity(thread_, sizeof(mask_), &mask_);
  left_out_.store(-1);
}

void WakingPlace::Avoid(int waker_cpu) {
  if (waker_cpu < 0 || left_out_.load(std::memory_order_relaxed) == waker_cpu) return;
  const std::lock_guard lock(mutex_);
  if (!lying_) return;
  if (SomebodyHasSet()) left_out_.store(-1);
  LeaveOut(waker_cpu);
}

void WakingPlace::LeaveOut(int cpu) {
  const cpu_set_t others = Without(cpu);
  const bool wanted = CPU_COUNT(&others) > 0 && CPU_EQUAL(&others, &mask_) == 0;
  const bool left = wanted && sched_setaffinity(thread_, sizeof(others), &others) == 0;
  // What was left out before is allowed again.
  if (!left && left_out_.load() >= 0) (void)sched_setaffinity(thread_, sizeof(mask_), &mask_);
  left_out_.store(left ? cpu : -1);
}

bool WakingPlace::SomebodyHasSet() {
  cpu_set_t now;
  if (sched_getaffinity(thread_, sizeof(now), &now) != 0) return false;
  const cpu_set_t ours = Without(left_out_.load());
  if (CPU_EQUAL(&now, &ours) != 0) return false;
  mask_ = now;
  return true;
}

cpu_set_t WakingPlace::Without(int cpu) const {
  cpu_set_t others = mask_;
  if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_CLR(static_cast<size_t>(cpu), &others);
  return others;
}

}  // namespace thresher
