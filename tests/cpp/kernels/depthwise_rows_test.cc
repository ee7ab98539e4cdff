// Convolutions of each channel by itself over rows of bf16.
#include "thresher/kernels/depthwise_rows.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "kernels/product_testing.h"
#include "kernels/window_testing.h"
#include "thresher/kernels/gemm_dot.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::Axis;
using testing::ExpectClose;
using testing::ForEachIsaAndPlainTiles;
using testing::RandomFloats;
using testing::WindowsOf;

float FloatOf(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Both results against the same in scalar code of what the rows stand for.
void Check(const std::vector<Axis>& axes, int64_t channels, Activation activation, bool bias, int num_parts) {
  constexpr int64_t kBatch = 2;
  DepthwiseArgs args;
  args.windows = WindowsOf(axes, channels, 0);
  Windows& w = args.windows;
  SCOPED_TRACE(testing::ToString(w) + " " + std::string(Name(activation)) + " parts " + std::to_string(num_parts));
  const int64_t positions = w.x_batch / channels * kBatch, m = kBatch * w.positions();
  std::vector<float> x = RandomFloats(static_cast<size_t>(positions * channels), 1);
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(w.taps() * channels), 2);
  const std::vector<float> biases = RandomFloats(static_cast<size_t>(channels), 3);
  args.outputs = channels;
  args.batch = kBatch;
  args.weight = weight.data();
  args.bias = bias ? biases.data() : nullptr;
  args.activation = activation;
  ForEachIsaAndPlainTiles([&] {
    if (!SuitsDepthwiseRows(w, activation)) return;
    // Whole vectors, whatever products want.
    const int64_t stride = (channels + kStoredColumns - 1) / kStoredColumns * kStoredColumns;
    const int64_t row_bytes = RowBytes(RowForm::kBF16, channels);
    AlignedFloats converted(static_cast<size_t>(positions * row_bytes / 4));
    AlignedFloats rows(static_cast<size_t>(positions * stride / 2));
    ConvertRowsArgs convert;
    convert.m = positions, convert.k = convert.ldx = channels;
    convert.x = x.data();
    convert.rows = converted.data();
    ConvertRows(convert);
    RestoreRows(convert, x.data());
    for (int64_t i = 0; i < positions; ++i) {
      auto* const row = reinterpret_cast<uint16_t*>(rows.data()) + i * stride;
      std::memcpy(row, reinterpret_cast<const std::byte*>(converted.data()) + i * row_bytes,
                  static_cast<size_t>(channels) * sizeof(*row));
      std::fill(row + channels, row + stride, uint16_t{0});
    }
    args.x = x.data();
    args.ldc = channels;
    std::vector<float> expected(static_cast<size_t>(m * channels)), actual = expected;
    args.out = expected.data();
    DepthwiseReference(args);

    // gelu is computed with the digits that bf16 keeps.
    const float least = activation == Activation::kGelu ? 5e-5f : 4e-6f;
    const auto check = [&](const float* from, int64_t from_stride, int64_t to_stride) {
      SCOPED_TRACE(std::to_string(from_stride) + " to " + std::to_string(to_stride));
      DepthwiseArgs own = args;
      own.x = from;
      for (int64_t* const distance :
           {&own.windows.x_batch, &own.windows.x_strides[0], &own.windows.x_strides[1], &own.windows.x_strides[2]}) {
        *distance = *distance / channels * from_stride;
      }
      own.out = actual.data();
      for (int part = 0; part < num_parts; ++part) DepthwiseRows(own, false, part, num_parts);
      ExpectClose(actual, expected, 4e-6f, 2e-6f);
      std::vector<uint16_t> stored(static_cast<size_t>(m * to_stride));
      own.out = reinterpret_cast<float*>(stored.data());
      own.ldc = to_stride;
      for (int part = 0; part < num_parts; ++part) DepthwiseRows(own, true, part, num_parts);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < std::min((channels + 31) / 32 * 32, to_stride); ++j) {
          const float got = FloatOf(stored[static_cast<size_t>(i * to_stride + j)]);
          const float wanted = j < channels ? expected[static_cast<size_t>(i * channels + j)] : 0.0f;
          ASSERT_NEAR(got, wanted, std::abs(wanted) * 0.00391f + least) << "row " << i << " channel " << j;
        }
      }
    };
    check(rows.data(), stride, stride);
    if (channels < 32 || channels % 2 != 0) return;
    // In a piece of memory that ends where they end, so that a sanitizer sees what reads on.
    std::vector<uint16_t> dense;
    for (int64_t i = 0; i < positions; ++i) {
      const auto* const row = reinterpret_cast<const uint16_t*>(rows.data()) + i * stride;
      dense.insert(dense.end(), row, row + channels);
    }
    dense.shrink_to_fit();
    const auto* const from = reinterpret_cast<const float*>(dense.data());
    check(from, channels, channels);
    check(from, channels, stride);
    check(rows.data(), stride, channels);
  });
}

