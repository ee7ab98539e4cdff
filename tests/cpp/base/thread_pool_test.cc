#include "thresher/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "thresher/base/barrier.h"
#include "thresher/base/cpu.h"

namespace thresher {
namespace {

TEST(ThreadPool, RunsEveryPartOnceForEverySize) {
  for (const int size : {1, 2, 3, 7}) {
    ThreadPool pool(size);
    ASSERT_EQ(pool.num_threads(), size);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(size));
      pool.Run([&](int part, int num_parts) {
        EXPECT_EQ(num_parts, size);
        calls[static_cast<size_t>(part)].fetch_add(1);
      });
      for (const auto& count : calls) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, PartZeroRunsOnTheCallerAndAPartKeepsItsThread) {
  ThreadPool pool(3);
  std::vector<std::thread::id> first(3);
  pool.Run([&](int part, int) { first[static_cast<size_t>(part)] = std::this_thread::get_id(); });
  EXPECT_EQ(first[0], std::this_thread::get_id());
  EXPECT_NE(first[1], first[2]);
  std::vector<std::thread::id> second(3);
  pool.Run([&](int part, int) { second[static_cast<size_t>(part)] = std::this_thread::get_id(); });
  EXPECT_EQ(first, second);
}

TEST(ThreadPool, MaxPartsLimitsTheParts) {
  ThreadPool pool(4);
  for (int round = 0; round < 300; ++round) {
    const int max_parts = 1 + round % 6;
    std::atomic<int> calls{0};
    pool.Run(
        [&](int, int num_parts) {
          EXPECT_EQ(num_parts, std::min(4, max_parts));
          calls.fetch_add(1);
        },
        max_parts);
    ASSERT_EQ(calls.load(), std::min(4, max_parts));
  }
}

TEST(ThreadPool, WritesOfThePartsAreSeenAfterRun) {
  ThreadPool pool(2);
  std::vector<int> values(1000, 0);  // plain memory: a missing acquire or release shows under a thread sanitizer
  for (int round = 1; round <= 100; ++round) {
    pool.Run([&](int part, int num_parts) {
      for (size_t i = static_cast<size_t>(part); i < values.size(); i += static_cast<size_t>(num_parts)) ++values[i];
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), 0), round * 1000);
  }
}

TEST(ThreadPool, WorkersWakeFromSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond kSpinNs
    std::atomic<int> calls{0};
    pool.Run([&](int, int) { calls.fetch_add(1); });
    ASSERT_EQ(calls.load(), 2);
  }
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  std::atomic<int> calls{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        pool.Run([&](int, int num_parts) {
          EXPECT_EQ(num_parts, 2);
          EXPECT_LE(inside.fetch_add(1), 1);  // never more than the two parts of one job
          calls.fetch_add(1);
          inside.fetch_sub(1);
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls.load(), 4 * 100 * 2);
}

TEST(ThreadPool, ACallFromInsideWorkRunsOnTheSpot) {
  ThreadPool pool(2);
  std::atomic<int> inner{0};
  pool.Run([&](int, int) {
    pool.Run([&](int part, int num_parts) {
      EXPECT_EQ(part, 0);
      EXPECT_EQ(num_parts, 1);
      inner.fetch_add(1);
    });
  });
  EXPECT_EQ(inner.load(), 2);
}

TEST(ThreadPool, ResizeTakesEffect) {
  ThreadPool pool(1);
  for (const int size : {3, 3, 1, 2}) {
    pool.Resize(size);
    std::atomic<int> calls{0};
    pool.Run([&](int, int) { calls.fetch_add(1); });
    EXPECT_EQ(calls.load(), size);
  }
}

TEST(ThreadPool, AForkedChildGetsAPoolOfItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no new threads after a fork";
#endif
  ThreadPool::SetGlobalSize(2);
  const auto count_parts = [] {
    std::atomic<int> calls{0};
    ThreadPool::Global().Run([&](int, int) { calls.fetch_add(1); });
    return calls.load();
  };
  ASSERT_EQ(count_parts(), 2);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that waits for its parent's workers would wait for ever
    ThreadPool::SetGlobalSize(2);
    _exit(count_parts() == 2 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(count_parts(), 2);
}

TEST(SpinBarrier, NobodyPassesBeforeAllHaveArrived) {
  constexpr int kParties = 4;  // more than the cores of a small machine: waiting must give way
  constexpr int kRounds = 200;
  SpinBarrier barrier(kParties);
  std::vector<int> progress(kParties, 0);
  std::vector<std::thread> threads;
  std::atomic<int> errors{0};
  for (int self = 0; self < kParties; ++self) {
    threads.emplace_back([&, self] {
      for (int round = 1; round <= kRounds; ++round) {
        progress[static_cast<size_t>(self)] = round;
        barrier.Wait();
        for (const int other : progress) errors += other != round;
        barrier.Wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors.load(), 0);
}

TEST(SpinBarrier, OnePartyNeverWaits) {
  SpinBarrier barrier(1);
  for (int i = 0; i < 3; ++i) barrier.Wait();
  EXPECT_EQ(barrier.parties(), 1);
}

TEST(ThreadPool, DefaultSizeFollowsTheEnvironment) {
  const auto with = [](const char* own, const char* open_mp) {
    setenv("THRESHER_NUM_THREADS", own, 1);
    setenv("OMP_NUM_THREADS", open_mp, 1);
    const int size = ThreadPool::DefaultSize();
    unsetenv("THRESHER_NUM_THREADS");
    unsetenv("OMP_NUM_THREADS");
    return size;
  };
  const int cores = UsableCores();
  EXPECT_EQ(with("", ""), cores);
  EXPECT_EQ(with("", "1"), 1);
  EXPECT_EQ(with("", " 1,2"), 1);
  EXPECT_EQ(with("", "1000"), cores) << "more threads than cores are had by asking Thresher for them";
  EXPECT_EQ(with("", "many"), cores);
  EXPECT_EQ(with("", "1x"), cores);
  EXPECT_EQ(with("", "-1"), cores);
  EXPECT_EQ(with("", "0"), cores);
  EXPECT_EQ(with("7", "1"), 7);
}

// In a process of its own, since the shared pool lives as long as the process.
TEST(Teams, CallsOfTwoThreadsRunSideBySide) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no new threads after a fork";
#endif
  for (const bool two : {true, false}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      setenv("THRESHER_TEAMS", two ? "2" : "1", 1);
      setenv("THRESHER_PIN", "ON", 1);
      ThreadPool::SetGlobalSize(2);
      std::atomic<int> inside{0};
      std::atomic<int> most{0};
      std::atomic<int> parts{0};
      // Each call waits a while in its first part for the other one.
      const auto call = [&] {
        ThreadPool::RunOnATeam({.num_rounds = 2,
                                .parts = [](int) { return 4; },
                                .work =
                                    [&](int round, int part, int thread) {
                                      if (thread > 1) _exit(3);
                                      ++parts;
                                      if (round > 0 || part > 0) return;
                                      const int now = ++inside;
                                      for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
                                      }
                                      const auto end =
                                          std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
                                      while (most < 2 && std::chrono::steady_clock::now() < end)
                                        std::this_thread::yield();
                                      --inside;
                                    },
                                .ended = [](int) {}},
                               2);
      };
      std::thread other(call);
      call();
      other.join();
      _exit(most == (two ? 2 : 1) && parts == 16 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status << (two ? " of two" : " of one");
  }
}

// An OpenMP library whose teams are made anew each time, and which gives one thread less where it was told to.
struct FakeOpenMp {
  static void Parallel(void (*body)(void*), void* data, unsigned num_threads, unsigned) {
    ++teams;
    const int size = static_cast<int>(num_threads) - missing;
    const auto member = [=](int number) {
      thread_number = number;
      team_size = size;
      body(data);
    };
    std::vector<std::thread> others;
    for (int number = 1; number < size; ++number) others.emplace_back(member, number);
    member(0);
    for (std::thread& other : others) other.join();
    thread_number = 0;
    team_size = 1;
  }
  static OpenMp Library() {
    return {Parallel, [] { return thread_number; }, [] { return team_size; }, [] { return max_threads; }};
  }

  static inline std::atomic<int> teams{0};
  static inline int missing = 0;
  static inline int max_threads = 0;
  static inline thread_local int thread_number = 0;
  static inline thread_local int team_size = 1;
};

TEST(ThreadPool, BorrowsThreadsOfOpenMp) {
  ThreadPool& pool = ThreadPool::Global();
  const int before = pool.num_threads();
  ThreadPool::SetGlobalSize(3);
  EXPECT_FALSE(ThreadPool::BorrowOpenMp()) << "no library is known yet";
  ThreadPool::SetOpenMp(FakeOpenMp::Library());
  FakeOpenMp::max_threads = 2;
  EXPECT_FALSE(ThreadPool::BorrowOpenMp()) << "it has another number of threads";
  FakeOpenMp::max_threads = 3;
  const auto run = [&](int wanted) {
    std::vector<std::atomic<int>> calls(3);
    pool.Run([&](int part, int num_parts) {
      EXPECT_EQ(num_parts, wanted);
      calls[static_cast<size_t>(part)].fetch_add(1);
      pool.Run([](int, int inner) { EXPECT_EQ(inner, 1); });  // as in the pool's own threads
    });
    for (int part = 0; part < 3; ++part) EXPECT_EQ(calls[static_cast<size_t>(part)].load(), part < wanted);
  };
  run(3);
  EXPECT_EQ(FakeOpenMp::teams.load(), 0);
  ASSERT_TRUE(ThreadPool::BorrowOpenMp());
  run(3);
  EXPECT_EQ(FakeOpenMp::teams.load(), 1);
  std::thread([&] { run(3); }).join();  // another thread has borrowed nothing
  EXPECT_EQ(FakeOpenMp::teams.load(), 1);
  FakeOpenMp::missing = 1;
  run(2);
  FakeOpenMp::missing = 0;
  pool.Run([](int, int num_parts) { EXPECT_EQ(num_parts, 1); }, 1);
  EXPECT_EQ(FakeOpenMp::teams.load(), 2);
#if !defined(__SANITIZE_THREAD__)  // which allows no new threads after a fork
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<int> parts{0};
    ThreadPool::Global().Run([&](int, int) { ++parts; });
    _exit(FakeOpenMp::teams.load() == 2 && parts.load() >= 1 && !ThreadPool::BorrowOpenMp() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
#endif
  ThreadPool::GiveBack();
  run(3);
  EXPECT_EQ(FakeOpenMp::teams.load(), 2);
  ThreadPool::SetGlobalSize(before);
}

}  // namespace
}  // namespace thresher
