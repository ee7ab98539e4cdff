// Products with weights in blocks: against float64 on the numbers that blocks and converted rows stand for.
#include "thresher/kernels/gemm_block.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block_testing.h"
#include "kernels/float_testing.h"
#include "kernels/product_testing.h"
#include "thresher/base/half.h"
#include "thresher/base/isa.h"
#include "thresher/kernels/block_format.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::Blocked;
using testing::ForEachIsaAndPlainTiles;
using testing::Multiply;
using testing::RandomBlocks;
using testing::RandomFloats;

struct Case {
  int64_t m, n, k;
  int num_parts = 1;
  bool epilogue = false;
};

void CheckProduct(Encoding encoding, const Case& c, std::vector<float>* result = nullptr) {
  SCOPED_TRACE(std::string(Name(encoding)) + " m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " k " +
               std::to_string(c.k) + " parts " + std::to_string(c.num_parts));
  const Precision precision = StoredPrecision(encoding);
  const std::vector<uint8_t> blocks = RandomBlocks(encoding, c.n * c.k, 1);
  std::vector<float> numbers(static_cast<size_t>(c.n * c.k));
  DecodeNumbers(encoding, blocks.data(), c.n * c.k, numbers.data());

  AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, c.k, c.n)) / sizeof(float) + 16);
  const Weight weight = DenseWeight(blocks.data(), c.k, c.n, true, encoding);
  for (int part = 0; part < c.num_parts; ++part) PackWeight(precision, weight, packed.data(), part, c.num_parts);
  std::vector<float> restored(numbers.size());
  UnpackWeight(precision, packed.data(), c.k, c.n, restored.data());
  for (int64_t i = 0; i < c.k; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      ASSERT_EQ(restored[static_cast<size_t>(i * c.n + j)], numbers[static_cast<size_t>(j * c.k + i)]) << i << ' ' << j;
    }
  }

  std::vector<float> x = RandomFloats(static_cast<size_t>(c.m * (c.k + 3)), 2);
  for (int64_t i = 0; i < 32; ++i) x[static_cast<size_t>(i)] = 0;
  std::vector<uint8_t> rows(static_cast<size_t>(c.m * RowBytes(RowForm::kBlocks, c.k)));
  ConvertRowsArgs convert;
  convert.form = RowForm::kBlocks;
  convert.m = c.m, convert.k = c.k;
  convert.x = x.data(), convert.ldx = c.k + 3;
  convert.rows = rows.data();
  for (int part = 0; part < c.num_parts; ++part) ConvertRows(convert, part, c.num_parts);
  std::vector<float> rounded(static_cast<size_t>(c.m * c.k));
  RestoreRows(convert, rounded.data());

  const std::vector<float> bias = RandomFloats(static_cast<size_t>(c.n), 3);
  const std::vector<float> residual = RandomFloats(static_cast<size_t>(c.m * c.n), 4);
  std::vector<float> out(static_cast<size_t>(c.m * c.n), 12345.0f);
  GemmDotArgs args;
  args.form = RowForm::kBlocks;
  args.precision = precision;
  args.m = c.m, args.n = c.n, args.k = c.k;
  args.rows = rows.data();
  args.packed_b = packed.data();
  args.c = out.data(), args.ldc = c.n;
  if (c.epilogue) {
    args.bias = bias.data();
    args.residual = residual.data(), args.ldr = c.n;
    args.activation = Activation::kRelu;
  }
  Multiply(args, c.num_parts);
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t k = 0; k < c.k; ++k) {
      const float original = x[static_cast<size_t>(i * (c.k + 3) + k)];
      float most = 0;
      for (int64_t g = k / 32 * 32; g < k / 32 * 32 + 32; ++g) {
        most = std::max(most, std::abs(x[static_cast<size_t>(i * (c.k + 3) + g)]));
      }
      ASSERT_NEAR(rounded[static_cast<size_t>(i * c.k + k)], original, 0.501f / 127 * most);
    }
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const double product = static_cast<double>(rounded[static_cast<size_t>(i * c.k + k)]) *
                               static_cast<double>(numbers[static_cast<size_t>(j * c.k + k)]);
        sum += product;
        magnitude += std::abs(product);
      }
      if (c.epilogue) {
        sum = std::max(sum + static_cast<double>(bias[static_cast<size_t>(j)]), 0.0) +
              static_cast<double>(residual[static_cast<size_t>(i * c.n + j)]);
        magnitude += 2;
      }
      // Formats with an offset subtract sums that are larger than what is left.
      ASSERT_NEAR(static_cast<double>(out[static_cast<size_t>(i * c.n + j)]), sum, 4e-6 * magnitude + 1e-6)
          << i << ' ' << j;
    }
  }
  if (result != nullptr) *result = out;
  if (!c.epilogue) return;
  std::vector<float> in_place = residual;
  args.residual = args.c = in_place.data();
  Multiply(args, c.num_parts);
  EXPECT_EQ(in_place, out) << "in the residual's place";
}

