#include "thresher/profile/ring.h"

#include <algorithm>

namespace thresher::profile {

Result<std::unique_ptr<Ring>> Ring::Make(size_t capacity, uint16_t lane) {
  THRESHER_ASSIGN(Arena memory, Arena::Allocate(capacity * sizeof(Record)));
  return std::unique_ptr<Ring>(new Ring(std::move(memory), lane));
}

void Ring::FoldUntil(uint64_t end, Fold fold) {
  for (uint64_t i = folded_.load(std::memory_order_relaxed); i < end; ++i) {
    fold(*this, slots_[i % capacity_]);
    folded_.store(i + 1, std::memory_order_relaxed);
  }
}

void Ring::MakeRoom(Fold fold) {
  const uint64_t head = head_.load(std::memory_order_relaxed);
  if (head - tail_ == capacity_) {
    // A part at a time: folding the whole ring at once would show as one slow operator.
    const uint64_t end = tail_ + std::max<uint64_t>(1, capacity_ / 16);
    FoldUntil(end, fold);
    overwritten_ += end - tail_;
    tail_ = end;
  }
  writer_tail_ = tail_;  // Clear() may have moved it
}

void Ring::FoldAll(Fold fold) { FoldUntil(head_.load(std::memory_order_acquire), fold); }

void Ring::Visit(FunctionRef<void(const Record&)> visit) const {
  const uint64_t head = head_.load(std::memory_order_acquire);
  for (uint64_t i = tail_; i < head; ++i) visit(slots_[i % capacity_]);
}

void Ring::Clear() {
  const uint64_t head = head_.load(std::memory_order_acquire);
  tail_ = head;
  folded_.store(head, std::memory_order_relaxed);
  overwritten_ = 0;
  num_wall_items = 0;
}

}  // namespace thresher::profile
