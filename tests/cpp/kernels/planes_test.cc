// Convolutions of single channels and small groups of planes.
#include "thresher/kernels/planes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "kernels/product_testing.h"
#include "kernels/window_testing.h"
#include "thresher/base/precision.h"

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
  int64_t groups = 5;
  int64_t inputs = 1;  // of a group
  int64_t outputs = 1;
  int64_t batch = 2;
  bool bias = true;
  Activation activation = Activation::kNone;
  int num_parts = 1;
};

void Check(const Case& c) {
  const int64_t gap = 5;  // floats behind each plane of x
  PlanesArgs args;
  DepthwiseArgs& a = args.depthwise;
  a.windows = WindowsOf(c.axes, 1, 0);
  Windows& w = a.windows;
  SCOPED_TRACE(ToString(w) + " groups " + std::to_string(c.groups) + " of " + std::to_string(c.inputs) + " to " +
               std::to_string(c.outputs) + " " + std::string(Name(c.activation)) + " parts " +
               std::to_string(c.num_parts));
  args.x_channel = w.in[0] * w.in[1] * w.in[2] + gap;
  w.x_batch = args.x_channel * c.groups * c.inputs;
  a.outputs = c.groups * c.outputs;
  a.group_inputs = c.inputs;
  a.group_outputs = c.outputs;
  a.batch = c.batch;
  // Ends with the last plane's last element.
  const std::vector<float> x = RandomFloats(static_cast<size_t>(c.batch * w.x_batch - gap), 1);
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(w.taps() * c.inputs * a.outputs), 2);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(a.outputs), 3);
  a.x = x.data();
  a.weight = weight.data();
  a.bias = c.bias ? bias.data() : nullptr;
  a.activation = c.activation;
  std::vector<float> expected(static_cast<size_t>(c.batch * a.outputs * w.positions()));
  a.out = expected.data();
  PlanesReference(args);
  const float absolute = 4e-6f * std::max(1.0f, static_cast<float>(w.taps() * c.inputs) / 128.0f);
  ForEachIsa([&] {
    AlignedFloats scratch(PlanesScratchBytes() / sizeof(float));
    std::fill_n(scratch.data(), PlanesScratchBytes() / sizeof(float), 1e30f);
    std::vector<float> actual(expected.size() + 1, 7.0f), whole(expected.size() + 1, 7.0f);
    PlanesArgs own = args;
    own.depthwise.out = actual.data();
    for (int part = 0; part < c.num_parts; ++part) Planes(own, scratch.data(), part, c.num_parts);
    own.depthwise.out = whole.data();
    Planes(own, scratch.data());
    EXPECT_EQ(actual.back(), 7.0f);
    ASSERT_EQ(actual, whole);  // however it is shared out
    actual.pop_back();
    ExpectClose(actual, expected, absolute, 2e-6f);
  });
}

TEST(PlanesTest, EveryGeometry) {
  for (const auto& axes : kGeometries) {
    for (const auto& [inputs, outputs] :
         std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 2}, {2, 2}, {3, 4}, {8, 8}, {7, 16}}) {
      if (!FitsBand(WindowsOf(axes, 1, 0), inputs)) continue;
      Check({.axes = axes, .inputs = inputs, .outputs = outputs});
      Check({.axes = axes, .inputs = inputs, .outputs = outputs, .batch = 3, .bias = false, .num_parts = 4});
    }
  }
}

// Lines that fill vectors and those that do not, and every stride.
TEST(PlanesTest, EveryWidth) {
  for (int64_t width = 1; width <= 70; ++width) {
    for (const int64_t stride : {1, 2, 3}) {
      const Axis rows = {.in = 6, .kernel = 3, .stride = stride, .before = 1, .after = 1};
      const Axis columns = {.in = stride * width, .kernel = 3, .stride = stride, .before = 1, .after = 1};
      for (const Activation activation : {Activation::kNone, Activation::kRelu6, Activation::kSilu}) {
        Check({.axes = {rows, columns}, .groups = 3, .activation = activation, .num_parts = 3});
      }
      Check({.axes = {rows, columns}, .groups = 2, .inputs = 4, .outputs = 4, .batch = 1});
      Check({.axes = {rows, columns}, .groups = 2, .inputs = 2, .outputs = 2, .batch = 1, .num_parts = 2});
    }
  }
}

