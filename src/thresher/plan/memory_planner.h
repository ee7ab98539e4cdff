// Places buffers with known lifetimes in one arena, so that those alive at different times share memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace thresher {

inline constexpr int64_t kArenaAlignment = 64;  // a cache line, and the widest vector
constexpr int64_t AlignUp(int64_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

struct Lifetime {
  int64_t bytes = 0;
  int first = 0;  // step that writes it
  int last = 0;   // last step that reads it, >= first
};

struct Placement {
  std::vector<int64_t> offsets;  // one a lifetime, multiples of kArenaAlignment
  int64_t total = 0;
};

// Greedy by size: the largest buffer first, each into the lowest gap between those alive at the same time.
// Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 4.2.
Placement PlaceBuffers(std::span<const Lifetime> lifetimes);

}  // namespace thresher
