// Products over windows, and convolutions of each channel by itself.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "kernels/product_testing.h"
#include "kernels/window_testing.h"
#include "thresher/kernels/depthwise.h"
#include "thresher/kernels/gemm.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::Axis;
using testing::ExpectClose;
using testing::ForEachIsa;
using testing::kGeometries;
using testing::Multiply;
using testing::RandomFloats;
using testing::ToString;
using testing::WindowsOf;

constexpr float kUntouched = 12345.0f;

struct Case {
  std::vector<Axis> axes;
  int64_t channels = 3;
  int64_t n = 37;
  int64_t batch = 2;
  bool bias = true;
  bool residual = false;
  bool residual_first = false;
  Activation activation = Activation::kNone;
  Precision precision = Precision::kFp32;
  int num_parts = 1;
  Blocking blocking = {};
};

void CheckProduct(const Case& c) {
  const int64_t extra = 2;
  const Windows w = WindowsOf(c.axes, c.channels, extra);
  SCOPED_TRACE(ToString(w) + " n " + std::to_string(c.n) + " " + std::string(Name(c.activation)) + " " +
               std::string(Name(c.precision)) + " " + testing::ToString(c.blocking));
  GemmArgs args;
  args.m = c.batch * w.positions(), args.n = c.n, args.k = w.taps() * c.channels;
  const std::vector<float> x = RandomFloats(static_cast<size_t>(c.batch * w.x_batch), 1);
  const std::vector<float> b = RandomFloats(static_cast<size_t>(args.k * c.n), 2);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(c.n), 3);
  const int64_t ldc = c.n + 5;
  const std::vector<float> residual = RandomFloats(static_cast<size_t>(args.m * ldc), 4, -3.0f, 3.0f);
  args.a = x.data();
  args.windows = &w;
  args.precision = c.precision;
  args.ldc = args.ldr = ldc;
  args.bias = c.bias ? bias.data() : nullptr;
  args.residual = c.residual ? residual.data() : nullptr;
  args.residual_first = c.residual_first;
  args.activation = c.activation;
  args.blocking = c.blocking;
  ForEachIsa([&] {
    const Weight weight{b.data(), Encoding::kF32, args.k, c.n, c.n, 1};
    AlignedFloats packed(static_cast<size_t>(PackedBytes(c.precision, args.k, c.n)) / sizeof(float) + 1);
    PackWeight(c.precision, weight, packed.data());
    std::vector<float> stored(b.size());
    UnpackWeight(c.precision, packed.data(), args.k, c.n, stored.data());
    std::vector<float> expected(residual.size(), kUntouched), actual = expected;
    GemmArgs own = args;
    own.c = expected.data();
    GemmReference(own, stored.data(), c.n, 1);
    own.c = actual.data();
    own.packed_b = packed.data();
    Multiply(own, c.num_parts);
    ExpectClose(actual, expected, 2e-6f + 1e-7f * static_cast<float>(args.k), 2e-6f);
  });
}

TEST(ConvolutionTest, EveryGeometry) {
  for (const auto& axes : kGeometries) {
    for (const int64_t channels : {1, 3, 16, 33}) CheckProduct({.axes = axes, .channels = channels});
    CheckProduct({.axes = axes, .n = 101, .batch = 3, .residual = true, .num_parts = 3});
  }
}

// Lines too short for tiles of their own. Panels with columns beyond n wait elsewhere than whole ones while blocks of k
// pass.
TEST(ConvolutionTest, DepthBlocks) {
  const std::vector<Axis> axes = {{.in = 7, .kernel = 3, .before = 1, .after = 1},
                                  {.in = 3, .kernel = 3, .before = 1, .after = 1}};
  for (const int64_t channels : {40, 131, 257}) {
    for (const int64_t n : {5, 32, 64, 70, 161}) {
      CheckProduct({.axes = axes, .channels = channels, .n = n});
      CheckProduct({.axes = axes, .channels = channels, .n = n, .residual = true, .activation = Activation::kSilu});
    }
  }
  for (const Blocking& blocking : testing::OddBlockings()) {
    CheckProduct({.axes = axes, .channels = 60, .n = 70, .residual = true, .num_parts = 3, .blocking = blocking});
  }
}

