#include "thresher/base/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "thresher/base/thread_pool.h"

namespace thresher {
namespace {

// How often each part of each round has been done, and whether the rounds before it had ended.
class Ledger {
 public:
  explicit Ledger(std::vector<int> parts) : parts_(std::move(parts)) {
    for (const int count : parts_) done_.emplace_back(static_cast<size_t>(count));
    ends_.resize(parts_.size());
  }

  // Does the rounds on the pool; plain memory, so that a thread sanitizer sees what is not ordered.
  void Run(ThreadPool& pool, int max_threads) {
    pool.RunRounds({.num_rounds = static_cast<int>(parts_.size()),
                    .parts = [&](int round) { return parts_[static_cast<size_t>(round)]; },
                    .work =
                        [&](int round, int part, int thread) {
                          EXPECT_GE(thread, 0);
                          EXPECT_LT(thread, max_threads);
                          for (int before = 0; before < round; ++before) {
                            for (const int count : done_[static_cast<size_t>(before)]) out_of_order_ += count != 1;
                          }
                          ++done_[static_cast<size_t>(round)][static_cast<size_t>(part)];
                        },
                    .ended = [&](int round) { ends_[static_cast<size_t>(round)] = ++next_end_; }},
                   max_threads);
  }

  void Check() const {
    EXPECT_EQ(out_of_order_.load(), 0);
    for (size_t round = 0; round < parts_.size(); ++round) {
      EXPECT_EQ(ends_[round], static_cast<int>(round) + 1);
      for (const int count : done_[round]) ASSERT_EQ(count, 1) << "round " << round;
    }
  }

 private:
  std::vector<int> parts_;
  std::vector<std::vector<int>> done_;
  std::vector<int> ends_;
  int next_end_ = 0;
  std::atomic<int> out_of_order_{0};
};

TEST(Rounds, EveryPartIsDoneOnceAndAfterTheRoundsBefore) {
  for (const int threads : {1, 2, 3, 8, 9, 17, 64}) {
    ThreadPool pool(threads);
    for (int job = 0; job < 20; ++job) {
      Ledger ledger({1, threads, 3, 1, 1, 4 * threads, 2, 0, threads + 1, 1});
      ledger.Run(pool, 64);
      ledger.Check();
    }
  }
}

TEST(Rounds, JobsOfManySizesFollowEachOther) {
  ThreadPool pool(20);
  for (int job = 0; job < 200; ++job) {
    const int threads = 2 + job * 7 % 19;
    Ledger ledger({threads, 1 + job % 5, 40});
    ledger.Run(pool, threads);
    ledger.Check();
  }
}

// Bytes that are asked for are not read: they may be anywhere, and gone.
TEST(Rounds, ThreadsThatHaveAPartSayWhatTheyWillRead) {
  ThreadPool pool(3);
  std::vector<std::byte> memory(1 << 16);
  std::atomic<int> asked{0}, done{0};
  for (int job = 0; job < 50; ++job) {
    const auto ahead = [&](int round, int thread) -> std::span<const std::byte> {
      EXPECT_LT(thread, 3);
      ++asked;
      if (round == 3) return {};
      if (round == 2) return {reinterpret_cast<const std::byte*>(uintptr_t{1} << 45), 4096};
      return std::span(memory).subspan(static_cast<size_t>(thread) * 1000, 5000);
    };
    pool.RunRounds({.num_rounds = 4,
                    .parts = [](int round) { return round % 2 == 0 ? 6 : 1; },
                    .work = [&](int, int, int) { ++done; },
                    .ended = [](int) {},
                    .ahead = ahead},
                   3);
  }
  EXPECT_EQ(done.load(), 50 * 14);
  EXPECT_EQ(asked.load(), done.load());
}

// As if the core of the thread that has it were taken away: in every round a part lasts until all others are done.
TEST(Rounds, AJobEndsBeforeARoundThatIsNotWanted) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    for (int stop = 0; stop <= 6; ++stop) {
      std::atomic<int> done{0};
      std::vector<int> asked, ended;
      pool.RunRounds({.num_rounds = 6,
                      .parts = [](int round) { return round % 3; },  // rounds of none and of one among them
                      .work = [&](int, int, int) { ++done; },
                      .ended = [&](int round) { ended.push_back(round); },
                      .goes_on =
                          [&](int round) {
                            EXPECT_EQ(asked.size(), ended.size());  // those before have ended
                            asked.push_back(round);
                            return round != stop;
                          }},
                     threads);
      EXPECT_EQ(ended.size(), static_cast<size_t>(std::min(stop, 6)));
      EXPECT_EQ(asked.size(), static_cast<size_t>(std::min(stop + 1, 6)));
      EXPECT_EQ(done.load(), stop / 3 * 3 + (stop % 3 == 2 ? 1 : 0));
    }
  }
}

