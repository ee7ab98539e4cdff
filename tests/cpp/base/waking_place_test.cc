#include "thresher/base/waking_place.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "thresher/base/thread_pool.h"
#include "thresher/base/topology.h"

namespace thresher {
namespace {

std::vector<int> AllBut(const std::vector<int>& cpus, int left_out) {
  std::vector<int> others;
  for (const int cpu : cpus) {
    if (cpu != left_out) others.push_back(cpu);
  }
  return others;
}

void RunOn(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

// Tests change the mask of a thread of their own.
template <class Body>
void OnAThread(const Body& body) {
  std::thread(body).join();
}

TEST(WakingPlace, AThreadThatLiesLeavesOutOneCpuAndHasItBackAfterwards) {
  const std::vector<int> all = AffinityCpus();
  if (all.size() < 2) GTEST_SKIP() << "there is one CPU";
  OnAThread([&] {
    WakingPlace place;
    for (const int cpu : {all.front(), all.back()}) {
      place.LieDown(cpu);
      EXPECT_EQ(AffinityCpus(), AllBut(all, cpu));
      EXPECT_NE(sched_getcpu(), cpu);
      place.GetUp();
      EXPECT_EQ(AffinityCpus(), all);
    }
  });
}

TEST(WakingPlace, AWakerElsewhereChangesWhichCpuIsLeftOut) {
  const std::vector<int> all = AffinityCpus();
  if (all.size() < 2) GTEST_SKIP() << "there is one CPU";
  OnAThread([&] {
    WakingPlace place;
    place.Avoid(all.front());  // it does not lie
    EXPECT_EQ(AffinityCpus(), all);
    for (const int expected : {-1, all.front()}) {
      place.LieDown(expected);
      std::thread([&] { place.Avoid(all.back()); }).join();
      EXPECT_EQ(AffinityCpus(), AllBut(all, all.back()));
      place.GetUp();
      EXPECT_EQ(AffinityCpus(), all);
    }
    place.Avoid(all.front());
    EXPECT_EQ(AffinityCpus(), all);
  });
}

TEST(WakingPlace, TheOnlyCpuAndOnesThatAreNotTheThreadsAreNotLeftOut) {
  const std::vector<int> all = AffinityCpus();
  if (all.size() < 2) GTEST_SKIP() << "there is one CPU";
  OnAThread([&] {
    const std::vector<int> one = {all.front()};
    RunOn(one);
    WakingPlace place;
    for (const int cpu : {all.front(), all.back(), CPU_SETSIZE, -1}) {
      place.LieDown(cpu);
      EXPECT_EQ(AffinityCpus(), one);
      place.GetUp();
      EXPECT_EQ(AffinityCpus(), one);
    }
    RunOn(all);
    place.LieDown(all.front());
    place.Avoid(CPU_SETSIZE);  // what was left out is allowed again
    EXPECT_EQ(AffinityCpus(), all);
    place.GetUp();
  });
}

TEST(WakingPlace, AMaskThatSomebodyHasChangedIsKept) {
  const std::vector<int> all = AffinityCpus();
  if (all.size() < 2) GTEST_SKIP() << "there is one CPU";
  OnAThread([&] {
    WakingPlace place;
    place.LieDown(all.back());
    place.GetUp();
    const std::vector<int> fewer = AllBut(all, all.back());
    RunOn(fewer);
    place.LieDown(all.back());
    place.GetUp();
    EXPECT_EQ(AffinityCpus(), fewer);
    RunOn(all);
    // While the thread lies, too.
    place.LieDown(all.front());
    RunOn({all.front()});
    place.GetUp();
    EXPECT_EQ(AffinityCpus(), std::vector<int>{all.front()});
    RunOn(all);
    place.LieDown(all.front());
    RunOn({all.front()});
    std::thread([&] { place.Avoid(all.back()); }).join();
    EXPECT_EQ(AffinityCpus(), std::vector<int>{all.front()});
    place.GetUp();
    EXPECT_EQ(AffinityCpus(), std::vector<int>{all.front()});
  });
}

// Workers that have slept, are woken from here and there, and meet wakers while they lie down, keep their masks.
TEST(WakingPlace, WorkersOfAPoolRunWithTheirWholeMask) {
  const std::vector<int> all = AffinityCpus();
  ThreadPool pool(2);
  std::atomic<int> narrower{0};
  const auto call = [&] {
    pool.Run([&](int, int) {
      if (AffinityCpus() != all) narrower.fetch_add(1);
    });
  };
  const auto calls = [&] {
    for (int i = 0; i < 500; ++i) {
      call();
      // About as long as workers spin.
      std::this_thread::sleep_for(std::chrono::microseconds(i % 3 * 30));
    }
  };
  std::thread other(calls);
  calls();
  other.join();
  EXPECT_EQ(narrower.load(), 0);
}

}  // namespace
}  // namespace thresher