TEST(DepthwiseRowsTest, EveryWindow) {
  for (const int64_t kernel : {3, 5, 7}) {
    for (const int64_t stride : {1, 2}) {
      for (const int64_t width : {7, 8, 9, 14, 17, 24}) {
        const int64_t before = kernel / 2;
        const Axis axis{.in = width, .kernel = kernel, .stride = stride, .before = before, .after = before};
        Check({{.in = 11, .kernel = kernel, .stride = stride, .before = before, .after = before}, axis}, 40,
              Activation::kRelu6, true, 2);
      }
    }
  }
}

TEST(DepthwiseRowsTest, EveryWidth) {
  for (int64_t width = 1; width <= 33; ++width) {
    Check({{.in = width, .kernel = 3, .before = 1, .after = 1}}, 16, Activation::kNone, false, 1);
    Check({{.in = 3, .kernel = 1}, {.in = width + 2, .kernel = 3}}, 33, Activation::kNone, true, 1);
  }
}

TEST(DepthwiseRowsTest, PaddingOnOneSideAndDistantLines) {
  const Axis apart{.in = 9, .kernel = 3, .stride = 2, .before = 1, .after = 3, .dilation = 2};
  Check({apart, {.in = 20, .kernel = 5, .before = 4}}, 64, Activation::kRelu, true, 3);
  Check({apart, {.in = 20, .kernel = 3, .stride = 2, .after = 2}}, 64, Activation::kRelu, true, 3);
}

TEST(DepthwiseRowsTest, Activations) {
  for (int act = 0; act <= static_cast<int>(kLastActivation); ++act) {
    Check({{.in = 10, .kernel = 3, .before = 1, .after = 1}, {.in = 15, .kernel = 3, .before = 1, .after = 1}}, 45,
          static_cast<Activation>(act), true, 1);
  }
}

TEST(DepthwiseRowsTest, SayWhatTheyTake) {
  ForEachIsaAndPlainTiles([&] {
    const Axis axis{.in = 9, .kernel = 3};
    const bool stores = StoresRows(RowForm::kBF16);
    EXPECT_EQ(SuitsDepthwiseRows(WindowsOf({axis, axis}, 8, 0), Activation::kRelu), stores);
    EXPECT_FALSE(SuitsDepthwiseRows(WindowsOf({axis, axis, axis}, 8, 0), Activation::kRelu));
    EXPECT_FALSE(SuitsDepthwiseRows(WindowsOf({axis, axis}, 8, 0), Activation::kSigmoid));
    EXPECT_FALSE(SuitsDepthwiseRows(WindowsOf({axis, {.in = 9, .kernel = 3, .dilation = 2}}, 8, 0), Activation::kNone));
    EXPECT_FALSE(SuitsDepthwiseRows(WindowsOf({axis, {.in = 9, .kernel = 3, .spread = 2}}, 8, 0), Activation::kNone));
    EXPECT_FALSE(SuitsDepthwiseRows(WindowsOf({axis, {.in = 9, .kernel = 4}}, 8, 0), Activation::kNone));
    EXPECT_FALSE(SuitsDepthwiseRows(WindowsOf({axis, {.in = 9, .kernel = 3, .stride = 3}}, 8, 0), Activation::kNone));
  });
}

}  // namespace
}  // namespace thresher::kernels
