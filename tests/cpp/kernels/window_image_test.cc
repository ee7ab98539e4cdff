// Products over windows of bf16, fp16 and int8, and the image that they read.
#include "thresher/kernels/window_image.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "kernels/product_testing.h"
#include "kernels/window_testing.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::Axis;
using testing::ForEachIsaAndPlainTiles;
using testing::kGeometries;
using testing::Multiply;
using testing::RandomFloats;
using testing::WindowsOf;

// An image with all that belongs to it.
struct Image {
  std::vector<float> ranges, scale;
  std::vector<int32_t> zero;
  AlignedFloats data;
  ConvertWindowsArgs args;

  Image(RowForm form, const Windows& w, int64_t batch, int64_t channels, const std::vector<float>& x, int num_parts)
      : ranges(2 * static_cast<size_t>(RangesOf(w, batch))),
        scale(static_cast<size_t>(batch)),
        zero(static_cast<size_t>(batch)),
        data(static_cast<size_t>(batch * ImageLayout(form, w, channels).picture) / sizeof(float)) {
    args = {form, w, batch, channels, x.data(), ranges.data(), data.data(), scale.data(), zero.data()};
    if (HasRowScales(form)) {
      for (int part = 0; part < num_parts; ++part) FindRanges(args, part, num_parts);
    }
    for (int part = 0; part < num_parts; ++part) ConvertWindows(args, part, num_parts);
  }

  std::vector<float> Restored() const {
    const int64_t elements = ImageLayout(args.form, args.windows, args.channels).picture / ElementBytes(args.form);
    std::vector<float> x(static_cast<size_t>(args.batch * elements));
    RestoreWindows(args, x.data());
    return x;
  }
};

// The same windows over what an image stands for.
Windows WindowsOfImage(const Windows& w, const ImageLayout& layout, int64_t element) {
  Windows over = w;
  over.x_batch = layout.picture / element;
  for (int d = 0; d < 3; ++d) {
    over.x_strides[d] = layout.strides[d] / element;
    over.in[d] = layout.size[d];
    over.stride[d] = layout.stride[d];
    over.padding[d] = 0;
    over.spread[d] = 1;
  }
  return over;
}

struct Case {
  std::vector<Axis> axes;
  int64_t channels = 8;  // of a group
  int64_t groups = 1;
  int64_t extra = 0;  // elements between positions of x
  int64_t n = 37;
  int64_t batch = 2;
  bool bias = true;
  bool residual = false;
  bool residual_first = false;
  Activation activation = Activation::kNone;
  int num_parts = 1;
};

void CheckElements(const Case& c, const Windows& w, const std::vector<float>& x, const Image& image) {
  const ImageLayout layout(image.args.form, w, image.args.channels);
  const std::vector<float> restored = image.Restored();
  size_t at = 0;
  for (int64_t picture = 0; picture < c.batch; ++picture) {
    const float step = image.args.form == RowForm::kInt8 ? image.scale[static_cast<size_t>(picture)] : 0.0f;
    for (int64_t i = 0; i < layout.size[0] * layout.size[1] * layout.size[2]; ++i) {
      const int64_t d = layout.Source(w, 0, i / layout.size[2] / layout.size[1]);
      const int64_t h = layout.Source(w, 1, i / layout.size[2] % layout.size[1]);
      const int64_t v = layout.Source(w, 2, i % layout.size[2]);
      const bool inside = d >= 0 && h >= 0 && v >= 0;
      for (int64_t channel = 0; channel < image.args.channels; ++channel, ++at) {
        const int64_t from =
            picture * w.x_batch + d * w.x_strides[0] + h * w.x_strides[1] + v * w.x_strides[2] + channel;
        const float wanted = inside ? x[static_cast<size_t>(from)] : 0.0f;
        const float limit = inside ? 0.5001f * step + std::abs(wanted) * 0.00391f : 0.0f;
        ASSERT_NEAR(restored[at], wanted, limit) << "element " << at;
      }
    }
  }
}

