// The device's softmax, on the emulator, against the CPU's reference in float64.
#include "thresher/cuda/softmax_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/float_testing.h"
#include "kernels/tensor_testing.h"
#include "thresher/kernels/pointwise.h"
#include "thresher/kernels/softmax.h"

namespace thresher::cuda::testing {
namespace {

using kernels::Tensor;
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
      SoftmaxArgs args{x.data(), actual.data(), DType::kF32, outer, dim, inner, log};
      ASSERT_EQ(LaunchSoftmax(Launcher{order}, args), "");
      ExpectClose(actual, expected, log ? 4e-6f : 3e-7f, log ? 3e-7f : 4e-6f);
      if (order == Order::kForward) first = actual;
      ExpectClose(actual, first, 0);
    }
    std::vector<float> in_place = x;
    const SoftmaxArgs args{in_place.data(), in_place.data(), DType::kF32, outer, dim, inner, log};
    ASSERT_EQ(LaunchSoftmax(Launcher{}, args), "");
    ExpectClose(in_place, first, 0);
  }
}

TEST(SoftmaxKernel, RowsOfEveryLengthAroundAWarp) {
  for (int64_t dim = 1; dim <= 70; ++dim) Check(5, dim, 1);
}

TEST(SoftmaxKernel, EveryVariantAndItsEdges) {
  for (const int64_t dim : {511, 512, 513, 1500, 4096, 4097, 8193, 16384, 16385, 30000, 32768, 32769, 40000})
    Check(2, dim, 1);
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
        SoftmaxArgs{x.data(), actual.data(), DType::kF32, 19, 600, inner, false});
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
  for (const int64_t dim : {5, 37, 600, 17000, 40000}) {
    Check(2, dim, 1, RandomFloats(static_cast<size_t>(2 * dim), 4, -1020, -1000));
  }
  Check(2, 9, 5, RandomFloats(90, 4, -1020, -1000));
  // The same in rows that a block shares.
  for (const float special : {kNan, kInf, -kInf}) {
    for (const size_t dim : {size_t{700}, size_t{17000}, size_t{40000}, size_t{40001}}) {
      std::vector<float> rows = RandomFloats(2 * dim, 3);
      rows[dim / 2] = special;
      Check(2, static_cast<int64_t>(dim), 1, rows);
    }
  }
}

// Of a row that is read again, threads that see nothing but -infinity must not spoil the sum of the others.
TEST(SoftmaxKernel, LongRowsThatAreMaskedInPart) {
  for (const size_t dim : {size_t{40000}, size_t{40001}}) {
    std::vector<float> row = RandomFloats(dim, 3, -5, 5);
    for (size_t i = 0; i < dim; ++i) {
      if (i % 8192 >= 2000) row[i] = -kInf;
    }
    Check(1, static_cast<int64_t>(dim), 1, row);
  }
}

TEST(SoftmaxKernel, FloatsOfSixteenBits) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [dim, inner] : {std::pair{1, 1},
                                     {7, 1},
                                     {8, 1},
                                     {264, 1},
                                     {384, 1},
                                     {1024, 1},
                                     {1500, 1},
                                     {4096, 1},
                                     {8192, 1},
                                     {20000, 1},
                                     {33000, 1},
                                     {32768, 1},
                                     {9, 33},
                                     {64, 5}}) {
      for (const bool log : {false, true}) {
        SCOPED_TRACE(std::string(Name(dtype)) + " " + std::to_string(dim) + " x " + std::to_string(inner));
        const Dims shape = {3, dim, inner};
        const int64_t size = NumElements(shape);
        std::vector<float> numbers = RandomFloats(static_cast<size_t>(size), 5, -10, 10);
        Tensor x(dtype, shape), out(dtype, shape), wide(DType::kF32, shape), want(DType::kF32, shape);
        kernels::Cast(MakeView(numbers.data(), DType::kF32, shape), x.view);
        kernels::Cast(x.view, wide.view);
        kernels::SoftmaxReference(wide.memory<float>(), want.memory<float>(), 3, dim, inner, log);
        const kernels::SoftmaxParams params{3, dim, inner, log};
        const View views[] = {x.view, out.view};
        const Call call{static_cast<uint32_t>(KernelId::kSoftmax), &params, sizeof params, views, 2};
        ASSERT_EQ(SoftmaxFamily::Check(call).problem, "");
        ASSERT_EQ(SoftmaxFamily::Launch(Launcher{}, call), "");
        EXPECT_TRUE(out.GuardIntact());
        Tensor again(dtype, shape);
        const View backward[] = {x.view, again.view};
        ASSERT_EQ(SoftmaxFamily::Launch(Launcher{Order::kBackward}, {call.number, &params, sizeof params, backward, 2}),
                  "");
        EXPECT_EQ(std::memcmp(out.memory<std::byte>(), again.memory<std::byte>(), out.num_bytes()), 0);
        kernels::Cast(out.view, wide.view);
        const float unit = dtype == DType::kBF16 ? 1.0f / 128 : 1.0f / 1024;
        for (int64_t i = 0; i < size; ++i) {
          const float w = want.memory<float>()[i];
          ASSERT_NEAR(wide.memory<float>()[i], w, unit * std::fabs(w) + 1e-7f) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace thresher::cuda::testing
