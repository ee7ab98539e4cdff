#include "thresher/kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "kernels/paged_testing.h"
#include "thresher/base/cpu.h"
#include "thresher/base/half.h"
#include "thresher/kernels/block_format.h"

namespace thresher::kernels {
namespace {

using testing::ExpectClose;
using testing::ForEachIsa;
using testing::ForEachIsaAndPlainTiles;
using testing::Sequence;

using Shape = testing::PagedShape;
using Case = testing::PagedCase;

void Check(const Shape& shape, const std::vector<Sequence>& sequences) {
  Case c(shape, sequences);
  const std::vector<float> expected = c.Run(1, true);
  ForEachIsaAndPlainTiles([&] {
    const std::vector<float> one = c.Run(1);
    // Queries of 16 bits, in tiles weights as well.
    const bool tiles = isa::CurrentTiles() != isa::Tiles::kNone && shape.dtype == DType::kBF16;
    const float tolerance = shape.blocks == Encoding::kQ8_0 ? 1e-4f : tiles ? 4e-5f : 2e-5f;
    ExpectClose(one, expected, tolerance, tolerance);
    // The same bits, whoever does what.
    for (const int parts : {2, 3, 8}) {
      EXPECT_EQ(std::memcmp(c.Run(parts).data(), one.data(), one.size() * sizeof(float)), 0) << parts;
      EXPECT_EQ(std::memcmp(c.Run(parts, false, false).data(), one.data(), one.size() * sizeof(float)), 0) << parts;
    }
  });
}

TEST(PagedAttention, LengthsAtEveryBoundary) {
  std::vector<Sequence> sequences;
  for (const int64_t edge : {1, 16, 32, 256, 512}) {
    for (const int64_t more : {-1, 0, 1}) {
      if (edge + more < 1) continue;
      sequences.push_back({1, edge + more});
      sequences.push_back({edge + more, edge + more});
      sequences.push_back({std::min<int64_t>(edge + more, 5), edge + more});
    }
  }
  Check({}, sequences);
}

TEST(PagedAttention, HeadSizesAndGroups) {
  for (const int64_t depth : {16, 32, 64, 80, 96, 128, 256}) Check({.depth = depth}, {{1, 300}, {7, 40}, {20, 20}});
  for (const int64_t group : {1, 2, 3, 5, 7, 8, 40}) {
    Check({.query_heads = group * 2, .heads = 2}, {{1, 33}, {1, 700}, {9, 300}});
  }
}

TEST(PagedAttention, PagesOf16Bits) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Check({.depth = 64, .page_tokens = 32, .dtype = dtype}, {{1, 600}, {40, 300}, {1, 1}});
  }
}

TEST(PagedAttention, PagesOf16BitsOfAllShapes) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(Name(dtype));
    for (const int64_t depth : {16, 32, 80, 128, 256}) {
      Check({.depth = depth, .dtype = dtype}, {{1, 300}, {7, 40}, {20, 20}, {1, 17}});
    }
    for (const int64_t group : {1, 3, 16, 17, 40}) {
      Check({.query_heads = group * 2, .heads = 2, .dtype = dtype}, {{1, 33}, {1, 520}, {5, 70}});
    }
    for (const int64_t window : {1, 5, 40, 300}) {
      Check({.dtype = dtype, .window = window, .softcap = 2.0f}, {{1, 300}, {50, 290}, {30, 30}});
    }
  }
}

// Each token of a prompt has the bits that it would have if it came alone, whatever tiles it shares.
void CheckAloneAndInAPrompt(const Shape& shape, bool wide = false) {
  SCOPED_TRACE(std::to_string(shape.query_heads) + " heads, window " + std::to_string(shape.window));
  Case c(shape, {{40, 333}});
  if (wide) c.wide_from_ = 0;
  const auto row = static_cast<size_t>(shape.query_heads * shape.depth);
  ForEachIsaAndPlainTiles([&] {
    const std::vector<float> all = c.Run(1);
    for (const int32_t token : {0, 1, 13, 38, 39}) {
      std::vector<float> one(row);
      PagedAttentionArgs args = c.Args(one);
      const std::vector<int32_t> starts = {0, 1}, lengths = {333 - 39 + token};
      args.q = args.out = MakeView(one.data(), DType::kF32, {1, shape.query_heads, shape.depth});
      args.q.data = c.q_.data() + static_cast<size_t>(token) * row;
      args.starts = starts.data();
      args.lengths = lengths.data();
      std::vector<std::byte> scratch(PagedAttentionScratchBytes(args));
      ASSERT_TRUE(PagedAttention(args, scratch.data()).ok());
      EXPECT_EQ(std::memcmp(one.data(), all.data() + static_cast<size_t>(token) * row, row * sizeof(float)), 0)
          << token;
    }
  });
}

