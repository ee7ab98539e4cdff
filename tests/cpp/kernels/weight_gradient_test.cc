// Gradients of the weights of convolutions.
#include "thresher/kernels/weight_gradient.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "kernels/product_testing.h"
#include "kernels/window_testing.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::Axis;
using testing::ExpectClose;
using testing::ForEachIsa;
using testing::kGeometries;
using testing::RandomFloats;
using testing::ToString;
using testing::WindowsOf;

struct Case {
  std::vector<Axis> axes;
  int64_t channels = 3;  // of a group
  int64_t outputs = 37;
  int64_t groups = 1;
  int64_t batch = 2;
  int slabs = 1;
  int cuts = 1;
  bool channels_last = true;
};

void Check(const Case& c) {
  const int64_t inputs = c.channels * c.groups;
  WeightGradientArgs args;
  Windows& w = args.windows;
  w = WindowsOf(c.axes, inputs, c.channels_last ? 2 : 0);
  w.channels = c.channels;
  SCOPED_TRACE(ToString(w) + " outputs " + std::to_string(c.outputs) + " groups " + std::to_string(c.groups) +
               (c.channels_last ? "" : " channels first"));
  const int64_t positions = w.positions();
  args.outputs = c.outputs;
  args.groups = c.groups;
  args.batch = c.batch;
  args.slabs = c.slabs;
  args.cuts = c.cuts;
  const std::vector<float> x = RandomFloats(static_cast<size_t>(c.batch * w.x_batch), 1);
  const std::vector<float> gradient = RandomFloats(static_cast<size_t>(c.batch * positions * c.outputs), 2);
  args.x = x.data();
  args.gradient = gradient.data();
  args.gradient_batch = positions * c.outputs;
  const int64_t distance = c.channels_last ? c.outputs : 1;
  args.gradient_strides[2] = distance;
  args.gradient_strides[1] = distance * w.out[2];
  args.gradient_strides[0] = distance * w.out[2] * w.out[1];
  if (!c.channels_last) {
    args.gradient_channel = positions;
    for (int64_t& stride : w.x_strides) stride /= inputs;
    args.x_channel = w.in[0] * w.in[1] * w.in[2];
  }
  std::vector<float> expected(static_cast<size_t>(c.outputs * w.taps() * c.channels));
  args.out = expected.data();
  WeightGradientReference(args);
  ForEachIsa([&] {
    // What was in memory before must not matter.
    AlignedFloats scratch(WeightGradientScratchBytes() / sizeof(float));
    std::fill_n(scratch.data(), WeightGradientScratchBytes() / sizeof(float), 1e30f);
    std::vector<float> slabs(expected.size() * static_cast<size_t>(args.slabs), 1e30f);
    WeightGradientArgs own = args;
    own.out = slabs.data();
    for (int part = 0; part < 3; ++part) WeightGradient(own, scratch.data(), part, 3);
    std::vector<float> actual(expected.size(), 0.0f);
    for (size_t i = 0; i < slabs.size(); ++i) actual[i % expected.size()] += slabs[i];
    ExpectClose(actual, expected, 1e-5f + 1e-7f * static_cast<float>(c.batch * positions), 2e-6f);
  });
}

bool IsSpread(const std::vector<Axis>& axes) {
  return std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.spread != 1; });
}

TEST(WeightGradientTest, EveryGeometry) {
  for (const auto& axes : kGeometries) {
    if (IsSpread(axes)) continue;
    for (const bool channels_last : {true, false}) {
      for (const int64_t channels : {1, 3, 16, 33, 64}) {
        Check({.axes = axes, .channels = channels, .channels_last = channels_last});
      }
      Check({.axes = axes,
             .channels = 20,
             .outputs = 101,
             .batch = 3,
             .slabs = 3,
             .cuts = 2,
             .channels_last = channels_last});
      Check({.axes = axes, .channels = 1, .outputs = 70, .groups = 70, .slabs = 2, .channels_last = channels_last});
    }
  }
}