// Lines of every length: tiles of one and of two groups, of one line and of two; strides; lines that are copied because
// of their ends, or because rows would share sets of L1.
TEST(ConvolutionTest, EveryWidth) {
  for (int64_t width = 1; width <= 31; ++width) {
    for (const int64_t stride : {1, 2}) {
      for (const int64_t pad : {0, 1}) {
        CheckProduct(
            {.axes = {{.in = 3, .kernel = 2, .before = pad},
                      {.in = stride * width + 2 - 2 * pad, .kernel = 3, .stride = stride, .before = pad, .after = pad}},
             .channels = 5,
             .n = 33,
             .batch = 1,
             .num_parts = static_cast<int>(width % 3) + 1});
      }
    }
  }
  for (const int64_t channels : {510, 1022, 1024}) {
    CheckProduct({.axes = {{.in = 1}, {.in = 17, .kernel = 2, .stride = 2}}, .channels = channels, .n = 5, .batch = 1});
    CheckProduct({.axes = {{.in = 9, .kernel = 3, .before = 1, .after = 1, .dilation = 2}},
                  .channels = channels,
                  .n = 5,
                  .batch = 1});
  }
}

// Taps far apart, which meet nothing but padding for whole pieces of a line: at either end, at both at once (more
// padding than line), by strides, by parts that begin anywhere.
TEST(ConvolutionTest, FarTaps) {
  for (const int64_t dilation : {6, 7, 12, 24}) {
    for (const int64_t width : {13, 20, 33, 50}) {
      for (const int64_t pad : {int64_t{0}, dilation, 2 * dilation, dilation + 3}) {
        for (const int64_t stride : {1, 2}) {
          const Axis line = {
              .in = width, .kernel = 3, .stride = stride, .before = pad, .after = dilation, .dilation = dilation};
          if (width + pad + dilation < 2 * dilation + 1) continue;
          CheckProduct({.axes = {line}, .channels = 5, .n = 33, .num_parts = static_cast<int>(width % 3) + 1});
          CheckProduct({.axes = {{.in = 4, .kernel = 3, .before = 2, .after = 2, .dilation = 2}, line},
                        .channels = 3,
                        .n = 7,
                        .batch = 2,
                        .residual = stride == 1});
        }
      }
    }
  }
}

// Lines whose positions meet different taps by turns, as many of each or one more of some, shared by parts anyhow.
TEST(ConvolutionTest, EverySpread) {
  for (const int64_t spread : {2, 3, 9}) {
    for (int64_t width = 2; width <= 26; width += 3) {
      for (const int64_t pad : {-1, 0, 2}) {
        CheckProduct(
            {.axes =
                 {{.in = 3, .kernel = 3, .before = pad, .after = 1, .spread = 2},
                  {.in = width, .kernel = 4, .before = pad, .after = 2, .dilation = 1 + width % 2, .spread = spread}},
             .channels = 5,
             .n = 33,
             .residual = width % 2 == 0,
             .num_parts = static_cast<int>(width % 3) + 1});
      }
    }
  }
}

// Lines too long for one copy, and blocks of more rows, lines or runs than a table holds.
TEST(ConvolutionTest, LongLines) {
  for (const int num_parts : {1, 4}) {
    CheckProduct({.axes = {{.in = 700, .kernel = 3, .before = 1, .after = 1}},
                  .channels = 201,
                  .n = 7,
                  .batch = 1,
                  .residual = true,
                  .num_parts = num_parts});
    CheckProduct({.axes = {{.in = 6, .kernel = 3, .before = 1, .after = 1},
                           {.in = 230, .kernel = 3, .stride = 2, .before = 1, .after = 1}},
                  .channels = 131,
                  .n = 3,
                  .batch = 1,
                  .num_parts = num_parts});
    CheckProduct({.axes = {{.in = 30, .kernel = 7, .before = 3, .after = 3}, {.in = 40, .kernel = 7, .dilation = 2}},
                  .channels = 2,
                  .n = 3,
                  .batch = 1,
                  .num_parts = num_parts});
    CheckProduct({.axes = {{.in = 500, .kernel = 4, .spread = 3}}, .channels = 6, .n = 5, .num_parts = num_parts});
    CheckProduct({.axes = {{.in = 90, .kernel = 3}, {.in = 6, .kernel = 3, .before = 1, .after = 1}},
                  .channels = 24,
                  .n = 3,
                  .batch = 5,
                  .num_parts = num_parts});
  }
}

