// Memory for results: what callers drop is kept for results to come.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/base/fork_mutex.h"

namespace thresher {

// Blocks that belong to whoever took them until they are given back. Large blocks the C library has from the system
// every time (glibc those above 32 MiB at the latest), which clears them page by page as they are first touched: that
// takes as long as a kernel that fills them. So what is given back is kept, as far as there is room, for one who wants
// about as much. What nobody has wanted for long makes room, too.
class KeptMemory {
 public:
  // Smaller blocks are not kept: the C library is as good at those.
  static constexpr size_t kLeastBytes = size_t{1024} * 1024;
  // A kept block is freed when more than so many others have been taken since it came.
  static constexpr uint64_t kMostAge = 256;

  struct Stats {
    size_t bytes = 0;  // kept now
    size_t blocks = 0;
    uint64_t taken = 0;  // ever
    uint64_t again = 0;  // of these, from what was kept
  };

  explicit KeptMemory(size_t most_bytes) : most_bytes_(most_bytes) {}
  ~KeptMemory() { Clear(); }
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // That of the process, which keeps as much as THRESHER_KEPT_RESULTS says. Never destroyed: results may outlive all.
  static KeptMemory& OfResults();

  // At least `bytes` bytes, aligned to kAlignment, with anything in them; null: the system has none.
  void* Take(size_t bytes);
  // What Take() gave, from any thread; nobody may look at it any more. Takes no memory itself.
  void Give(void* data);

  // Frees what is kept.
  void Clear();

  Stats stats() const;

 private:
  struct Block;  // lies before what its owner sees

  static void Free(Block* list);
  // Unlinks the newest that fits; null: none does.
  Block* Find(size_t bytes);
  // Unlinks what is too old and what there is no room for.
  Block* Cut();

  mutable ForkMutex mutex_{LockRank::kKeptMemory};
  const size_t most_bytes_;
  Block* newest_ = nullptr;  // and so on to the oldest
  uint64_t taken_ = 0, again_ = 0;
};

}  // namespace thresher