void Check(const Case& c) {
  const int64_t channels = c.channels * c.groups;
  Windows w = WindowsOf(c.axes, channels, c.extra);
  w.channels = c.channels;
  SCOPED_TRACE(testing::ToString(w) + " n " + std::to_string(c.n) + " " + std::string(Name(c.activation)));
  const int64_t k = w.taps() * c.channels, m = c.batch * w.positions();
  const std::vector<float> x = RandomFloats(static_cast<size_t>(c.batch * w.x_batch), 1, -0.5f, 2.0f);
  const std::vector<float> b = RandomFloats(static_cast<size_t>(k * c.n), 2);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(c.n), 3);
  const int64_t ldc = c.n + 5;
  const std::vector<float> residual = RandomFloats(static_cast<size_t>(m * ldc), 4, -3.0f, 3.0f);
  const std::vector<float> untouched(residual.size(), 12345.0f);
  for (const Precision precision : {Precision::kBf16, Precision::kFp16, Precision::kInt8}) {
    const RowForm form = precision == Precision::kInt8   ? RowForm::kInt8
                         : precision == Precision::kFp16 ? RowForm::kF16
                                                         : RowForm::kBF16;
    ForEachIsaAndPlainTiles([&] {
      if (form == RowForm::kF16 && !isa::HasF16Tiles()) return;
      const Image image(form, w, c.batch, channels, x, c.num_parts);
      CheckElements(c, w, x, image);
      AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, k, c.n)) / sizeof(float) + 1);
      PackWeight(precision, Weight{b.data(), Encoding::kF32, k, c.n, c.n, 1}, packed.data());
      std::vector<float> stored(b.size());
      UnpackWeight(precision, packed.data(), k, c.n, stored.data());
      const std::vector<float> restored = image.Restored();
      const ImageLayout layout(form, w, channels);
      const Windows over = WindowsOfImage(w, layout, ElementBytes(form));
      for (int64_t group = 0; group < c.groups; ++group) {
        GemmArgs reference;
        reference.m = m, reference.n = c.n, reference.k = k;
        reference.a = restored.data() + group * c.channels;
        reference.windows = &over;
        reference.ldc = reference.ldr = ldc;
        reference.bias = c.bias ? bias.data() : nullptr;
        reference.residual = c.residual ? residual.data() : nullptr;
        reference.residual_first = c.residual_first;
        reference.activation = c.activation;
        std::vector<float> expected = untouched, actual = untouched;
        reference.c = expected.data();
        GemmReference(reference, stored.data(), c.n, 1);
        GemmDotArgs args;
        args.form = form;
        args.precision = precision;
        args.m = m, args.n = c.n, args.k = k;
        args.rows = static_cast<const std::byte*>(image.args.image) + group * c.channels * ElementBytes(form);
        args.scale = image.args.scale;
        args.zero = image.args.zero;
        args.windows = &w;
        args.channels = channels;
        args.packed_b = packed.data();
        args.c = actual.data();
        args.ldc = args.ldr = ldc;
        args.bias = reference.bias;
        args.residual = reference.residual;
        args.residual_first = c.residual_first;
        args.activation = c.activation;
        Multiply(args, c.num_parts);
        testing::ExpectClose(actual, expected, 4e-6f + 4e-7f * static_cast<float>(k), 4e-6f);
        if (!c.residual) continue;
        std::vector<float> in_place = residual;
        args.residual = args.c = in_place.data();
        Multiply(args, c.num_parts);
        for (int64_t i = 0; i < m; ++i) std::copy_n(&in_place[i * ldc], c.n, &expected[i * ldc]);
        EXPECT_EQ(actual, expected) << "in the residual's place";
      }
    });
  }
}