TEST(GemmBlock, AgreesWithFloat64) {
  ForEachIsaAndPlainTiles([] {
    const int64_t width = PackedColumns();
    for (const Encoding encoding : Blocked()) {
      for (int64_t m = 1; m <= 9; ++m) CheckProduct(encoding, {m, width + 3, 512});
      CheckProduct(encoding, {1, 1, 256});
      CheckProduct(encoding, {1, 9 * width, 256, 2});
      CheckProduct(encoding, {17, 2 * width, 768, 2, true});
      CheckProduct(encoding, {33, 3 * width - 1, 1280, 3, true});
      CheckProduct(encoding, {40, 5, 2560});
      if (BlockNumbers(encoding) == kGroupNumbers) {
        for (const int64_t k : {32, 96, 544}) CheckProduct(encoding, {20, 2 * width + 1, k, 2, true});
      }
    }
  });
}

// Few rows pass several panels side by side, many one after the other; parts begin and end anywhere among them.
TEST(GemmBlock, ARowHasTheSameBitsAloneAndAmongOthers) {
  ForEachIsaAndPlainTiles([] {
    for (const Encoding encoding : Blocked()) {
      for (const int64_t panels : {1, 6, 11}) {
        const int64_t n = panels * PackedColumns() - 5, k = 1280;
        std::vector<float> many;
        CheckProduct(encoding, {10, n, k, 1, true}, &many);
        for (int64_t m = 1; m <= 9; ++m) {
          std::vector<float> few;
          CheckProduct(encoding, {m, n, k, static_cast<int>(m % 4 + 1), true}, &few);
          ASSERT_EQ(std::memcmp(few.data(), many.data(), few.size() * sizeof(float)), 0)
              << Name(encoding) << " m " << m << " n " << n;
        }
      }
    }
  });
}