TEST(PagedAttention, TheSameAloneAndInAPrompt) {
  for (const int64_t window : {0, 21}) {
    for (const int64_t group : {1, 3, 6, 7, 8}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const bool wide : {false, true}) {
          CheckAloneAndInAPrompt({.query_heads = 2 * group, .heads = 2, .dtype = dtype, .window = window}, wide);
        }
      }
      for (const Encoding blocks : {Encoding::kQ8_0, Encoding::kQ4_0}) {
        CheckAloneAndInAPrompt({.query_heads = 2 * group, .heads = 2, .depth = 96, .window = window, .blocks = blocks});
      }
    }
  }
}

// Sequences from wide_from on are rounded to what pages have where that is multiplied, those before it as ever.
TEST(PagedAttention, WideSequences) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const auto& [window, softcap] : {std::pair<int64_t, float>{0, 0.0f}, {40, 2.0f}}) {
      SCOPED_TRACE(std::string(Name(dtype)) + " window " + std::to_string(window));
      const Shape shape{.query_heads = 6, .depth = 80, .dtype = dtype, .window = window, .softcap = softcap};
      Case c(shape, {{1, 300}, {3, 520}, {40, 301}, {1, 33}, {200, 200}});
      const std::vector<float> expected = c.Run(1, true);
      ForEachIsaAndPlainTiles([&] {
        c.wide_from_ = PagedAttentionArgs().wide_from;
        const std::vector<float> exact = c.Run(1);
        c.wide_from_ = c.starts_[2];
        const std::vector<float> some = c.Run(1);
        const size_t before = static_cast<size_t>(c.starts_[2] * shape.query_heads * shape.depth);
        EXPECT_EQ(std::memcmp(some.data(), exact.data(), before * sizeof(float)), 0);
        const bool tiles = isa::CurrentTiles() != isa::Tiles::kNone;
        const bool vectors = isa::Current() == isa::Isa::kAvx512Bf16 && !IsIntel();
        EXPECT_EQ(RoundsToPages(dtype),
                  (dtype == DType::kBF16 && (tiles || vectors)) || (dtype == DType::kF16 && isa::HasF16Tiles()));
        EXPECT_EQ(some != exact, RoundsToPages(dtype));
        const float tolerance = dtype == DType::kBF16 ? 1e-2f : 2e-3f;
        ExpectClose(some, expected, tolerance, tolerance);
        for (const int parts : {2, 3, 8}) {
          EXPECT_EQ(std::memcmp(c.Run(parts).data(), some.data(), some.size() * sizeof(float)), 0) << parts;
        }
        c.wide_from_ = 0;
        const std::vector<float> all = c.Run(1);
        EXPECT_EQ(std::memcmp(all.data() + before, some.data() + before, (some.size() - before) * sizeof(float)), 0);
      });
    }
  }
}

// Digits are exact, so tiles give what vectors give.
TEST(PagedAttention, TilesOfDigitsHaveTheBitsOfVectors) {
  for (const int64_t depth : {32, 96, 256}) {
    for (const int64_t group : {1, 3, 8}) {
      for (const int64_t window : {0, 37}) {
        Case c({.query_heads = group * 2, .heads = 2, .depth = depth, .window = window, .blocks = Encoding::kQ8_0},
               {{1, 300}, {20, 40}, {33, 290}, {9, 17}, {70, 600}});
        if (!isa::Force("avx512_bf16").ok()) return;
        const std::vector<float> vectors = c.Run(2);
        ASSERT_TRUE(isa::ForcePlainTiles());
        const std::vector<float> tiles = c.Run(3);
        ASSERT_TRUE(isa::Select().ok());
        EXPECT_EQ(std::memcmp(tiles.data(), vectors.data(), tiles.size() * sizeof(float)), 0) << depth << " " << group;
      }
    }
  }
}