// x that is bf16 already gives the image of the floats that it stands for; fewer channels that of x with zeros, also
// where each is a plane.
TEST(WindowImageTest, OtherFormsOfX) {
  auto geometries = kGeometries;
  geometries.push_back({{.in = 3, .kernel = 3, .before = 1}, {.in = 53, .kernel = 3, .before = 2, .after = 1}});
  for (const auto& axes : geometries) {
    constexpr int64_t kBatch = 2;
    const Windows w = WindowsOf(axes, 8, 8);
    SCOPED_TRACE(testing::ToString(w));
    std::vector<float> x = RandomFloats(static_cast<size_t>(kBatch * w.x_batch), 1, -0.5f, 2.0f);
    const std::vector<uint16_t> bits = testing::CutToBf16(x);
    const auto same = [](const ConvertWindowsArgs& args, const void* wanted) {
      const auto bytes = static_cast<size_t>(kBatch * ImageLayout(args.form, args.windows, args.channels).picture);
      AlignedFloats data(bytes / sizeof(float) + 1);
      ConvertWindowsArgs own = args;
      own.image = data.data();
      for (int part = 0; part < 3; ++part) ConvertWindows(own, part, 3);
      EXPECT_EQ(std::memcmp(data.data(), wanted, bytes), 0);
    };
    ForEachIsaAndPlainTiles([&] {
      const Image image(RowForm::kBF16, w, kBatch, 8, x, 1);
      ConvertWindowsArgs args = image.args;
      args.x = reinterpret_cast<const float*>(bits.data());
      args.x_bf16 = true;
      same(args, image.args.image);
      const Image codes(RowForm::kInt8, w, kBatch, 8, x, 1);
      std::vector<float> ranges(codes.ranges.size(), 7.0f), scale(codes.scale.size());
      std::vector<int32_t> zero(codes.zero.size());
      args = codes.args;
      args.x = reinterpret_cast<const float*>(bits.data());
      args.x_bf16 = true;
      args.ranges = ranges.data(), args.scale = scale.data(), args.zero = zero.data();
      for (int part = 0; part < 3; ++part) FindRanges(args, part, 3);
      same(args, codes.args.image);
      EXPECT_EQ(ranges, codes.ranges);
      EXPECT_EQ(scale, codes.scale);
      EXPECT_EQ(zero, codes.zero);
      for (const int64_t channels : {1, 2, 3, 4}) {
        for (const int64_t extra : {0, 5}) {
          const Windows few = WindowsOf(axes, channels, extra), four = WindowsOf(axes, kPaddedChannels, 0);
          std::vector<float> filled(static_cast<size_t>(kBatch * four.x_batch), 0.0f);
          for (size_t i = 0; i < filled.size(); ++i) {
            const int64_t position = static_cast<int64_t>(i) / kPaddedChannels, channel = i % kPaddedChannels;
            if (channel < channels) filled[i] = x[static_cast<size_t>(position * (channels + extra) + channel)];
          }
          const Image wanted(RowForm::kBF16, four, kBatch, kPaddedChannels, filled, 1);
          ConvertWindowsArgs padded = wanted.args;
          padded.windows = few;
          padded.windows.channels = kPaddedChannels;
          padded.x = x.data();
          padded.x_channels = channels;
          same(padded, wanted.args.image);
          padded.x = reinterpret_cast<const float*>(bits.data());
          padded.x_bf16 = true;
          same(padded, wanted.args.image);
        }
        Windows planes = WindowsOf(axes, 1, 0);
        const int64_t plane = planes.x_batch;
        planes.channels = kPaddedChannels;
        planes.x_batch *= channels;
        std::vector<float> turned(static_cast<size_t>(kBatch * planes.x_batch));
        std::vector<uint16_t> turned_bits(turned.size());
        std::vector<float> filled(static_cast<size_t>(kBatch * plane * kPaddedChannels), 0.0f);
        for (int64_t i = 0; i < kBatch * plane * channels; ++i) {
          const int64_t picture = i / plane / channels, channel = i / plane % channels;
          turned[static_cast<size_t>(i)] = x[static_cast<size_t>(i)];
          turned_bits[static_cast<size_t>(i)] = bits[static_cast<size_t>(i)];
          filled[static_cast<size_t>((picture * plane + i % plane) * kPaddedChannels + channel)] =
              x[static_cast<size_t>(i)];
        }
        const Image wanted(RowForm::kBF16, WindowsOf(axes, kPaddedChannels, 0), kBatch, kPaddedChannels, filled, 1);
        ConvertWindowsArgs padded = wanted.args;
        padded.windows = planes;
        padded.x_channels = channels;
        padded.x_channel = plane;
        padded.x = turned.data();
        same(padded, wanted.args.image);
        padded.x = reinterpret_cast<const float*>(turned_bits.data());
        padded.x_bf16 = true;
        same(padded, wanted.args.image);
      }
    });
  }
}

