#include "thresher/base/kept_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "thresher/base/arena.h"

namespace thresher {
namespace {

constexpr size_t kRoom = size_t{40} << 20;
constexpr size_t kBlock = size_t{2} << 20;

TEST(KeptMemory, IsAlignedAndWritable) {
  KeptMemory memory(kRoom);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, 2 * kBlock, 2 * kRoom}) {
    void* const data = memory.Take(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kAlignment, 0u);
    std::memset(data, 7, bytes);
    memory.Give(data);
  }
  memory.Give(nullptr);
}

TEST(KeptMemory, WhatWasGivenBackIsTakenAgainTheNewestFirst) {
  KeptMemory memory(kRoom);
  void* const first = memory.Take(kBlock);
  void* const second = memory.Take(kBlock);
  EXPECT_NE(first, second);
  memory.Give(first);
  memory.Give(second);
  EXPECT_EQ(memory.stats().blocks, 2u);
  EXPECT_EQ(memory.Take(kBlock), second);
  EXPECT_EQ(memory.Take(kBlock), first);
  void* const third = memory.Take(kBlock);  // both are somebody's
  EXPECT_NE(third, first);
  EXPECT_NE(third, second);
  EXPECT_EQ(memory.stats().taken, 5u);
  EXPECT_EQ(memory.stats().again, 2u);
  for (void* const data : {first, second, third}) memory.Give(data);
}

TEST(KeptMemory, WhoWantsMuchLessOrMoreGetsNewMemory) {
  KeptMemory memory(kRoom);
  void* const kept = memory.Take(10 * kBlock);
  memory.Give(kept);
  std::vector<void*> others;
  for (const size_t bytes : {7 * kBlock, 10 * kBlock + 8192}) {
    others.push_back(memory.Take(bytes));
    EXPECT_NE(others.back(), kept) << bytes;
  }
  EXPECT_EQ(memory.Take(9 * kBlock), kept);
  others.push_back(kept);
  for (void* const data : others) memory.Give(data);
}

TEST(KeptMemory, KeepsNoMoreThanThereIsRoomForAndDropsTheOldest) {
  KeptMemory memory(kRoom);
  std::vector<void*> all;
  for (int i = 0; i < 6; ++i) all.push_back(memory.Take(kRoom / 4));
  for (void* const data : all) memory.Give(data);
  EXPECT_EQ(memory.stats().blocks, 3u);  // with its header a block is more than a quarter
  EXPECT_LE(memory.stats().bytes, kRoom);
  for (size_t i = 5; i > 2; --i) EXPECT_EQ(memory.Take(kRoom / 4), all[i]);
  EXPECT_EQ(memory.stats().blocks, 0u);
  for (size_t i = 5; i > 2; --i) memory.Give(all[i]);
  memory.Give(memory.Take(kRoom));  // more than there is room for: the others stay
  EXPECT_EQ(memory.stats().blocks, 3u);
}

TEST(KeptMemory, SmallBlocksAreNotKept) {
  KeptMemory memory(kRoom);
  memory.Give(memory.Take(KeptMemory::kLeastBytes / 2));
  EXPECT_EQ(memory.stats().blocks, 0u);
  memory.Give(memory.Take(KeptMemory::kLeastBytes));
  EXPECT_EQ(memory.stats().blocks, 1u);
  memory.Clear();
  EXPECT_EQ(memory.stats().blocks, 0u);
  EXPECT_EQ(memory.stats().bytes, 0u);
}

TEST(KeptMemory, NothingIsKeptWhereThereIsNoRoom) {
  KeptMemory memory(0);
  for (int i = 0; i < 3; ++i) memory.Give(memory.Take(kBlock));
  EXPECT_EQ(memory.stats().blocks, 0u);
  EXPECT_EQ(memory.stats().again, 0u);
}

TEST(KeptMemory, WhatNobodyWantsAnyMoreIsFreed) {
  KeptMemory memory(kRoom);
  memory.Give(memory.Take(10 * kBlock));
  for (uint64_t i = 0; i <= KeptMemory::kMostAge; ++i) {
    EXPECT_GE(memory.stats().bytes, 10 * kBlock) << i;
    memory.Give(memory.Take(kBlock));
  }
  EXPECT_EQ(memory.stats().blocks, 1u);
  EXPECT_LT(memory.stats().bytes, 10 * kBlock);
}

TEST(KeptMemory, TooMuchIsNull) {
  KeptMemory memory(kRoom);
  for (const size_t bytes : {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() / 4}) {
    EXPECT_EQ(memory.Take(bytes), nullptr);
  }
}

TEST(KeptMemory, ThreadsNeverShareABlock) {
  KeptMemory memory(4 * kBlock);  // so that blocks are freed as well
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, &wrong, t] {
      for (int i = 0; i < 300; ++i) {
        std::vector<std::pair<unsigned char*, size_t>> mine;
        for (int j = 0; j < 4; ++j) {
          const size_t bytes = kBlock / 2 * static_cast<size_t>(2 + (i + j) % 5);
          mine.emplace_back(static_cast<unsigned char*>(memory.Take(bytes)), bytes);
          std::memset(mine.back().first, t * 4 + j, 64);
          mine.back().first[bytes - 1] = static_cast<unsigned char>(t * 4 + j);
        }
        for (int j = 0; j < 4; ++j) {
          const auto& [data, bytes] = mine[static_cast<size_t>(j)];
          if (data[0] != t * 4 + j || data[bytes - 1] != t * 4 + j) ++wrong;
          memory.Give(data);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(memory.stats().bytes, 4 * kBlock);
  EXPECT_GT(memory.stats().again, 0u);
}

TEST(KeptMemory, AChildOfForkHasItsOwn) {
  KeptMemory memory(kRoom);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) memory.Give(memory.Take(kBlock));
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      for (int j = 0; j < 10; ++j) memory.Give(memory.Take(kBlock));
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace thresher
