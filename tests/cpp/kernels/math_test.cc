// The error bounds that math-inl.h states, measured against float64.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/math_test.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/math-inl.h"

#ifndef THRESHER_MATH_TEST_FUNCTIONS
#define THRESHER_MATH_TEST_FUNCTIONS(X) \
  X(Exp) X(ExpNonPositive) X(Exp2ForBf16) X(Log) X(Erf) X(Tanh) X(Sigmoid) X(Silu) X(Gelu) X(GeluTanh) X(GeluForBf16)
#endif

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

#define THRESHER_MATH_TEST_DEFINE(F)                                         \
  void Map##F(const float* x, float* y, size_t count) {                      \
    const hn::ScalableTag<float> d;                                          \
    const size_t lanes = hn::Lanes(d);                                       \
    for (size_t i = 0; i < count; i += lanes) {                              \
      hn::StoreN(F(d, hn::LoadN(d, x + i, count - i)), d, y + i, count - i); \
    }                                                                        \
  }
THRESHER_MATH_TEST_FUNCTIONS(THRESHER_MATH_TEST_DEFINE)
#undef THRESHER_MATH_TEST_DEFINE

void MapMaxNan(const float* x, float* y, size_t count) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreN(MaxNan(d, hn::LoadN(d, x + i, count - i), hn::LoadN(d, y + i, count - i)), d, y + i, count - i);
  }
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

using testing::ForEachIsa;

#define THRESHER_MATH_TEST_EXPORT(F) \
  HWY_EXPORT(Map##F);                \
  void Run##F(const float* x, float* y, size_t count) { HWY_DYNAMIC_DISPATCH(Map##F)(x, y, count); }
THRESHER_MATH_TEST_FUNCTIONS(THRESHER_MATH_TEST_EXPORT)

HWY_EXPORT(MapMaxNan);

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Map = void (*)(const float*, float*, size_t);
using Truth = std::function<double(double)>;

// Every `step`-th representable float of [low, high], and both ends.
std::vector<float> Floats(float low, float high, uint32_t step) {
  const auto key = [](float f) {
    const int64_t bits = std::bit_cast<int32_t>(f);
    return bits >= 0 ? bits : -(bits & 0x7fffffff);
  };
  const auto value = [](int64_t key) {
    return key >= 0 ? std::bit_cast<float>(static_cast<int32_t>(key))
                    : -std::bit_cast<float>(static_cast<int32_t>(-key));
  };
  std::vector<float> values;
  for (int64_t k = key(low); k < key(high); k += step) values.push_back(value(k));
  values.push_back(high);
  return values;
}

// Distance in units of the last place of the true value (of the smallest subnormal below the normal range).
double Ulps(float actual, double truth) {
  const float rounded = static_cast<float>(truth);
  if (std::isinf(rounded) || rounded == 0.0f) {
    if (actual == rounded) return 0.0;
  }
  int exponent = 0;
  std::frexp(truth, &exponent);
  return std::abs(static_cast<double>(actual) - truth) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

void CheckUlps(Map map, const Truth& truth, float low, float high, double bound, uint32_t step = 997) {
  const std::vector<float> x = Floats(low, high, step);
  ForEachIsa([&] {
    std::vector<float> y(x.size());
    map(x.data(), y.data(), x.size());
    double worst = 0.0;
    float where = 0.0f;
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = Ulps(y[i], truth(x[i]));
      if (!(error <= worst)) worst = error, where = x[i];
    }
    EXPECT_LE(worst, bound) << "worst at " << where;
  });
}

void CheckAbsolute(Map map, const Truth& truth, float low, float high, double bound, double times_x = 0.0) {
  const std::vector<float> x = Floats(low, high, 997);
  ForEachIsa([&] {
    std::vector<float> y(x.size());
    map(x.data(), y.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_LE(std::abs(y[i] - truth(x[i])), bound + times_x * std::abs(x[i])) << "at " << x[i] << " found " << y[i];
    }
  });
}

void CheckAt(Map map, const std::vector<float>& x, const std::vector<float>& expected) {
  ForEachIsa([&] {
    std::vector<float> y(x.size());
    map(x.data(), y.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(expected[i])) {
        EXPECT_TRUE(std::isnan(y[i])) << "at " << x[i] << " found " << y[i];
      } else {
        EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected[i]))
            << "at " << x[i] << " expected " << expected[i] << " found " << y[i];
      }
    }
  });
}

