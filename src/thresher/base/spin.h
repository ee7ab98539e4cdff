// Waiting for another thread: spin for a moment, because the other is usually about to finish, then sleep.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

namespace thresher {

// Longer than the gap between two operators, much shorter than a time slice.
inline constexpr int64_t kSpinNs = 30'000;

inline void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether done() becomes true within about `spin_ns`; 0: it is not asked.
template <class Done>
inline bool SpinUntil(int64_t spin_ns, const Done& done) {
  if (spin_ns <= 0) return false;
  constexpr int kChecksPerClockReading = 32;
  timespec start;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (;;) {
    for (int i = 0; i < kChecksPerClockReading; ++i) {
      if (done()) return true;
      CpuRelax();
    }
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((now.tv_sec - start.tv_sec) * 1'000'000'000 + (now.tv_nsec - start.tv_nsec) > spin_ns) return false;
  }
}

// Returns once `word` differs from `old`, having spun for at most `spin_ns` and slept for the rest. The writer must
// call notify_one() or notify_all() on `word` after changing it.
inline void WaitWhileEqual(const std::atomic<uint32_t>& word, uint32_t old, int64_t spin_ns) {
  if (SpinUntil(spin_ns, [&] { return word.load(std::memory_order_acquire) != old; })) return;
  word.wait(old, std::memory_order_acquire);
}

}  // namespace thresher