// Around the sizes of its tiles, and where so few rows are left that vectors multiply them.
TEST(GemmBlock, AMatrixUnitGivesTheBitsOfVectors) {
  for (const Encoding encoding : Blocked()) {
    for (const int64_t m : {8, 9, 15, 16, 17, 31, 32, 33, 70}) {
      const Case c{m, 67, 512, m % 2 == 0 ? 2 : 1, m % 3 == 0};
      std::vector<float> expected, found;
      if (!isa::ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmx";
      CheckProduct(encoding, c, &found);
      ASSERT_TRUE(isa::Force("avx512_bf16").ok());
      CheckProduct(encoding, c, &expected);
      ASSERT_EQ(found, expected) << Name(encoding) << " m " << m;
    }
  }
  ASSERT_TRUE(isa::Select().ok());
}

// The largest codes that there are: where sums of products would saturate.
TEST(GemmBlock, SumsAreExactAtTheirLimits) {
  ForEachIsaAndPlainTiles([] {
    constexpr int64_t kK = 256;
    for (const Encoding encoding : Blocked()) {
      for (const uint8_t code : {uint8_t{0x80}, uint8_t{0x7F}, uint8_t{0xFF}, uint8_t{0x00}}) {
        std::vector<uint8_t> blocks(static_cast<size_t>(EncodedBytes(encoding, kK)), code);
        for (int64_t b = 0; b < kK / BlockNumbers(encoding); ++b) {
          uint8_t* const at = blocks.data() + b * BlockBytes(encoding);
          const uint16_t one = ToF16(1.0f).bits;
          if (encoding == Encoding::kMxfp4) {
            at[0] = 128;
          } else {
            std::memcpy(at + (encoding == Encoding::kQ6K ? 208 : 0), &one, sizeof(one));
            const bool offset = encoding == Encoding::kQ4_1 || encoding == Encoding::kQ5_1 ||
                                encoding == Encoding::kQ4K || encoding == Encoding::kQ5K;
            if (offset) std::memcpy(at + 2, &one, sizeof(one));
          }
        }
        std::vector<float> numbers(kK);
        DecodeNumbers(encoding, blocks.data(), kK, numbers.data());
        const Precision precision = StoredPrecision(encoding);
        AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, kK, 1)) / sizeof(float) + 16);
        PackWeight(precision, DenseWeight(blocks.data(), kK, 1, true, encoding), packed.data());
        for (const float sign : {1.0f, -1.0f}) {
          const std::vector<float> x(kK, sign * 127.0f);
          std::vector<uint8_t> rows(static_cast<size_t>(RowBytes(RowForm::kBlocks, kK)));
          ConvertRowsArgs convert;
          convert.form = RowForm::kBlocks;
          convert.m = 1, convert.k = kK;
          convert.x = x.data(), convert.ldx = kK;
          convert.rows = rows.data();
          ConvertRows(convert);
          float out = 0;
          GemmDotArgs args;
          args.form = RowForm::kBlocks;
          args.precision = precision;
          args.m = 1, args.n = 1, args.k = kK;
          args.rows = rows.data();
          args.packed_b = packed.data();
          args.c = &out, args.ldc = 1;
          Multiply(args);
          double sum = 0;
          for (const float number : numbers) sum += static_cast<double>(number) * static_cast<double>(sign * 127.0f);
          EXPECT_NEAR(static_cast<double>(out), sum, 1e-5 * std::abs(sum) + 1e-3)
              << Name(encoding) << " code " << int{code} << " sign " << sign;
        }
      }
    }
  });
}

// Nor does one whose numbers are beyond what rows are converted from.
TEST(GemmBlock, ARowThatIsNotFiniteSpoilsNoOther) {
  ForEachIsaAndPlainTiles([] {
    constexpr int64_t kM = 30, kN = 8, kK = 64;
    const std::vector<uint8_t> blocks = RandomBlocks(Encoding::kQ4_1, kN * kK, 5);
    AlignedFloats packed(static_cast<size_t>(PackedBytes(StoredPrecision(Encoding::kQ4_1), kK, kN)) / sizeof(float) +
                         16);
    PackWeight(StoredPrecision(Encoding::kQ4_1), DenseWeight(blocks.data(), kK, kN, true, Encoding::kQ4_1),
               packed.data());
    for (const float odd :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 0x1p101f}) {
      std::vector<float> x = RandomFloats(kM * kK, 6);
      x[kK + 40] = odd;
      x[2 * kK] = -0x1p99f;
      std::vector<uint8_t> rows(static_cast<size_t>(kM * RowBytes(RowForm::kBlocks, kK)));
      ConvertRowsArgs convert;
      convert.form = RowForm::kBlocks;
      convert.m = kM, convert.k = kK;
      convert.x = x.data(), convert.ldx = kK;
      convert.rows = rows.data();
      ConvertRows(convert);
      std::vector<float> out(kM * kN);
      GemmDotArgs args;
      args.form = RowForm::kBlocks;
      args.precision = StoredPrecision(Encoding::kQ4_1);
      args.m = kM, args.n = kN, args.k = kK;
      args.rows = rows.data();
      args.packed_b = packed.data();
      args.c = out.data(), args.ldc = kN;
      Multiply(args);
      for (size_t j = 0; j < kN; ++j) {
        EXPECT_TRUE(std::isfinite(out[j]) && std::isfinite(out[2 * kN + j])) << odd;
        EXPECT_TRUE(std::isnan(out[kN + j])) << odd;
      }
    }
  });
}

// ---- rows of bf16 ----

uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

// The nearest number of bf16; of two that are as near the one with the larger magnitude.
float NearestBf16(float x) {
  const uint32_t bits = (BitsOf(x) + 0x8000u) & 0xFFFF0000u;
  float nearest;
  std::memcpy(&nearest, &bits, sizeof(nearest));
  return nearest;
}