// fp16 holds queries of any size: they are brought near 2^15 before they are split.
TEST(PagedAttention, LargeAndSmallQueriesOfF16) {
  for (const float size : {1e-6f, 1e-3f, 1e6f}) {
    Case c({.depth = 64, .dtype = DType::kF16}, {{20, 300}, {1, 40}});
    for (size_t i = 0; i < c.q_.size(); ++i) c.q_[i] *= i / 64 % 2 == 0 ? size : size / 100;
    std::vector<float> out(c.q_.size()), expected(c.q_.size());
    const float scale = 1 / size;
    ForEachIsaAndPlainTiles([&] {
      PagedAttentionArgs args = c.Args(expected);
      args.scale = scale;
      ASSERT_TRUE(PagedAttentionReference(args).ok());
      args.out.data = out.data();
      std::vector<std::byte> scratch(PagedAttentionScratchBytes(args));
      ASSERT_TRUE(PagedAttention(args, scratch.data()).ok());
      ExpectClose(out, expected, 2e-5f, 2e-5f);
    });
  }
}

// What is in blocks is what the blocks stand for: bit by bit where they become floats, as near as floats come to it
// where they are multiplied as integers (q8_0, by some instruction sets).
TEST(PagedAttention, PagesInBlocks) {
  for (const Encoding blocks : {Encoding::kQ8_0, Encoding::kQ4_0}) {
    for (const int64_t depth : {32, 96, 256}) {
      const std::vector<Sequence> sequences = {{1, 300}, {20, 40}, {1, 1}, {3, 17}};
      Check({.depth = depth, .page_tokens = 32, .blocks = blocks}, sequences);
      Check({.depth = depth, .window = 20, .blocks = blocks}, sequences);
      Case packed({.depth = depth, .blocks = blocks}, sequences), plain({.depth = depth}, sequences, blocks);
      ForEachIsaAndPlainTiles([&] {
        const std::vector<float> a = packed.Run(2), b = plain.Run(2);
        if (blocks == Encoding::kQ8_0) return ExpectClose(a, b, 1e-4f, 1e-4f);
        EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << Name(blocks) << " " << depth;
      });
    }
  }
}

TEST(PagedAttention, BlocksInGroupsOfAllSizes) {
  for (const int64_t group : {1, 2, 3, 7}) {
    Check({.query_heads = group * 2, .heads = 2, .depth = 64, .page_tokens = 32, .blocks = Encoding::kQ8_0},
          {{1, 33}, {1, 600}, {9, 40}});
  }
}

// A token that has all the weight counts, however small its values are beside those of tokens that have none.
TEST(PagedAttention, SmallValuesOfBlocksAreKept) {
  std::vector<uint8_t> state(static_cast<size_t>(EncodedBytes(Encoding::kQ8_0, 2 * 16 * 32)));
  std::vector<float> k(64, 0.0f), v(64, 1000.0f), q(32, 1.0f), out(32);
  for (size_t i = 0; i < 32; ++i) {
    k[i] = 1.0f;
    k[32 + i] = -1.0f;
    v[i] = 1e-3f * static_cast<float>(i + 1);
  }
  std::vector<int32_t> slots = {0, 1}, starts = {0, 1}, lengths = {2}, tables = {0};
  const View kept = MakeView(state.data(), DType::kF32, {1, 1, 2, 16, 32});
  const Dims rows = {2, 1, 32};
  ASSERT_TRUE(KvWrite({kept, MakeView(k.data(), DType::kF32, rows), MakeView(v.data(), DType::kF32, rows), slots.data(),
                       Encoding::kQ8_0})
                  .ok());
  PagedAttentionArgs args;
  args.state = kept;
  args.q = MakeView(q.data(), DType::kF32, {1, 1, 32});
  args.out = MakeView(out.data(), DType::kF32, {1, 1, 32});
  args.starts = starts.data();
  args.lengths = lengths.data();
  args.tables = tables.data();
  args.sequences = args.table_width = 1;
  args.blocks = Encoding::kQ8_0;
  ASSERT_TRUE(PagedAttentionReference(args).ok());
  const std::vector<float> expected = out;
  EXPECT_NEAR(expected[31], 0.032f, 1e-3f);
  ForEachIsa([&] {
    std::vector<std::byte> scratch(PagedAttentionScratchBytes(args));
    ASSERT_TRUE(PagedAttention(args, scratch.data()).ok());
    ExpectClose(out, expected, 1e-8f, 1e-4f);
  });
}

