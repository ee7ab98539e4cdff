#include "thresher/kernels/weight_error.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/encoded_numbers.h"
#include "kernels/float_testing.h"
#include "thresher/kernels/gemm.h"

namespace thresher::kernels {
namespace {

constexpr Precision kLossy[] = {Precision::kBf16, Precision::kFp16, Precision::kInt8, Precision::kInt8Weight,
                                Precision::kInt4Weight};

std::vector<float> Gaussian(int64_t count, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> w(static_cast<size_t>(count));
  for (float& x : w) x = normal(random);
  return w;
}

TEST(WeightError, AgreesWithTheReference) {
  for (const auto& [k, n] : {std::pair{1, 1}, {32, 3}, {33, 5}, {31, 1}, {100, 17}, {257, 64}}) {
    for (const float scale : {1e-20f, 3e-5f, 0.02f, 30.0f}) {
      const std::vector<float> w = Gaussian(k * n, scale, static_cast<uint32_t>(k + n));
      for (const bool transposed : {false, true}) {
        for (const Precision precision : kLossy) {
          const WeightError expected = MeasureWeightErrorReference(DenseWeight(w.data(), k, n, transposed), precision);
          const WeightError found = MeasureWeightError(DenseWeight(w.data(), k, n, transposed), precision);
          EXPECT_TRUE(found.finite);
          EXPECT_FALSE(found.overflows);
          // A quotient next to a tie may round the other way.
          EXPECT_NEAR(found.relative, expected.relative, 1e-6 + 1e-4 * expected.relative)
              << k << "x" << n << " scale " << scale << " " << Name(precision) << " transposed " << transposed;
        }
      }
    }
  }
}

TEST(WeightError, IsThatOfPackedWeights) {
  constexpr int64_t k = 100, n = 37;
  const std::vector<float> w = Gaussian(k * n, 0.02f, 5);
  double norm = 0;
  for (const float x : w) norm += static_cast<double>(x) * x;
  for (const Precision precision : kLossy) {
    testing::ForEachIsa([&] {
      testing::AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, k, n)) / sizeof(float) + 1);
      std::vector<float> back(w.size());
      PackWeight(precision, DenseWeight(w.data(), k, n, false), packed.data());
      UnpackWeight(precision, packed.data(), k, n, back.data());
      double error = 0;
      for (size_t i = 0; i < w.size(); ++i) error += std::pow(static_cast<double>(back[i]) - w[i], 2);
      const double expected = std::sqrt(error / norm);
      EXPECT_NEAR(MeasureWeightError(DenseWeight(w.data(), k, n, false), precision).relative, expected, 1e-3 * expected)
          << Name(precision);
    });
  }
}

TEST(WeightError, IsWhatTheFormatsPromise) {
  const std::vector<float> w = Gaussian(256 * 256, 0.02f, 1);
  const auto error = [&](Precision precision) {
    return MeasureWeightError(DenseWeight(w.data(), 256, 256, true), precision).relative;
  };
  EXPECT_EQ(error(Precision::kFp32), 0);
  EXPECT_LT(error(Precision::kFp16), 0.0005);
  EXPECT_LT(error(Precision::kBf16), 0.004);
  EXPECT_GT(error(Precision::kBf16), 0.001);
  EXPECT_LT(error(Precision::kInt8), 0.015);
  EXPECT_GT(error(Precision::kInt8), 0.004);
  EXPECT_LT(error(Precision::kInt8Weight), 0.01);
  EXPECT_GT(error(Precision::kInt8Weight), 0.004);
  EXPECT_LT(error(Precision::kInt4Weight), 0.12);
  EXPECT_GT(error(Precision::kInt4Weight), 0.06);
}

TEST(WeightError, ExactWeightsHaveNone) {
  std::vector<float> w(64 * 3);
  for (size_t i = 0; i < w.size(); ++i) w[i] = 0.25f * static_cast<float>(static_cast<int>(i % 15) - 7);
  for (const Precision precision : {Precision::kBf16, Precision::kFp16, Precision::kInt4Weight}) {
    EXPECT_NEAR(MeasureWeightError(DenseWeight(w.data(), 64, 3, true), precision).relative, 0, 1e-6) << Name(precision);
  }
  const std::vector<float> zeros(64, 0.0f);
  for (const Precision precision : kLossy) {
    EXPECT_EQ(MeasureWeightError(DenseWeight(zeros.data(), 8, 8, false), precision).relative, 0);
  }
}

