#include "thresher/plan/memory_planner.h"

#include <gtest/gtest.h>

#include <random>

namespace thresher {
namespace {

// Buffers alive at the same time must not share a byte.
void ExpectNoOverlap(const std::vector<Lifetime>& lifetimes, const Placement& placement) {
  for (size_t i = 0; i < lifetimes.size(); ++i) {
    EXPECT_EQ(placement.offsets[i] % kArenaAlignment, 0);
    EXPECT_LE(placement.offsets[i] + lifetimes[i].bytes, placement.total);
    for (size_t j = 0; j < i; ++j) {
      const bool together = lifetimes[i].first <= lifetimes[j].last && lifetimes[j].first <= lifetimes[i].last;
      const bool overlap = placement.offsets[i] < placement.offsets[j] + lifetimes[j].bytes &&
                           placement.offsets[j] < placement.offsets[i] + lifetimes[i].bytes;
      EXPECT_FALSE(together && overlap) << i << " and " << j;
    }
  }
}

TEST(MemoryPlanner, NothingToPlace) {
  const Placement placement = PlaceBuffers({});
  EXPECT_EQ(placement.total, 0);
}

TEST(MemoryPlanner, AChainNeedsTwoBuffers) {
  const std::vector<Lifetime> chain = {{640, 0, 1}, {640, 1, 2}, {640, 2, 3}, {640, 3, 4}};
  const Placement placement = PlaceBuffers(chain);
  ExpectNoOverlap(chain, placement);
  EXPECT_EQ(placement.total, 2 * 640);
}

TEST(MemoryPlanner, FillsAGapBetweenLargeOnes) {
  // The small buffer lives beside both large ones, which do not meet.
  const std::vector<Lifetime> lifetimes = {{6400, 0, 1}, {64, 0, 3}, {6400, 2, 3}};
  const Placement placement = PlaceBuffers(lifetimes);
  ExpectNoOverlap(lifetimes, placement);
  EXPECT_EQ(placement.total, 6400 + 64);
}

TEST(MemoryPlanner, OddSizesAreRoundedUp) {
  const std::vector<Lifetime> lifetimes = {{1, 0, 0}, {65, 0, 0}};
  const Placement placement = PlaceBuffers(lifetimes);
  ExpectNoOverlap(lifetimes, placement);
  EXPECT_EQ(placement.total, 64 + 128);
}

TEST(MemoryPlanner, RandomLifetimesNeverOverlap) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<Lifetime> lifetimes;
    int64_t sum = 0;
    for (int i = 0; i < 60; ++i) {
      const int first = static_cast<int>(random() % 40);
      lifetimes.push_back({static_cast<int64_t>(random() % 5000), first, first + static_cast<int>(random() % 10)});
      sum += (lifetimes.back().bytes + 63) / 64 * 64;
    }
    const Placement placement = PlaceBuffers(lifetimes);
    ExpectNoOverlap(lifetimes, placement);
    EXPECT_LT(placement.total, sum);
  }
}

}  // namespace
}  // namespace thresher
