// A reusable barrier for the parts of one piece of work.
#pragma once

#include <atomic>
#include <cstdint>

#include "thresher/base/spin.h"

namespace thresher {

// Each round, the last of `parties` threads to arrive lets the others go. What a thread wrote before Wait() is seen by
// all after it. Spins first and sleeps later, so more threads than cores still make progress.
class SpinBarrier {
 public:
  explicit SpinBarrier(int parties) : parties_(static_cast<uint32_t>(parties)) {}
  SpinBarrier(const SpinBarrier&) = delete;
  SpinBarrier& operator=(const SpinBarrier&) = delete;

  int parties() const { return static_cast<int>(parties_); }

  void Wait() {
    if (parties_ == 1) return;
    // Read before arriving: once this thread has arrived, the round may end at any moment.
    const uint32_t round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == parties_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_seq_cst);
      round_.notify_all();
      return;
    }
    WaitWhileEqual(round_, round, kSpinNs);
  }

 private:
  const uint32_t parties_;
  // Apart, so that those who spin on the round do not slow down those who arrive.
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
};

}  // namespace thresher