// A product of random rows with blocks, of which rows from `wide_from` on may be multiplied as bf16.
struct WideProduct {
  WideProduct(Encoding stored, int64_t columns, int64_t depth)
      : encoding(stored),
        n(columns),
        k(depth),
        blocks(RandomBlocks(encoding, n * k, 11)),
        numbers(static_cast<size_t>(n * k)),
        packed(static_cast<size_t>(PackedBytes(StoredPrecision(encoding), k, n)) / sizeof(float) + 16) {
    DecodeNumbers(encoding, blocks.data(), n * k, numbers.data());
    PackWeight(StoredPrecision(encoding), DenseWeight(blocks.data(), k, n, true, encoding), packed.data());
  }

  // Rows `first` to `first` + m of `x`; what they are rounded to goes to `rounded`.
  std::vector<float> Run(const std::vector<float>& x, int64_t first, int64_t m, int64_t wide_from, int num_parts,
                         bool epilogue = false, std::vector<float>* rounded = nullptr) {
    std::vector<uint8_t> rows(static_cast<size_t>(m * RowBytes(RowForm::kBlocks, k)));
    ConvertRowsArgs convert;
    convert.form = RowForm::kBlocks;
    convert.m = m, convert.k = k;
    convert.x = x.data() + first * k, convert.ldx = k;
    convert.rows = rows.data();
    convert.wide_from = wide_from;
    for (int part = 0; part < num_parts; ++part) ConvertRows(convert, part, num_parts);
    if (rounded != nullptr) {
      rounded->resize(static_cast<size_t>(m * k));
      RestoreRows(convert, rounded->data());
    }
    const std::vector<float> bias = RandomFloats(static_cast<size_t>(n), 3);
    const std::vector<float> residual(static_cast<size_t>(m * n), 0.75f);
    std::vector<float> out(static_cast<size_t>(m * n), 12345.0f);
    GemmDotArgs args;
    args.form = RowForm::kBlocks;
    args.precision = StoredPrecision(encoding);
    args.m = m, args.n = n, args.k = k;
    args.rows = rows.data();
    args.packed_b = packed.data();
    args.c = out.data(), args.ldc = n;
    args.wide_from = wide_from;
    if (epilogue) {
      args.bias = bias.data();
      args.residual = residual.data(), args.ldr = n;
      args.activation = Activation::kRelu;
    }
    Multiply(args, num_parts);
    return out;
  }

  Encoding encoding;
  int64_t n, k;
  std::vector<uint8_t> blocks;
  std::vector<float> numbers;
  AlignedFloats packed;
};

// Against float64 on numbers rounded to bf16 alike. Formats with an offset add it to a product, so that a number may
// be rounded otherwise than one that was rounded to f32 before.
TEST(GemmBlock, WideRowsAgreeWithFloat64) {
  ForEachIsaAndPlainTiles([] {
    if (!WidensBlocks()) return;
    const int64_t width = PackedColumns();
    for (const Encoding encoding : Blocked()) {
      const bool offset = encoding == Encoding::kQ4_1 || encoding == Encoding::kQ5_1 || encoding == Encoding::kQ4K ||
                          encoding == Encoding::kQ5K;
      for (const auto& [m, n, k] : {std::array<int64_t, 3>{1, width + 3, 512},
                                    {9, 9 * width, 256},
                                    {33, 5, 1280},
                                    {70, 3 * width - 1, 2560},
                                    {130, 20 * width, 256}}) {
        SCOPED_TRACE(std::string(Name(encoding)) + " m " + std::to_string(m) + " n " + std::to_string(n) + " k " +
                     std::to_string(k));
        WideProduct product(encoding, n, k);
        const std::vector<float> x = RandomFloats(static_cast<size_t>(m * k), 2);
        const std::vector<float> bias = RandomFloats(static_cast<size_t>(n), 3);
        std::vector<float> rounded;
        const std::vector<float> out = product.Run(x, 0, m, 0, static_cast<int>(m % 3 + 1), true, &rounded);
        for (size_t i = 0; i < x.size(); ++i) ASSERT_LE(std::abs(x[i] - rounded[i]), std::abs(x[i]) / 256) << i;
        double squares = 0, bounds = 0;
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0, magnitude = 0;
            for (int64_t t = 0; t < k; ++t) {
              const double p = static_cast<double>(rounded[static_cast<size_t>(i * k + t)]) *
                               static_cast<double>(NearestBf16(product.numbers[static_cast<size_t>(j * k + t)]));
              sum += p;
              magnitude += std::abs(p);
            }
            sum = std::max(sum + static_cast<double>(bias[static_cast<size_t>(j)]), 0.0) + 0.75;
            const double bound = (offset ? 1.0 / 256 : 4e-6) * magnitude + 2e-6;
            const double error = static_cast<double>(out[static_cast<size_t>(i * n + j)]) - sum;
            ASSERT_LE(std::abs(error), bound) << i << ' ' << j;
            squares += error * error;
            bounds += bound * bound;
          }
        }
        // One number in hundreds, at most, is rounded otherwise.
        EXPECT_LE(squares, (offset ? 1e-5 : 1.0) * bounds);
      }
    }
  });
}

