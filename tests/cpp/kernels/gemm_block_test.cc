// Products with weights in blocks: against float64 on the numbers that blocks and converted rows stand for.
#include "thresher/kernels/gemm_block.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "kernels/product_testing.h"
#include "thresher/base/half.h"
#include "thresher/base/isa.h"
#include "thresher/kernels/block_format.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::ForEachIsaAndPlainTiles;
using testing::Multiply;
using testing::RandomFloats;

std::vector<Encoding> Blocked() {
  std::vector<Encoding> all;
  for (int i = 0; i < kNumEncodings; ++i) {
    if (IsBlocked(static_cast<Encoding>(i))) all.push_back(static_cast<Encoding>(i));
  }
  return all;
}

// Rows of blocks with any codes and factors, and scales of both signs.
std::vector<uint8_t> RandomBlocks(Encoding encoding, int64_t numbers, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> blocks(static_cast<size_t>(EncodedBytes(encoding, numbers)));
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
  for (int64_t block = 0; block < numbers / BlockNumbers(encoding); ++block) {
    uint8_t* const at = blocks.data() + block * BlockBytes(encoding);
    const auto half = [&](int64_t place) {
      const uint16_t bits = ToF16(static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 1e-4f).bits;
      std::memcpy(at + place, &bits, sizeof(bits));
    };
    if (encoding == Encoding::kMxfp4) {
      at[0] = static_cast<uint8_t>(block == 0 ? 0 : block == 1 ? 1 : 115 + random() % 20);
    } else if (encoding == Encoding::kQ6K) {
      half(208);
    } else {
      half(0);
      half(2);  // of formats without an offset these are codes
    }
  }
  return blocks;
}

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

}  // namespace
}  // namespace thresher::kernels