TEST(ConvolutionTest, Epilogues) {
  const std::vector<Axis> axes = {{.in = 8, .kernel = 3, .stride = 2, .before = 1}};
  for (int act = 0; act <= static_cast<int>(kLastActivation); ++act) {
    for (const bool first : {false, true}) {
      CheckProduct({.axes = axes,
                    .n = 75,
                    .residual = true,
                    .residual_first = first,
                    .activation = static_cast<Activation>(act)});
    }
    CheckProduct({.axes = axes, .n = 75, .bias = false, .activation = static_cast<Activation>(act)});
  }
}

// The last panel by one vector or by two, its last columns stored by themselves.
TEST(ConvolutionTest, EveryColumnRemainder) {
  for (int64_t n = 1; n <= 66; ++n) {
    CheckProduct({.axes = {{.in = 9, .kernel = 3, .before = 1, .after = 1}},
                  .n = n,
                  .residual = true,
                  .residual_first = n % 2 == 0,
                  .activation = Activation::kRelu6});
  }
}

TEST(ConvolutionTest, EveryFormOfWeights) {
  const std::vector<Axis> axes = {{.in = 9, .kernel = 3, .before = 1, .after = 1}, {.in = 5, .kernel = 2}};
  for (const Precision precision :
       {Precision::kBf16, Precision::kFp16, Precision::kInt8Weight, Precision::kInt4Weight}) {
    for (const int64_t channels : {8, 75}) {
      CheckProduct({.axes = axes, .channels = channels, .n = 70, .precision = precision});
      CheckProduct({.axes = {{.in = 3, .kernel = 2}}, .channels = channels, .batch = 1, .precision = precision});
      // Two taps of 75 channels are a whole number of pairs, three are not.
      for (const int64_t kernel : {2, 3}) {
        CheckProduct({.axes = {{.in = 2, .kernel = 2, .before = 1}, {.in = 23, .kernel = kernel, .before = 1}},
                      .channels = channels,
                      .n = 64,
                      .batch = 1,
                      .residual = true,
                      .precision = precision});
      }
    }
  }
}

// Few rows whose lines take much room: more than rows that are gathered would.
TEST(ConvolutionTest, FewLongWindowsOfSmallNumbers) {
  const Axis axis = {.in = 7, .kernel = 3, .before = 1, .after = 1};
  for (const Precision precision : {Precision::kBf16, Precision::kFp16, Precision::kInt8Weight}) {
    CheckProduct({.axes = {axis, axis}, .channels = 512, .n = 40, .batch = 1, .precision = precision});
  }
}

// Panels so long that they pass the rows in parts: by lines of taps and by taps, some of which rows at the edge do not
// meet; every form whose sums wait, and every ending.
TEST(ConvolutionTest, LongPanels) {
  const auto axes = [](int64_t stride, int64_t dilation) {
    const Axis axis = {
        .in = 9, .kernel = 3, .stride = stride, .before = dilation, .after = dilation, .dilation = dilation};
    return std::vector<Axis>{axis, axis};
  };
  constexpr int64_t kChannels = 520;  // 9 taps of which are more than an eighth of 2 MiB in panels of 16 columns
  for (const int64_t stride : {1, 2}) {
    for (const int64_t dilation : {1, 2}) {
      CheckProduct({.axes = axes(stride, dilation), .channels = kChannels, .n = 70, .batch = 1});
    }
  }
  CheckProduct({.axes = axes(2, 1), .channels = 512, .n = 37, .num_parts = 2});  // from one row to the next 4 KiB
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    CheckProduct({.axes = axes(2, 1),
                  .channels = kChannels,
                  .n = 5,
                  .residual = true,
                  .residual_first = true,
                  .activation = activation,
                  .num_parts = 3});
  }
  CheckProduct({.axes = {{.in = 5, .kernel = 3, .before = 2, .after = 1, .spread = 2},
                         {.in = 5, .kernel = 3, .before = 2, .after = 1, .spread = 2}},
                .channels = kChannels,
                .n = 37,
                .batch = 1});
  for (const Precision precision : {Precision::kBf16, Precision::kFp16, Precision::kInt8Weight}) {
    const int64_t channels = precision == Precision::kInt8Weight ? 1000 : kChannels;
    CheckProduct({.axes = axes(2, 1), .channels = channels, .n = 37, .batch = 1, .precision = precision});
  }
}