// Any number of rows that a tile of integers may have, with ends of panels, pages and chunks; few of a prompt at a
// time.
TEST(PagedAttention, BlocksOfEveryNumberOfRows) {
  for (const int64_t group : {1, 2, 4, 5, 6, 7, 8, 9, 11, 17}) {
    SCOPED_TRACE("group " + std::to_string(group));
    Check({.query_heads = group, .heads = 1, .depth = 64, .page_tokens = 32, .blocks = Encoding::kQ8_0},
          {{1, 1}, {1, 15}, {1, 16}, {2, 17}, {1, 32}, {3, 33}, {1, 255}, {2, 256}, {1, 257}, {8, 520}});
  }
  for (const int64_t window : {1, 9, 16, 40, 300}) {
    SCOPED_TRACE("window " + std::to_string(window));
    Check({.query_heads = 7, .heads = 1, .depth = 64, .window = window, .softcap = 2.0f, .blocks = Encoding::kQ8_0},
          {{1, 300}, {1, 17}, {4, 290}, {30, 30}, {1, 513}});
  }
}

// Blocks, queries of any size: what they become integers by follows them.
TEST(PagedAttention, LargeAndSmallQueriesOfBlocks) {
  for (const float size : {1e-6f, 1e-3f, 1e6f}) {
    Case c({.query_heads = 7, .heads = 1, .depth = 64, .blocks = Encoding::kQ8_0}, {{1, 300}, {20, 40}});
    for (size_t i = 0; i < c.q_.size(); ++i) c.q_[i] *= i / 32 % 2 == 0 ? size : size / 100;
    std::vector<float> out(c.q_.size()), expected(c.q_.size());
    PagedAttentionArgs args = c.Args(expected);
    args.scale = 1 / size;
    ASSERT_TRUE(PagedAttentionReference(args).ok());
    args.out.data = out.data();
    ForEachIsaAndPlainTiles([&] {
      std::vector<std::byte> scratch(PagedAttentionScratchBytes(args));
      ASSERT_TRUE(PagedAttention(args, scratch.data()).ok());
      ExpectClose(out, expected, 1e-4f, 1e-4f);
    });
  }
}

// A query that is no number makes its own row none, and no other one.
TEST(PagedAttention, QueriesOfBlocksThatAreNoNumbers) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Case c({.query_heads = 7, .heads = 1, .depth = 64, .blocks = Encoding::kQ8_0}, {{1, 300}});
    c.q_[2 * 64 + 40] = bad;
    ForEachIsaAndPlainTiles([&] {
      const std::vector<float> out = c.Run(1);
      for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 64 == 2) << i;
    });
  }
}

// Sums of integers are as large as they can be: a chunk of keys that all have the same weight, and values that all have
// the largest code or its negative.
TEST(PagedAttention, TheLargestSumsOfBlocks) {
  constexpr int64_t kKeys = kChunkTokens, kDepth = 32;
  std::vector<uint8_t> state(static_cast<size_t>(EncodedBytes(Encoding::kQ8_0, 2 * kKeys * kDepth)));
  std::vector<float> k(kKeys * kDepth, 1.0f), v(k.size()), q(kDepth, 1.0f), out(kDepth);
  for (size_t i = 0; i < v.size(); ++i) v[i] = i % 3 == 0 ? -1.0f : 1.0f;
  for (size_t i = kDepth; i < v.size(); ++i) v[i] = v[i % kDepth];
  std::vector<int32_t> slots(kKeys), starts = {0, 1}, lengths = {kKeys}, tables = {0};
  for (int32_t i = 0; i < kKeys; ++i) slots[static_cast<size_t>(i)] = i;
  const View kept = MakeView(state.data(), DType::kF32, {1, 1, 2, kKeys, kDepth});
  const Dims rows = {kKeys, 1, kDepth};
  ASSERT_TRUE(KvWrite({kept, MakeView(k.data(), DType::kF32, rows), MakeView(v.data(), DType::kF32, rows), slots.data(),
                       Encoding::kQ8_0})
                  .ok());
  PagedAttentionArgs args;
  args.state = kept;
  args.q = MakeView(q.data(), DType::kF32, {1, 1, kDepth});
  args.out = MakeView(out.data(), DType::kF32, {1, 1, kDepth});
  args.starts = starts.data();
  args.lengths = lengths.data();
  args.tables = tables.data();
  args.sequences = args.table_width = 1;
  args.blocks = Encoding::kQ8_0;
  ForEachIsaAndPlainTiles([&] {
    std::vector<std::byte> scratch(PagedAttentionScratchBytes(args));
    ASSERT_TRUE(PagedAttention(args, scratch.data()).ok());
    ExpectClose(out, {v.begin(), v.begin() + kDepth}, 1e-3f, 0);  // a scale is fp16
    for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(std::abs(out[i]), std::abs(out[0]), 1e-6f) << i;
  });
}

