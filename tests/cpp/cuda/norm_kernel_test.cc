// The device's norm, on the emulator, against the CPU's reference in float64.
#include "thresher/cuda/norm_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/float_testing.h"
#include "kernels/tensor_testing.h"
#include "thresher/kernels/norm.h"
#include "thresher/kernels/pointwise.h"

namespace thresher::cuda::testing {
namespace {

using kernels::NormArgs;
using kernels::Tensor;
using kernels::testing::ExpectClose;
using kernels::testing::RandomFloats;

// The device's arguments for the same rows of f32; rows of the results lie `cols` apart.
NormRows RowsOf(const NormArgs& args) {
  return {args.x,   args.residual, args.weight, args.bias,       args.out,
          args.sum, args.rows,     args.cols,   args.row_stride, args.residual_row_stride,
          args.eps, DType::kF32,   DType::kF32, DType::kF32};
}

// Rows of x and residual lie `extra` elements apart. `choice`: 1 weight, 2 bias, 4 residual, 8 sum.
void Check(int64_t rows, int64_t cols, int choice, bool rms, int64_t extra = 0, float offset = 0) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + ", choice " + std::to_string(choice) +
               (rms ? ", rms" : "") + ", extra " + std::to_string(extra));
  const int64_t ld = cols + extra;
  // Exactly as long as the rows, so that AddressSanitizer sees what lies beyond.
  const size_t size = static_cast<size_t>((rows - 1) * ld + cols), dense = static_cast<size_t>(rows * cols);
  const std::vector<float> x = RandomFloats(size, 1, offset - 1, offset + 1);
  const std::vector<float> residual = RandomFloats(size, 2);
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(cols), 3);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(cols), 4);
  std::vector<float> expected(dense, 7), expected_sum(dense, 7);
  NormArgs args{
      .x = x.data(), .row_stride = ld, .out = expected.data(), .out_row_stride = cols, .rows = rows, .cols = cols};
  if (choice & 1) args.weight = weight.data();
  if ((choice & 2) && !rms) args.bias = bias.data();
  if (choice & 4) {
    args.residual = residual.data();
    args.residual_row_stride = ld;
    if (choice & 8) {
      args.sum = expected_sum.data();
      args.sum_row_stride = cols;
    }
  }
  rms ? RmsNormReference(args) : LayerNormReference(args);

  std::vector<float> first;
  for (const Order order : {Order::kForward, Order::kBackward}) {
    std::vector<float> actual(dense, 7), sum(dense, 7);
    NormArgs own = args;
    own.out = actual.data();
    if (own.sum != nullptr) own.sum = sum.data();
    ASSERT_EQ(LaunchNorm(Launcher{order}, RowsOf(own), rms), "");
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
    std::vector<float> sum(dense, 7);
    if (own.sum != nullptr) own.sum = sum.data();
    ASSERT_EQ(LaunchNorm(Launcher{}, RowsOf(own), rms), "");
    ExpectClose(in_place, first, 0);
  }
}

TEST(NormKernel, RowsOfEveryLengthAroundAWarp) {
  for (int64_t cols = 1; cols <= 70; ++cols) Check(5, cols, static_cast<int>(cols) % 16, cols % 3 == 0, cols % 4);
}

TEST(NormKernel, EveryVariantAndItsEdges) {
  for (const int64_t cols : {127, 128, 129, 511, 512, 513, 768, 1023, 1025, 4095, 4096, 4097, 8192, 8193, 8196, 16384,
                             16385, 32768, 32772}) {
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
  for (const int64_t cols : {384, 768, 20000, 40000}) Check(2, cols, 3, false, 0, 1e4f);
  // Here the mean, as a float, is off by so much that the variance around it must be corrected, too.
  for (const int64_t cols : {384, 700, 20000, 40000}) Check(2, cols, 0, false, 0, 1e6f);
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
        RowsOf(args), false);
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
    ASSERT_EQ(LaunchNorm(Launcher{}, RowsOf(args), false), "");
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(std::isnan(out[i]), static_cast<int64_t>(i) / cols != 1) << i;
    }
  }
}

