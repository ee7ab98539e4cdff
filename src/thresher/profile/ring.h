// The records of one thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "thresher/base/arena.h"
#include "thresher/base/function_ref.h"
#include "thresher/base/status.h"
#include "thresher/profile/record.h"

namespace thresher::profile {

// A ring with one writer, its thread, and readers that hold the profiler's lock. Writing takes no lock until the ring
// is full; then the writer takes the lock, has the oldest records folded into what the profiler keeps, and goes on: the
// sums never lose a record, and the ring keeps the newest ones for who wants them one by one.
class Ring {
 public:
  // Error: kResourceExhausted.
  static Result<std::unique_ptr<Ring>> Make(size_t capacity, uint16_t lane);

  // Where folding sends a record; called in the order of writing.
  using Fold = FunctionRef<void(Ring&, const Record&)>;

  // Writer only. False if the ring is full: call MakeRoom and push again.
  bool Push(const Record& record) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head - writer_tail_ == capacity_) return false;
    slots_[head % capacity_] = record;
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // Writer only, under the lock: folds and releases the oldest part of a full ring.
  void MakeRoom(Fold fold);

  // Under the lock: folds what has not been folded yet. The records stay.
  void FoldAll(Fold fold);

  // Under the lock: calls `visit` on the records that the ring holds, oldest first.
  void Visit(FunctionRef<void(const Record&)> visit) const;

  // Under the lock: forgets all records written so far.
  void Clear();

  // Under the lock: records folded into the sums and no longer held one by one.
  uint64_t overwritten() const { return overwritten_; }

  // Writer only: records not folded yet.
  uint64_t pending() const { return head_.load(std::memory_order_acquire) - folded_.load(std::memory_order_relaxed); }
  size_t capacity() const { return capacity_; }
  uint16_t lane() const { return lane_; }

  // The outermost intervals seen lately, for the wall clock (summary.cc); under the lock.
  struct WallItem {
    int64_t start_ns;
    int64_t end_ns;
    Phase phase;
  };
  static constexpr int kWallItems = 64;
  WallItem wall_items[kWallItems];
  int num_wall_items = 0;

 private:
  Ring(Arena slots, uint16_t lane)
      : lane_(lane),
        memory_(std::move(slots)),
        capacity_(memory_.size() / sizeof(Record)),
        slots_(reinterpret_cast<Record*>(memory_.data())) {}

  void FoldUntil(uint64_t end, Fold fold);

  const uint16_t lane_;
  // Left as the system gives it, so that a ring costs the memory that it has used, not what it may use.
  const Arena memory_;
  const size_t capacity_;
  Record* const slots_;
  alignas(64) std::atomic<uint64_t> head_{0};  // records ever written
  uint64_t writer_tail_ = 0;                   // the writer's copy of tail_
  alignas(64) uint64_t tail_ = 0;              // oldest record held; changed under the lock, by the writer or Clear()
  std::atomic<uint64_t> folded_{0};            // records folded; changed under the lock
  uint64_t overwritten_ = 0;
};

}  // namespace thresher::profile