// The taps of a weight [n, channels, taps], as they are and backwards.
TEST(ConvolutionTest, TapsArePackedFromWhereTheyLie) {
  const int64_t n = 43, channels = 21, taps = 6;
  const std::vector<float> numbers = RandomFloats(static_cast<size_t>(n * channels * taps), 1);
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kInt8}) {
    for (const bool backwards : {false, true}) {
      ForEachIsa([&] {
        Weight weight{numbers.data(), Encoding::kF32, taps * channels, n, taps, channels * taps, taps, 1};
        if (backwards) {
          weight.data = numbers.data() + taps - 1;
          weight.stride_tap = -1;
        }
        std::vector<float> dense;
        for (int64_t i = 0; i < weight.k; ++i) {
          for (int64_t j = 0; j < n; ++j) dense.push_back(*static_cast<const float*>(weight.At(i, j)));
        }
        const int64_t tap = backwards ? taps - 2 : 1;
        ASSERT_EQ(dense[static_cast<size_t>((channels + 2) * n + 5)],
                  numbers[static_cast<size_t>((5 * channels + 2) * taps + tap)]);
        const auto bytes = static_cast<size_t>(PackedBytes(precision, weight.k, n));
        AlignedFloats packed(bytes / sizeof(float) + 1), wanted(bytes / sizeof(float) + 1);
        PackWeight(precision, weight, packed.data());
        PackWeight(precision, DenseWeight(dense.data(), weight.k, n, false), wanted.data());
        std::vector<float> a(dense.size()), b(dense.size());
        UnpackWeight(precision, packed.data(), weight.k, n, a.data());
        UnpackWeight(precision, wanted.data(), weight.k, n, b.data());
        ASSERT_EQ(a, b);
      });
    }
  }
}

// c.channels outputs.
void CheckDepthwise(const Case& c, int64_t group_inputs = 1, int64_t group_outputs = 1) {
  const int64_t extra = 3;
  DepthwiseArgs args;
  args.windows = WindowsOf(c.axes, c.channels / group_outputs * group_inputs, extra);
  args.outputs = c.channels;
  args.group_inputs = group_inputs;
  args.group_outputs = group_outputs;
  const Windows& w = args.windows;
  SCOPED_TRACE(ToString(w) + " " + std::string(Name(c.activation)) + " parts " + std::to_string(c.num_parts));
  const int64_t ld = c.channels + 1;
  const auto rows = static_cast<size_t>(c.batch * w.positions());
  const std::vector<float> x = RandomFloats(static_cast<size_t>(c.batch * w.x_batch), 1);
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(w.taps() * group_inputs * c.channels), 2);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(c.channels), 3);
  const std::vector<float> residual = RandomFloats(rows * static_cast<size_t>(ld), 4, -3.0f, 3.0f);
  args.batch = c.batch;
  args.x = x.data();
  args.weight = weight.data();
  args.bias = c.bias ? bias.data() : nullptr;
  args.residual = c.residual ? residual.data() : nullptr;
  args.residual_first = c.residual_first;
  args.activation = c.activation;
  args.ldc = args.ldr = ld;
  std::vector<float> expected(residual.size(), kUntouched);
  args.out = expected.data();
  DepthwiseReference(args);
  // Of long sums in float.
  const float absolute = 4e-6f * std::max(1.0f, static_cast<float>(w.taps() * group_inputs) / 128.0f);
  ForEachIsa([&] {
    std::vector<float> actual(residual.size(), kUntouched);
    DepthwiseArgs own = args;
    own.out = actual.data();
    for (int part = 0; part < c.num_parts; ++part) Depthwise(own, part, c.num_parts);
    ExpectClose(actual, expected, absolute, 2e-6f);
  });
}

TEST(DepthwiseTest, EveryGeometry) {
  for (const auto& axes : kGeometries) {
    for (const int64_t channels : {1, 8, 37, 64, 131}) CheckDepthwise({.axes = axes, .channels = channels});
    CheckDepthwise({.axes = axes, .channels = 40, .batch = 3, .bias = false, .residual = true, .num_parts = 5});
  }
}

TEST(DepthwiseTest, EveryWidth) {
  for (int64_t width = 1; width <= 40; ++width) {
    for (const int64_t stride : {1, 2}) {
      CheckDepthwise({.axes = {{.in = 4, .kernel = 3, .before = 1, .after = 1},
                               {.in = width, .kernel = 3, .stride = stride, .before = 1, .after = 1}},
                      .channels = 24});
    }
  }
}