TEST(WeightGradientTest, EveryWidth) {
  for (int64_t width = 1; width <= 31; ++width) {
    for (const int64_t stride : {1, 2}) {
      const std::vector<Axis> axes = {{.in = 3, .kernel = 2, .before = 1},
                                      {.in = stride * width + 1, .kernel = 3, .stride = stride, .before = 1}};
      Check({.axes = axes, .channels = 5, .batch = 1});
      Check({.axes = axes, .channels = 32, .outputs = width, .batch = 1});
      Check({.axes = axes, .channels = 1, .outputs = 24, .groups = 24, .batch = 1});
    }
  }
}

TEST(WeightGradientTest, Groups) {
  const std::vector<Axis> axes = {{.in = 4, .kernel = 3, .before = 1, .after = 1},
                                  {.in = 11, .kernel = 3, .before = 1, .after = 1}};
  for (const auto& [inputs, outputs] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 2}, {1, 3}, {2, 1}, {2, 2}, {2, 4}, {4, 4}, {4, 1}, {3, 8}, {4, 15}, {8, 8}, {5, 3}, {20, 16}}) {
    for (const int64_t groups : {2, 3, 11, 33}) {
      Check({.axes = axes, .channels = inputs, .outputs = groups * outputs, .groups = groups});
      Check({.axes = axes,
             .channels = inputs,
             .outputs = groups * outputs,
             .groups = groups,
             .cuts = 2,
             .channels_last = false});
    }
  }
}

// x and the gradient in planes, of lines that fill vectors and those that do not.
TEST(WeightGradientTest, Planes) {
  for (const auto& [inputs, outputs] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 5}, {4, 4}, {5, 7}, {8, 8}, {8, 9}, {9, 8}}) {
    for (const int64_t width : {12, 13, 16, 21, 28, 56, 150}) {
      for (const int64_t stride : {1, 2, 3}) {
        const Axis rows = {.in = 7, .kernel = 3, .stride = stride, .before = 1, .after = 1};
        const Axis columns = {.in = stride * width, .kernel = 3, .stride = stride, .before = 1, .after = 1};
        Check({.axes = {rows, columns},
               .channels = inputs,
               .outputs = 9 * outputs,
               .groups = 9,
               .cuts = 2,
               .channels_last = false});
      }
    }
    Check({.axes = {{.in = 5, .kernel = 3, .before = 1, .after = 1},
                    {.in = 9, .kernel = 5, .before = 4, .dilation = 2},
                    {.in = 33, .kernel = 2, .before = 5, .dilation = 3}},
           .channels = inputs,
           .outputs = 8 * outputs,
           .groups = 8,
           .batch = 3,
           .slabs = 2,
           .channels_last = false});
  }
  Check({.axes = {{.in = 90, .kernel = 5, .before = 2, .after = 2}, {.in = 300, .kernel = 5, .before = 2, .after = 2}},
         .channels = 2,
         .outputs = 16,
         .groups = 8,
         .batch = 1,
         .channels_last = false});
}

// What does not fill a vector, and what lies behind it, is no part of the sums; nor does the number of threads matter.
TEST(WeightGradientTest, SumsOfPlanesMeetNoMoreThanTheirPositions) {
  WeightGradientArgs args;
  args.windows = WindowsOf({{.in = 1}, {.in = 13, .kernel = 2}}, 1, 0);
  Windows& w = args.windows;
  args.groups = args.outputs = 8;
  args.batch = 1;
  args.x_channel = w.x_strides[0] = w.x_strides[1] = w.in[2];
  args.gradient_strides[2] = 1;
  args.gradient_channel = args.gradient_strides[0] = args.gradient_strides[1] = w.in[2];
  std::vector<float> x(static_cast<size_t>(8 * w.in[2]), 1.0f), gradient(x.size(), 1.0f);
  // The last of x meets the last tap alone, the last of the gradient none.
  for (size_t i = 12; i < x.size(); i += 13) x[i] = gradient[i] = std::numeric_limits<float>::infinity();
  args.x = x.data();
  args.gradient = gradient.data();
  const WeightGradientSplit one = SplitWeightGradient(args, 1), three = SplitWeightGradient(args, 3);
  EXPECT_EQ(one.slabs, 1);
  EXPECT_EQ(three.slabs, 1);
  EXPECT_EQ(three.cuts, 3);
  ForEachIsa([&] {
    AlignedFloats scratch(WeightGradientScratchBytes() / sizeof(float));
    std::vector<float> out(16);
    WeightGradientArgs own = args;
    own.out = out.data();
    own.cuts = 3;
    for (int part = 0; part < 2; ++part) WeightGradient(own, scratch.data(), part, 2);
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i % 2 == 0 ? 12.0f : args.x[12]);
  });
}

