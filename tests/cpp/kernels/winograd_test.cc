// Convolutions of 3 x 3 taps with fewer multiplications.
#include "thresher/kernels/winograd.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "kernels/window_testing.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::Axis;
using testing::ExpectClose;
using testing::ForEachIsa;
using testing::RandomFloats;
using testing::ToString;
using testing::WindowsOf;

constexpr int64_t kTaps = 9;

struct Case {
  std::vector<Axis> axes;
  int64_t channels = 3;
  int64_t n = 37;
  int64_t batch = 2;
  bool bias = true;
  bool residual = false;
  bool residual_first = false;
  Activation activation = Activation::kNone;
  int num_parts = 1;
  Encoding rounding = Encoding::kF32;
};

// Weights as PyTorch stores them: [n, channels, taps].
Weight Stored(const std::vector<float>& numbers, int64_t channels, int64_t n) {
  Weight weight{numbers.data(), Encoding::kF32, kTaps * channels, n, kTaps, kTaps * channels};
  weight.taps = kTaps;
  weight.stride_tap = 1;
  return weight;
}

void RunParts(const GemmArgs& args, int num_parts) {
  constexpr size_t kGuards = 32;
  constexpr float kGuard = -54321.0f;
  const size_t size = WinogradScratchBytes(args) / sizeof(float);
  AlignedFloats scratch(size + kGuards);
  for (int part = 0; part < num_parts; ++part) {
    // What was in memory before must not matter.
    std::fill_n(scratch.data(), size, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(scratch.data() + size, kGuards, kGuard);
    Winograd(args, scratch.data(), part, num_parts);
    for (size_t i = 0; i < kGuards; ++i) EXPECT_EQ(scratch.data()[size + i], kGuard) << "expected " << size;
  }
}

// Against the plain sum in float64; `change` may put odd numbers into x and the weights. `relative`: error of a result
// beside the one that sums have, for numbers so large that a tap's own error shows.
template <class Change>
void Check(const Case& c, const Change& change, float relative = 0.0f) {
  const Windows w = WindowsOf(c.axes, c.channels, 2);
  ASSERT_TRUE(FitsWinograd(w));
  SCOPED_TRACE(ToString(w) + " n " + std::to_string(c.n) + " " + std::string(Name(c.activation)) + " parts " +
               std::to_string(c.num_parts));
  GemmArgs args;
  args.m = c.batch * w.positions(), args.n = c.n, args.k = kTaps * c.channels;
  std::vector<float> x = RandomFloats(static_cast<size_t>(c.batch * w.x_batch), 1);
  std::vector<float> weight = RandomFloats(static_cast<size_t>(args.k * c.n), 2);
  change(x, weight);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(c.n), 3);
  const int64_t ldc = c.n + 5;
  const std::vector<float> residual = RandomFloats(static_cast<size_t>(args.m * ldc), 4, -3.0f, 3.0f);
  args.a = x.data();
  args.windows = &w;
  args.ldc = args.ldr = ldc;
  args.bias = c.bias ? bias.data() : nullptr;
  args.residual = c.residual ? residual.data() : nullptr;
  args.residual_first = c.residual_first;
  args.activation = c.activation;
  ForEachIsa([&] {
    Weight stored = Stored(weight, c.channels, c.n);
    stored.rounding = c.rounding;
    // The numbers that the plain product takes, rounded as asked.
    AlignedFloats panels(static_cast<size_t>(PackedSize(args.k, c.n)) + 1);
    PackWeight(Precision::kFp32, stored, panels.data());
    std::vector<float> rounded(weight.size());
    UnpackWeight(Precision::kFp32, panels.data(), args.k, c.n, rounded.data());
    std::vector<float> expected(residual.size(), 12345.0f), actual = expected;
    GemmArgs own = args;
    own.c = expected.data();
    GemmReference(own, rounded.data(), c.n, 1);
    for (const int64_t side : {2, 4}) {
      SCOPED_TRACE("tiles of " + std::to_string(side));
      stored.winograd = side;
      stored.taps = WinogradMatrices(side);
      stored.k = own.k = stored.taps * c.channels;
      AlignedFloats packed(static_cast<size_t>(PackedBytes(Precision::kFp32, stored.k, c.n)) / sizeof(float) + 1);
      PackWeight(Precision::kFp32, stored, packed.data());
      own.packed_b = packed.data();
      own.c = actual.data();
      RunParts(own, c.num_parts);
      const float error = side == 2 ? 1 : 3;
      ExpectClose(actual, expected, error * (2e-6f + 1e-7f * static_cast<float>(args.k)), error * 2e-6f + relative);
    }
  });
}