// Results that are stored as bf16, and a residual that is: as products of rows do it (gemm_precision_test.cc).
TEST(WindowImageTest, ResultsOfBf16) {
  constexpr int64_t kBatch = 2, kChannels = 16;
  const auto check = [](RowForm form, Precision precision, int64_t width) {
    const std::vector<Axis> axes = {{.in = 6, .kernel = 3, .before = 1, .after = 1},
                                    {.in = width, .kernel = 3, .before = 1, .after = 1}};
    const Windows w = WindowsOf(axes, kChannels, 0);
    const int64_t k = w.taps() * kChannels, m = kBatch * w.positions();
    const std::vector<float> x = RandomFloats(static_cast<size_t>(kBatch * w.x_batch), 1, -0.5f, 2.0f);
    const Image image(form, w, kBatch, kChannels, x, 1);
    for (const int64_t n : {32, 40, 96}) {
      const std::vector<float> b = RandomFloats(static_cast<size_t>(k * n), 2);
      const std::vector<float> bias = RandomFloats(static_cast<size_t>(n), 3);
      AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, k, n)) / sizeof(float) + 1);
      PackWeight(precision, Weight{b.data(), Encoding::kF32, k, n, n, 1}, packed.data());
      const int64_t stride = RowBytes(RowForm::kBF16, n), pairs = stride / static_cast<int64_t>(sizeof(float));
      AlignedFloats residual(static_cast<size_t>(m * pairs)), stored(static_cast<size_t>(m * pairs));
      AlignedFloats wanted(static_cast<size_t>(m * pairs));
      const auto convert = [&](const std::vector<float>& from, AlignedFloats& to) {
        ConvertRowsArgs rows;
        rows.m = m, rows.k = rows.ldx = n;
        rows.x = from.data();
        rows.rows = to.data();
        ConvertRows(rows);
      };
      convert(RandomFloats(static_cast<size_t>(m * n), 4), residual);
      GemmDotArgs args;
      args.form = form;
      args.m = m, args.n = n, args.k = k;
      args.rows = image.args.image;
      args.scale = image.scale.data(), args.zero = image.zero.data();
      args.windows = &w;
      args.channels = kChannels;
      args.packed_b = packed.data();
      args.bias = bias.data();
      args.residual = residual.data(), args.ldr = pairs;
      args.residual_bf16 = args.residual_first = true;
      args.activation = Activation::kRelu;
      std::vector<float> results(static_cast<size_t>(m * n));
      args.c = results.data(), args.ldc = n;
      Multiply(args, 2);
      convert(results, wanted);
      args.c = stored.data(), args.ldc = pairs;
      args.stores_bf16 = true;
      Multiply(args, 2);
      const auto check_rows = [&](AlignedFloats& found) {
        for (int64_t i = 0; i < m; ++i) {
          EXPECT_EQ(std::memcmp(found.data() + i * pairs, wanted.data() + i * pairs,
                                static_cast<size_t>(stride % 64 == 0 ? (n + 31) / 32 * 64 : 2 * n)),
                    0)
              << "row " << i << " of " << n;
        }
      };
      check_rows(stored);
      args.residual = args.c = residual.data();
      Multiply(args, 2);
      check_rows(residual);
    }
  };
  ForEachIsaAndPlainTiles([&] {
    if (!StoresRows(RowForm::kBF16)) return;
    for (const int64_t width : {2, 19}) {
      check(RowForm::kBF16, Precision::kBf16, width);
      check(RowForm::kInt8, Precision::kInt8, width);
    }
  });
}