// More positions, lines, rows and channels than one block has, and windows that are not copied as a whole.
TEST(WeightGradientTest, Blocks) {
  Check({.axes = {{.in = 3}}, .batch = 1, .slabs = 5, .cuts = 3});
  Check({.axes = {{.in = 700, .kernel = 3, .before = 1, .after = 1}}, .channels = 40, .outputs = 20, .slabs = 2});
  Check({.axes = {{.in = 5000, .kernel = 4001, .before = 3}}, .channels = 2, .outputs = 3, .batch = 1});
  Check({.axes = {{.in = 20, .kernel = 1, .stride = 2}, {.in = 26, .kernel = 1, .stride = 2}},
         .channels = 300,
         .outputs = 350});
  Check({.axes = {{.in = 600, .kernel = 5, .before = 2, .after = 2}, {.in = 1}}, .channels = 17, .outputs = 30});
  Check({.axes = {{.in = 10, .kernel = 9, .before = 4, .after = 4}, {.in = 9, .kernel = 8, .before = 4}},
         .channels = 20,
         .outputs = 16,
         .batch = 5});
  Check({.axes = {{.in = 30, .kernel = 7, .before = 3, .after = 3}, {.in = 90, .kernel = 7, .before = 3, .after = 3}},
         .channels = 1,
         .outputs = 20,
         .groups = 20,
         .slabs = 2});
  Check({.axes = {{.in = 3, .kernel = 3, .before = 1, .after = 1}, {.in = 3, .kernel = 3, .before = 1, .after = 1}},
         .channels = 48,
         .outputs = 64,
         .batch = 70});
}

// Windows of one tap over planes whose lines are long: rows of the gradient are not copied.
TEST(WeightGradientTest, RowsOfTheGradientWhereTheyLie) {
  for (const int64_t channels : {14, 16, 40, 288}) {
    for (const int64_t outputs : {1, 37}) {
      for (const std::vector<Axis>& axes :
           std::vector<std::vector<Axis>>{{{.in = 13}, {.in = 11}},
                                          {{.in = 500}},
                                          {{.in = 3}, {.in = 300, .stride = 2}},
                                          {{.in = 2, .before = 2}, {.in = 129}},
                                          {{.in = 4, .before = 1}, {.in = 128, .before = 3}}}) {
        Check({.axes = axes, .channels = channels, .outputs = outputs, .batch = 3, .channels_last = false});
        Check({.axes = axes,
               .channels = channels,
               .outputs = 2 * outputs,
               .groups = 2,
               .batch = 2,
               .slabs = 3,
               .cuts = 2,
               .channels_last = false});
      }
    }
  }
}

TEST(WeightGradientTest, SplitsAsMuchAsPays) {
  WeightGradientArgs args;
  args.windows = WindowsOf(
      {{.in = 56, .kernel = 3, .before = 1, .after = 1}, {.in = 56, .kernel = 3, .before = 1, .after = 1}}, 64, 0);
  args.outputs = 64;
  args.batch = 8;
  for (const int threads : {1, 2, 16}) {
    const WeightGradientSplit split = SplitWeightGradient(args, threads);
    EXPECT_GE(split.slabs * split.cuts, threads);
    EXPECT_LT(split.slabs * split.cuts, threads * 2);
  }
  args.batch = 1;
  args.windows.out[0] = args.windows.out[1] = 1;
  EXPECT_EQ(SplitWeightGradient(args, 16).slabs, 1);
}

}  // namespace
}  // namespace thresher::kernels