TEST(PagedAttention, Windows) {
  for (const int64_t window : {1, 5, 16, 100, 256, 1000}) {
    Check({.window = window}, {{1, 700}, {50, 600}, {300, 300}, {1, 257}, {3, 272}});
  }
}

TEST(PagedAttention, Softcap) { Check({.window = 40, .softcap = 2.0f}, {{1, 300}, {30, 70}}); }

// One sequence that decodes is cut by keys; alone or in a batch, its result is the same.
TEST(PagedAttention, TheSameInABatch) {
  Case alone({}, {{1, 900}});
  Case batch({}, {{1, 900}, {17, 30}, {1, 5}});
  std::copy(alone.q_.begin(), alone.q_.end(), batch.q_.begin());
  ForEachIsa([&] {
    const std::vector<float> one = alone.Run(4), all = batch.Run(4);
    EXPECT_EQ(std::memcmp(one.data(), all.data(), one.size() * sizeof(float)), 0);
  });
}

// Few rows are multiplied as they are read, many by panels: a query has the same bits alone and among others.
TEST(PagedAttention, TheSameAloneAndInABlockOfQueries) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t group : {1, 3, 5, 7, 8, 9}) {
      for (const int64_t depth : {16, 64, 80}) {
        const Shape shape = {.query_heads = group * 2, .depth = depth, .page_tokens = 32, .dtype = dtype};
        Case alone(shape, {{1, 300}, {1, 17}}), among(shape, {{50, 300}, {1, 17}});
        const auto row = static_cast<size_t>(group * 2 * depth);
        std::copy(alone.q_.begin(), alone.q_.end(), among.q_.end() - static_cast<ptrdiff_t>(2 * row));
        ForEachIsa([&] {
          const std::vector<float> one = alone.Run(1), all = among.Run(1);
          EXPECT_EQ(std::memcmp(one.data(), all.data() + 49 * row, 2 * row * sizeof(float)), 0)
              << group << " " << depth;
        });
      }
    }
  }
}

TEST(PagedAttention, SequencesWithoutQueries) { Check({}, {{0, 5}, {2, 20}, {0, 0}, {1, 300}, {0, 1}}); }

TEST(PagedAttention, RefusesWhatDoesNotFit) {
  const auto error = [](auto&& change) {
    Case c({}, {{2, 20}, {1, 40}});
    change(c);
    std::vector<float> out(c.q_.size());
    PagedAttentionArgs args = c.Args(out);
    std::vector<std::byte> scratch(PagedAttentionScratchBytes(args));
    const Status status = PagedAttention(args, scratch.data());
    EXPECT_EQ(status.code(), Code::kOutOfRange);
    return status.message();
  };
  EXPECT_NE(error([](Case& c) { c.tables_[0] = 99; }).find("got 99 as page 0 of sequence 0"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.tables_[1] = -1; }).find("got -1 as page 1 of sequence 0"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.lengths_[1] = 1000; }).find("got 1 and 1000 for sequence 1"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.lengths_[0] = 1; }).find("got 2 and 1 for sequence 0"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.starts_[1] = 5; }).find("sequence 1"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.starts_[0] = 1; }).find("got 1 to 3"), std::string::npos);
}

