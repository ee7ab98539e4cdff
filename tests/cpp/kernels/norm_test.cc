#include "thresher/kernels/norm.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"

namespace thresher::kernels {
namespace {

using testing::ExpectClose;
using testing::ForEachIsa;
using testing::RandomFloats;

void Check(int64_t rows, int64_t cols, bool affine, int64_t extra, int parts, float offset = 0.0f,
           float tolerance = 2e-6f) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + " affine " + std::to_string(affine) + " parts " +
               std::to_string(parts));
  const int64_t ld = cols + extra;
  const std::vector<float> x = RandomFloats(static_cast<size_t>(rows * ld + 1), 1, offset - 1.0f, offset + 1.0f);
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(cols + 1), 2);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(cols + 1), 3);
  std::vector<float> expected(static_cast<size_t>(rows * ld + 1), 7.0f);
  NormArgs args{.x = x.data() + 1,
                .row_stride = ld,
                .weight = affine ? weight.data() + 1 : nullptr,
                .bias = affine ? bias.data() + 1 : nullptr,
                .eps = 1e-5f,
                .out = expected.data() + 1,
                .out_row_stride = ld,
                .rows = rows,
                .cols = cols};
  LayerNormReference(args);
  ForEachIsa([&] {
    std::vector<float> actual(expected.size(), 7.0f);
    NormArgs own = args;
    own.out = actual.data() + 1;
    for (int part = 0; part < parts; ++part) LayerNorm(own, part, parts);
    ExpectClose(actual, expected, tolerance, 2e-6f);

    std::vector<float> in_place = x;
    own.x = own.out = in_place.data() + 1;
    for (int part = 0; part < parts; ++part) LayerNorm(own, part, parts);
    if (extra == 0) {
      in_place[0] = 7.0f;
      ExpectClose(in_place, expected, tolerance, 2e-6f);
    }
  });
}

TEST(LayerNormTest, EveryColumnRemainder) {
  for (int64_t cols = 1; cols <= 80; ++cols) Check(3, cols, cols % 2 == 0, cols % 3, 1);
}

TEST(LayerNormTest, LongRowsAndParts) {
  for (const int64_t cols : {384, 768, 1023}) {
    for (const int parts : {1, 2, 3, 9}) Check(7, cols, true, 0, parts);
  }
}

// One pass over squares would lose every digit here: the variance is 1/3, the squares 1e8.
TEST(LayerNormTest, LargeCommonOffset) { Check(4, 768, true, 0, 1, 1e4f, 5e-6f); }

TEST(LayerNormTest, ConstantRowsGiveTheBias) {
  const std::vector<float> x(100, 3.25f);
  const std::vector<float> bias = RandomFloats(100, 5);
  ForEachIsa([&] {
    std::vector<float> out(100);
    LayerNorm({.x = x.data(),
               .row_stride = 100,
               .bias = bias.data(),
               .out = out.data(),
               .out_row_stride = 100,
               .rows = 1,
               .cols = 100});
    ExpectClose(out, bias, 0.0f);
  });
}

TEST(LayerNormTest, NanAndInfinitySpoilTheirRowOnly) {
  std::vector<float> x = RandomFloats(3 * 50, 1);
  x[10] = std::numeric_limits<float>::quiet_NaN();
  x[2 * 50 + 49] = std::numeric_limits<float>::infinity();
  ForEachIsa([&] {
    std::vector<float> out(3 * 50);
    LayerNorm({.x = x.data(), .row_stride = 50, .out = out.data(), .out_row_stride = 50, .rows = 3, .cols = 50});
    for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i / 50 != 1) << i;
  });
}

using Norm = void (*)(const NormArgs&, int, int);
using NormReference = void (*)(const NormArgs&);

// Each is the nearest to the float; what lies behind a row is left alone.
TEST(NormTest, RoundsToBf16) {
  constexpr int64_t kRows = 5;
  for (const Norm norm : {&LayerNorm, &RmsNorm}) {
    for (const int64_t cols : {1, 3, 15, 16, 17, 31, 32, 33, 47, 64, 100, 768}) {
      SCOPED_TRACE(cols);
      const int64_t ld = cols + 5;
      const std::vector<float> x = RandomFloats(static_cast<size_t>(kRows * cols), 1);
      const std::vector<float> weight = RandomFloats(static_cast<size_t>(cols), 2);
      NormArgs args{.x = x.data(), .row_stride = cols, .weight = weight.data(), .rows = kRows, .cols = cols};
      ForEachIsa([&] {
        std::vector<float> floats(static_cast<size_t>(kRows * ld), 0.0f);
        args.out = floats.data();
        args.out_bf16 = nullptr;
        args.out_row_stride = ld;
        norm(args, 0, 1);
        constexpr uint16_t kUntouched = 0x1234;
        std::vector<BF16> rounded(floats.size(), BF16{kUntouched});
        args.out = nullptr;
        args.out_bf16 = rounded.data();
        for (int part = 0; part < 2; ++part) norm(args, part, 2);
        for (int64_t i = 0; i < kRows * ld; ++i) {
          const uint16_t bits = rounded[static_cast<size_t>(i)].bits;
          ASSERT_EQ(bits, i % ld < cols ? ToBF16(floats[static_cast<size_t>(i)]).bits : kUntouched) << i;
        }
      });
    }
  }
}

