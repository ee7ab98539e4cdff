// Work in rounds whose parts are taken by whichever thread is free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>

#include "thresher/base/function_ref.h"

namespace thresher {

// Rounds follow one another: a part may read what the rounds before it have written. Each of the parts of a round has
// an owner, who takes it first, so that a thread finds its share of the data in its own cache; an owner who is late
// (asleep, or the system has given its core to somebody else) loses what it has not begun to those who have nothing
// left to do. A round ends with the last of its parts, whoever has done it: nobody waits for a thread that does
// nothing. A round of one part is done by the thread that has ended the round before, and wakes nobody.
//
// All state that a late thread may look at belongs to the Rounds, and a job's own memory is touched only by those who
// hold an unfinished part of it, so the job ends without waiting for the late ones either.
class Rounds {
 public:
  static constexpr int kMostThreads = 1024;
  static constexpr int kMostParts = 4095;  // of one round

  static constexpr auto kNothing = [](int, int) { return std::span<const std::byte>(); };
  static constexpr auto kAlways = [](int) { return true; };

  struct Job {
    int num_rounds = 1;
    FunctionRef<int(int round)> parts;  // how many; at most kMostParts
    // Part `part` of the round, on thread number `thread`. After one has thrown, those not begun are left out.
    FunctionRef<void(int round, int part, int thread)> work;
    FunctionRef<void(int round)> ended;  // all parts of the round are done, those after it have not begun
    // Asked once before each round, when those before it have ended: whether there is one more. Else the job ends here.
    FunctionRef<bool(int round)> goes_on = kAlways;
    // What the thread, which has a part of the round, will read later: while it waits it fetches that.
    FunctionRef<std::span<const std::byte>(int round, int thread)> ahead = kNothing;
    // Part i of a round is done by thread i and by no other; there are at most as many as threads.
    bool fixed = false;
  };

  // Threads spin for spin_ns before they sleep.
  Rounds(int num_threads, int64_t spin_ns);
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  // Begins a job that threads [0, num_threads) may join. The one before it has ended.
  void Begin(const Job& job, int num_threads);
  // Whether there is a job that the thread may join; the other one waits for that as long as threads spin.
  bool OpenFor(int thread) const;
  bool SpinUntilOpen(int thread) const;
  // What one thread, number 0, does for the job that it has begun; returns when all is done, and throws what the first
  // part has thrown that threw.
  void Lead();
  // What each of the others may do for it. Returns when there is nothing left to do.
  void Join(int thread);

  // How many threads wait on the same word, and arrive at the same one.
  static constexpr int kGroup = 8;

 private:
  // The parts of one owner: which round it was that they were last taken of, and how many of them have been.
  struct alignas(64) Slot {
    std::atomic<uint64_t> taken{0};
    std::atomic<uint32_t> finished{0};
  };
  // What the threads of a group look at. `state` says which round is open, for whom, and in how many parts.
  struct alignas(64) Group {
    std::atomic<uint64_t> state{0};
    std::atomic<uint32_t> changes{0};  // what sleepers wait on
    alignas(64) std::atomic<uint32_t> arrived{0};
  };
  struct Round;

  void Publish(int num_threads, int num_parts);
  void Advance(int round, int thread);
  void Do(int round, int part, int thread);
  void Take(const Round& round, int owner, int thread);
  void Arrive(const Round& round, int owner, int thread);
  void TakeFromOthers(const Round& round, int thread);
  void WaitWhile(Group& group, uint64_t state, const Round* open, int thread);

  const int64_t spin_ns_;
  const std::unique_ptr<Slot[]> slots_;
  const std::unique_ptr<Group[]> groups_;
  alignas(64) std::atomic<uint32_t> arrived_{0};  // groups
  // Of the job in progress; whoever advances it writes them.
  uint64_t number_ = 0;  // of the state, one more for every change
  const Job* job_ = nullptr;
  int job_threads_ = 0;
  int job_round_ = 0;
  std::atomic<bool> failed_{false};
  std::exception_ptr thrown_;
};

}  // namespace thresher