void Check(const Case& c) {
  Check(c, [](std::vector<float>&, std::vector<float>&) {});
}

std::vector<Axis> Image(int64_t height, int64_t width, int64_t before, int64_t after) {
  return {{.in = height, .kernel = 3, .before = before, .after = after},
          {.in = width, .kernel = 3, .before = before, .after = after}};
}

TEST(WinogradTest, EverySize) {
  for (int64_t height = 1; height <= 6; ++height) {
    for (int64_t width = 1; width <= 9; ++width) Check({.axes = Image(height, width, 1, 1), .channels = 5});
  }
  for (const int64_t width : {15, 16, 17, 33, 63}) Check({.axes = Image(7, width, 1, 1), .num_parts = 3});
}

TEST(WinogradTest, EveryPadding) {
  for (const int64_t before : {-1, 0, 1, 2, 5}) {
    for (const int64_t after : {-1, 0, 1, 4}) Check({.axes = Image(7, 6, before, after)});
  }
  Check({.axes = {{.in = 6, .kernel = 3, .before = 1}, {.in = 5, .kernel = 3, .after = 2}}});
  // Images one behind the other.
  Check({.axes = {{.in = 3},
                  {.in = 6, .kernel = 3, .before = 1, .after = 1},
                  {.in = 5, .kernel = 3, .before = 1, .after = 1}}});
}

// Vectors and panels that are not full; more tiles than fit in a block; rows that would share sets of L1.
TEST(WinogradTest, EveryDepthAndPart) {
  for (const int64_t channels : {1, 4, 15, 16, 17, 33, 64, 100}) {
    int num_parts = 1;
    for (const int64_t n : {1, 16, 32, 33, 70}) {
      Check({.axes = Image(5, 7, 1, 1), .channels = channels, .n = n, .batch = 1, .num_parts = num_parts++});
    }
  }
  Check({.axes = Image(30, 34, 1, 1), .channels = 5, .n = 40, .num_parts = 2});
  for (const int64_t channels : {512, 1030}) {
    Check({.axes = Image(7, 8, 1, 1), .channels = channels, .n = 17, .batch = 1});
  }
}

// Blocks of tiles whose elements take turns, with the sums of some panels at a time.
TEST(WinogradTest, ManyTilesOfManyChannels) {
  Check({.axes = Image(17, 19, 1, 1), .channels = 520, .n = 130, .batch = 1, .num_parts = 2});
  Check({.axes = Image(6, 6, 1, 1), .channels = 520, .n = 200, .batch = 1});
}

// Tiles enough for two panels at once, where a processor takes them, with and without one left over.
TEST(WinogradTest, ManyTilesOfSeveralPanels) {
  for (const int64_t n : {33, 64, 96, 130}) {
    Check({.axes = Image(17, 19, 1, 1), .channels = 21, .n = n, .batch = 1, .num_parts = n == 130 ? 3 : 1});
  }
}

TEST(WinogradTest, Endings) {
  for (const Activation activation :
       {Activation::kNone, Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu,
        Activation::kTanh, Activation::kSigmoid, Activation::kRelu6, Activation::kHardSwish}) {
    for (const bool residual : {false, true}) {
      for (const bool first : {false, true}) {
        Check({.axes = Image(5, 9, 1, 1),
               .bias = first,
               .residual = residual,
               .residual_first = first,
               .activation = activation});
      }
    }
  }
}

TEST(WinogradTest, TapsAreRoundedFirst) {
  for (const Encoding rounding : {Encoding::kBf16, Encoding::kF16}) {
    Check({.axes = Image(5, 6, 1, 1), .channels = 20, .rounding = rounding});
  }
}