// Numbers that have no scale in f16 are told from others by what comes of them, not taken for zeros.
TEST(KvWrite, WhatBlocksCannotHoldIsNoNumber) {
  for (const Encoding blocks : {Encoding::kQ8_0, Encoding::kQ4_0}) {
    std::vector<uint8_t> state(static_cast<size_t>(EncodedBytes(blocks, 2 * 16 * 32)));
    std::vector<float> k(32, 1.0f), v(32, 1.0f), q(32, 1.0f), out(32);
    std::vector<int32_t> slots = {0}, starts = {0, 1}, lengths = {1}, tables = {0};
    const View kept = MakeView(state.data(), DType::kF32, {1, 1, 2, 16, 32});
    const View shape = MakeView(k.data(), DType::kF32, {1, 1, 32});
    PagedAttentionArgs args;
    args.state = kept;
    args.q = MakeView(q.data(), DType::kF32, {1, 1, 32});
    args.out = MakeView(out.data(), DType::kF32, {1, 1, 32});
    args.starts = starts.data();
    args.lengths = lengths.data();
    args.tables = tables.data();
    args.sequences = args.table_width = 1;
    args.blocks = blocks;
    for (const float wrong : {std::numeric_limits<float>::infinity(), -std::nanf(""), 1e9f}) {
      v[5] = wrong;
      ForEachIsa([&] {
        ASSERT_TRUE(KvWrite({kept, shape, MakeView(v.data(), DType::kF32, {1, 1, 32}), slots.data(), blocks}).ok());
        std::vector<std::byte> scratch(PagedAttentionScratchBytes(args));
        ASSERT_TRUE(PagedAttention(args, scratch.data()).ok());
        EXPECT_TRUE(std::isnan(out[5])) << Name(blocks) << " " << wrong;
      });
    }
  }
}

// Every number stands where the header says, rounded as base/half.h rounds, and nothing else changes.
TEST(KvWrite, NumbersAndTheirPlaces) {
  constexpr int64_t kPages = 3, kHeads = 2, kPageTokens = 32, kDepth = 48;
  const std::vector<int32_t> slots = {5, 16, 95, -1, 31, 32, 33};
  const auto tokens = static_cast<int64_t>(slots.size());
  const Dims shape = {tokens, kHeads, kDepth};
  std::vector<float> k = testing::RandomFloats(static_cast<size_t>(tokens * kHeads * kDepth), 1, -3, 3);
  std::vector<float> v = testing::RandomFloats(k.size(), 2, -3, 3);
  k[0] = v[1] = std::numeric_limits<float>::quiet_NaN();
  k[1] = v[0] = std::numeric_limits<float>::infinity();
  k[2] = v[2] = -std::numeric_limits<float>::max();  // rounds to infinity
  k[3] = v[3] = 1e-41f;
  k[4] = v[4] = 65520.0f;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const size_t size = SizeOf(dtype), count = kPages * kHeads * 2 * kPageTokens * kDepth;
    const auto store = [&](std::vector<uint8_t>& state, size_t at, float x) {
      const uint16_t half = dtype == DType::kBF16 ? ToBF16(x).bits : ToF16(x).bits;
      std::memcpy(state.data() + at * size, dtype == DType::kF32 ? static_cast<const void*>(&x) : &half, size);
    };
    std::vector<uint8_t> expected(count * size, 0x5a);
    for (size_t t = 0; t < slots.size(); ++t) {
      if (slots[t] < 0) continue;
      const auto slot = static_cast<size_t>(slots[t]), at = slot % kPageTokens;
      for (size_t head = 0; head < kHeads; ++head) {
        const size_t keys = (slot / kPageTokens * kHeads + head) * 2 * kPageTokens * kDepth;
        for (size_t i = 0; i < kDepth; ++i) {
          const size_t from = (t * kHeads + head) * kDepth + i;
          store(expected, keys + (at / kPanelTokens * kDepth + i) * kPanelTokens + at % kPanelTokens, k[from]);
          store(expected, keys + (kPageTokens + at) * kDepth + i, v[from]);
        }
      }
    }
    ForEachIsa([&] {
      for (const int parts : {1, 3}) {
        std::vector<uint8_t> state(count * size, 0x5a);
        const KvWriteArgs args{MakeView(state.data(), dtype, {kPages, kHeads, 2, kPageTokens, kDepth}),
                               MakeView(k.data(), DType::kF32, shape), MakeView(v.data(), DType::kF32, shape),
                               slots.data()};
        for (int part = 0; part < parts; ++part) ASSERT_TRUE(KvWrite(args, part, parts).ok());
        EXPECT_EQ(state, expected) << Name(dtype) << " " << parts;
      }
    });
  }
}