TEST(WindowImageTest, EveryGeometry) {
  for (const auto& axes : kGeometries) {
    for (const int64_t channels : {8, 24}) Check({.axes = axes, .channels = channels, .extra = channels - 8});
    Check({.axes = axes, .channels = 16, .groups = 2, .n = 19, .residual = true, .num_parts = 3});
  }
}

// Tiles of one and of two groups, of one line and of two, in a picture and over the end of one.
TEST(WindowImageTest, EveryWidth) {
  for (int64_t width = 1; width <= 31; ++width) {
    for (const int64_t stride : {1, 2}) {
      Check({.axes = {{.in = 2, .kernel = 2, .before = 1},
                      {.in = stride * width + 1, .kernel = 3, .stride = stride, .before = 1}},
             .n = width % 2 == 0 ? 33 : 64,
             .batch = 3,
             .num_parts = static_cast<int>(width % 3) + 1});
    }
  }
}

// Lines that are cut into pieces of unequal length; runs of whole tiles' depth, of several of less, and with a rest.
TEST(WindowImageTest, TilesOfAMatrixUnit) {
  constexpr int64_t kSizes[][2] = {{33, 32}, {49, 40}, {57, 64}, {35, 88}};
  for (const auto& [width, channels] : kSizes) {
    const std::vector<Axis> axes = {{.in = 2, .kernel = 2}, {.in = width + 2, .kernel = 3}};
    Check({.axes = axes, .channels = channels, .n = 40, .num_parts = 3});
    Check({.axes = axes, .channels = channels, .n = 32, .batch = 1, .bias = false, .residual = true});
    // A tap is a run, and a picture ends within a tile.
    Check({.axes = {{.in = width + 4, .kernel = 3, .dilation = 2}}, .channels = channels, .n = 7, .batch = 3});
  }
}

// What no window of a position covers does not reach it, though a tile reads what lies beside.
TEST(WindowImageTest, ANaNStaysInItsWindows) {
  constexpr int64_t kWidth = 37, kN = 40, kAt = 20;
  // One tile a run, several, and some and a rest; few channels are filled up with zeros.
  for (const int64_t channels : {4, 8, 24, 88}) {
    const Windows w = WindowsOf({{.in = kWidth, .kernel = 3, .before = 1, .after = 1}}, channels, 0);
    const int64_t k = w.taps() * channels;
    std::vector<float> x = RandomFloats(static_cast<size_t>(w.x_batch), 1);
    x[static_cast<size_t>(kAt * channels)] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> b = RandomFloats(static_cast<size_t>(k * kN), 2);
    ForEachIsaAndPlainTiles([&] {
      const Image image(RowForm::kBF16, w, 1, channels, x, 1);
      AlignedFloats packed(static_cast<size_t>(PackedBytes(Precision::kBf16, k, kN)) / sizeof(float) + 1);
      PackWeight(Precision::kBf16, Weight{b.data(), Encoding::kF32, k, kN, kN, 1}, packed.data());
      std::vector<float> out(static_cast<size_t>(kWidth * kN));
      GemmDotArgs args;
      args.m = kWidth, args.n = kN, args.k = k;
      args.rows = image.args.image;
      args.windows = &w;
      args.channels = channels;
      args.packed_b = packed.data();
      args.c = out.data(), args.ldc = kN;
      Multiply(args);
      for (int64_t row = 0; row < kWidth; ++row) {
        for (int64_t j = 0; j < kN; ++j) {
          ASSERT_EQ(std::isnan(out[static_cast<size_t>(row * kN + j)]), std::abs(row - kAt) <= 1)
              << channels << ' ' << row << ' ' << j;
        }
      }
    });
  }
}

