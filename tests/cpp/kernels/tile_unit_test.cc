// The matrix unit: the plain form against sums in float64 and against its rules, and the instructions, where this
// machine has them, against the plain form.
#include "thresher/kernels/tile_unit.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "thresher/base/amx.h"

namespace thresher::kernels {
namespace {

// Tiles 0 (sums), 1 (rows) and 2 (columns) of a product of `rows` rows, `columns` columns and `steps` steps.
TileConfig ConfigFor(size_t rows, size_t columns, size_t steps) {
  TileConfig config;
  config.rows[0] = config.rows[1] = static_cast<uint8_t>(rows);
  config.rows[2] = static_cast<uint8_t>(steps);
  config.row_bytes[0] = config.row_bytes[2] = static_cast<uint16_t>(4 * columns);
  config.row_bytes[1] = static_cast<uint16_t>(4 * steps);
  return config;
}

struct Memory {
  alignas(64) uint8_t bytes[kUnitTileBytes] = {};
  template <class T>
  T& at(size_t row, size_t index) {
    return reinterpret_cast<T*>(bytes + row * kUnitRowBytes)[index];
  }
};

template <class Unit>
Memory Multiply(bool bf16, const TileConfig& config, const Memory& c, const Memory& a, const Memory& b) {
  Memory out = c;
  Unit::Configure(config);
  Unit::template Load<0>(c.bytes, kUnitRowBytes);
  Unit::template Load<1>(a.bytes, kUnitRowBytes);
  Unit::template Load<2>(b.bytes, kUnitRowBytes);
  if (bf16) {
    Unit::template DotBf16<0, 1, 2>();
  } else {
    Unit::template DotUint8Int8<0, 1, 2>();
  }
  Unit::template Store<0>(out.bytes, kUnitRowBytes);
  Unit::Release();
  return out;
}

struct Sizes {
  size_t rows, columns, steps;
};
constexpr Sizes kSizes[] = {{16, 16, 16}, {1, 16, 16}, {16, 1, 16}, {16, 16, 1}, {7, 5, 3}, {1, 1, 1}, {13, 16, 9}};

uint16_t Bf16(float x) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16); }
float FromBf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

void FillBf16(Memory& memory, std::mt19937& random) {
  std::uniform_real_distribution<float> numbers(-2, 2);
  for (size_t i = 0; i < kUnitTileBytes / 2; ++i) memory.at<uint16_t>(0, i) = Bf16(numbers(random));
}

TEST(TileUnitTest, PlainBf16ProductsAreThoseOfFloat64) {
  std::mt19937 random(1);
  for (const auto& [rows, columns, steps] : kSizes) {
    Memory a, b, c;
    FillBf16(a, random), FillBf16(b, random);
    for (size_t i = 0; i < kUnitTileBytes / 4; ++i) c.at<float>(0, i) = static_cast<float>(i) / 64;
    Memory out = Multiply<PlainUnit>(true, ConfigFor(rows, columns, steps), c, a, b);
    for (size_t i = 0; i < kUnitRows; ++i) {
      for (size_t j = 0; j < kUnitRows; ++j) {
        double sum = static_cast<double>(c.at<float>(i, j));
        // What is not configured is not touched.
        for (size_t k = 0; k < 2 * steps && i < rows && j < columns; ++k) {
          const float right = FromBf16(b.at<uint16_t>(k / 2, 2 * j + k % 2));
          sum += static_cast<double>(FromBf16(a.at<uint16_t>(i, k))) * static_cast<double>(right);
        }
        EXPECT_NEAR(static_cast<double>(out.at<float>(i, j)), sum, 2e-5) << i << " " << j;
      }
    }
  }
}

TEST(TileUnitTest, PlainIntegerProductsAreExact) {
  std::mt19937 random(2);
  for (const auto& [rows, columns, steps] : kSizes) {
    Memory a, b, c;
    for (size_t i = 0; i < kUnitTileBytes; ++i) {
      a.bytes[i] = static_cast<uint8_t>(random() % 3 == 0 ? 255 : random());
      b.bytes[i] = static_cast<uint8_t>(random() % 3 == 0 ? 0x80 : random());
    }
    for (size_t i = 0; i < kUnitTileBytes / 4; ++i) c.at<int32_t>(0, i) = static_cast<int32_t>(random());
    Memory out = Multiply<PlainUnit>(false, ConfigFor(rows, columns, steps), c, a, b);
    for (size_t i = 0; i < kUnitRows; ++i) {
      for (size_t j = 0; j < kUnitRows; ++j) {
        int64_t sum = c.at<int32_t>(i, j);
        for (size_t k = 0; k < 4 * steps && i < rows && j < columns; ++k) {
          sum += int64_t{a.at<uint8_t>(i, k)} * b.at<int8_t>(k / 4, 4 * j + k % 4);
        }
        EXPECT_EQ(out.at<int32_t>(i, j), static_cast<int32_t>(sum)) << i << " " << j;
      }
    }
  }
}