// Taps that are written out leave out what reaches over the ends of x, up to half a window; more goes another way.
TEST(DepthwiseTest, EveryEndOfALine) {
  for (const auto& [kernel, stride] :
       std::vector<std::pair<int64_t, int64_t>>{{3, 1}, {5, 1}, {7, 1}, {3, 2}, {5, 2}}) {
    for (const int64_t before : {-1, 0, 1, 2, 3}) {
      for (const int64_t after : {-1, 0, 1, 2, 3}) {
        for (int64_t width = 1; width <= 19; ++width) {
          if (width + before + after < kernel) continue;
          CheckDepthwise({.axes = {{.in = 2, .kernel = 2, .before = 1},
                                   {.in = width, .kernel = kernel, .stride = stride, .before = before, .after = after}},
                          .channels = 32,
                          .batch = 1});
        }
      }
    }
  }
}

// Vectors of several groups, of parts of one, and of groups that lie across them; x ends with the last one's channels.
TEST(DepthwiseTest, Groups) {
  const std::vector<Axis> axes = {{.in = 4, .kernel = 3, .before = 1, .after = 1},
                                  {.in = 11, .kernel = 3, .before = 1, .after = 1}};
  for (const auto& [inputs, outputs] : std::vector<std::pair<int64_t, int64_t>>{{1, 2},
                                                                                {1, 4},
                                                                                {2, 2},
                                                                                {2, 4},
                                                                                {4, 4},
                                                                                {8, 8},
                                                                                {3, 8},
                                                                                {8, 16},
                                                                                {16, 16},
                                                                                {20, 16},
                                                                                {4, 2},
                                                                                {5, 3},
                                                                                {3, 1}}) {
    SCOPED_TRACE(std::to_string(inputs) + " to " + std::to_string(outputs));
    for (const int64_t groups : {1, 3, 8, 11}) {
      CheckDepthwise({.axes = axes, .channels = groups * outputs, .num_parts = 2}, inputs, outputs);
    }
    CheckDepthwise({.axes = axes, .channels = 5 * outputs, .residual = true, .activation = Activation::kSilu}, inputs,
                   outputs);
  }
}

// Phases of x that is spread, and more lines, positions and channels than one piece has.
TEST(DepthwiseTest, Pieces) {
  for (const int64_t spread : {1, 2, 3}) {
    for (const int64_t stride : {1, 2}) {
      CheckDepthwise({.axes = {{.in = 5, .kernel = 3, .before = 2},
                               {.in = 13, .kernel = 4, .stride = stride, .before = 2, .after = 1, .spread = spread}},
                      .channels = 21,
                      .activation = Activation::kRelu6,
                      .num_parts = 2});
    }
  }
  CheckDepthwise({.axes = {{.in = 90, .kernel = 3, .before = 1, .after = 1}, {.in = 50, .kernel = 3, .after = 1}},
                  .channels = 70,
                  .num_parts = 3});
  CheckDepthwise({.axes = {{.in = 5, .kernel = 7, .before = 3, .after = 3}, {.in = 9, .kernel = 7, .before = 6}},
                  .channels = 300,
                  .activation = Activation::kRelu});
}

// Weights of groups, vector by vector, and so many of them that they are read as they are stored.
TEST(DepthwiseTest, ManyWeights) {
  for (const int64_t kernel : {1, 2, 3, 5, 7, 11}) {
    for (const auto& [inputs, outputs] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 2}, {4, 4}, {8, 8}}) {
      CheckDepthwise({.axes = {{.in = kernel + 2, .kernel = kernel, .before = 1},
                               {.in = kernel + 9, .kernel = kernel, .before = kernel / 2, .after = kernel / 2}},
                      .channels = 9 * outputs,
                      .batch = 1},
                     inputs, outputs);
    }
  }
}

TEST(DepthwiseTest, Epilogues) {
  const std::vector<Axis> axes = {{.in = 5, .kernel = 3, .before = 1, .after = 1},
                                  {.in = 13, .kernel = 5, .before = 2}};
  for (int act = 0; act <= static_cast<int>(kLastActivation); ++act) {
    for (const bool first : {false, true}) {
      CheckDepthwise({.axes = axes,
                      .channels = 45,
                      .residual = true,
                      .residual_first = first,
                      .activation = static_cast<Activation>(act)});
    }
    CheckDepthwise({.axes = axes, .channels = 45, .activation = static_cast<Activation>(act)});
  }
}

}  // namespace
}  // namespace thresher::kernels
