// The device's attention over pages, writes to them and rotary positions, on the emulator, against the CPU's references
// in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "cuda/stored_floats.h"
#include "kernels/float_testing.h"
#include "kernels/paged_testing.h"
#include "thresher/cuda/paged_attention.h"
#include "thresher/cuda/rotary_kernel.h"
#include "thresher/kernels/rotary.h"

namespace thresher::cuda::testing {
namespace {

using kernels::PagedAttentionArgs;
using kernels::PagedAttentionParams;
using kernels::testing::ExpectClose;
using kernels::testing::PagedCase;
using kernels::testing::PagedShape;
using kernels::testing::RandomFloats;
using kernels::testing::Sequence;

// Views of one call, with what they point at.
struct Attention {
  Attention(PagedCase& c, DType dtype) : q(c.q_, dtype), out(c.q_.size(), dtype) {
    std::vector<float> ignored;
    const PagedAttentionArgs args = c.Args(ignored);
    const auto ints = [](std::vector<int32_t>& values, const Dims& shape) {
      return MakeView(values.data(), DType::kI32, shape);
    };
    const Dims shape(args.q.shape, args.q.shape + 3);
    views[0] = args.state;
    views[1] = MakeView(q.data(), dtype, shape);
    views[2] = ints(c.starts_, {args.sequences + 1});
    views[3] = ints(c.lengths_, {args.sequences});
    views[4] = ints(c.tables_, {args.sequences, args.table_width});
    views[5] = MakeView(out.data(), dtype, shape);
    params = {args.window, 0, args.scale, args.softcap, args.blocks, false};
  }

  Call MakeCall() const { return {static_cast<uint32_t>(KernelId::kPagedAttention), &params, sizeof params, views, 7}; }