// They reach the windows that cover them and no others.
TEST(WinogradTest, NumbersThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity, 3e38f}) {
    for (const size_t at : {size_t{0}, size_t{333}, size_t{700}}) {
      for (const int64_t channels : {7, 33}) {
        const Case c{
            .axes = Image(9, 8, 1, 1), .channels = channels, .residual = true, .activation = Activation::kRelu};
        Check(c, [&](std::vector<float>& x, std::vector<float>&) { x[at] = odd; }, odd == 3e38f ? 1e-3f : 0.0f);
      }
    }
  }
}

// They reach the outputs that they belong to.
TEST(WinogradTest, TapsThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Case c{.axes = Image(5, 8, 1, 1), .channels = 19, .residual = true};
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    for (size_t tap = 0; tap < kTaps; ++tap) {
      Check(c, [&](std::vector<float>&, std::vector<float>& weight) { weight[kTaps * 40 + tap] = odd; });
    }
    Check(c, [&](std::vector<float>&, std::vector<float>& weight) {
      for (const size_t tap : {1, 2, 6}) weight[kTaps * 300 + tap] = odd;
    });
  }
}

// They are summed as they are, so that small numbers of x give finite results.
TEST(WinogradTest, TapsTooLargeToBeTransformed) {
  Check({.axes = Image(5, 8, 1, 1), .channels = 3}, [](std::vector<float>& x, std::vector<float>& weight) {
    for (float& number : x) number *= 1e-3f;
    for (size_t tap = 0; tap < kTaps; ++tap) weight[kTaps * 25 + tap] = tap % 2 == 0 ? 3e38f : -3e38f;
  });
}

TEST(WinogradTest, FitsThreeByThree) {
  EXPECT_TRUE(FitsWinograd(WindowsOf(Image(5, 5, 1, 1), 3, 0)));
  for (const Axis& other :
       {Axis{.in = 9, .kernel = 2}, Axis{.in = 9, .kernel = 3, .stride = 2}, Axis{.in = 9, .kernel = 3, .dilation = 2},
        Axis{.in = 9, .kernel = 3, .spread = 2}, Axis{.in = 9, .kernel = 1}}) {
    EXPECT_FALSE(FitsWinograd(WindowsOf({Axis{.in = 9, .kernel = 3}, other}, 3, 0)));
    EXPECT_FALSE(FitsWinograd(WindowsOf({other, Axis{.in = 9, .kernel = 3}}, 3, 0)));
  }
  EXPECT_FALSE(FitsWinograd(WindowsOf({{.in = 9, .kernel = 3}}, 3, 0)));
  const std::vector<Axis> deep = {{.in = 5, .kernel = 3}, {.in = 5, .kernel = 3}, {.in = 5, .kernel = 3}};
  EXPECT_FALSE(FitsWinograd(WindowsOf(deep, 3, 0)));
  const auto tile = [](int64_t height, int64_t width, int64_t channels, int64_t n, bool packed_once) {
    return WinogradTile(WindowsOf(Image(height, width, 1, 1), channels, 0), n, packed_once);
  };
  EXPECT_EQ(tile(56, 56, 64, 64, true), 4);
  EXPECT_EQ(tile(56, 56, 3, 64, true), 0);
  EXPECT_EQ(tile(56, 56, 64, 3, true), 0);
  EXPECT_EQ(tile(4, 6, 64, 64, true), 0);
  EXPECT_EQ(tile(7, 7, 64, 64, true), 2);
  EXPECT_EQ(tile(7, 7, 64, 64, false), 0);
  EXPECT_EQ(tile(14, 14, 64, 64, true), 2);
  EXPECT_EQ(tile(14, 14, 64, 64, false), 2);
  EXPECT_EQ(tile(20, 20, 64, 64, true), 4);
  EXPECT_EQ(tile(20, 20, 64, 64, false), 2);
  EXPECT_EQ(tile(28, 28, 64, 64, false), 4);
}

}  // namespace
}  // namespace thresher::kernels
