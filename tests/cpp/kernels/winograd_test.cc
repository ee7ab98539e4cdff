// Convolutions of three taps, or three lines of them, with fewer multiplications.
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
Weight Stored(const std::vector<float>& numbers, int64_t channels, int64_t n, int64_t taps) {
  Weight weight{numbers.data(), Encoding::kF32, taps * channels, n, taps, taps * channels};
  weight.taps = taps;
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
  std::vector<WinogradTile> tiles;
  for (const WinogradTile tile : {WinogradTile::k1x4, WinogradTile::k2x2, WinogradTile::k4x4}) {
    if (FitsWinograd(w, tile)) tiles.push_back(tile);
  }
  ASSERT_EQ(tiles.size(), w.kernel[1] == 1 ? 1 : 2);
  SCOPED_TRACE(ToString(w) + " n " + std::to_string(c.n) + " " + std::string(Name(c.activation)) + " parts " +
               std::to_string(c.num_parts));
  GemmArgs args;
  args.m = c.batch * w.positions(), args.n = c.n, args.k = w.taps() * c.channels;
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
    Weight stored = Stored(weight, c.channels, c.n, w.taps());
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
    for (const WinogradTile tile : tiles) {
      SCOPED_TRACE("patches of " + std::to_string(WinogradMatrices(tile)));
      stored.winograd = tile;
      stored.taps = WinogradMatrices(tile) * w.kernel[0];
      stored.k = own.k = stored.taps * c.channels;
      AlignedFloats packed(static_cast<size_t>(PackedBytes(Precision::kFp32, stored.k, c.n)) / sizeof(float) + 1);
      PackWeight(Precision::kFp32, stored, packed.data());
      own.packed_b = packed.data();
      own.c = actual.data();
      RunParts(own, c.num_parts);
      const float error = tile == WinogradTile::k2x2 ? 1 : 3;
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

std::vector<Axis> Line(int64_t length, int64_t before, int64_t after) {
  return {{.in = length, .kernel = 3, .before = before, .after = after}};
}

// Taps in depth as well, of any kind.
std::vector<Axis> Volume(const Axis& depth, const std::vector<Axis>& image) {
  std::vector<Axis> axes = {depth};
  if (image.size() == 1) axes.push_back({});
  axes.insert(axes.end(), image.begin(), image.end());
  return axes;
}

TEST(WinogradTest, EveryLine) {
  for (int64_t length = 1; length <= 18; ++length) {
    for (const int64_t before : {0, 1, 3}) {
      if (length + before + 1 < 3) continue;
      Check({.axes = Line(length, before, 1), .channels = 5, .num_parts = static_cast<int>(before) + 1});
    }
  }
  for (const int64_t channels : {16, 33, 130}) {
    for (const int64_t n : {1, 32, 70}) {
      Check({.axes = Line(300, 1, 1), .channels = channels, .n = n, .batch = 1, .num_parts = 2});
    }
  }
  // Lines one above the other.
  Check({.axes = {{.in = 5}, {.in = 9, .kernel = 3, .before = 1, .after = 1}}, .residual = true});
}

TEST(WinogradTest, EveryDepthOfTaps) {
  for (const std::vector<Axis>& image : {Image(6, 9, 1, 1), Line(19, 1, 1)}) {
    for (const int64_t channels : {5, 16, 33}) {
      for (const Axis& depth :
           {Axis{.in = 4, .kernel = 3, .before = 1, .after = 1}, Axis{.in = 1, .kernel = 3, .before = 1, .after = 1},
            Axis{.in = 7, .kernel = 2, .stride = 2, .after = 3}, Axis{.in = 6, .kernel = 3, .before = 2, .dilation = 2},
            Axis{.in = 3, .kernel = 2, .before = 4, .after = 3}}) {
        Check({.axes = Volume(depth, image), .channels = channels, .num_parts = 2});
      }
    }
  }
  const Axis deep{.in = 3, .kernel = 3, .before = 1, .after = 1};
  Check({.axes = Volume(deep, Image(17, 19, 1, 1)), .channels = 40, .n = 130, .batch = 1});
  Check({.axes = Volume(deep, Image(9, 9, 1, 1)), .channels = 200, .n = 70, .batch = 1});
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
        const Axis deep{.in = 3, .kernel = 3, .before = 1, .after = 1};
        for (const std::vector<Axis>& axes :
             {Image(9, 8, 1, 1), Line(72, 1, 1), Volume(deep, Image(5, 6, 1, 1)), Volume(deep, Line(40, 1, 1))}) {
          const Case c{.axes = axes, .channels = channels, .residual = true, .activation = Activation::kRelu};
          Check(c, [&](std::vector<float>& x, std::vector<float>&) { x[at] = odd; }, odd == 3e38f ? 1e-2f : 0.0f);
        }
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
    const Case line{.axes = Line(40, 1, 1), .channels = 19};
    for (size_t tap = 0; tap < 3; ++tap) {
      Check(line, [&](std::vector<float>&, std::vector<float>& weight) { weight[3 * 40 + tap] = odd; });
    }
    const Axis deep{.in = 3, .kernel = 3, .before = 1, .after = 1};
    for (const size_t tap : {0, 4, 13, 17, 25}) {
      Check({.axes = Volume(deep, Image(5, 8, 1, 1)), .channels = 19},
            [&](std::vector<float>&, std::vector<float>& weight) { weight[27 * 40 + tap] = odd; });
    }
  }
}

// They are summed as they are, so that small numbers of x give finite results.
TEST(WinogradTest, TapsTooLargeToBeTransformed) {
  Check({.axes = Image(5, 8, 1, 1), .channels = 3}, [](std::vector<float>& x, std::vector<float>& weight) {
    for (float& number : x) number *= 1e-3f;
    for (size_t tap = 0; tap < kTaps; ++tap) weight[kTaps * 25 + tap] = tap % 2 == 0 ? 3e38f : -3e38f;
  });
}

TEST(WinogradTest, FitsThreeTapsSideBySide) {
  using enum WinogradTile;
  const auto fits = [](const std::vector<Axis>& axes, WinogradTile tile) {
    return FitsWinograd(WindowsOf(axes, 3, 0), tile);
  };
  EXPECT_TRUE(fits(Image(5, 5, 1, 1), k2x2) && fits(Image(5, 5, 1, 1), k4x4));
  EXPECT_FALSE(fits(Image(5, 5, 1, 1), k1x4));
  EXPECT_TRUE(fits(Line(9, 1, 1), k1x4));
  EXPECT_FALSE(fits(Line(9, 1, 1), k2x2) || fits(Line(9, 1, 1), k4x4));
  const Axis three{.in = 9, .kernel = 3};
  for (const Axis& other : {Axis{.in = 9, .kernel = 2}, Axis{.in = 9, .kernel = 3, .stride = 2},
                            Axis{.in = 9, .kernel = 3, .dilation = 2}, Axis{.in = 9, .kernel = 3, .spread = 2}}) {
    EXPECT_FALSE(fits({other}, k1x4));
    EXPECT_FALSE(fits({other, three}, k1x4));
    for (const WinogradTile tile : {k2x2, k4x4}) EXPECT_FALSE(fits({three, other}, tile) || fits({other, three}, tile));
  }
  EXPECT_FALSE(fits({three, {.in = 9}}, k2x2) || fits({three, {.in = 9}}, k1x4));
  EXPECT_FALSE(fits({{.in = 9, .stride = 2}, three}, k1x4));
  EXPECT_TRUE(fits({three, three, three}, k4x4));
  EXPECT_TRUE(fits({{.in = 9, .kernel = 4, .stride = 3, .dilation = 2}, three, three}, k4x4));
  EXPECT_FALSE(fits({{.in = 9, .kernel = 3, .spread = 2}, three, three}, k4x4));
}

TEST(WinogradTest, TilesThatSuit) {
  using enum WinogradTile;
  const auto tile = [](const std::vector<Axis>& axes, int64_t channels, int64_t n, bool packed_once) {
    return SuitableWinogradTile(WindowsOf(axes, channels, 0), n, packed_once);
  };
  const auto square = [&](int64_t size, bool packed_once) {
    return tile(Image(size, size, 1, 1), 64, 64, packed_once);
  };
  EXPECT_EQ(square(56, true), k4x4);
  EXPECT_EQ(square(7, true), k2x2);
  EXPECT_EQ(square(7, false), kNone);
  EXPECT_EQ(square(14, true), k2x2);
  EXPECT_EQ(square(14, false), k2x2);
  EXPECT_EQ(square(20, true), k4x4);
  EXPECT_EQ(square(20, false), k2x2);
  EXPECT_EQ(square(28, false), k4x4);
  EXPECT_EQ(tile(Image(56, 56, 1, 1), 3, 64, true), kNone);
  EXPECT_EQ(tile(Image(56, 56, 1, 1), 64, 3, true), kNone);
  EXPECT_EQ(tile(Image(4, 6, 1, 1), 64, 64, true), kNone);
  // All images of a volume meet the same weights.
  EXPECT_EQ(tile(Volume({.in = 8, .kernel = 3, .before = 1, .after = 1}, Image(7, 7, 1, 1)), 64, 64, true), k4x4);
  EXPECT_EQ(tile(Line(61, 1, 1), 64, 64, true), k1x4);
  EXPECT_EQ(tile(Line(60, 1, 1), 64, 64, true), kNone);
  EXPECT_EQ(tile(Line(188, 1, 1), 64, 64, false), kNone);
  EXPECT_EQ(tile(Line(3000, 1, 1), 80, 384, false), k1x4);
}

TEST(WinogradTest, ShareOfThePlainSums) {
  using enum WinogradTile;
  EXPECT_EQ(WinogradShare(kNone, 64, 1, 64), 1);
  for (const WinogradTile tile : {k1x4, k2x2, k4x4}) {
    EXPECT_LT(WinogradShare(tile, 64, 1, 64), 1);
    EXPECT_LT(WinogradShare(tile, 256, 1, 64), WinogradShare(tile, 64, 1, 64));
    EXPECT_EQ(WinogradShare(tile, 64, 3, 64), WinogradShare(tile, 192, 1, 64));
  }
  EXPECT_NEAR(WinogradShare(k4x4, 1'000'000, 1, 1'000'000), 0.25, 1e-4);
  EXPECT_NEAR(WinogradShare(k2x2, 1'000'000, 1, 1'000'000), 4.0 / 9, 1e-4);
  EXPECT_NEAR(WinogradShare(k1x4, 1'000'000, 1, 1'000'000), 0.5, 1e-4);
}

}  // namespace
}  // namespace thresher::kernels
