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

class OnceMapTest : public testing::Test {
 protected:
  // A thread that asks for the value of 1, and is at it until End() is called.
  template <class Make>
  std::jthread Begin(Make make) {
    std::jthread thread([this, make] {
      make([this] {
        begun_ = true;
        begun_.notify_all();
        may_end_.wait(false);
      });
    });
    begun_.wait(false);
    return thread;
  }
  void End() {
    may_end_ = true;
    may_end_.notify_all();
  }

  ForkMutex mutex_{LockRank::kWeights};
  OnceMap<int, int> map_{mutex_};

 private:
  std::atomic<bool> begun_{false}, may_end_{false};
};

TEST_F(OnceMapTest, MakesEachValueOnce) {
  std::atomic<int> made{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        for (int key = 0; key < 50; ++key) {
          EXPECT_EQ(map_.Get(key, [&]() -> Result<int> { return ++made, 10 * key; }).value(), 10 * key);
        }
      });
    }
  }
  EXPECT_EQ(made, 50);
  int sum = 0;
  map_.ForEach([&](int value) { sum += value; });
  EXPECT_EQ(sum, 10 * 50 * 49 / 2);
}

// Would not end if what is made were waited for by those who want something else.
TEST_F(OnceMapTest, OnlyThoseWaitThatWantTheSame) {
  std::jthread slow =
      Begin([this](const auto& wait) { EXPECT_TRUE(map_.Get(1, [&]() -> Result<int> { return wait(), 1; }).ok()); });
  EXPECT_EQ(map_.Get(2, []() -> Result<int> { return 2; }).value(), 2);
  std::atomic<int> made{0};
  std::jthread same([&] { EXPECT_EQ(map_.Get(1, [&]() -> Result<int> { return ++made; }).value(), 1); });
  End();
  same.join();
  EXPECT_EQ(made, 0);
}

TEST_F(OnceMapTest, WhatFailedIsTriedAgain) {
  std::jthread failing = Begin([this](const auto& wait) {
    const auto make = [&]() -> Result<int> {
      wait();
      throw std::runtime_error("no memory");
    };
    EXPECT_THROW((void)map_.Get(1, make), std::runtime_error);
  });
  std::jthread waiting([&] { EXPECT_EQ(map_.Get(1, []() -> Result<int> { return 7; }).value(), 7); });
  End();
  waiting.join();
  EXPECT_EQ(map_.Get(1, []() -> Result<int> { return 8; }).value(), 7);
}

TEST_F(OnceMapTest, ErrorsReachTheirCallerAlone) {
  EXPECT_EQ(map_.Get(1, []() -> Result<int> { return InvalidArgument("cut short"); }).status().message(), "cut short");
  EXPECT_EQ(map_.Get(1, []() -> Result<int> { return 7; }).value(), 7);
}

TEST_F(OnceMapTest, AChildMakesWhatItsParentWasMaking) {
  EXPECT_EQ(map_.Get(0, []() -> Result<int> { return 5; }).value(), 5);
  std::jthread slow =
      Begin([this](const auto& wait) { EXPECT_TRUE(map_.Get(1, [&]() -> Result<int> { return wait(), 1; }).ok()); });
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);  // rather than for ever
    const bool right = map_.Get(1, []() -> Result<int> { return 3; }).value() == 3 &&
                       map_.Get(0, []() -> Result<int> { return 4; }).value() == 5;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  End();
  slow.join();
  EXPECT_EQ(map_.Get(1, []() -> Result<int> { return 9; }).value(), 1);
}

}  // namespace
}  // namespace thresher
