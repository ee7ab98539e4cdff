#include "thresher/base/fork_mutex.h"

#include <pthread.h>

#include <array>
#include <cstddef>

namespace thresher {

// All that there are, listed by rank.
struct ForkMutexes {
  std::mutex mutex;  // guards the lists; taken before any of them
  std::array<ForkMutex*, static_cast<size_t>(LockRank::kCount)> heads{};

  // Never destroyed: threads may fork while static destructors run.
  static ForkMutexes& All() {
    static auto* const all = [] {
      pthread_atfork(Lock, Unlock, Unlock);
      return new ForkMutexes;
    }();
    return *all;
  }

  template <class Visit>
  void ForEach(Visit visit) {
    for (ForkMutex* head : heads) {
      for (ForkMutex* entry = head; entry != nullptr; entry = entry->next_) visit(*entry);
    }
  }

  ForkMutex*& HeadOf(const ForkMutex& entry) { return heads[static_cast<size_t>(entry.rank_)]; }

  static void Lock() {
    All().mutex.lock();
    All().ForEach([](ForkMutex& entry) { entry.lock(); });
  }
  static void Unlock() {
    All().ForEach([](ForkMutex& entry) { entry.unlock(); });
    All().mutex.unlock();
  }
};

ForkMutex::ForkMutex(LockRank rank) : rank_(rank) {
  ForkMutexes& all = ForkMutexes::All();
  const std::lock_guard lock(all.mutex);
  ForkMutex*& head = all.HeadOf(*this);
  next_ = head;
  if (head != nullptr) head->previous_ = this;
  head = this;
}

ForkMutex::~ForkMutex() {
  ForkMutexes& all = ForkMutexes::All();
  const std::lock_guard lock(all.mutex);
  (previous_ != nullptr ? previous_->next_ : all.HeadOf(*this)) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

}  // namespace thresher
