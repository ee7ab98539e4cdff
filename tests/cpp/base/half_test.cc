#include "thresher/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace thresher {
namespace {

// The numbers of a 16-bit format by its definition: fraction bits, bias of the exponent.
double Defined(uint16_t bits, int fraction_bits, int bias) {
  const int exponent_bits = 15 - fraction_bits;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

template <class Half>
void EveryNumberIsItsDefinition(int fraction_bits, int bias) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    const double want = Defined(half.bits, fraction_bits, bias);
    const float got = ToFloat(half);
    ASSERT_EQ(std::signbit(got), (bits & 0x8000) != 0) << bits;
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(got, want) << bits;
    }
  }
}

TEST(Half, EveryNumberIsItsDefinition) {
  EveryNumberIsItsDefinition<BF16>(7, 127);
  EveryNumberIsItsDefinition<F16>(10, 15);
}

// What lies between two neighbours goes to the nearer, and from the middle to the even one.
template <class Half, class Encode>
void RoundsToTheNearest(Encode encode, uint16_t infinity) {
  for (uint16_t bits = 0; bits < infinity; ++bits) {
    const float low = ToFloat(Half{bits});
    const double high = bits + 1 == infinity ? 2.0 * low - ToFloat(Half{static_cast<uint16_t>(bits - 1)})
                                             : ToFloat(Half{static_cast<uint16_t>(bits + 1)});
    const double middle = (low + high) / 2;
    for (const float sign : {1.0f, -1.0f}) {
      const auto rounded = [&](double x) {
        return static_cast<uint16_t>(encode(sign * static_cast<float>(x)).bits & 0x7fff);
      };
      ASSERT_EQ(rounded(low), bits);
      if (static_cast<double>(static_cast<float>(middle)) != middle) continue;  // below what f32 can tell apart
      ASSERT_EQ(rounded(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
      ASSERT_EQ(rounded(std::nextafter(static_cast<float>(middle), 0.0f)), bits) << bits;
      const float above = std::nextafter(static_cast<float>(middle), std::numeric_limits<float>::infinity());
      ASSERT_EQ(rounded(above), bits + 1) << bits;
      ASSERT_EQ(encode(sign * low).bits >> 15, sign < 0 ? 1 : 0);
    }
  }
}

TEST(Half, RoundsToTheNearest) {
  RoundsToTheNearest<BF16>([](float x) { return ToBF16(x); }, 0x7f80);
  RoundsToTheNearest<F16>([](float x) { return ToF16(x); }, 0x7c00);
}

TEST(Half, CornersSurvive) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToBF16(kInf).bits, 0x7f80);
  EXPECT_EQ(ToBF16(-kInf).bits, 0xff80);
  EXPECT_EQ(ToBF16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(ToF16(kInf).bits, 0x7c00);
  EXPECT_EQ(ToF16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(ToF16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(ToF16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ToF16(-0.0f).bits, 0x8000);
  EXPECT_EQ(ToF16(1e-9f).bits, 0);
  // A NaN whose set bits are all among those cut off must not become an infinity.
  const float nan = std::bit_cast<float>(0xff800001u);
  EXPECT_TRUE(std::isnan(ToFloat(ToBF16(nan))));
  EXPECT_TRUE(std::isnan(ToFloat(ToF16(nan))));
  EXPECT_EQ(Rounded(1.00390625f, DType::kBF16), 1.0f);
  EXPECT_EQ(Rounded(1.00390625f, DType::kF16), 1.00390625f);
  EXPECT_EQ(Rounded(1.00390625f, DType::kF32), 1.00390625f);
}

}  // namespace
}  // namespace thresher
