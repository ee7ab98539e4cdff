// Which process this is among those that run one model together.
#pragma once

#include <atomic>

namespace thresher::profile {

namespace internal {
inline std::atomic<int> rank{0};
inline std::atomic<int> world_size{1};
}  // namespace internal

inline int Rank() { return internal::rank.load(std::memory_order_relaxed); }
inline int WorldSize() { return internal::world_size.load(std::memory_order_relaxed); }

// What reports and traces say from now on.
inline void SetRank(int rank, int world_size) {
  internal::rank.store(rank, std::memory_order_relaxed);
  internal::world_size.store(world_size, std::memory_order_relaxed);
}

}  // namespace thresher::profile