// Rows have the bits that they have alone, of either kind, wherever those of the other kind begin.
TEST(GemmBlock, WideRowsDoNotDependOnOthers) {
  ForEachIsaAndPlainTiles([] {
    for (const Encoding encoding : Blocked()) {
      const int64_t n = 19 * PackedColumns() - 5, k = 768, most = 150;
      WideProduct product(encoding, n, k);
      const std::vector<float> x = RandomFloats(static_cast<size_t>(most * k), 7);
      const std::vector<float> exact = product.Run(x, 0, most, kNoRow, 1), wide = product.Run(x, 0, most, 0, 1);
      ASSERT_EQ(exact != wide, WidensBlocks());
      for (const auto& [first, m, from] : {std::array<int64_t, 3>{3, 1, 0},
                                           {0, 2, 1},
                                           {5, 3, 2},
                                           {1, 12, 1},
                                           {7, 20, 9},
                                           {0, 64, 33},
                                           {0, most, 2},
                                           {0, most, most - 1},
                                           {4, 40, 99}}) {
        const std::vector<float> found = product.Run(x, first, m, from, static_cast<int>(m % 3 + 1));
        for (int64_t i = 0; i < m; ++i) {
          const std::vector<float>& expected = i < from ? exact : wide;
          ASSERT_EQ(std::memcmp(found.data() + i * n, expected.data() + (first + i) * n,
                                static_cast<size_t>(n) * sizeof(float)),
                    0)
              << Name(encoding) << " row " << i << " of " << m << ", wide from " << from;
        }
      }
    }
  });
}

// A scale that is none stays none, whatever its bits; what is not finite spoils its own row.
TEST(GemmBlock, WideRowsKeepWhatIsNotFinite) {
  ForEachIsaAndPlainTiles([] {
    constexpr int64_t kN = 40, kK = 64, kM = 20;
    WideProduct product(Encoding::kQ8_0, kN, kK);
    int64_t column = 0;
    for (const uint16_t bits : {uint16_t{0x7FFF}, uint16_t{0xFFFF}, uint16_t{0x7C01}, uint16_t{0x7C00}}) {
      std::memcpy(product.blocks.data() + column * EncodedBytes(Encoding::kQ8_0, kK), &bits, sizeof(bits));
      column += 9;
    }
    PackWeight(StoredPrecision(Encoding::kQ8_0), DenseWeight(product.blocks.data(), kK, kN, true, Encoding::kQ8_0),
               product.packed.data());
    std::vector<float> x = RandomFloats(static_cast<size_t>(kM * kK), 6);
    x[3 * kK + 5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> out = product.Run(x, 0, kM, 1, 1);
    for (int64_t i = 0; i < kM; ++i) {
      for (int64_t j = 0; j < kN; ++j) {
        const bool none = i == 3 || (j % 9 == 0 && j < 36);
        EXPECT_EQ(std::isfinite(out[static_cast<size_t>(i * kN + j)]), !none) << i << ' ' << j;
      }
    }
  });
}

}  // namespace
}  // namespace thresher::kernels