// Pictures that fp16 does not reach are scaled down, their results up again; those beside them are not.
TEST(WindowImageTest, LargePicturesOfF16) {
  constexpr int64_t kWidth = 21, kChannels = 16, kN = 40, kBatch = 3;
  const Windows w = WindowsOf({{.in = kWidth, .kernel = 3, .before = 1, .after = 1}}, kChannels, 0);
  const int64_t k = w.taps() * kChannels, m = kBatch * kWidth;
  std::vector<float> x = RandomFloats(static_cast<size_t>(kBatch * w.x_batch), 1);
  for (int64_t i = 0; i < w.x_batch; ++i) x[static_cast<size_t>(w.x_batch + i)] *= 3e7f;
  const std::vector<float> b = RandomFloats(static_cast<size_t>(k * kN), 2);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(kN), 3);
  ForEachIsaAndPlainTiles([&] {
    if (!isa::HasF16Tiles()) return;
    const Image image(RowForm::kF16, w, kBatch, kChannels, x, 2);
    EXPECT_EQ(image.scale[0], 1.0f);
    EXPECT_EQ(image.scale[1], 1024.0f);
    AlignedFloats packed(static_cast<size_t>(PackedBytes(Precision::kFp16, k, kN)) / sizeof(float) + 1);
    PackWeight(Precision::kFp16, Weight{b.data(), Encoding::kF32, k, kN, kN, 1}, packed.data());
    std::vector<float> stored(b.size());
    UnpackWeight(Precision::kFp16, packed.data(), k, kN, stored.data());
    const std::vector<float> restored = image.Restored();
    const Windows over = WindowsOfImage(w, ImageLayout(RowForm::kF16, w, kChannels), 2);
    GemmArgs reference;
    reference.m = m, reference.n = kN, reference.k = k;
    reference.a = restored.data();
    reference.windows = &over;
    reference.ldc = kN;
    reference.bias = bias.data();
    std::vector<float> expected(static_cast<size_t>(m * kN)), actual(expected.size());
    reference.c = expected.data();
    GemmReference(reference, stored.data(), kN, 1);
    GemmDotArgs args;
    args.form = RowForm::kF16;
    args.m = m, args.n = kN, args.k = k;
    args.rows = image.args.image;
    args.scale = image.args.scale;
    args.windows = &w;
    args.channels = kChannels;
    args.packed_b = packed.data();
    args.c = actual.data(), args.ldc = kN;
    args.bias = bias.data();
    Multiply(args);
    for (size_t i = 0; i < actual.size(); ++i) {
      const bool large = i / static_cast<size_t>(kWidth * kN) == 1;
      ASSERT_NEAR(actual[i], expected[i], large ? 3e7f * 2e-5f : 2e-5f) << i;
    }
  });
}

TEST(WindowImageTest, Epilogues) {
  for (int act = 0; act <= static_cast<int>(kLastActivation); ++act) {
    for (const bool first : {false, true}) {
      Check({.axes = {{.in = 8, .kernel = 3, .stride = 2, .before = 1}},
             .n = 75,
             .bias = !first,
             .residual = true,
             .residual_first = first,
             .activation = static_cast<Activation>(act)});
    }
  }
}

// A picture with a NaN or an infinity is NaN as a whole, and only that one.
TEST(WindowImageTest, NotFinite) {
  const Windows w = WindowsOf({{.in = 5, .kernel = 3, .before = 1, .after = 1}}, 8, 0);
  for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = RandomFloats(static_cast<size_t>(3 * w.x_batch), 1);
    x[static_cast<size_t>(w.x_batch) + 17] = odd;
    ForEachIsaAndPlainTiles([&] {
      const Image image(RowForm::kInt8, w, 3, 8, x, 2);
      const std::vector<float> restored = image.Restored();
      const size_t picture = restored.size() / 3;
      for (size_t i = 0; i < restored.size(); ++i) {
        ASSERT_EQ(std::isnan(restored[i]), i / picture == 1) << "element " << i;
      }
    });
  }
}

}  // namespace
}  // namespace thresher::kernels
