// The device's norm, on the emulator, against the CPU's reference in float64.
#include "thresher/cuda/norm_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/float_testing.h"
#include "thresher/kernels/norm.h"

namespace thresher::cuda::testing {
namespace {

using kernels::NormArgs;
using kernels::testing::ExpectClose;
using kernels::testing::RandomFloats;

// Rows lie `extra` elements apart. `choice`: 1 weight, 2 bias, 4 residual, 8 sum.
void Check(int64_t rows, int64_t cols, int choice, bool rms, int64_t extra = 0, float offset = 0) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + ", choice " + std::to_string(choice) +
               (rms ? ", rms" : "") + ", extra " + std::to_string(extra));
  const int64_t ld = cols + extra;
  // Exactly as long as the rows, so that AddressSanitizer sees what lies beyond.
  const size_t size = static_cast<size_t>((rows - 1) * ld + cols);
  const std::vector<float> x = RandomFloats(size, 1, offset - 1, offset + 1);
  const std::vector<float> residual = RandomFloats(size, 2);
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(cols), 3);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(cols), 4);
  std::vector<float> expected(size, 7), expected_sum(size, 7);
  NormArgs args{
      .x = x.data(), .row_stride = ld, .out = expected.data(), .out_row_stride = ld, .rows = rows, .cols = cols};
  if (choice & 1) args.weight = weight.data();
  if ((choice & 2) && !rms) args.bias = bias.data();
  if (choice & 4) {
    args.residual = residual.data();
    args.residual_row_stride = ld;
    if (choice & 8) {
      args.sum = expected_sum.data();
      args.sum_row_stride = ld;
    }
  }
  rms ? RmsNormReference(args) : LayerNormReference(args);

  std::vector<float> first;
  for (const Order order : {Order::kForward, Order::kBackward}) {
    std::vector<float> actual(size, 7), sum(size, 7);
    NormArgs own = args;
    own.out = actual.data();
    if (own.sum != nullptr) own.sum = sum.data();
    ASSERT_EQ(LaunchNorm(Launcher{order}, own, rms), "");
    ExpectClose(actual, expected, offset == 0 ? 3e-6f : offset < 1e5f ? 8e-6f : 1e-4f, 3e-6f);
    ExpectClose(sum, expected_sum, 0);
    if (order == Order::kForward) {
      first = actual;
    } else {
      ExpectClose(actual, first, 0);
    }
  }
  if (extra == 0) {  // in place
    std::vector<float> in_place = x;
    NormArgs own = args;
    own.x = own.out = in_place.data();
    std::vector<float> sum(size, 7);
    if (own.sum != nullptr) own.sum = sum.data();
    ASSERT_EQ(LaunchNorm(Launcher{}, own, rms), "");
    ExpectClose(in_place, first, 0);
  }
}

TEST(NormKernel, RowsOfEveryLengthAroundAWarp) {
  for (int64_t cols = 1; cols <= 70; ++cols) Check(5, cols, static_cast<int>(cols) % 16, cols % 3 == 0, cols % 4);
}

TEST(NormKernel, EveryVariantAndItsEdges) {
  for (const int64_t cols : {127, 128, 129, 511, 512, 513, 768, 1023, 1025, 4095, 4096, 4097, 8193, 16384, 16385}) {
    for (const int choice : {0, 3, 7, 15}) Check(3, cols, choice, choice == 7, choice == 3 ? 2 : 0);
  }
}

TEST(NormKernel, EveryCombination) {
  for (const int64_t cols : {48, 600}) {
    for (int choice = 0; choice < 16; ++choice) {
      for (const bool rms : {false, true}) Check(2, cols, choice, rms);
    }
  }
}

TEST(NormKernel, ManyRows) {
  Check(1, 33, 3, false);
  Check(67, 33, 3, false);
  Check(130, 520, 0, true);
}

// One pass over squares would lose every digit here: the variance is 1/3, the squares 1e8.
TEST(NormKernel, LargeCommonOffset) {
  for (const int64_t cols : {384, 768, 20000}) Check(2, cols, 3, false, 0, 1e4f);
  // Here the mean, as a float, is off by so much that the variance around it must be corrected, too.
  for (const int64_t cols : {384, 700, 20000}) Check(2, cols, 0, false, 0, 1e6f);
}

TEST(NormKernel, MoreRowsThanBlocksWalkOverTheGrid) {
  const int64_t rows = 37;
  for (const int64_t cols : {40, 700}) {
    const std::vector<float> x = RandomFloats(static_cast<size_t>(rows * cols), 1);
    std::vector<float> expected(x.size()), actual(x.size());
    NormArgs args{
        .x = x.data(), .row_stride = cols, .out = expected.data(), .out_row_stride = cols, .rows = rows, .cols = cols};
    LayerNormReference(args);
    args.out = actual.data();
    const std::string problem = LaunchNorm(
        [](Shape shape, const auto& kernel) {
          shape.blocks = 3;
          return Launcher{}(shape, kernel);
        },
        args, false);
    ASSERT_EQ(problem, "");
    ExpectClose(actual, expected, 3e-6f, 3e-6f);
  }
}

TEST(NormKernel, NanAndInfinitySpoilTheirRowOnly) {
  for (const int64_t cols : {50, 530}) {
    std::vector<float> x = RandomFloats(static_cast<size_t>(3 * cols), 1);
    x[10] = std::numeric_limits<float>::quiet_NaN();
    x[static_cast<size_t>(3 * cols - 1)] = std::numeric_limits<float>::infinity();
    std::vector<float> out(x.size());
    const NormArgs args{
        .x = x.data(), .row_stride = cols, .out = out.data(), .out_row_stride = cols, .rows = 3, .cols = cols};
    ASSERT_EQ(LaunchNorm(Launcher{}, args, false), "");
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isnan(out[i]), static_cast<int64_t>(i) / cols != 1) << i;
    }
  }
}

TEST(RowShape, EveryLengthFitsItsVariant) {
  for (int64_t cols = 1; cols < 20000; cols += cols < 1100 ? 1 : 97) {
    const RowShape row = ShapeOfRows(1000, cols);
    SCOPED_TRACE(cols);
    EXPECT_EQ(row.shape.width % kWarp, 0);
    EXPECT_LE(row.shape.width * row.shape.height, kMaxThreads);
    EXPECT_EQ(row.one_warp, row.shape.width == kWarp && row.shape.height > 1);
    if (row.items == 0) {
      EXPECT_GT(cols, kLongestHeldRow);
    } else {
      EXPECT_GE(int64_t{row.items} * row.shape.width, cols);
      EXPECT_LE(row.items, 16);
    }
  }
  EXPECT_EQ(ShapeOfRows(int64_t{1} << 40, 64).shape.blocks, kMaxBlocks);
}

}  // namespace
}  // namespace thresher::cuda::testing