double GeluTruth(double x) { return 0.5 * x * std::erfc(-x * 0.70710678118654752440); }
double GeluTanhTruth(double x) {
  return x / (1.0 + std::exp(-2.0 * 0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

TEST(MathTest, Exp) {
  CheckUlps(&RunExp, [](double x) { return std::exp(x); }, -104.5f, 88.9f, 1.2);
  CheckAt(&RunExp, {0.0f, -0.0f, kInf, -kInf, kNan, 89.0f, 1e30f, -105.0f, -1e30f},
          {1.0f, 1.0f, kInf, 0.0f, kNan, kInf, kInf, 0.0f, 0.0f});
}

TEST(MathTest, Exp2ForBf16) {
  const std::vector<float> x = Floats(-125.0f, -0.0f, 997);
  ForEachIsa([&] {
    std::vector<float> y(x.size());
    RunExp2ForBf16(x.data(), y.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double truth = std::exp2(static_cast<double>(x[i]));
      ASSERT_LE(std::abs(y[i] - truth), 8e-5 * truth) << "at " << x[i] << " found " << y[i];
    }
  });
  CheckAbsolute(&RunExp2ForBf16, [](double at) { return std::exp2(at); }, -1e4f, -125.0f, 1e-37);
  CheckAt(&RunExp2ForBf16, {-kInf, kNan, -1e30f}, {0.0f, kNan, 0.0f});
}

TEST(MathTest, ExpNonPositive) {
  CheckUlps(&RunExpNonPositive, [](double x) { return std::exp(x); }, -1.0f, 0.0f, 3.0);
  CheckAbsolute(&RunExpNonPositive, [](double x) { return std::exp(x); }, -200.0f, -0.0f, 1.3e-7);
  CheckAt(&RunExpNonPositive, {0.0f, -kInf, kNan, -1e30f, -88.1f}, {1.0f, 0.0f, kNan, 0.0f, 0.0f});
}

TEST(MathTest, Log) {
  CheckUlps(&RunLog, [](double x) { return std::log(x); }, 1e-45f, 3.4e38f, 1.5);
  CheckUlps(&RunLog, [](double x) { return std::log(x); }, 0.9f, 1.1f, 1.5, 13);
  CheckAt(&RunLog, {1.0f, 0.0f, -0.0f, kInf, -kInf, -1.0f, kNan}, {0.0f, -kInf, -kInf, kInf, kNan, kNan, kNan});
}

TEST(MathTest, Erf) {
  CheckUlps(&RunErf, [](double x) { return std::erf(x); }, -10.0f, 10.0f, 7.0);
  CheckAbsolute(&RunErf, [](double x) { return std::erf(x); }, -10.0f, 10.0f, 4e-7);
  CheckAt(&RunErf, {0.0f, -0.0f, kInf, -kInf, kNan, 1e30f, -5.0f}, {0.0f, -0.0f, 1.0f, -1.0f, kNan, 1.0f, -1.0f});
}

TEST(MathTest, Tanh) {
  CheckUlps(&RunTanh, [](double x) { return std::tanh(x); }, -20.0f, 20.0f, 7.0);
  CheckAbsolute(&RunTanh, [](double x) { return std::tanh(x); }, -20.0f, 20.0f, 4e-7);
  CheckAt(&RunTanh, {0.0f, -0.0f, kInf, -kInf, kNan, 1e30f, -20.0f}, {0.0f, -0.0f, 1.0f, -1.0f, kNan, 1.0f, -1.0f});
}

TEST(MathTest, SigmoidAndSilu) {
  CheckUlps(&RunSigmoid, [](double x) { return 1.0 / (1.0 + std::exp(-x)); }, -87.0f, 100.0f, 3.0);
  CheckUlps(&RunSilu, [](double x) { return x / (1.0 + std::exp(-x)); }, -87.0f, 100.0f, 4.0);
  CheckAt(&RunSigmoid, {0.0f, kInf, -kInf, kNan}, {0.5f, 1.0f, 0.0f, kNan});
  CheckAt(&RunSilu, {0.0f, kInf, -kInf, kNan, -1e30f}, {0.0f, kInf, kNan, kNan, -0.0f});
}

TEST(MathTest, Gelu) {
  CheckAbsolute(&RunGelu, &GeluTruth, -1.0f, 1.0f, 4e-7);
  CheckAbsolute(&RunGelu, &GeluTruth, -20.0f, 20.0f, 1e-7, 3e-7);
  CheckAbsolute(&RunGeluTanh, &GeluTanhTruth, -1.0f, 1.0f, 4e-7);
  CheckAbsolute(&RunGeluTanh, &GeluTanhTruth, -20.0f, 20.0f, 1e-7, 3e-7);
  CheckAbsolute(&RunGeluForBf16, &GeluTruth, -20.0f, 4.0f, 4e-5);
  CheckAbsolute(&RunGeluForBf16, &GeluTruth, 4.0f, 1e4f, 0, 1e-5);
  CheckAt(&RunGelu, {0.0f, kInf, -kInf, kNan}, {0.0f, kInf, kNan, kNan});
  CheckAt(&RunGeluForBf16, {0.0f, -0.0f, kInf, kNan}, {0.0f, -0.0f, kInf, kNan});
  CheckAt(&RunGeluTanh, {0.0f, kInf, -kInf, kNan, -1e30f}, {0.0f, kInf, kNan, kNan, -0.0f});
}

TEST(MathTest, MaxNanPropagatesFromEitherSide) {
  ForEachIsa([] {
    const std::vector<float> x = {kNan, 1.0f, 2.0f, -kInf, kNan};
    std::vector<float> y = {1.0f, kNan, 1.0f, kInf, kNan};
    HWY_DYNAMIC_DISPATCH(MapMaxNan)(x.data(), y.data(), x.size());
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_EQ(y[2], 2.0f);
    EXPECT_EQ(y[3], kInf);
    EXPECT_TRUE(std::isnan(y[4]));
  });
}

}  // namespace
}  // namespace thresher::kernels

#endif  // HWY_ONCE