// Planes of which one band is a part, in lines and in columns, and windows that reach far.
TEST(PlanesTest, Bands) {
  Check({.axes = {{.in = 150, .kernel = 3, .before = 1, .after = 1}, {.in = 140, .kernel = 3, .before = 1, .after = 1}},
         .num_parts = 3});
  Check({.axes = {{.in = 21000, .kernel = 3, .before = 1, .after = 1}}, .batch = 1});
  Check({.axes = {{.in = 5000, .kernel = 9, .stride = 2, .before = 4, .after = 4}},
         .groups = 2,
         .inputs = 8,
         .outputs = 8,
         .batch = 1,
         .activation = Activation::kGelu});
  for (const int64_t width : {129, 130, 200, 323}) {
    Check({.axes = {{.in = 40, .kernel = 3, .before = 2, .after = 2, .dilation = 2},
                    {.in = width, .kernel = 3, .before = 2, .after = 2, .dilation = 2}},
           .groups = 2,
           .inputs = 8,
           .outputs = 8,
           .activation = Activation::kRelu});
  }
  Check({.axes = {{.in = 400, .kernel = 5, .before = 180, .after = 180, .dilation = 90}, {.in = 30}}, .batch = 1});
  Check({.axes = {{.in = 12}, {.in = 9, .kernel = 7, .before = 3, .after = 3}, {.in = 33, .kernel = 7, .before = 6}},
         .activation = Activation::kHardSwish});
}

// x that is spread, as the gradients of strided convolutions see it.
TEST(PlanesTest, Spread) {
  for (const int64_t spread : {1, 2, 3}) {
    for (int64_t width = 1; width <= 20; width += 3) {
      for (const int64_t before : {-1, 0, 2, 4}) {
        const std::vector<Axis> axes = {{.in = 5, .kernel = 3, .before = 2, .after = 1, .spread = spread},
                                        {.in = width + 3, .kernel = 3, .before = before, .after = 2, .spread = spread}};
        Check({.axes = axes, .num_parts = 2});
      }
    }
  }
}

TEST(PlanesTest, Activations) {
  const std::vector<Axis> axes = {{.in = 5, .kernel = 3, .before = 1, .after = 1},
                                  {.in = 29, .kernel = 5, .before = 2, .after = 2}};
  for (int act = 0; act <= static_cast<int>(kLastActivation); ++act) {
    Check({.axes = axes, .activation = static_cast<Activation>(act)});
    Check({.axes = axes, .inputs = 4, .outputs = 8, .activation = static_cast<Activation>(act)});
  }
}

// What is not finite reaches the windows that cover it and no others.
TEST(PlanesTest, WhatIsNotFiniteStaysWhereItIs) {
  const int64_t width = 19;
  PlanesArgs args;
  DepthwiseArgs& a = args.depthwise;
  a.windows = WindowsOf({{.in = width, .kernel = 3, .before = 1, .after = 1}}, 1, 0);
  a.windows.x_batch = args.x_channel = width;
  a.outputs = a.batch = 1;
  const std::vector<float> weight(3, 1.0f);
  a.weight = weight.data();
  for (int64_t at = 0; at < width; ++at) {
    std::vector<float> x(static_cast<size_t>(width), 1.0f);
    x[static_cast<size_t>(at)] = std::numeric_limits<float>::quiet_NaN();
    a.x = x.data();
    ForEachIsa([&] {
      AlignedFloats scratch(PlanesScratchBytes() / sizeof(float));
      std::vector<float> out(static_cast<size_t>(width));
      a.out = out.data();
      Planes(args, scratch.data());
      for (int64_t i = 0; i < width; ++i) EXPECT_EQ(std::isnan(out[static_cast<size_t>(i)]), std::abs(i - at) <= 1);
    });
  }
}

TEST(PlanesTest, RefusesWindowsThatReachTooFarAndShortLines) {
  Windows w = WindowsOf({{.in = 60, .kernel = 3, .before = 1, .after = 1}, {.in = 60, .kernel = 3, .before = 1}}, 1, 0);
  EXPECT_TRUE(SuitsPlanes(w, 8));
  w.dilation[1] = 1 << 20;
  EXPECT_FALSE(SuitsPlanes(w, 1));
  w.dilation[1] = 1;
  w.dilation[2] = w.stride[2] = 1 << 20;
  EXPECT_FALSE(SuitsPlanes(w, 1));
  w.dilation[2] = w.stride[2] = 1;
  w.spread[2] = 2;
  EXPECT_TRUE(SuitsPlanes(w, 1));
  EXPECT_FALSE(SuitsPlanes(w, 2));
  w.spread[2] = 1;
  w.out[2] = 14;
  EXPECT_TRUE(SuitsPlanes(w, 2));
  EXPECT_FALSE(SuitsPlanes(w, 1));
  w.out[2] = 7;
  EXPECT_FALSE(SuitsPlanes(w, 2));
  EXPECT_TRUE(FitsBand(w, 2));
}

}  // namespace
}  // namespace thresher::kernels