TEST(Rounds, PartsOfALateThreadAreTakenByOthers) {
  constexpr int kRounds = 6;
  for (const int threads : {2, 64}) {
    ThreadPool pool(threads);
    const int parts = 4 * threads;
    std::vector<std::vector<std::atomic<int>>> thread_of(kRounds);
    for (auto& round : thread_of) round = std::vector<std::atomic<int>>(static_cast<size_t>(parts));
    std::vector<std::atomic<int>> done(kRounds);
    // The first of the caller's four parts, then of others'.
    const auto late = [&](int round) { return round * 4 % parts; };
    pool.RunRounds(
        {.num_rounds = kRounds,
         .parts = [&](int) { return parts; },
         .work =
             [&](int round, int part, int thread) {
               thread_of[static_cast<size_t>(round)][static_cast<size_t>(part)] = thread;
               std::atomic<int>& others = done[static_cast<size_t>(round)];
               const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
               while (part == late(round) && others < parts - 1 && std::chrono::steady_clock::now() < give_up) {
                 std::this_thread::yield();
               }
               ++others;
             },
         .ended = [](int) {}},
        threads);
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_EQ(done[static_cast<size_t>(round)].load(), parts);
      const auto& own = thread_of[static_cast<size_t>(round)];
      // What it did before is its own, what it would have done after is not.
      const int begin = late(round) + 1;
      for (int part = begin; part < begin + 3; ++part) {
        EXPECT_NE(own[static_cast<size_t>(part)], own[static_cast<size_t>(late(round))]) << round << ' ' << part;
      }
    }
  }
}

// Teams of 32, pinned where there are so many cores: each has its own lock, workers and barriers.
TEST(Rounds, TeamsOfManyThreadsRunSideBySide) {
  std::vector<std::thread> callers;
  for (int team = 0; team < 2; ++team) {
    callers.emplace_back([team] {
      ThreadPool pool(32, {.team = team, .teams = 2, .pinned = true});
      for (int job = 0; job < 30; ++job) {
        Ledger ledger({32, 1, 128, 0, 3, 32});
        ledger.Run(pool, 32);
        ledger.Check();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST(Rounds, WhatAPartThrowsReachesTheCallerAndTheNextJobWorks) {
  for (const int threads : {1, 2, 12}) {
    ThreadPool pool(threads);
    for (int job = 0; job < 20; ++job) {
      std::atomic<int> later{0};
      try {
        pool.RunRounds({.num_rounds = 3,
                        .parts = [&](int) { return 2 * threads; },
                        .work =
                            [&](int round, int part, int) {
                              if (round == 1 && part == threads)
                                throw std::runtime_error("part " + std::to_string(part));
                              later += round == 2;
                            },
                        .ended = [](int) {}},
                       threads);
        FAIL() << "expected an exception";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(error.what(), "part " + std::to_string(threads));
      }
      EXPECT_EQ(later.load(), 0);
      Ledger ledger({threads, 2 * threads});
      ledger.Run(pool, threads);
      ledger.Check();
      EXPECT_THROW(pool.Run([](int part, int) {
        if (part == 0) throw std::runtime_error("fixed");
      }),
                   std::runtime_error);
    }
  }
}

TEST(Rounds, CallersTakeTurnsAndCallsFromInsideRunOnTheSpot) {
  ThreadPool pool(3);
  std::atomic<int> inner{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int job = 0; job < 50; ++job) {
        Ledger ledger({3, 1, 6});
        ledger.Run(pool, 3);
        ledger.Check();
        pool.RunRounds({.num_rounds = 1,
                        .parts = [](int) { return 3; },
                        .work =
                            [&](int, int, int) {
                              pool.RunRounds({.num_rounds = 2,
                                              .parts = [](int) { return 5; },
                                              .work =
                                                  [&](int, int, int thread) {
                                                    EXPECT_EQ(thread, 0);
                                                    ++inner;
                                                  },
                                              .ended = [](int) {}},
                                             3);
                            },
                        .ended = [](int) {}},
                       3);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(inner.load(), 4 * 50 * 3 * 2 * 5);
}

}  // namespace
}  // namespace thresher