  StoredFloats q, out;
  View views[7];
  PagedAttentionParams params;
};

std::vector<float> Attend(PagedCase& c, DType dtype, Order order = Order::kForward) {
  Attention attention(c, dtype);
  Call call = attention.MakeCall();
  EXPECT_EQ(PagedAttentionFamily::Check(call).problem, "");
  std::vector<float> scratch(PagedAttentionFamily::ScratchBytes(call) / sizeof(float), std::nanf(""));
  call.scratch = scratch.data();
  EXPECT_EQ(PagedAttentionFamily::Launch(Launcher{order}, call), "");
  return attention.out.values();
}

// `dtype`: of queries and results; the state's is the shape's.
void Check(const PagedShape& shape, const std::vector<Sequence>& sequences, DType dtype) {
  SCOPED_TRACE("D " + std::to_string(shape.depth) + " heads " + std::to_string(shape.query_heads) + "/" +
               std::to_string(shape.heads) + " state " + std::string(Name(shape.dtype)) + " q " +
               std::string(Name(dtype)) + " window " + std::to_string(shape.window));
  PagedCase c(shape, sequences);
  for (float& x : c.q_) x = Rounded(Rounded(x, shape.dtype), dtype);
  const std::vector<float> expected = c.Run(1, true);
  const float tolerance = std::max(Tolerance(dtype), Tolerance(shape.dtype)) * 2;
  const std::vector<float> actual = Attend(c, dtype);
  ExpectClose(actual, expected, tolerance);
  ExpectClose(Attend(c, dtype, Order::kBackward), actual, 0);
}

void Check(PagedShape shape, const std::vector<Sequence>& sequences) {
  for (const DType dtype : kTypes) {
    shape.dtype = dtype;
    Check(shape, sequences, dtype);
  }
}

TEST(PagedAttentionKernel, LengthsAtEveryBoundary) {
  std::vector<Sequence> sequences;
  for (const int64_t edge : {1, 16, 64, 128}) {
    for (const int64_t more : {-1, 0, 1}) {
      if (edge + more < 1) continue;
      sequences.push_back({1, edge + more});
      sequences.push_back({edge + more, edge + more});
      sequences.push_back({std::min<int64_t>(edge + more, 5), edge + more});
    }
  }
  Check({}, sequences);
}

TEST(PagedAttentionKernel, HeadSizesAndGroups) {
  for (const int64_t depth : {16, 32, 64, 80, 96, 128, 256}) Check({.depth = depth}, {{1, 150}, {7, 40}, {20, 20}});
  for (const int64_t group : {1, 2, 3, 5, 7, 8, 40}) {
    Check({.query_heads = group * 2, .heads = 2}, {{1, 33}, {1, 170}, {9, 100}});
  }
}

TEST(PagedAttentionKernel, ManyRows) { Check({.query_heads = 32, .heads = 32, .depth = 16}, {{130, 130}, {65, 190}}); }

// Blocks become fp16 on the way, as queries do.
TEST(PagedAttentionKernel, StatesInBlocks) {
  for (const Encoding blocks : {Encoding::kQ8_0, Encoding::kQ4_0}) {
    const auto check = [&](PagedShape shape, const std::vector<Sequence>& sequences,
                           const std::vector<DType>& types = {DType::kF32, DType::kBF16}) {
      for (const DType dtype : types) {
        SCOPED_TRACE(std::string(Name(blocks)) + " D " + std::to_string(shape.depth) + " q " +
                     std::string(Name(dtype)));
        shape.blocks = blocks;
        PagedCase c(shape, sequences, blocks);
        for (float& x : c.q_) x = Rounded(Rounded(x, dtype), DType::kF16);
        const std::vector<float> expected = c.Run(1, true);
        const std::vector<float> actual = Attend(c, dtype);
        ExpectClose(actual, expected, std::max(Tolerance(dtype), Tolerance(DType::kF16)) * 4);
        ExpectClose(Attend(c, dtype, Order::kBackward), actual, 0);
      }
    };
    for (const int64_t depth : {32, 64, 96, 256}) check({.depth = depth}, {{1, 150}, {7, 40}, {20, 20}});
    // Wide tiles, of which two are needed for the rows and for the keys.
    check({.query_heads = 64, .heads = 64, .depth = 32}, {{66, 66}},
          {blocks == Encoding::kQ8_0 ? DType::kF32 : DType::kBF16});
    check({.query_heads = 4, .heads = 2, .depth = 32, .page_tokens = 32}, {{1, 1000}, {1, 3}, {0, 9}, {1, 257}});
    check({.window = 40, .softcap = 2.0f}, {{1, 130}, {30, 70}});
  }
}

TEST(PagedAttentionKernel, KeysSplitAmongBlocks) {
  Check({.query_heads = 8, .heads = 2, .depth = 64, .page_tokens = 32}, {{1, 1000}, {1, 3}, {1, 257}});
  Check({.window = 300}, {{2, 1000}});
}

TEST(PagedAttentionKernel, QueriesOfAnotherType) {
  for (const DType state : kTypes) {
    for (const DType dtype : kTypes) Check({.depth = 32, .dtype = state}, {{1, 60}, {20, 30}}, dtype);
  }
}

TEST(PagedAttentionKernel, WindowsAndSoftcap) {
  for (const int64_t window : {1, 5, 16, 100, 1000}) {
    Check({.window = window}, {{1, 300}, {50, 200}, {100, 100}, {1, 65}, {3, 80}});
  }
  Check({.window = 40, .softcap = 2.0f}, {{1, 130}, {30, 70}});
}

TEST(PagedAttentionKernel, SequencesWithoutQueries) { Check({}, {{0, 5}, {2, 20}, {0, 0}, {1, 100}, {0, 1}}); }

// What the integers should not be: nothing beyond memory is touched (AddressSanitizer), and no number is made up.
TEST(PagedAttentionKernel, NumbersThatDoNotFitGiveNan) {
  const auto broken = [](auto&& change) {
    for (const DType dtype : kTypes) {
      PagedCase c({.dtype = dtype}, {{2, 20}, {1, 40}});
      const std::vector<float> expected = Attend(c, dtype);
      change(c);
      const std::vector<float> actual = Attend(c, dtype);
      const size_t first = actual.size() / 3 * 2;  // of sequence 1
      for (size_t i = 0; i < first; ++i) EXPECT_TRUE(std::isnan(actual[i])) << Name(dtype) << " " << i;
      for (size_t i = first; i < actual.size(); ++i) EXPECT_EQ(actual[i], expected[i]);
    }
  };
  broken([](PagedCase& c) { c.tables_[0] = 99; });
  broken([](PagedCase& c) { c.tables_[0] = -1; });
  broken([](PagedCase& c) { c.lengths_[0] = 1000; });
  broken([](PagedCase& c) { c.lengths_[0] = 1; });
  broken([](PagedCase& c) { c.lengths_[0] = -5; });
  // Nothing at all is known of such rows, and nothing happens.
  PagedCase c({}, {{2, 20}, {1, 40}});
  c.starts_ = {-7, 1000, 3};
  EXPECT_EQ(Attend(c, DType::kF32).size(), c.q_.size());
}

TEST(KvWriteKernel, WritesWhatTheCpuWrites) {
  for (const DType state_type : kTypes) {
    for (const DType dtype : kTypes) {
      const int64_t tokens = 23, heads = 3, depth = 48, page_tokens = 32, pages = 4;
      const auto count = static_cast<size_t>(tokens * heads * depth);
      StoredFloats k(RandomFloats(count, 1), dtype), v(RandomFloats(count, 2), dtype);
      std::vector<float> wide_k = k.values(), wide_v = v.values();
      std::vector<int32_t> slots;
      for (int i = 0; i < tokens; ++i) slots.push_back(i % 5 == 4 ? -1 : (i * 37 + 5) % 128);
      const Dims shape = {tokens, heads, depth};
      const Dims state_shape = {pages, heads, 2, page_tokens, depth};
      StoredFloats expected(static_cast<size_t>(NumElements(state_shape)), state_type);
      StoredFloats actual(static_cast<size_t>(NumElements(state_shape)), state_type);
      const View expected_view = MakeView(expected.data(), state_type, state_shape);
      ASSERT_TRUE(kernels::KvWrite({expected_view, MakeView(wide_k.data(), DType::kF32, shape),
                                    MakeView(wide_v.data(), DType::kF32, shape), slots.data()})
                      .ok());
      slots[4] = 128;  // which the CPU refuses
      const View views[] = {MakeView(actual.data(), state_type, state_shape),
                            MakeView(k.data(), dtype, shape),
                            MakeView(v.data(), dtype, shape),
                            MakeView(slots.data(), DType::kI32, {tokens}),
                            {},
                            {}};
      const kernels::KvWriteParams packed{Encoding::kQ8_0, false};
      const Call refused{static_cast<uint32_t>(KernelId::kKvWrite), &packed, sizeof packed, views, 6};
      ASSERT_NE(PagedAttentionFamily::Check(refused).problem.find("got q8_0"), std::string::npos);
      const kernels::KvWriteParams params{Encoding::kF32, false};
      const Call call{static_cast<uint32_t>(KernelId::kKvWrite), &params, sizeof params, views, 6};
      ASSERT_EQ(PagedAttentionFamily::Check(call).problem, "");
      ASSERT_EQ(PagedAttentionFamily::Launch(Launcher{}, call), "");
      ExpectClose(actual.values(), expected.values(), 0);
    }
  }
}

// What the CPU writes, bit by bit.
TEST(KvWriteKernel, WritesBlocks) {
  for (const Encoding blocks : {Encoding::kQ8_0, Encoding::kQ4_0}) {
    for (const DType dtype : kTypes) {
      const int64_t tokens = 23, heads = 3, depth = 64, page_tokens = 32, pages = 4;
      const auto count = static_cast<size_t>(tokens * heads * depth);
      std::vector<float> numbers = RandomFloats(count, 1);
      std::fill_n(numbers.begin() + 64, 32, 0.0f);  // of nothing but zeros
      for (int i = 0; i < 32; ++i) numbers[static_cast<size_t>(128 + i)] = i % 2 == 0 ? 3.0f : -3.0f;  // equally far
      StoredFloats k(numbers, dtype), v(RandomFloats(count, 2), dtype);
      std::vector<float> wide_k = k.values(), wide_v = v.values();
      std::vector<int32_t> slots;
      for (int i = 0; i < tokens; ++i) slots.push_back(i % 5 == 4 ? -1 : (i * 37 + 5) % 128);
      const Dims shape = {tokens, heads, depth}, state_shape = {pages, heads, 2, page_tokens, depth};
      const auto bytes = static_cast<size_t>(EncodedBytes(blocks, NumElements(state_shape)));
      std::vector<uint8_t> expected(bytes, 0xAB), actual(bytes, 0xAB);
      const View wide[] = {MakeView(wide_k.data(), DType::kF32, shape), MakeView(wide_v.data(), DType::kF32, shape)};
      ASSERT_TRUE(kernels::KvWrite(
                      {MakeView(expected.data(), DType::kF32, state_shape), wide[0], wide[1], slots.data(), blocks})
                      .ok());
      const View views[] = {MakeView(actual.data(), DType::kF32, state_shape),
                            MakeView(k.data(), dtype, shape),
                            MakeView(v.data(), dtype, shape),
                            MakeView(slots.data(), DType::kI32, {tokens}),
                            {},
                            {}};
      const kernels::KvWriteParams params{blocks, false};
      const Call call{static_cast<uint32_t>(KernelId::kKvWrite), &params, sizeof params, views, 6};
      ASSERT_EQ(PagedAttentionFamily::Check(call).problem, "");
      ASSERT_EQ(PagedAttentionFamily::Launch(Launcher{}, call), "");
      EXPECT_EQ(actual, expected) << Name(blocks) << " " << Name(dtype);
    }
  }
}

// A row with a number that blocks cannot hold is nothing but NaN, and no other row is.
TEST(KvWriteKernel, WhatBlocksCannotHoldIsNoNumber) {
  for (const float wrong : {INFINITY, -INFINITY, std::nanf(""), 1e30f}) {
    std::vector<float> k(64, 1.0f), v(64, 2.0f);
    k[40] = wrong;  // of head 1
    std::vector<int32_t> slots = {0};
    const Dims shape = {1, 2, 32}, state_shape = {1, 2, 2, 16, 32};
    std::vector<uint8_t> state(static_cast<size_t>(EncodedBytes(Encoding::kQ4_0, NumElements(state_shape))));
    const View views[] = {MakeView(state.data(), DType::kF32, state_shape),
                          MakeView(k.data(), DType::kF32, shape),
                          MakeView(v.data(), DType::kF32, shape),
                          MakeView(slots.data(), DType::kI32, {1}),
                          {},
                          {}};
    const kernels::KvWriteParams params{Encoding::kQ4_0, false};
    const Call call{static_cast<uint32_t>(KernelId::kKvWrite), &params, sizeof params, views, 6};
    ASSERT_EQ(PagedAttentionFamily::Launch(Launcher{}, call), "");
    const auto scale = [&](size_t part) {
      uint16_t bits;
      std::memcpy(&bits, state.data() + part * 16 * 18, sizeof bits);
      return Fp16::Widen(bits);
    };
    EXPECT_FALSE(std::isnan(scale(0)));
    EXPECT_FALSE(std::isnan(scale(1)));
    EXPECT_TRUE(std::isnan(scale(2)));  // the keys of head 1
    EXPECT_FALSE(std::isnan(scale(3)));
  }
}

TEST(KvWriteKernel, TurnsKeysOnTheWay) {
  for (const DType dtype : kTypes) {
    for (const bool interleaved : {false, true}) {
      for (const int64_t pairs : {1, 16, 24}) {
        const int64_t tokens = 19, heads = 2, depth = 48;
        const Dims shape = {tokens, heads, depth}, angles = {tokens, pairs}, state_shape = {2, heads, 2, 16, depth};
        const auto count = static_cast<size_t>(tokens * heads * depth);
        StoredFloats k(RandomFloats(count, 1), dtype), v(RandomFloats(count, 2), dtype);
        StoredFloats cos(RandomFloats(static_cast<size_t>(tokens * pairs), 3), dtype);
        StoredFloats sin(RandomFloats(static_cast<size_t>(tokens * pairs), 4), dtype);
        std::vector<float> wide[] = {k.values(), v.values(), cos.values(), sin.values()};
        std::vector<float> turned(count), expected(static_cast<size_t>(NumElements(state_shape)));
        kernels::RotaryReference(
            {MakeView(wide[0].data(), DType::kF32, shape), MakeView(wide[2].data(), DType::kF32, angles),
             MakeView(wide[3].data(), DType::kF32, angles), MakeView(turned.data(), DType::kF32, shape), interleaved});
        std::vector<int32_t> slots;
        for (int i = 0; i < tokens; ++i) slots.push_back((i * 5 + 3) % 32);
        ASSERT_TRUE(kernels::KvWrite({MakeView(expected.data(), DType::kF32, state_shape),
                                      MakeView(turned.data(), DType::kF32, shape),
                                      MakeView(wide[1].data(), DType::kF32, shape), slots.data()})
                        .ok());
        StoredFloats actual(expected.size(), dtype);
        const View views[] = {MakeView(actual.data(), dtype, state_shape),
                              MakeView(k.data(), dtype, shape),
                              MakeView(v.data(), dtype, shape),
                              MakeView(slots.data(), DType::kI32, {tokens}),
                              MakeView(cos.data(), dtype, angles),
                              MakeView(sin.data(), dtype, angles)};
        const kernels::KvWriteParams params{Encoding::kF32, interleaved};
        const Call call{static_cast<uint32_t>(KernelId::kKvWrite), &params, sizeof params, views, 6};
        ASSERT_EQ(PagedAttentionFamily::Check(call).problem, "");
        ASSERT_EQ(PagedAttentionFamily::Launch(Launcher{}, call), "");
        ExpectClose(actual.values(), expected, Tolerance(dtype) * 2);
      }
    }
  }
}

TEST(RotaryKernel, TurnsPairs) {
  for (const DType dtype : kTypes) {
    for (const bool interleaved : {false, true}) {
      for (const int64_t pairs : {1, 16, 33, 40}) {
        const int64_t tokens = 7, heads = 3, depth = 80;
        StoredFloats x(RandomFloats(static_cast<size_t>(tokens * heads * depth), 1), dtype);
        StoredFloats cos(RandomFloats(static_cast<size_t>(tokens * pairs), 2), dtype);
        StoredFloats sin(RandomFloats(static_cast<size_t>(tokens * pairs), 3), dtype);
        std::vector<float> wide[] = {x.values(), cos.values(), sin.values()};
        std::vector<float> expected(wide[0].size());
        const Dims shape = {tokens, heads, depth}, angles = {tokens, pairs};
        kernels::RotaryReference({MakeView(wide[0].data(), DType::kF32, shape),
                                  MakeView(wide[1].data(), DType::kF32, angles),
                                  MakeView(wide[2].data(), DType::kF32, angles),
                                  MakeView(expected.data(), DType::kF32, shape), interleaved});
        const kernels::RotaryParams params{interleaved};
        View views[] = {MakeView(x.data(), dtype, shape), MakeView(cos.data(), dtype, angles),
                        MakeView(sin.data(), dtype, angles), MakeView(x.data(), dtype, shape)};  // in place
        const Call call{static_cast<uint32_t>(KernelId::kRotary), &params, sizeof params, views, 4};
        ASSERT_EQ(RotaryFamily::Check(call).problem, "");
        ASSERT_EQ(RotaryFamily::Launch(Launcher{}, call), "");
        ExpectClose(x.values(), expected, Tolerance(dtype) * 2);
      }
    }
  }
}

TEST(PagedAttentionKernel, SaysWhatItDoesNotTake) {
  PagedCase c({}, {{1, 5}});
  Attention attention(c, DType::kF32);
  EXPECT_EQ(PagedAttentionFamily::Check(attention.MakeCall()).problem, "");
  attention.views[0].shape[4] = 512;
  EXPECT_NE(PagedAttentionFamily::Check(attention.MakeCall()).problem.find("at most 256"), std::string::npos);
  attention.views[0].dtype = DType::kI32;
  EXPECT_NE(PagedAttentionFamily::Check(attention.MakeCall()).problem.find("floats"), std::string::npos);
}

}  // namespace
}  // namespace thresher::cuda::testing