// Rows of 16 bits as a step of a plan has them: as if they had been widened before and rounded behind.
TEST(NormKernel, FloatsOfSixteenBits) {
  std::mt19937 random(1);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int64_t cols :
         {1, 7, 8, 50, 256, 300, 384, 768, 1024, 1032, 4096, 5000, 8192, 12288, 32768, 32776, 33000}) {
      for (const int choice : {1, 3, 7, 15}) {
        SCOPED_TRACE(std::string(Name(dtype)) + " " + std::to_string(cols) + ", choice " + std::to_string(choice));
        const int64_t rows = 3;
        const DType weights = choice == 7 ? dtype : DType::kF32;
        Tensor x(dtype, {rows, cols}), residual(dtype, {rows, cols}), weight(weights, {cols}),
            bias(DType::kF32, {cols});
        Tensor wide[] = {Tensor(DType::kF32, {rows, cols}), Tensor(DType::kF32, {rows, cols}),
                         Tensor(DType::kF32, {cols}), Tensor(DType::kF32, {rows, cols}),
                         Tensor(DType::kF32, {rows, cols})};
        for (Tensor* tensor : {&x, &residual, &weight, &bias}) {
          std::uniform_real_distribution<float> numbers(-2, 2);
          Tensor values(DType::kF32, Dims(tensor->view.shape, tensor->view.shape + tensor->view.rank));
          for (int64_t i = 0; i < values.view.size(); ++i) values.memory<float>()[i] = numbers(random);
          kernels::Cast(values.view, tensor->view);
        }
        kernels::Cast(x.view, wide[0].view);
        kernels::Cast(residual.view, wide[1].view);
        kernels::Cast(weight.view, wide[2].view);
        const bool rms = choice == 15;
        NormArgs args{.x = wide[0].memory<float>(),
                      .row_stride = cols,
                      .weight = wide[2].memory<float>(),
                      .bias = choice == 1 || rms ? nullptr : bias.memory<float>(),
                      .out = wide[3].memory<float>(),
                      .out_row_stride = cols,
                      .rows = rows,
                      .cols = cols};
        if (choice >= 7) {
          args.residual = wide[1].memory<float>();
          args.residual_row_stride = cols;
        }
        if (choice == 15) {
          args.sum = wide[4].memory<float>();
          args.sum_row_stride = cols;
        }
        rms ? RmsNormReference(args) : LayerNormReference(args);
        Tensor out(dtype, {rows, cols}), sum(dtype, {rows, cols}), want_sum(dtype, {rows, cols}),
            back(DType::kF32, {rows, cols});
        const kernels::NormParams params{rows, cols, cols, cols, args.eps};
        const View views[] = {x.view,
                              weight.view,
                              args.bias != nullptr ? bias.view : View{},
                              choice >= 7 ? residual.view : View{},
                              out.view,
                              choice == 15 ? sum.view : View{}};
        const Call call{static_cast<uint32_t>(rms ? KernelId::kRmsNorm : KernelId::kLayerNorm), &params, sizeof params,
                        views, 6};
        ASSERT_EQ(NormFamily::Check(call).problem, "");
        std::vector<std::byte> first;
        for (const Order order : {Order::kForward, Order::kBackward}) {
          ASSERT_EQ(NormFamily::Launch(Launcher{order}, call), "");
          ASSERT_TRUE(out.GuardIntact() && sum.GuardIntact());
          std::vector<std::byte> bits(out.memory<std::byte>(), out.memory<std::byte>() + out.num_bytes());
          if (order == Order::kForward) first = bits;
          ASSERT_EQ(bits, first);
        }
        // One unit in the last place of 16 bits, since f32 and f64 may round to either side.
        const float unit = dtype == DType::kBF16 ? 1.0f / 128 : 1.0f / 1024;
        kernels::Cast(out.view, back.view);
        for (int64_t i = 0; i < rows * cols; ++i) {
          const float want = wide[3].memory<float>()[i];
          ASSERT_NEAR(back.memory<float>()[i], want, unit * std::fabs(want) + 1e-5f) << i;
        }
        if (choice != 15) continue;
        kernels::Cast(wide[4].view, want_sum.view);
        EXPECT_EQ(std::memcmp(sum.memory<std::byte>(), want_sum.memory<std::byte>(), sum.num_bytes()), 0);
      }
    }
  }
}

TEST(NormKernel, RefusesTypesThatDiffer) {
  const kernels::NormParams params{};
  View views[6];
  for (const int i : {0, 4}) views[i].rank = 2;
  views[0].dtype = DType::kBF16;
  const auto check = [&] {
    return NormFamily::Check({static_cast<uint32_t>(KernelId::kLayerNorm), &params, sizeof params, views, 6}).problem;
  };
  EXPECT_EQ(check(), "layer_norm: expected x, residual and results of one type, got bf16 and f32");
  views[4].dtype = DType::kBF16;
  EXPECT_EQ(check(), "");
  views[1].dtype = DType::kI64;
  EXPECT_EQ(check(), "layer_norm: expected operands of f32, bf16 or f16 on this device, got i64");
}

// Which variant rows take.
template <class Row>
struct ShapeProbe {
  static constexpr int kMostThreads = Row::kMostThreads;
};

TEST(RowShape, EveryLengthFitsItsVariant) {
  const auto check = [](int64_t rows, int64_t cols, int bytes, bool aligned) {
    return LaunchRows<ShapeProbe>(
        [&]<class Row>(const Shape& shape, ShapeProbe<Row>) {
          SCOPED_TRACE(std::to_string(cols) + " of " + std::to_string(bytes) + " bytes");
          EXPECT_EQ(Row::kBytes, bytes);
          EXPECT_EQ(shape.width % kWarp, 0);
          EXPECT_LE(shape.width * shape.height, Row::kMostThreads);
          EXPECT_EQ(Row::kOneWarp, shape.width == kWarp && shape.height > 1);
          EXPECT_EQ(Row::kLength, aligned && cols * bytes % 16 == 0 ? 16 / bytes : 1);
          if (Row::kPieces == 0) {
            EXPECT_GT(cols, Row::kLength == 1 ? 8192 : kLongestHeldRow);
          } else {
            EXPECT_GE(int64_t{Row::kPieces} * Row::kLength * shape.width, cols);
            EXPECT_LE(Row::kPieces * Row::kLength, 64);
          }
          return shape.blocks;
        },
        rows, cols, bytes, aligned);
  };
  for (int64_t cols = 1; cols < 40000; cols += cols < 1100 ? 1 : 97) {
    for (const int bytes : {2, 4}) {
      check(1000, cols, bytes, true);
      check(1000, cols, bytes, false);
      check(1000, cols / 8 * 8 + 8, bytes, true);
    }
  }
  EXPECT_EQ(check(int64_t{1} << 40, 64, 4, true), kMaxBlocks);
}

}  // namespace
}  // namespace thresher::cuda::testing