TEST(TileUnitTest, DenormalsCountAsZeroAndNanStaysNan) {
  const float denormal = std::numeric_limits<float>::denorm_min() * 0x700000;
  Memory a, b, c;
  a.at<uint16_t>(0, 0) = 0x0040;  // a denormal
  b.at<uint16_t>(0, 0) = Bf16(std::ldexp(1.0f, 120));
  c.at<float>(0, 0) = denormal;
  a.at<uint16_t>(1, 0) = Bf16(std::ldexp(1.0f, -100));  // its product with the column's is a number, not a denormal
  a.at<uint16_t>(2, 0) = Bf16(std::numeric_limits<float>::quiet_NaN());
  a.at<uint16_t>(3, 0) = Bf16(std::numeric_limits<float>::infinity());
  c.at<float>(3, 0) = -std::numeric_limits<float>::infinity();
  b.at<uint16_t>(0, 2) = Bf16(std::ldexp(1.0f, -30));  // with row 1 a denormal
  Memory out = Multiply<PlainUnit>(true, ConfigFor(4, 2, 1), c, a, b);
  EXPECT_EQ(out.at<uint32_t>(0, 0), 0u);
  EXPECT_EQ(out.at<float>(1, 0), std::ldexp(1.0f, 20));
  EXPECT_EQ(out.at<uint32_t>(1, 1), 0u);
  EXPECT_TRUE(std::isnan(out.at<float>(2, 0)));
  EXPECT_TRUE(std::isnan(out.at<float>(3, 0)));
}

TEST(TileUnitTest, AStrideOfZeroIsOneRowForAll) {
  Memory row, out;
  for (size_t i = 0; i < kUnitRows; ++i) row.at<float>(0, i) = static_cast<float>(i);
  PlainUnit::Configure(ConfigFor(5, 16, 16));
  PlainUnit::Load<0>(row.bytes, 0);
  PlainUnit::Store<0>(out.bytes, kUnitRowBytes);
  PlainUnit::Release();
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(out.at<float>(i, 7), i < 5 ? 7.0f : 0.0f);
}

TEST(TileUnitDeathTest, WhatIsAFaultOfTheInstructionsIsOneOfThePlainForm) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Memory memory;
  EXPECT_DEATH(PlainUnit::Zero<0>(), "not configured");
  const auto configured = [](const TileConfig& config, auto then) {
    PlainUnit::Configure(config);
    then();
  };
  const TileConfig good = ConfigFor(4, 4, 4);
  EXPECT_DEATH(configured(good, [&] { PlainUnit::Load<3>(memory.bytes, 64); }), "the tile is not configured");
  EXPECT_DEATH(configured(good, [] { PlainUnit::DotBf16<0, 1, 1>(); }), "three tiles");
  TileConfig rows = good, columns = good, steps = good, bytes = good, palette = good;
  rows.rows[1] = 5, columns.row_bytes[2] = 12, steps.rows[2] = 3, bytes.row_bytes[0] = 65, palette.palette = 0;
  EXPECT_DEATH(configured(rows, [] { PlainUnit::DotBf16<0, 1, 2>(); }), "differ in rows");
  EXPECT_DEATH(configured(columns, [] { PlainUnit::DotUint8Int8<0, 1, 2>(); }), "differ in bytes");
  EXPECT_DEATH(configured(steps, [] { PlainUnit::DotBf16<0, 1, 2>(); }), "for 4 bytes");
  EXPECT_DEATH(PlainUnit::Configure(bytes), "up to 64 bytes");
  EXPECT_DEATH(PlainUnit::Configure(palette), "palette 1");
  EXPECT_DEATH(configured(good,
                          [] {
                            PlainUnit::Release();
                            PlainUnit::Zero<0>();
                          }),
               "not configured");
}

#if defined(__x86_64__)

TEST(TileUnitTest, TheInstructionsGiveTheSameBits) {
  if (!DetectAmx().usable) GTEST_SKIP() << "no AMX here: " << DetectAmx().refusal;
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    for (const auto& [rows, columns, steps] : kSizes) {
      for (const bool bf16 : {true, false}) {
        Memory a, b, c;
        FillBf16(a, random), FillBf16(b, random);
        for (size_t i = 0; i < kUnitTileBytes / 4; ++i) c.at<float>(0, i) = static_cast<float>(random() % 1000) / 64;
        // Any bits at all: integers of the whole range; floats with denormals, infinities and NaN.
        if (!bf16 || round % 2 == 1) {
          for (size_t i = 0; i < kUnitTileBytes; ++i) {
            a.bytes[i] = static_cast<uint8_t>(random());
            b.bytes[i] = static_cast<uint8_t>(random());
            c.bytes[i] = static_cast<uint8_t>(random());
          }
        }
        const TileConfig config = ConfigFor(rows, columns, steps);
        Memory plain = Multiply<PlainUnit>(bf16, config, c, a, b);
        Memory found = Multiply<AmxUnit>(bf16, config, c, a, b);
        for (size_t i = 0; i < kUnitTileBytes / 4; ++i) {
          if (bf16 && std::isnan(plain.at<float>(0, i))) {
            EXPECT_TRUE(std::isnan(found.at<float>(0, i)));
          } else {
            ASSERT_EQ(found.at<uint32_t>(0, i), plain.at<uint32_t>(0, i))
                << (bf16 ? "bf16" : "int8") << " round " << round << " element " << i << ": " << found.at<float>(0, i)
                << " and " << plain.at<float>(0, i);
          }
        }
      }
    }
  }
}

#endif

}  // namespace
}  // namespace thresher::kernels
