// The matrix unit: the plain form against sums in float64 and against its rules, and the instructions, where this
// machine has them, against the plain form.
#include "thresher/kernels/tile_unit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "thresher/base/amx.h"
#include "thresher/base/half.h"

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

enum class Product { kBf16, kF16, kUint8Int8, kInt8Uint8 };

template <class Unit>
Memory Multiply(Product product, const TileConfig& config, const Memory& c, const Memory& a, const Memory& b) {
  Memory out = c;
  Unit::Configure(config);
  Unit::template Load<0>(c.bytes, kUnitRowBytes);
  Unit::template Load<1>(a.bytes, kUnitRowBytes);
  Unit::template LoadOnce<2>(b.bytes, kUnitRowBytes);
  switch (product) {
    case Product::kBf16:
      Unit::template DotBf16<0, 1, 2>();
      break;
    case Product::kF16:
      Unit::template DotF16<0, 1, 2>();
      break;
    case Product::kUint8Int8:
      Unit::template DotUint8Int8<0, 1, 2>();
      break;
    case Product::kInt8Uint8:
      Unit::template DotInt8Uint8<0, 1, 2>();
      break;
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

float Read(Product product, uint16_t bits) {
  return product == Product::kF16 ? ToFloat(F16{bits}) : ToFloat(BF16{bits});
}

void Fill(Product product, Memory& memory, std::mt19937& random) {
  std::uniform_real_distribution<float> numbers(-2, 2);
  for (size_t i = 0; i < kUnitTileBytes / 2; ++i) {
    const float x = numbers(random);
    memory.at<uint16_t>(0, i) = product == Product::kF16 ? ToF16(x).bits : Bf16(x);
  }
}

TEST(TileUnitTest, PlainProductsOfFloatsAreThoseOfFloat64) {
  std::mt19937 random(1);
  for (const Product product : {Product::kBf16, Product::kF16}) {
    for (const auto& [rows, columns, steps] : kSizes) {
      Memory a, b, c;
      Fill(product, a, random), Fill(product, b, random);
      for (size_t i = 0; i < kUnitTileBytes / 4; ++i) c.at<float>(0, i) = static_cast<float>(i) / 64;
      Memory out = Multiply<PlainUnit>(product, ConfigFor(rows, columns, steps), c, a, b);
      for (size_t i = 0; i < kUnitRows; ++i) {
        for (size_t j = 0; j < kUnitRows; ++j) {
          double sum = static_cast<double>(c.at<float>(i, j));
          // What is not configured is not touched.
          for (size_t k = 0; k < 2 * steps && i < rows && j < columns; ++k) {
            const float right = Read(product, b.at<uint16_t>(k / 2, 2 * j + k % 2));
            sum += static_cast<double>(Read(product, a.at<uint16_t>(i, k))) * static_cast<double>(right);
          }
          EXPECT_NEAR(static_cast<double>(out.at<float>(i, j)), sum, 2e-5) << i << " " << j;
        }
      }
    }
  }
}

TEST(TileUnitTest, PlainIntegerProductsAreExact) {
  std::mt19937 random(2);
  for (const Product product : {Product::kUint8Int8, Product::kInt8Uint8}) {
    for (const auto& [rows, columns, steps] : kSizes) {
      Memory a, b, c;
      for (size_t i = 0; i < kUnitTileBytes; ++i) {
        a.bytes[i] = static_cast<uint8_t>(random() % 3 == 0 ? 255 : random());
        b.bytes[i] = static_cast<uint8_t>(random() % 3 == 0 ? 0x80 : random());
      }
      for (size_t i = 0; i < kUnitTileBytes / 4; ++i) c.at<int32_t>(0, i) = static_cast<int32_t>(random());
      Memory out = Multiply<PlainUnit>(product, ConfigFor(rows, columns, steps), c, a, b);
      for (size_t i = 0; i < kUnitRows; ++i) {
        for (size_t j = 0; j < kUnitRows; ++j) {
          int64_t sum = c.at<int32_t>(i, j);
          for (size_t k = 0; k < 4 * steps && i < rows && j < columns; ++k) {
            const uint8_t left = a.at<uint8_t>(i, k), right = b.at<uint8_t>(k / 4, 4 * j + k % 4);
            sum += product == Product::kUint8Int8 ? int64_t{left} * static_cast<int8_t>(right)
                                                  : int64_t{static_cast<int8_t>(left)} * right;
          }
          EXPECT_EQ(out.at<int32_t>(i, j), static_cast<int32_t>(sum)) << i << " " << j;
        }
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
  Memory out = Multiply<PlainUnit>(Product::kBf16, ConfigFor(4, 2, 1), c, a, b);
  EXPECT_EQ(out.at<uint32_t>(0, 0), 0u);
  EXPECT_EQ(out.at<float>(1, 0), std::ldexp(1.0f, 20));
  EXPECT_EQ(out.at<uint32_t>(1, 1), 0u);
  EXPECT_TRUE(std::isnan(out.at<float>(2, 0)));
  EXPECT_TRUE(std::isnan(out.at<float>(3, 0)));
}

TEST(TileUnitTest, DenormalsOfFp16CountAsWhatTheyAre) {
  Memory a, b, c;
  a.at<uint16_t>(0, 0) = 0x0001;  // 2^-24
  a.at<uint16_t>(1, 0) = 0x7BFF;  // 65504
  b.at<uint16_t>(0, 0) = 0x0003;
  c.at<float>(2, 0) = std::numeric_limits<float>::denorm_min();
  Memory out = Multiply<PlainUnit>(Product::kF16, ConfigFor(3, 1, 1), c, a, b);
  EXPECT_EQ(out.at<float>(0, 0), std::ldexp(3.0f, -48));
  EXPECT_EQ(out.at<float>(1, 0), 65504.0f * std::ldexp(3.0f, -24));
  EXPECT_EQ(out.at<uint32_t>(2, 0), 0u);
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
  std::vector<Product> products = {Product::kBf16, Product::kUint8Int8, Product::kInt8Uint8};
  if (DetectAmx().fp16) products.push_back(Product::kF16);
  for (int round = 0; round < 50; ++round) {
    for (const auto& [rows, columns, steps] : kSizes) {
      for (const Product product : products) {
        const bool floats = product == Product::kBf16 || product == Product::kF16;
        Memory a, b, c;
        Fill(product, a, random), Fill(product, b, random);
        for (size_t i = 0; i < kUnitTileBytes / 4; ++i) c.at<float>(0, i) = static_cast<float>(random() % 1000) / 64;
        // Any bits at all: integers of the whole range; floats with denormals, infinities and NaN.
        if (!floats || round % 2 == 1) {
          for (size_t i = 0; i < kUnitTileBytes; ++i) {
            a.bytes[i] = static_cast<uint8_t>(random());
            b.bytes[i] = static_cast<uint8_t>(random());
            c.bytes[i] = static_cast<uint8_t>(random());
          }
        }
        const TileConfig config = ConfigFor(rows, columns, steps);
        Memory plain = Multiply<PlainUnit>(product, config, c, a, b);
        Memory found = Multiply<AmxUnit>(product, config, c, a, b);
        for (size_t i = 0; i < kUnitTileBytes / 4; ++i) {
          if (floats && std::isnan(plain.at<float>(0, i))) {
            EXPECT_TRUE(std::isnan(found.at<float>(0, i)));
          } else {
            ASSERT_EQ(found.at<uint32_t>(0, i), plain.at<uint32_t>(0, i))
                << "product " << static_cast<int>(product) << " round " << round << " element " << i << ": "
                << found.at<float>(0, i) << " and " << plain.at<float>(0, i);
          }
        }
      }
    }
  }
}

// An assembler knows the name of the one that is written as bytes: c4 e2 4b 5c cc.
TEST(TileUnitTest, TheInstructionWithoutANameIsEncodedRightly) {
  const auto* code = reinterpret_cast<const uint8_t*>(&AmxUnit::DotF16<1, 4, 6>);
  const uint8_t expected[] = {0xC4, 0xE2, 0x4B, 0x5C, 0xCC};
  EXPECT_NE(std::search(code, code + 32, std::begin(expected), std::end(expected)), code + 32);
}

#endif

}  // namespace
}  // namespace thresher::kernels
