#include "thresher/kernels/copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/tensor_testing.h"

namespace thresher::kernels {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kI64, DType::kI32, DType::kBool, DType::kBF16, DType::kF16};

TEST(Copy, MatchesReference) {
  struct Case {
    Dims shape;
    Layout src;
    Layout dst;
  };
  std::vector<Case> cases = {
      {{}, {}, {}},
      {{1000}, {.offset = 1}, {}},
      {{1000}, {.step = 2}, {.step = 3}},
      {{1000}, {.broadcast = 1}, {}},
      {{3, 0, 2}, {}, {}},
      {{5, 7, 33}, {.order = {1, 0, 2}}, {}},   // runs
      {{5, 7, 33}, {}, {.order = {1, 0, 2}}},   // runs, on the other side
      {{3, 40, 50}, {.order = {0, 2, 1}}, {}},  // transposes in a batch
      {{3, 40, 50}, {}, {.order = {0, 2, 1}}},
      {{40, 3, 50}, {.order = {2, 1, 0}}, {.offset = 1}},  // transpose around a dimension
      {{40, 3, 50}, {.order = {2, 0, 1}}, {}},
      {{4, 5, 6, 7}, {.order = {3, 1, 2, 0}}, {.order = {1, 3, 0, 2}}},
      {{6, 70}, {.broadcast = 1}, {}},
      {{6, 70}, {.broadcast = 2}, {}},
      {{2, 3, 2, 3, 2, 3, 2, 3}, {.order = {7, 6, 5, 4, 3, 2, 1, 0}}, {}},
  };
  for (const int64_t rows : {3, 4, 5, 31, 32, 33, 66, 512, 1029}) {
    for (const int64_t columns : {3, 4, 7, 16, 17, 32, 35}) {
      cases.push_back({{rows, columns}, {.order = {1, 0}}, {}});
      cases.push_back({{rows, columns}, {.order = {1, 0}, .step = 2}, {}});
    }
  }
  std::mt19937 random(1);
  ForEachIsa([&] {
    for (const DType dtype : kTypes) {
      for (const Case& c : cases) {
        Tensor src(dtype, c.shape, c.src);
        FillRandom(src, random);
        Tensor want(dtype, c.shape, c.dst);
        CopyReference(src.view, want.view);
        for (const int parts : kPartCounts) {
          Tensor got(dtype, c.shape, c.dst);
          for (int part = 0; part < parts; ++part) Copy(src.view, got.view, part, parts);
          // Whole memory: holes between dst's strides stay as they were.
          ASSERT_EQ(std::memcmp(got.view.data, want.view.data, want.num_bytes()), 0)
              << Name(dtype) << " " << ToString(c.shape) << " in " << parts;
          ASSERT_TRUE(got.GuardIntact());
        }
      }
    }
  });
}

TEST(Copy, PartsDoNotOverlap) {
  // Each part alone writes its own share: the shares add up to the whole.
  for (const Layout& layout : {Layout{}, Layout{.order = {1, 0}}}) {
    Tensor src(DType::kI32, {70, 90}, layout);
    std::fill_n(src.memory<int32_t>(), src.elements(), 1);
    std::vector<int> writes(70 * 90);
    for (int part = 0; part < 7; ++part) {
      Tensor got(DType::kI32, {70, 90});
      Copy(src.view, got.view, part, 7);
      for (size_t i = 0; i < writes.size(); ++i) writes[i] += got.memory<int32_t>()[i] == 1;
    }
    EXPECT_EQ(writes, std::vector<int>(70 * 90, 1));
  }
}

TEST(Fill, WritesEveryElementAndNoOther) {
  for (const DType dtype : kTypes) {
    for (const Layout& layout : {Layout{}, Layout{.order = {1, 0}}, Layout{.step = 3}}) {
      Tensor one(dtype, {1}, {});
      Fill(one.view, BitsOf(int64_t{1}, dtype));
      Tensor src(dtype, {13, 29}, {.broadcast = 3});
      std::memcpy(src.view.data, one.view.data, SizeOf(dtype));
      Tensor want(dtype, {13, 29}, layout);
      CopyReference(src.view, want.view);
      for (const int parts : kPartCounts) {
        Tensor got(dtype, {13, 29}, layout);
        for (int part = 0; part < parts; ++part) Fill(got.view, BitsOf(1.0, dtype), part, parts);
        EXPECT_EQ(std::memcmp(got.view.data, want.view.data, want.num_bytes()), 0) << Name(dtype);
        EXPECT_TRUE(got.GuardIntact());
      }
    }
  }
}

TEST(Fill, BitsOfFollowsCast) {
  float minus_half = -0.5f;
  uint32_t bits = 0;
  std::memcpy(&bits, &minus_half, 4);
  EXPECT_EQ(BitsOf(-0.5, DType::kF32), bits);
  EXPECT_EQ(BitsOf(-2.7, DType::kI64), static_cast<uint64_t>(-2));
  EXPECT_EQ(BitsOf(-2.7, DType::kI32), 0xFFFFFFFEu);
  EXPECT_EQ(BitsOf(std::numeric_limits<double>::quiet_NaN(), DType::kI32), 0x80000000u);
  EXPECT_EQ(BitsOf(1e300, DType::kI64), uint64_t{1} << 63);
  EXPECT_EQ(BitsOf(std::numeric_limits<double>::quiet_NaN(), DType::kBool), 1u);
  EXPECT_EQ(BitsOf(int64_t{-1}, DType::kI64), ~uint64_t{0});
  EXPECT_EQ(BitsOf(std::numeric_limits<int64_t>::max(), DType::kI64), ~uint64_t{0} >> 1);
}

TEST(Arange, CountsInEveryType) {
  for (const int parts : kPartCounts) {
    Tensor f(DType::kF32, {200});
    Tensor l(DType::kI64, {200}, {.step = 2});
    Tensor i(DType::kI32, {200});
    Tensor exact(DType::kI64, {3});
    for (int part = 0; part < parts; ++part) {
      Arange(f.view, 0.5, 0.1, part, parts);
      Arange(l.view, -3, 2, part, parts);
      ArangeInt(i.view, 7, -5, part, parts);
      ArangeInt(exact.view, (int64_t{1} << 60) + 1, 1, part, parts);
    }
    for (int64_t k = 0; k < 200; ++k) {
      EXPECT_EQ(f.memory<float>()[k], static_cast<float>(0.5 + 0.1 * static_cast<double>(k)));
      EXPECT_EQ(l.memory<int64_t>()[2 * k], -3 + 2 * k);
      EXPECT_EQ(i.memory<int32_t>()[k], 7 - 5 * k);
    }
    EXPECT_EQ(exact.memory<int64_t>()[2], (int64_t{1} << 60) + 3);
    EXPECT_TRUE(f.GuardIntact() && l.GuardIntact() && i.GuardIntact());
  }
}

}  // namespace
}  // namespace thresher::kernels
