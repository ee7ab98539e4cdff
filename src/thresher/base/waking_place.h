// Where a sleeping thread wakes up.
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <atomic>
#include <mutex>

namespace thresher {

// Keeps a thread that sleeps from waking up on the CPU of the one that wakes it, where it would wait for that one's
// time slice to end, which may be after all of the work. Linux does put it there: for as long as another program is
// busy on the only other CPU, at times though that is idle, and then again, since a thread tends to stay where it was.
//
// So its affinity mask leaves out that CPU while it sleeps; what else the mask has, and who has set it, is kept. Where
// the system refuses, or there is no other CPU, the thread wakes up anywhere.
class WakingPlace {
 public:
  WakingPlace() = default;
  WakingPlace(const WakingPlace&) = delete;
  WakingPlace& operator=(const WakingPlace&) = delete;

  // The thread itself, before it sleeps: it is expected to be woken from this CPU (-1: nobody knows) ...
  void LieDown(int waker_cpu);
  // ... and when it is awake: it may run wherever it could before.
  void GetUp();

  // Another thread, before it wakes it: from this CPU.
  void Avoid(int waker_cpu);

 private:
  void LeaveOut(int cpu);
  // Whether the mask is not the one with left_out_ left out: then it is kept.
  bool SomebodyHasSet();
  cpu_set_t Without(int cpu) const;

  std::mutex mutex_;
  bool lying_ = false;
  pid_t thread_ = 0;
  cpu_set_t mask_{};               // of the thread when it is awake
  std::atomic<int> left_out_{-1};  // of it, of the mask that the thread has; -1: nothing
};

}  // namespace thresher