// What waits for the norm is the sum, beside the rounded result.
TEST(NormTest, RoundsWhatIsNormalisedOfASum) {
  constexpr int64_t kRows = 3, kCols = 50;
  const std::vector<float> x = RandomFloats(kRows * kCols, 1), residual = RandomFloats(kRows * kCols, 2);
  ForEachIsa([&] {
    std::vector<float> floats(kRows * kCols), sum(kRows * kCols), own_sum(kRows * kCols);
    std::vector<BF16> rounded(kRows * kCols);
    NormArgs args{.x = x.data(),
                  .row_stride = kCols,
                  .residual = residual.data(),
                  .residual_row_stride = kCols,
                  .out = floats.data(),
                  .out_row_stride = kCols,
                  .sum = sum.data(),
                  .sum_row_stride = kCols,
                  .rows = kRows,
                  .cols = kCols};
    LayerNorm(args);
    args.out = nullptr;
    args.out_bf16 = rounded.data();
    args.sum = own_sum.data();
    LayerNorm(args);
    EXPECT_EQ(own_sum, sum);
    for (size_t i = 0; i < floats.size(); ++i) ASSERT_EQ(rounded[i].bits, ToBF16(floats[i]).bits) << i;
  });
}

// With every combination of weight, residual and sum.
void CheckResidual(Norm norm, NormReference reference, int64_t rows, int64_t cols, int parts) {
  const int64_t ld = cols + 3;
  const std::vector<float> x = RandomFloats(static_cast<size_t>(rows * ld), 1);
  const std::vector<float> residual = RandomFloats(static_cast<size_t>(rows * ld), 2);
  const std::vector<float> weight = RandomFloats(static_cast<size_t>(cols), 3);
  for (int choice = 0; choice < 8; ++choice) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + " choice " + std::to_string(choice));
    const bool with_sum = (choice & 6) == 6;
    std::vector<float> expected(static_cast<size_t>(rows * ld), 7.0f), expected_sum = expected;
    NormArgs args{
        .x = x.data(), .row_stride = ld, .out = expected.data(), .out_row_stride = ld, .rows = rows, .cols = cols};
    if (choice & 1) args.weight = weight.data();
    if (choice & 2) {
      args.residual = residual.data();
      args.residual_row_stride = ld;
    }
    if (with_sum) {
      args.sum = expected_sum.data();
      args.sum_row_stride = ld;
    }
    reference(args);
    ForEachIsa([&] {
      std::vector<float> actual(expected.size(), 7.0f), sum = actual;
      NormArgs own = args;
      own.out = actual.data();
      if (with_sum) own.sum = sum.data();
      for (int part = 0; part < parts; ++part) norm(own, part, parts);
      ExpectClose(actual, expected, 3e-6f, 3e-6f);
      ExpectClose(sum, expected_sum, 0.0f);
    });
  }
}

TEST(NormTest, ResidualsAreAddedFirst) {
  for (const int64_t cols : {1, 5, 16, 31, 384}) {
    for (const int parts : {1, 3}) {
      CheckResidual(LayerNorm, LayerNormReference, 4, cols, parts);
      CheckResidual(RmsNorm, RmsNormReference, 4, cols, parts);
    }
  }
}

TEST(RmsNormTest, IgnoresTheSignAndKeepsTheMean) {
  const std::vector<float> x(64, -3.0f);
  ForEachIsa([&] {
    std::vector<float> out(64);
    RmsNorm(
        {.x = x.data(), .row_stride = 64, .eps = 0.0f, .out = out.data(), .out_row_stride = 64, .rows = 1, .cols = 64});
    ExpectClose(out, std::vector<float>(64, -1.0f), 1e-6f);
  });
}

}  // namespace
}  // namespace thresher::kernels
