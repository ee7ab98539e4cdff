#include "thresher/plan/once_map.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace thresher {
namespace {

TEST(OnceMap, MakesEachValueOnce) {
  ForkMutex mutex(LockRank::kWeights);
  OnceMap<int, int> map(mutex);
  std::atomic<int> made{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        for (int key = 0; key < 50; ++key) {
          EXPECT_EQ(map.Get(key, [&]() -> Result<int> { return ++made, 10 * key; }).value(), 10 * key);
        }
      });
    }
  }
  EXPECT_EQ(made, 50);
  int sum = 0;
  map.ForEach([&](int value) { sum += value; });
  EXPECT_EQ(sum, 10 * 50 * 49 / 2);
}

// Would not end if what is made were waited for by those who want something else.
TEST(OnceMap, OnlyThoseWaitThatWantTheSame) {
  ForkMutex mutex(LockRank::kWeights);
  OnceMap<int, int> map(mutex);
  std::atomic<bool> begun{false}, may_end{false};
  std::jthread slow([&] {
    const Result<int> made = map.Get(1, [&]() -> Result<int> {
      begun = true;
      begun.notify_all();
      may_end.wait(false);
      return 1;
    });
    EXPECT_TRUE(made.ok());
  });
  begun.wait(false);
  EXPECT_EQ(map.Get(2, []() -> Result<int> { return 2; }).value(), 2);
  std::atomic<int> made{0};
  std::jthread same([&] { EXPECT_EQ(map.Get(1, [&]() -> Result<int> { return ++made; }).value(), 1); });
  may_end = true;
  may_end.notify_all();
  same.join();
  EXPECT_EQ(made, 0);
}

TEST(OnceMap, WhatFailedIsTriedAgain) {
  ForkMutex mutex(LockRank::kWeights);
  OnceMap<int, int> map(mutex);
  std::atomic<bool> begun{false}, may_fail{false};
  std::jthread failing([&] {
    EXPECT_THROW(map.Get(1,
                         [&]() -> Result<int> {
                           begun = true;
                           begun.notify_all();
                           may_fail.wait(false);
                           throw std::runtime_error("no memory");
                         }),
                 std::runtime_error);
  });
  begun.wait(false);
  std::jthread waiting([&] { EXPECT_EQ(map.Get(1, []() -> Result<int> { return 7; }).value(), 7); });
  may_fail = true;
  may_fail.notify_all();
  waiting.join();
  EXPECT_EQ(map.Get(1, []() -> Result<int> { return 8; }).value(), 7);
}

TEST(OnceMap, ErrorsReachTheirCallerAlone) {
  ForkMutex mutex(LockRank::kWeights);
  OnceMap<int, int> map(mutex);
  EXPECT_EQ(map.Get(1, []() -> Result<int> { return InvalidArgument("cut short"); }).status().message(), "cut short");
  EXPECT_EQ(map.Get(1, []() -> Result<int> { return 7; }).value(), 7);
}

TEST(OnceMap, AChildMakesWhatItsParentWasMaking) {
  ForkMutex mutex(LockRank::kWeights);
  OnceMap<int, int> map(mutex);
  EXPECT_EQ(map.Get(0, []() -> Result<int> { return 5; }).value(), 5);
  std::atomic<bool> begun{false}, may_end{false};
  std::jthread slow([&] {
    const Result<int> made = map.Get(1, [&]() -> Result<int> {
      begun = true;
      begun.notify_all();
      may_end.wait(false);
      return 1;
    });
    EXPECT_TRUE(made.ok());
  });
  begun.wait(false);
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);  // rather than for ever
    const bool right = map.Get(1, []() -> Result<int> { return 3; }).value() == 3 &&
                       map.Get(0, []() -> Result<int> { return 4; }).value() == 5;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  may_end = true;
  may_end.notify_all();
  slow.join();
  EXPECT_EQ(map.Get(1, []() -> Result<int> { return 9; }).value(), 1);
}

}  // namespace
}  // namespace thresher