// Blocks are those of EncodeNumbers(), bit by bit, and stand where the header says; nothing else changes.
TEST(KvWrite, BlocksAndTheirPlaces) {
  constexpr size_t kPages = 2, kHeads = 2, kPageTokens = 32, kDepth = 96;
  const std::vector<int32_t> slots = {5, 16, -1, 31, 32, 34, 47, 63};
  const Dims shape = {static_cast<int64_t>(slots.size()), kHeads, kDepth};
  std::vector<float> k = testing::RandomFloats(slots.size() * kHeads * kDepth, 1, -3, 3);
  std::vector<float> v = testing::RandomFloats(k.size(), 2, -300, 300);
  std::fill_n(k.begin(), 32, 0.0f);
  std::fill_n(v.begin() + 32, 32, 1e-30f);  // whose scale f16 does not have
  // Halves of the scale, 1, which are rounded away from zero, and their neighbours.
  for (size_t i = 0; i < 32; ++i) {
    const float half = static_cast<float>(i % 8) + 0.5f, sign = i % 16 < 8 ? 1.0f : -1.0f;
    k[64 + i] = sign * (i < 16 ? half : std::nextafter(half, 0.0f));
    v[64 + i] = sign * (i < 16 ? half : std::nextafter(half, 9.0f));
  }
  k[64 + 31] = v[64] = 127.0f;
  for (const Encoding blocks : {Encoding::kQ8_0, Encoding::kQ4_0}) {
    const auto block_bytes = static_cast<size_t>(BlockBytes(blocks));
    const size_t row_bytes = kDepth / 32 * block_bytes, part = kPageTokens * row_bytes;
    std::vector<uint8_t> expected(kPages * kHeads * 2 * part, 0x5a);
    const auto put = [&](size_t token, size_t head, bool keys) {
      std::vector<uint8_t> row(row_bytes);
      const float* const x = (keys ? k : v).data() + (token * kHeads + head) * kDepth;
      ASSERT_TRUE(EncodeNumbers(blocks, x, kDepth, 32, row.data()).ok());
      const auto slot = static_cast<size_t>(slots[token]), lane = slot % 16;
      uint8_t* to = expected.data() + ((slot / kPageTokens * kHeads + head) * 2 + (keys ? 0 : 1)) * part;
      to += slot % kPageTokens / 16 * 16 * row_bytes;
      for (const uint8_t* from = row.data(); from < row.data() + row_bytes;
           from += block_bytes, to += 16 * block_bytes) {
        std::memcpy(to + 2 * lane, from, 2);
        for (size_t i = 0; i < block_bytes - 2; ++i) {
          to[32 + (keys ? 16 * i + lane : lane / 4 * 4 * (block_bytes - 2) + 4 * i + lane % 4)] = from[2 + i];
        }
      }
    };
    for (size_t token = 0; token < slots.size(); ++token) {
      if (slots[token] < 0) continue;
      for (size_t head = 0; head < kHeads; ++head) put(token, head, true), put(token, head, false);
    }
    ForEachIsa([&] {
      std::vector<uint8_t> state(expected.size(), 0x5a);
      const KvWriteArgs args{MakeView(state.data(), DType::kF32, {kPages, kHeads, 2, kPageTokens, kDepth}),
                             MakeView(k.data(), DType::kF32, shape), MakeView(v.data(), DType::kF32, shape),
                             slots.data(), blocks};
      for (int i = 0; i < 3; ++i) ASSERT_TRUE(KvWrite(args, i, 3).ok());
      EXPECT_EQ(state, expected) << Name(blocks);
    });
  }
}

TEST(KvWrite, RefusesSlotsBeyondTheState) {
  std::vector<float> state(2 * 1 * 2 * 16 * 16), k(16), v(16);
  std::vector<int32_t> slots = {32};
  const KvWriteArgs args{MakeView(state.data(), DType::kF32, {2, 1, 2, 16, 16}),
                         MakeView(k.data(), DType::kF32, {1, 1, 16}), MakeView(v.data(), DType::kF32, {1, 1, 16}),
                         slots.data()};
  EXPECT_EQ(KvWrite(args).code(), Code::kOutOfRange);
  slots[0] = -1;
  EXPECT_TRUE(KvWrite(args).ok());
  EXPECT_EQ(state, std::vector<float>(state.size(), 0.0f));
}

}  // namespace
}  // namespace thresher::kernels
