#include "thresher/plan/packed_memory.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace thresher {
namespace {

TEST(PackedMemory, PiecesAreAlignedAndApart) {
  PackedMemory memory;
  std::vector<std::shared_ptr<void>> pieces;
  const std::vector<int64_t> sizes = {0,          1,          100,        200 << 10,  (300 << 10) + 5,
                                      1 << 20,    3 << 20,    200 << 10,  7 << 20,    2 << 20,
                                      1900 << 10, 1900 << 10, 1900 << 10, 1900 << 10, 1900 << 10};
  for (size_t i = 0; i < sizes.size(); ++i) {
    pieces.push_back(memory.Allocate(sizes[i]));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pieces.back().get()) % 64, 0u);
    std::memset(pieces.back().get(), static_cast<int>(i + 1), static_cast<size_t>(sizes[i]));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(pieces[i].get());
    for (int64_t b = 0; b < sizes[i]; b += 997) ASSERT_EQ(bytes[b], i + 1) << i << " " << b;
    if (sizes[i] > 0) {
      ASSERT_EQ(bytes[sizes[i] - 1], i + 1);
    }
  }
}

TEST(PackedMemory, APieceOutlivesTheRest) {
  std::shared_ptr<void> kept;
  {
    PackedMemory memory;
    const auto other = memory.Allocate(200 << 10);
    kept = memory.Allocate(200 << 10);
    std::memset(other.get(), 1, 200 << 10);
  }
  std::memset(kept.get(), 2, 200 << 10);
  EXPECT_EQ(static_cast<unsigned char*>(kept.get())[(200 << 10) - 1], 2);
}

}  // namespace
}  // namespace thresher
