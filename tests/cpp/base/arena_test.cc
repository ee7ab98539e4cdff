#include "thresher/base/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace thresher {
namespace {

TEST(Arena, IsAlignedAndWritable) {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{1} << 20}) {
    Result<Arena> arena = Arena::Allocate(bytes);
    ASSERT_TRUE(arena.ok());
    EXPECT_EQ(arena.value().size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.value().data()) % kAlignment, 0u);
    std::memset(arena.value().data(), 7, bytes);
  }
}

TEST(Arena, EmptyAndMoved) {
  EXPECT_EQ(Arena::Allocate(0).value().data(), nullptr);
  Arena a = Arena::Allocate(100).value();
  std::byte* const data = a.data();
  Arena b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(b.size(), 100u);
  Arena c;
  c = std::move(b);
  EXPECT_EQ(c.data(), data);
}

TEST(Arena, TooMuchIsAnErrorThatNamesTheSize) {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2}) {
    const Status status = Arena::Allocate(bytes).status();
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_NE(status.message().find(std::to_string(bytes)), std::string::npos);
  }
}

TEST(Arena, AlignUp) {
  EXPECT_EQ(AlignUp(0), 0u);
  EXPECT_EQ(AlignUp(1), 64u);
  EXPECT_EQ(AlignUp(64), 64u);
  EXPECT_EQ(AlignUp(65), 128u);
}

}  // namespace
}  // namespace thresher
