#include "thresher/base/fork_mutex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace thresher {
namespace {

// What a child that locks all of them and one made later ends with; a child that waits for ever is killed.
template <class Locks>
int StatusOfChild(Locks& locks) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    for (auto& lock : locks) const std::lock_guard held(*lock);
    ForkMutex later(LockRank::kSession);
    const std::lock_guard held(later);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(ForkMutex, IsFreeInAChildThatWasForkedWhileOthersHeldIt) {
  std::vector<std::unique_ptr<ForkMutex>> locks;
  for (int i = 0; i < 6; ++i)
    locks.push_back(std::make_unique<ForkMutex>(i % 2 ? LockRank::kWeights : LockRank::kSession));
  locks.erase(locks.begin() + 2);  // one from the middle of its list
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (auto& lock : locks) {
    threads.emplace_back([&lock, &stop] {
      while (!stop) {
        const std::lock_guard held(*lock);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(StatusOfChild(locks), 0);
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(StatusOfChild(locks), 0);
}

TEST(ForkMutex, ForkWaitsForWhoHoldsSeveral) {
  std::vector<std::unique_ptr<ForkMutex>> locks;
  locks.push_back(std::make_unique<ForkMutex>(LockRank::kWeights));
  locks.push_back(std::make_unique<ForkMutex>(LockRank::kProfiler));
  int written = 0;  // guarded by the first: whole means even
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) {
      const std::lock_guard outer(*locks[0]);
      ++written;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      const std::lock_guard inner(*locks[1]);
      ++written;
    }
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      const std::lock_guard held(*locks[0]);
      _exit(written % 2);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace thresher
