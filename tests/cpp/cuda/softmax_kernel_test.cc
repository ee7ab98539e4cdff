// The device's softmax, on the emulator, against the CPU's reference in float64.
#include "thresher/cuda/softmax_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/float_testing.h"
#include "thresher/kernels/softmax.h"

namespace thresher::cuda::testing {
namespace {

using kernels::testing::ExpectClose;
using kernels::testing::RandomFloats;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void Check(int64_t outer, int64_t dim, int64_t inner, std::vector<float> x = {}) {
  SCOPED_TRACE(std::to_string(outer) + " x " + std::to_string(dim) + " x " + std::to_string(inner));
  const size_t size = static_cast<size_t>(outer * dim * inner);
  if (x.empty()) x = RandomFloats(size, 1, -20, 20);
  for (const bool log : {false, true}) {
    std::vector<float> expected(size), first;
    kernels::SoftmaxReference(x.data(), expected.data(), outer, dim, inner, log);
    for (const Order order : {Order::kForward, Order::kBackward}) {
      std::vector<float> actual(size, 5);
      SoftmaxArgs args{x.data(), actual.data(), outer, dim, inner, log};
      ASSERT_EQ(LaunchSoftmax(Launcher{order}, args), "");
      ExpectClose(actual, expected, log ? 4e-6f : 3e-7f, log ? 3e-7f : 4e-6f);
      if (order == Order::kForward) first = actual;
      ExpectClose(actual, first, 0);
    }
    std::vector<float> in_place = x;
    const SoftmaxArgs args{in_place.data(), in_place.data(), outer, dim, inner, log};
    ASSERT_EQ(LaunchSoftmax(Launcher{}, args), "");
    ExpectClose(in_place, first, 0);
  }
}

TEST(SoftmaxKernel, RowsOfEveryLengthAroundAWarp) {
  for (int64_t dim = 1; dim <= 70; ++dim) Check(5, dim, 1);
}

TEST(SoftmaxKernel, EveryVariantAndItsEdges) {
  for (const int64_t dim : {511, 512, 513, 1500, 4096, 4097, 8193, 16384, 16385, 30000}) Check(2, dim, 1);
}

TEST(SoftmaxKernel, StridedDimension) {
  for (int64_t inner = 2; inner <= 70; inner += 3) Check(2, 9, inner);
  for (const int64_t dim : {1, 7, 8, 9, 100}) Check(3, dim, 33);
  Check(2, 1000, 2);
}

TEST(SoftmaxKernel, MoreWorkThanBlocksWalksOverTheGrid) {
  for (const int64_t inner : {1, 40}) {
    const std::vector<float> x = RandomFloats(static_cast<size_t>(19 * 600 * inner), 1, -5, 5);
    std::vector<float> expected(x.size()), actual(x.size());
    kernels::SoftmaxReference(x.data(), expected.data(), 19, 600, inner, false);
    const std::string problem = LaunchSoftmax(
        [](Shape shape, const auto& kernel) {
          shape.blocks = 2;
          return Launcher{}(shape, kernel);
        },
        SoftmaxArgs{x.data(), actual.data(), 19, 600, inner, false});
    ASSERT_EQ(problem, "");
    ExpectClose(actual, expected, 3e-7f, 4e-6f);
  }
}

TEST(SoftmaxKernel, SpecialValues) {
  // Slices of 5: a masked entry, a NaN, +infinity, -infinity only, values whose exponentials overflow, all equal.
  const std::vector<float> slices = {1.0f,  -kInf, 2.0f,   -kInf, 0.0f, 1.0f,  kNan,  2.0f,  3.0f,  4.0f,
                                     kInf,  1.0f,  2.0f,   3.0f,  4.0f, -kInf, -kInf, -kInf, -kInf, -kInf,
                                     1e30f, 1e30f, -1e30f, 0.0f,  1.0f, 8.0f,  8.0f,  8.0f,  8.0f,  8.0f};
  Check(6, 5, 1, slices);
  std::vector<float> columns;
  for (size_t i = 0; i < 5; ++i) {
    for (size_t s = 0; s < 6; ++s) columns.push_back(slices[s * 5 + i]);
  }
  Check(1, 5, 6, columns);
  // Nothing but the elements themselves may decide about the maximum.
  for (const int64_t dim : {5, 37, 600, 17000}) {
    Check(2, dim, 1, RandomFloats(static_cast<size_t>(2 * dim), 4, -1020, -1000));
  }
  Check(2, 9, 5, RandomFloats(90, 4, -1020, -1000));
  // The same in rows that a block shares.
  for (const float special : {kNan, kInf, -kInf}) {
    for (const size_t dim : {size_t{700}, size_t{17000}}) {
      std::vector<float> rows = RandomFloats(2 * dim, 3);
      rows[dim / 2] = special;
      Check(2, static_cast<int64_t>(dim), 1, rows);
    }
  }
}

}  // namespace
}  // namespace thresher::cuda::testing
