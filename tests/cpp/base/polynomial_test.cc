#include "thresher/base/polynomial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace thresher {
namespace {

PolynomialFitter MakeFitter() {
  std::vector<Dims> samples;
  for (const int64_t b : {2, 17, 31}) {
    for (const int64_t s : {3, 257, 509}) samples.push_back({b, s});
  }
  samples.push_back({5, 100});
  samples.push_back({30, 8});
  return PolynomialFitter::Make(Monomials(2, 2, 3), std::move(samples)).value();
}

std::vector<int64_t> Values(const std::function<int64_t(int64_t, int64_t)>& f) {
  std::vector<int64_t> values;
  for (const int64_t b : {2, 17, 31}) {
    for (const int64_t s : {3, 257, 509}) values.push_back(f(b, s));
  }
  values.push_back(f(5, 100));
  values.push_back(f(30, 8));
  return values;
}

TEST(Polynomial, IsFoundByItsValues) {
  const PolynomialFitter fitter = MakeFitter();
  const auto f = [](int64_t b, int64_t s) {
    return 123456789 * b * s * s - 98765 * b * b * s + 12 * s * s - 7 * b + 3;
  };
  const std::optional<Polynomial> found = fitter.Fit(Values(f));
  ASSERT_TRUE(found.has_value());
  std::vector<int64_t> monomials(fitter.monomials().count());
  for (const int64_t b : {1, 4, 32}) {
    for (const int64_t s : {1, 77, 512}) {
      fitter.monomials().At(Dims{b, s}, monomials.data());
      EXPECT_EQ(found->At(monomials.data()), f(b, s));
    }
  }
}

TEST(Polynomial, RefusesWhatIsNone) {
  const PolynomialFitter fitter = MakeFitter();
  EXPECT_FALSE(fitter.Fit(Values([](int64_t b, int64_t s) { return (b * s + 7) / 8; })).has_value());
  EXPECT_FALSE(fitter.Fit(Values([](int64_t, int64_t s) { return std::min<int64_t>(s, 300); })).has_value());
  EXPECT_FALSE(fitter.Fit(Values([](int64_t b, int64_t s) { return b * b * s * s; })).has_value());
  EXPECT_FALSE(fitter.Fit(Values([](int64_t, int64_t s) { return s * (s + 1) / 2; })).has_value());
  EXPECT_FALSE(fitter.Fit(Values([](int64_t b, int64_t s) { return b * s + (b == 5); })).has_value());
}

TEST(Polynomial, WantsSamplesThatTellMonomialsApart) {
  EXPECT_FALSE(PolynomialFitter::Make(Monomials(1, 2, 3), {{2}, {3}}).ok());
  EXPECT_FALSE(PolynomialFitter::Make(Monomials(2, 1, 3), {{2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6}}).ok());
  EXPECT_TRUE(PolynomialFitter::Make(Monomials(2, 1, 3), {{2, 2}, {3, 2}, {2, 3}, {3, 3}}).ok());
}

TEST(Polynomial, OverflowIsSeen) {
  const Monomials monomials(2, 2, 3);
  const Polynomial small{{{0, 5}}};
  EXPECT_TRUE(small.Fits(monomials, Dims{1 << 20, 1 << 19}));
  EXPECT_FALSE(small.Fits(monomials, Dims{1 << 21, 1 << 21}));
  EXPECT_FALSE((Polynomial{{{1, int64_t{1} << 50}}}.Fits(monomials, Dims{1 << 12, 2})));
}

}  // namespace
}  // namespace thresher
