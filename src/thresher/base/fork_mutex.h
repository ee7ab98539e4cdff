// A mutex that is free in a child made by fork(), whatever the parent's threads were doing.
#pragma once

#include <mutex>

namespace thresher {

// In the order in which one thread may take several.
enum class LockRank { kTraceControl, kWeights, kTuning, kSession, kProfiler, kKeptMemory, kCount };

// fork() waits until nobody holds any of these: what they guard is whole in the child. So they are held for no longer
// than one can wait, nothing that needs the interpreter is done meanwhile, and no thread that holds one makes or
// destroys another.
class ForkMutex {
 public:
  explicit ForkMutex(LockRank rank);
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend struct ForkMutexes;

  std::mutex mutex_;
  const LockRank rank_;
  ForkMutex* previous_ = nullptr;
  ForkMutex* next_ = nullptr;
};

}  // namespace thresher
