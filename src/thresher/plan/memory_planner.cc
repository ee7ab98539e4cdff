#include "thresher/plan/memory_planner.h"

#include <algorithm>
#include <numeric>

namespace thresher {

Placement PlaceBuffers(std::span<const Lifetime> lifetimes) {
  Placement placement;
  placement.offsets.assign(lifetimes.size(), 0);
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  std::vector<size_t> placed;  // sorted by offset
  for (const size_t index : order) {
    const Lifetime& wanted = lifetimes[index];
    const int64_t bytes = AlignUp(wanted.bytes);
    int64_t offset = 0;
    for (const size_t other : placed) {
      const Lifetime& alive = lifetimes[other];
      if (alive.last < wanted.first || wanted.last < alive.first) continue;
      if (offset + bytes <= placement.offsets[other]) break;
      offset = std::max(offset, placement.offsets[other] + AlignUp(alive.bytes));
    }
    placement.offsets[index] = offset;
    placement.total = std::max(placement.total, offset + bytes);
    const auto at = std::upper_bound(placed.begin(), placed.end(), offset,
                                     [&](int64_t value, size_t other) { return value < placement.offsets[other]; });
    placed.insert(at, index);
  }
  return placement;
}

}  // namespace thresher