TEST(WeightError, IsMeasuredAgainstTheStoredNumbers) {
  constexpr int64_t k = 71, n = 23;
  for (const Encoding encoding : {Encoding::kBf16, Encoding::kF16}) {
    const testing::EncodedNumbers w(Gaussian(k * n, 0.02f, 7), encoding);
    for (const bool transposed : {false, true}) {
      const Weight stored = DenseWeight(w.data(), k, n, transposed, encoding);
      for (const Precision precision : kLossy) {
        const double expected =
            MeasureWeightError(DenseWeight(w.numbers().data(), k, n, transposed), precision).relative;
        EXPECT_EQ(MeasureWeightError(stored, precision).relative, expected) << Name(encoding) << Name(precision);
        const bool exact =
            precision == Precision::kFp16 || (precision == Precision::kBf16 && encoding == Encoding::kBf16);
        EXPECT_EQ(expected == 0, exact) << Name(encoding) << Name(precision);
        EXPECT_NEAR(MeasureWeightErrorReference(stored, precision).relative, expected, 1e-6 + 1e-4 * expected);
      }
    }
  }
}

TEST(WeightError, PartsAddUp) {
  constexpr int64_t k = 71, n = 23;
  const std::vector<float> w = Gaussian(k * n, 0.02f, 8);
  for (const bool transposed : {false, true}) {
    const Weight weight = DenseWeight(w.data(), k, n, transposed);
    for (const Precision precision : kLossy) {
      WeightErrorSums sums;
      for (int part = 0; part < 30; ++part) sums += SumWeightError(weight, precision, part, 30);
      const double whole = MeasureWeightError(weight, precision).relative;
      EXPECT_NEAR(sums.Relative().relative, whole, 1e-9) << Name(precision);
      EXPECT_GT(whole, 0);
    }
  }
}

TEST(WeightError, ScalesBelongToOutputChannels) {
  // One channel is a thousand times the others: a shared scale would wipe those out.
  std::vector<float> w = Gaussian(64 * 16, 0.02f, 2);
  for (size_t i = 0; i < 64; ++i) w[5 * 64 + i] *= 1000.0f;
  EXPECT_LT(MeasureWeightError(DenseWeight(w.data(), 64, 16, true), Precision::kInt8).relative, 0.015);
  // One element does it within its channel.
  w[7 * 64 + 3] = 1e5f;
  EXPECT_LT(MeasureWeightError(DenseWeight(w.data(), 64, 16, true), Precision::kInt4Weight).relative, 0.12);
  EXPECT_GT(MeasureWeightError(DenseWeight(w.data() + 7 * 64, 64, 1, true), Precision::kInt8).relative, 0);
}

TEST(WeightError, WhatDoesNotFit) {
  std::vector<float> w = Gaussian(40 * 7, 1.0f, 3);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> broken = w;
    broken.back() = -bad;
    for (const Precision precision : kLossy) {
      EXPECT_FALSE(MeasureWeightError(DenseWeight(broken.data(), 40, 7, true), precision).finite);
      EXPECT_FALSE(MeasureWeightErrorReference(DenseWeight(broken.data(), 40, 7, true), precision).finite);
    }
  }
  for (const auto& [value, fits] : {std::pair{65504.0f, true}, {65519.99f, true}, {65520.0f, false}, {-1e9f, false}}) {
    w[11] = value;
    EXPECT_EQ(MeasureWeightError(DenseWeight(w.data(), 40, 7, true), Precision::kFp16).overflows, !fits) << value;
    EXPECT_EQ(MeasureWeightErrorReference(DenseWeight(w.data(), 40, 7, true), Precision::kFp16).overflows, !fits)
        << value;
    EXPECT_FALSE(MeasureWeightError(DenseWeight(w.data(), 40, 7, true), Precision::kBf16).overflows);
    EXPECT_FALSE(MeasureWeightError(DenseWeight(w.data(), 40, 7, true), Precision::kInt8).overflows);
  }
  w[11] = std::numeric_limits<float>::max();
  EXPECT_TRUE(MeasureWeightError(DenseWeight(w.data(), 40, 7, true), Precision::kFp16).overflows);
  EXPECT_TRUE(MeasureWeightError(DenseWeight(w.data(), 40, 7, true), Precision::kBf16).overflows);
  EXPECT_TRUE(MeasureWeightErrorReference(DenseWeight(w.data(), 40, 7, true), Precision::kBf16).overflows);
}

}  // namespace
}  // namespace thresher::kernels
