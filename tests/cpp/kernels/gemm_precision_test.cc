// Products with weights in every precision: against float64 on the numbers that the packed weights and the converted
// rows stand for, which leaves only the roundings of the sums, and the packed numbers against the original ones.
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

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
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::ExpectClose;
using testing::ForEachIsaAndPlainTiles;
using testing::Multiply;
using testing::RandomFloats;

constexpr Precision kAll[] = {Precision::kFp32, Precision::kBf16,       Precision::kFp16,
                              Precision::kInt8, Precision::kInt8Weight, Precision::kInt4Weight};

struct Case {
  int64_t m, n, k;
  bool bias = false;
  enum { kNoResidual, kResidual, kInPlace } residual = kNoResidual;
  Activation activation = Activation::kNone;
  bool transposed = true;
  int64_t extra = 0;
  int num_parts = 1;
  Blocking blocking = {};
};

constexpr float kUntouched = 12345.0f;

std::string ToString(const Case& c) {
  return "m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " k " + std::to_string(c.k) + " bias " +
         std::to_string(c.bias) + " residual " + std::to_string(c.residual) + " act " +
         std::string(Name(c.activation)) + " transposed " + std::to_string(c.transposed) + " extra " +
         std::to_string(c.extra) + " parts " + std::to_string(c.num_parts) + " " + testing::ToString(c.blocking);
}

struct Rows {
  Rows(RowForm form, int64_t m, int64_t k, const float* x, int64_t ldx, int num_parts = 1)
      : bytes(static_cast<size_t>(m * RowBytes(form, k) + 64)),
        scale(static_cast<size_t>(m)),
        zero(static_cast<size_t>(m)) {
    args.form = form;
    args.m = m, args.k = k;
    args.x = x, args.ldx = ldx;
    args.rows = bytes.data();
    args.scale = scale.data();
    args.zero = zero.data();
    for (int part = 0; part < num_parts; ++part) ConvertRows(args, part, num_parts);
  }

  // Their product with a packed weight, without an epilogue.
  GemmDotArgs Times(const void* packed_b, int64_t n, float* c, int64_t ldc) const {
    GemmDotArgs product;
    product.form = args.form;
    product.m = args.m, product.n = n, product.k = args.k;
    product.rows = bytes.data();
    product.scale = scale.data();
    product.zero = zero.data();
    product.packed_b = packed_b;
    product.c = c, product.ldc = ldc;
    return product;
  }

  std::vector<uint8_t> bytes;
  std::vector<float> scale;
  std::vector<int32_t> zero;
  ConvertRowsArgs args;
};

// Checks one product with the current instruction set; `form` says in what form the rows are multiplied.
void CheckProduct(const Case& c, Precision precision, RowForm form) {
  SCOPED_TRACE(ToString(c) + " " + std::string(Name(precision)) + " form " + std::to_string(static_cast<int>(form)));
  const int64_t lda = c.k + c.extra;
  const int64_t ldc = c.n + c.extra;
  const int64_t ldb = (c.transposed ? c.k : c.n) + c.extra;
  const int64_t stride_k = c.transposed ? 1 : ldb;
  const int64_t stride_n = c.transposed ? ldb : 1;
  const std::vector<float> a = RandomFloats(static_cast<size_t>(c.m * lda + 1), 1);
  const std::vector<float> b = RandomFloats(static_cast<size_t>((c.transposed ? c.n : c.k) * ldb + 1), 2);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(c.n + 1), 3);
  const std::vector<float> residual = RandomFloats(static_cast<size_t>(c.m * ldc + 1), 4);

  AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, c.k, c.n)) / sizeof(float) + 16);
  for (int part = 0; part < c.num_parts; ++part) {
    const Weight weight{b.data() + 1, Encoding::kF32, c.k, c.n, stride_k, stride_n};
    PackWeight(precision, weight, packed.data(), part, c.num_parts);
  }
  std::vector<float> restored_b(static_cast<size_t>(c.k * c.n));
  UnpackWeight(precision, packed.data(), c.k, c.n, restored_b.data());

  GemmArgs args;
  args.m = c.m, args.n = c.n, args.k = c.k;
  args.a = a.data() + 1, args.lda = lda;
  args.precision = precision;
  args.packed_b = packed.data();
  args.bias = c.bias ? bias.data() + 1 : nullptr;
  args.ldc = ldc, args.ldr = ldc;
  args.activation = c.activation;
  args.blocking = c.blocking;

  const std::vector<float> initial =
      c.residual == Case::kInPlace ? residual : std::vector<float>(static_cast<size_t>(c.m * ldc + 1), kUntouched);
  std::vector<float> expected = initial;
  std::vector<float> actual = initial;
  const auto residual_for = [&](std::vector<float>& out) -> const float* {
    return c.residual == Case::kNoResidual ? nullptr
           : c.residual == Case::kInPlace  ? out.data() + 1
                                           : residual.data() + 1;
  };
  std::vector<float> restored_a(static_cast<size_t>(c.m * c.k));

  if (form == RowForm::kF32) {
    GemmArgs own = args;
    own.c = actual.data() + 1;
    own.residual = residual_for(actual);
    Multiply(own, c.num_parts);
  } else {
    const Rows rows(form, c.m, c.k, a.data() + 1, lda, c.num_parts);
    RestoreRows(rows.args, restored_a.data());
    GemmDotArgs own = rows.Times(packed.data(), c.n, actual.data() + 1, ldc);
    own.bias = args.bias;
    own.residual = residual_for(actual);
    own.ldr = ldc;
    own.activation = c.activation;
    own.blocking = c.blocking;
    Multiply(own, c.num_parts);
    args.a = restored_a.data();
    args.lda = c.k;
  }
  args.c = expected.data() + 1;
  args.residual = residual_for(expected);
  GemmReference(args, restored_b.data(), c.n, 1);
  ExpectClose(actual, expected, 2e-6f + 2e-7f * static_cast<float>(c.k), 1e-6f);
}

void Check(const Case& c) {
  ForEachIsaAndPlainTiles([&] {
    for (const Precision precision : kAll) {
      if (precision == Precision::kInt8) {
        CheckProduct(c, precision, RowForm::kInt8);
      } else {
        CheckProduct(c, precision, RowForm::kF32);
        // The same code runs with and without an instruction for it.
        if (precision == Precision::kBf16) CheckProduct(c, precision, RowForm::kBF16);
        if (precision == Precision::kFp16 && isa::HasF16Tiles()) CheckProduct(c, precision, RowForm::kF16);
        if (precision == Precision::kInt4Weight) CheckProduct(c, precision, RowForm::kInt16);
      }
    }
  });
}

// Rows that a product stores for the next one have the bits that converting its results would give; gelu is computed
// with the digits that are kept.
TEST(GemmPrecisionTest, StoredRowsAreThoseOfConvertedResults) {
  constexpr int64_t kDepth = 75;
  constexpr int kParts = 3;
  const auto check = [](Precision precision, RowForm form, int64_t m, int64_t n, Activation activation) {
    SCOPED_TRACE(ToString({.m = m, .n = n, .k = kDepth, .activation = activation}));
    const std::vector<float> a = RandomFloats(static_cast<size_t>(m * kDepth), 1, -2.0f, 2.0f);
    const std::vector<float> b = RandomFloats(static_cast<size_t>(n * kDepth), 2);
    const std::vector<float> bias = RandomFloats(static_cast<size_t>(n), 3);
    AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, kDepth, n)) / sizeof(float) + 16);
    PackWeight(precision, DenseWeight(b.data(), kDepth, n, true), packed.data());
    const Rows rows(form, m, kDepth, a.data(), kDepth);
    std::vector<float> results(static_cast<size_t>(m * n));
    GemmDotArgs product = rows.Times(packed.data(), n, results.data(), n);
    product.bias = bias.data();
    product.activation = activation;
    Multiply(product, kParts);
    const Rows wanted(RowForm::kBF16, m, n, results.data(), n);
    const int64_t stride = RowBytes(RowForm::kBF16, n);
    AlignedFloats stored(static_cast<size_t>(m * stride) / sizeof(float));
    product.c = stored.data(), product.ldc = stride / static_cast<int64_t>(sizeof(float));
    product.stores_bf16 = true;
    Multiply(product, kParts);
    for (int64_t i = 0; i < m; ++i) {
      const auto* const found = reinterpret_cast<const uint8_t*>(stored.data()) + i * stride;
      if (activation == Activation::kGelu) {
        for (int64_t j = 0; j < n; ++j) {
          uint16_t bits;
          std::memcpy(&bits, found + j * 2, sizeof(bits));
          const float number = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
          const float result = results[static_cast<size_t>(i * n + j)];
          EXPECT_NEAR(number, result, std::abs(result) / 256 + 5e-5f) << "row " << i;
        }
      } else {
        EXPECT_EQ(std::memcmp(found, wanted.bytes.data() + i * stride, static_cast<size_t>(n) * sizeof(uint16_t)), 0)
            << "row " << i;
      }
    }
  };
  ForEachIsaAndPlainTiles([&] {
    if (!StoresRows(RowForm::kBF16)) return;
    for (const Activation activation : {Activation::kNone, Activation::kGelu, Activation::kSigmoid}) {
      for (const int64_t m : {1, 16, 31, 70}) {
        check(Precision::kBf16, RowForm::kBF16, m, 96, activation);
        check(Precision::kInt8, RowForm::kInt8, m, 32, activation);
      }
    }
  });
}

// A residual that is bf16 counts as the floats that it stands for, whether the result is stored so or not; behind the
// columns of a stored result there are zeros, as behind converted ones, or the next row.
TEST(GemmPrecisionTest, ResidualsAndResultsOfBf16) {
  constexpr int64_t kDepth = 64;
  const auto check_one = [](Precision precision, int64_t m, int64_t n, Activation activation, bool first,
                            bool residual_bf16) {
    SCOPED_TRACE(ToString({.m = m, .n = n, .k = kDepth, .activation = activation}) + " " +
                 std::string(Name(precision)));
    const std::vector<float> a = RandomFloats(static_cast<size_t>(m * kDepth), 1, -2.0f, 2.0f);
    const std::vector<float> b = RandomFloats(static_cast<size_t>(n * kDepth), 2);
    const std::vector<float> bias = RandomFloats(static_cast<size_t>(n), 3);
    std::vector<float> residual = RandomFloats(static_cast<size_t>(m * n), 4, -3.0f, 3.0f);
    AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, kDepth, n)) / sizeof(float) + 16);
    PackWeight(precision, DenseWeight(b.data(), kDepth, n, true), packed.data());
    const Rows rows(precision == Precision::kInt8 ? RowForm::kInt8 : RowForm::kBF16, m, kDepth, a.data(), kDepth);
    const Rows added(RowForm::kBF16, m, n, residual.data(), n);
    const int64_t stride = RowBytes(RowForm::kBF16, n), pairs = stride / static_cast<int64_t>(sizeof(float));
    if (residual_bf16) {
      for (int64_t i = 0; i < m * n; ++i) {
        uint16_t bits;
        std::memcpy(&bits, added.bytes.data() + i / n * stride + i % n * 2, sizeof(bits));
        residual[static_cast<size_t>(i)] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
      }
    }
    std::vector<float> results(static_cast<size_t>(m * n)), others = results;
    GemmDotArgs product = rows.Times(packed.data(), n, results.data(), n);
    product.bias = bias.data();
    product.activation = activation;
    product.residual = residual.data(), product.ldr = n;
    product.residual_first = first;
    Multiply(product, 2);
    const Rows wanted(RowForm::kBF16, m, n, results.data(), n);
    if (residual_bf16) {
      product.residual = reinterpret_cast<const float*>(added.bytes.data()), product.ldr = pairs;
      product.residual_bf16 = true;
      product.c = others.data();
      Multiply(product, 2);
      EXPECT_EQ(others, results);
    }
    AlignedFloats stored(static_cast<size_t>(m * stride) / sizeof(float));
    product.c = stored.data(), product.ldc = pairs;
    product.stores_bf16 = true;
    Multiply(product, 2);
    // Zeros behind the columns where there is room for whole vectors.
    const auto bytes = static_cast<size_t>(stride % 64 == 0 ? (n + 31) / 32 * 64 : 2 * n);
    for (int64_t i = 0; i < m; ++i) {
      const auto* const row = reinterpret_cast<const uint8_t*>(stored.data()) + i * stride;
      EXPECT_EQ(std::memcmp(row, wanted.bytes.data() + i * stride, bytes), 0) << "row " << i;
    }
    if (n % 2 != 0) return;
    constexpr float kBehind = 7.0f;
    AlignedFloats dense(static_cast<size_t>(m * n / 2 + 16));
    std::fill_n(dense.data() + m * n / 2, 16, kBehind);
    product.c = dense.data(), product.ldc = n / 2;
    Multiply(product, 2);
    for (int64_t i = 0; i < m; ++i) {
      const auto* const row = reinterpret_cast<const uint16_t*>(dense.data()) + i * n;
      EXPECT_EQ(std::memcmp(row, wanted.bytes.data() + i * stride, static_cast<size_t>(n) * 2), 0) << "row " << i;
    }
    EXPECT_EQ(std::count(dense.data() + m * n / 2, dense.data() + m * n / 2 + 16, kBehind), 16);
    if (!residual_bf16) return;
    AlignedFloats in_place(static_cast<size_t>(m * n / 2 + 16));
    for (int64_t i = 0; i < m; ++i) {
      std::memcpy(in_place.data() + i * n / 2, added.bytes.data() + i * stride, static_cast<size_t>(n) * 2);
    }
    product.residual = product.c = in_place.data(), product.ldr = n / 2;
    Multiply(product, 2);
    EXPECT_EQ(std::memcmp(in_place.data(), dense.data(), static_cast<size_t>(m * n) * 2), 0) << "in place";
  };
  const auto check = [&](int64_t m, int64_t n, Activation activation, bool first, bool residual_bf16) {
    for (const Precision precision : {Precision::kBf16, Precision::kInt8}) {
      check_one(precision, m, n, activation, first, residual_bf16);
    }
  };
  ForEachIsaAndPlainTiles([&] {
    if (!StoresRows(RowForm::kBF16)) return;
    for (const bool first : {false, true}) {
      for (const bool bf16 : {false, true}) {
        for (const int64_t n : {32, 24, 17, 80}) check(37, n, Activation::kRelu, first, bf16);
        check(16, 64, Activation::kSigmoid, first, bf16);
        for (const int64_t n : {7, 24}) check(5, n, Activation::kSigmoid, first, bf16);
        check(3, 40, Activation::kRelu, first, bf16);
      }
    }
  });
}

// Rows without gaps give what converted ones do, also where the next one begins with what is not finite.
TEST(GemmPrecisionTest, RowsOfBf16AsTheyLie) {
  ForEachIsaAndPlainTiles([&] {
    if (!StoresRows(RowForm::kBF16)) return;
    for (const int64_t k : {2, 30, 32, 34, 64, 96, 144, 512}) {
      for (const int64_t m : {1, 15, 16, 33, 70}) {
        SCOPED_TRACE(std::to_string(m) + " rows of " + std::to_string(k));
        constexpr int64_t n = 40;
        ASSERT_TRUE(SuitsAsRows(k, n));
        std::vector<float> a = RandomFloats(static_cast<size_t>(m * k), 1, -2.0f, 2.0f);
        for (int64_t i = 8; i < m; i += 16) a[static_cast<size_t>(i * k)] = std::numeric_limits<float>::infinity();
        const std::vector<float> b = RandomFloats(static_cast<size_t>(n * k), 2);
        AlignedFloats packed(static_cast<size_t>(PackedBytes(Precision::kBf16, k, n)) / sizeof(float) + 16);
        PackWeight(Precision::kBf16, DenseWeight(b.data(), k, n, true), packed.data());
        const Rows rows(RowForm::kBF16, m, k, a.data(), k);
        std::vector<float> wanted(static_cast<size_t>(m * n)), found = wanted;
        GemmDotArgs product = rows.Times(packed.data(), n, wanted.data(), n);
        Multiply(product, 2);
        std::vector<uint16_t> dense(static_cast<size_t>(m * k));
        const int64_t stride = RowBytes(RowForm::kBF16, k);
        for (int64_t i = 0; i < m; ++i) {
          std::memcpy(dense.data() + i * k, rows.bytes.data() + i * stride, static_cast<size_t>(k) * sizeof(uint16_t));
        }
        product.rows = dense.data(), product.row_bytes = k * static_cast<int64_t>(sizeof(uint16_t));
        product.c = found.data();
        Multiply(product, 2);
        for (int64_t i = 0; i < m; ++i) {
          const size_t at = static_cast<size_t>(i * n);
          if (i % 16 == 8) {
            EXPECT_FALSE(std::isfinite(found[at])) << "row " << i;
          } else {
            EXPECT_EQ(std::memcmp(&found[at], &wanted[at], n * sizeof(float)), 0) << "row " << i;
          }
        }
      }
    }
    EXPECT_FALSE(SuitsAsRows(33, 8));
    EXPECT_FALSE(SuitsAsRows(34, 256));
    EXPECT_FALSE(SuitsAsRows(1024, 8));
  });
}

// Rows of bf16 are quantised as the floats that they stand for are, also where they hold what is not finite.
TEST(GemmPrecisionTest, CodesOfBf16) {
  constexpr int64_t kRows = 13;
  ForEachIsaAndPlainTiles([&] {
    for (const int64_t k : {1, 7, 31, 32, 33, 64, 75, 100}) {
      SCOPED_TRACE(k);
      const int64_t ldx = k + 6;
      std::vector<float> x = RandomFloats(static_cast<size_t>(kRows * ldx), 1, -2.0f, 1.0f);
      const auto row = [&](int64_t i) { return x.begin() + static_cast<std::ptrdiff_t>(i * ldx); };
      std::fill_n(row(1), k, 0.0f);
      std::fill_n(row(2), k, 3.0f);
      std::fill_n(row(3), k, -0.0f);
      *row(5) = std::numeric_limits<float>::infinity();
      *(row(6) + k - 1) = -std::numeric_limits<float>::infinity();
      *(row(7) + k / 2) = std::numeric_limits<float>::quiet_NaN();
      *(row(8) + k / 2) = -std::numeric_limits<float>::quiet_NaN();
      std::fill_n(row(9), k, 1e-39f);
      *row(10) = std::numeric_limits<float>::max();
      const std::vector<uint16_t> bits = testing::CutToBf16(x);
      const Rows wanted(RowForm::kInt8, kRows, k, x.data(), ldx);
      Rows found = wanted;
      found.args.x = reinterpret_cast<const float*>(bits.data());
      found.args.x_bf16 = true;
      found.args.rows = found.bytes.data(), found.args.scale = found.scale.data(), found.args.zero = found.zero.data();
      std::fill(found.bytes.begin(), found.bytes.end(), uint8_t{1});
      std::fill(found.scale.begin(), found.scale.end(), -1.0f);
      for (int part = 0; part < 2; ++part) ConvertRows(found.args, part, 2);
      EXPECT_TRUE(std::equal(wanted.bytes.begin(), wanted.bytes.end() - 64, found.bytes.begin()));
      EXPECT_EQ(found.zero, wanted.zero);
      EXPECT_EQ(std::memcmp(found.scale.data(), wanted.scale.data(), kRows * sizeof(float)), 0);
      for (const size_t i : {5, 6, 7, 8}) EXPECT_TRUE(std::isnan(found.scale[i])) << i;
    }
  });
}

TEST(GemmPrecisionTest, EveryRowRemainder) {
  for (int64_t m = 1; m <= 31; ++m) Check({.m = m, .n = 37, .k = 19});
}

TEST(GemmPrecisionTest, EveryColumnRemainder) {
  for (int64_t n = 1; n <= 66; ++n) Check({.m = 5, .n = n, .k = 21, .bias = true, .residual = Case::kResidual});
}

TEST(GemmPrecisionTest, EveryDepthRemainder) {
  for (int64_t k = 0; k <= 70; ++k) {
    for (const int64_t m : {1, 2, 3, 9}) Check({.m = m, .n = 33, .k = k, .bias = true});
  }
}

TEST(GemmPrecisionTest, DepthBlocks) {
  for (const int64_t k : {383, 384, 385, 1157, 2000}) {
    for (const auto residual : {Case::kNoResidual, Case::kInPlace}) {
      Check({.m = 31, .n = 50, .k = k, .bias = true, .residual = residual});
      Check({.m = 3, .n = 50, .k = k, .bias = true, .residual = residual, .activation = Activation::kGelu});
    }
  }
}

TEST(GemmPrecisionTest, EveryBlockingComputesTheSame) {
  for (const Blocking& blocking : testing::OddBlockings()) {
    for (const int parts : {1, 3}) {
      Check({.m = 31, .n = 75, .k = 700, .bias = true, .num_parts = parts, .blocking = blocking});
      Check({.m = 3, .n = 75, .k = 70, .residual = Case::kInPlace, .num_parts = parts, .blocking = blocking});
    }
    Check({.m = 301,
           .n = 33,
           .k = 90,
           .bias = true,
           .activation = Activation::kGelu,
           .num_parts = 2,
           .blocking = blocking});
  }
}

TEST(GemmPrecisionTest, RowBlocks) {
  for (const int64_t m : {145, 300}) Check({.m = m, .n = 40, .k = 70, .bias = true, .residual = Case::kInPlace});
}

TEST(GemmPrecisionTest, GatheredAndPaddedRows) {
  for (const int64_t k : {1024, 2048}) {
    Check({.m = 29, .n = 290, .k = k, .bias = true, .residual = Case::kInPlace});
    Check({.m = 29, .n = 257, .k = k, .bias = true, .activation = Activation::kGelu});
  }
}

// Around the sizes of a matrix unit's tiles: 16 and 32 rows, 32 columns, 16 steps of two or four elements of k.
TEST(GemmPrecisionTest, TilesOfAMatrixUnit) {
  for (const int64_t m : {15, 16, 17, 32, 33, 47, 64, 65, 130}) Check({.m = m, .n = 65, .k = 97, .bias = true});
  for (const int64_t k : {31, 32, 63, 64, 65, 128, 191, 192}) {
    Check({.m = 33, .n = 64, .k = k, .bias = true});
    Check({.m = 40, .n = 96, .k = k, .residual = Case::kInPlace, .activation = Activation::kGelu, .num_parts = 2});
  }
  // Groups of one panel, of two, and of all.
  for (const int32_t kib : {1, 20, 64}) {
    Check({.m = 70, .n = 330, .k = 160, .bias = true, .residual = Case::kResidual, .blocking = {.panel_kib = kib}});
  }
}

// Halves that are widened in each call, by the first tile of some, before a single one or by each in registers, give
// the bits of panels in fp32 that were rounded when they were packed.
TEST(GemmPrecisionTest, WidenedPanelsHaveTheBitsOfRoundedOnes) {
  ForEachIsaAndPlainTiles([] {
    for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
      for (const int64_t m : {4, 7, 12, 13, 15, 27, 28, 29, 145}) {
        for (const int64_t n : {5, 33, 64, 70}) {
          for (const int64_t k : {3, 70, 1157}) {
            SCOPED_TRACE(std::string(Name(precision)) + " m " + std::to_string(m) + " n " + std::to_string(n) + " k " +
                         std::to_string(k));
            const std::vector<float> a = RandomFloats(static_cast<size_t>(m * k), 1);
            const std::vector<float> b = RandomFloats(static_cast<size_t>(k * n), 2);
            Weight weight = DenseWeight(b.data(), k, n, true);
            AlignedFloats halves(static_cast<size_t>(PackedBytes(precision, k, n)) / sizeof(float) + 16);
            PackWeight(precision, weight, halves.data());
            weight.rounding = precision == Precision::kBf16 ? Encoding::kBf16 : Encoding::kF16;
            AlignedFloats floats(static_cast<size_t>(PackedSize(k, n)));
            PackWeight(Precision::kFp32, weight, floats.data());
            std::vector<float> unpacked(b.size()), wanted(b.size());
            UnpackWeight(Precision::kFp32, floats.data(), k, n, unpacked.data());
            UnpackWeight(precision, halves.data(), k, n, wanted.data());
            ASSERT_EQ(unpacked, wanted);
            std::vector<float> expected(static_cast<size_t>(m * n)), actual = expected;
            GemmArgs args;
            args.m = m, args.n = n, args.k = k;
            args.a = a.data(), args.lda = k;
            args.ldc = n;
            args.packed_b = floats.data();
            args.c = expected.data();
            Multiply(args);
            args.precision = precision;
            args.packed_b = halves.data();
            args.c = actual.data();
            for (const Variant variant : {Variant::kWidened, Variant::kAuto}) {
              if (variant == Variant::kAuto && m <= 8) continue;  // other tiles, whose sums have another order
              args.blocking.variant = variant;
              Multiply(args);
              ASSERT_EQ(actual, expected) << Name(variant);
            }
          }
        }
      }
    }
  });
}

// Rows that reach beyond fp16 beside others that do not, with every ending.
TEST(GemmPrecisionTest, RowsBeyondFp16AreScaled) {
  if (!isa::ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmxFp16";
  constexpr int64_t kM = 50, kN = 70, kK = 45;
  std::vector<float> x = RandomFloats(static_cast<size_t>(kM * kK), 1);
  for (const int64_t row : {3, 40}) {
    for (int64_t j = 0; j < kK; ++j) x[static_cast<size_t>(row * kK + j)] *= row == 3 ? 65504.0f : 3e9f;
  }
  x[4 * kK] = 65504.0f, x[5 * kK] = 65505.0f;
  const std::vector<float> b = RandomFloats(static_cast<size_t>(kN * kK), 2);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(kN), 3);
  AlignedFloats packed(static_cast<size_t>(PackedBytes(Precision::kFp16, kK, kN)) / sizeof(float) + 16);
  PackWeight(Precision::kFp16, DenseWeight(b.data(), kK, kN, false), packed.data());
  std::vector<float> stored(b.size());
  UnpackWeight(Precision::kFp16, packed.data(), kK, kN, stored.data());
  const Rows rows(RowForm::kF16, kM, kK, x.data(), kK);
  EXPECT_EQ(rows.scale[4], 1.0f);
  EXPECT_EQ(rows.scale[5], 2.0f);
  std::vector<float> restored(x.size());
  RestoreRows(rows.args, restored.data());
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu}) {
    for (const bool residual : {false, true}) {
      std::vector<float> found(static_cast<size_t>(kM * kN), 1.0f), expected = found;
      GemmDotArgs args = rows.Times(packed.data(), kN, found.data(), kN);
      args.bias = bias.data();
      args.activation = activation;
      args.residual = residual ? found.data() : nullptr;
      args.ldr = kN;
      Multiply(args, 2);
      GemmArgs reference{.m = kM, .n = kN, .k = kK, .a = restored.data(), .lda = kK};
      reference.c = expected.data(), reference.ldc = kN, reference.ldr = kN;
      reference.bias = bias.data();
      reference.activation = activation;
      reference.residual = residual ? expected.data() : nullptr;
      GemmReference(reference, stored.data(), kN, 1);
      for (int64_t i = 0; i < kM; ++i) {
        const float scale = rows.scale[static_cast<size_t>(i)];
        for (size_t j = static_cast<size_t>(i * kN); j < static_cast<size_t>((i + 1) * kN); ++j) {
          const float size = i == 4 ? 65504.0f : i == 3 || scale != 1.0f ? 65504.0f * scale : 1.0f;
          ASSERT_NEAR(found[j], expected[j], 2e-5f * size) << "row " << i;
        }
      }
    }
  }
  ASSERT_TRUE(isa::Select().ok());
}

// Few rows are multiplied by vectors, more by tiles; sums of integers are exact.
TEST(GemmPrecisionTest, AMatrixUnitGivesTheBitsOfVectorsInInt8) {
  constexpr int64_t kN = 70, kK = 203;
  const std::vector<float> b = RandomFloats(static_cast<size_t>(kN * kK), 2);
  for (const int64_t m : {1, 2, 3, 4, 5, 16, 17, 33}) {
    const std::vector<float> x = RandomFloats(static_cast<size_t>(m * kK), 1);
    const auto product = [&] {
      AlignedFloats packed(static_cast<size_t>(PackedBytes(Precision::kInt8, kK, kN)) / sizeof(float) + 1);
      PackWeight(Precision::kInt8, DenseWeight(b.data(), kK, kN, false), packed.data());
      const Rows rows(RowForm::kInt8, m, kK, x.data(), kK, 1);
      std::vector<float> out(static_cast<size_t>(m * kN));
      Multiply(rows.Times(packed.data(), kN, out.data(), kN));
      return out;
    };
    if (!isa::ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmx";
    const std::vector<float> found = product();
    ASSERT_TRUE(isa::Force("avx512_bf16").ok());
    ASSERT_EQ(found, product()) << m;
  }
  ASSERT_TRUE(isa::Select().ok());
}

TEST(GemmPrecisionTest, Epilogues) {
  for (int act = 0; act <= static_cast<int>(kLastActivation); ++act) {
    for (const auto residual : {Case::kNoResidual, Case::kResidual, Case::kInPlace}) {
      Check({.m = 13,
             .n = 75,
             .k = 30,
             .bias = act % 2 == 0,
             .residual = residual,
             .activation = static_cast<Activation>(act)});
    }
  }
}

TEST(GemmPrecisionTest, LayoutsAndParts) {
  for (const int parts : {2, 3, 7}) {
    for (const bool transposed : {false, true}) {
      Check({.m = 29, .n = 100, .k = 40, .bias = true, .transposed = transposed, .extra = 3, .num_parts = parts});
      Check({.m = 1, .n = 200, .k = 67, .bias = true, .transposed = transposed, .extra = 3, .num_parts = parts});
    }
  }
}

// Each element of B and the one it is stored as.
TEST(GemmPrecisionTest, PackedNumbersAreTheNearestOnes) {
  const int64_t k = 71, n = 45;
  const std::vector<float> b = RandomFloats(static_cast<size_t>(k * n), 5);
  ForEachIsaAndPlainTiles([&] {
    for (const Precision precision : kAll) {
      SCOPED_TRACE(Name(precision));
      AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, k, n)) / sizeof(float) + 16);
      PackWeight(precision, DenseWeight(b.data(), k, n, false), packed.data());
      std::vector<float> restored(static_cast<size_t>(k * n));
      UnpackWeight(precision, packed.data(), k, n, restored.data());
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t i = 0; i < k; ++i) {
          const float original = b[static_cast<size_t>(i * n + j)];
          float allowed = 0.0f;
          float max = 0.0f;
          const int64_t group = precision == Precision::kInt4Weight ? kInt4Group : k;
          for (int64_t l = i / group * group; l < std::min(k, (i / group + 1) * group); ++l) {
            max = std::max(max, std::abs(b[static_cast<size_t>(l * n + j)]));
          }
          switch (precision) {
            case Precision::kFp32:
            case Precision::kBlocks:
              break;
            case Precision::kBf16:
              allowed = std::abs(original) / 256.0f;
              break;
            case Precision::kFp16:
              allowed = std::abs(original) / 2048.0f + 1e-7f;
              break;
            case Precision::kInt8:
              // Not int16's limit, but the room for it may decide the scale.
              for (int64_t first = 0; Int8SumsAreShort() && first < k; first += first % 8 == 0 ? 2 : 6) {
                float sums[2] = {};
                for (const int64_t l : {first, first + 1, first + 4, first + 5}) {
                  const float w = l < k ? b[static_cast<size_t>(l * n + j)] : 0.0f;
                  sums[w < 0.0f] += std::abs(w);
                }
                max = std::max(max, std::max(sums[0], sums[1]) / 126.0f * 127.0f);
              }
              allowed = max / 127.0f * 0.5001f;
              break;
            case Precision::kInt8Weight:
              allowed = max / 127.0f * 0.5001f;
              break;
            case Precision::kInt4Weight:
              // The scale is rounded to bf16, which may push the largest number out of reach by as much.
              allowed = max / 7.0f * 0.502f + max / 256.0f;
              break;
          }
          ASSERT_LE(std::abs(restored[static_cast<size_t>(i * n + j)] - original), allowed) << i << " " << j;
        }
      }
    }
  });
}

// The largest codes of one sign in every place, where an instruction that saturates would do so: all, those of one
// pair, those of one four, and one too few to fill it.
TEST(GemmPrecisionTest, SumsOfTheLargestCodesAreExact) {
  for (const int64_t k : {1, 2, 4, 6, 8, 13, 64, 96}) {
    for (const float sign : {1.0f, -1.0f}) {
      for (const uint32_t places : {0xFFu, 0x03u, 0x33u, 0xCCu, 0x37u, 0x11u, 0xF0u}) {
        const int64_t m = 5, n = 33;
        std::vector<float> a(static_cast<size_t>(m * k), 1.0f);
        for (int64_t i = 0; i < m; ++i) a[static_cast<size_t>(i * k)] = i % 2 == 0 ? 1.0f : -0.25f;
        std::vector<float> b(static_cast<size_t>(k * n));
        for (int64_t i = 0; i < k; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const float weight = (places >> (i % 8) & 1) != 0 ? 1.0f : -1.0f / 64;
            b[static_cast<size_t>(i * n + j)] = sign * weight * (j % 3 == 0 ? 1.0f : 0.9f);
          }
        }
        ForEachIsaAndPlainTiles([&] {
          AlignedFloats packed(static_cast<size_t>(PackedBytes(Precision::kInt8, k, n)) / sizeof(float) + 16);
          PackWeight(Precision::kInt8, DenseWeight(b.data(), k, n, false), packed.data());
          std::vector<float> restored_b(b.size()), restored_a(a.size()), c(static_cast<size_t>(m * n));
          UnpackWeight(Precision::kInt8, packed.data(), k, n, restored_b.data());
          const Rows rows(RowForm::kInt8, m, k, a.data(), k);
          RestoreRows(rows.args, restored_a.data());
          Multiply(rows.Times(packed.data(), n, c.data(), n));
          for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
              double expected = 0, size = 0;
              for (int64_t l = 0; l < k; ++l) {
                const double term = static_cast<double>(restored_a[static_cast<size_t>(i * k + l)]) *
                                    restored_b[static_cast<size_t>(l * n + j)];
                expected += term;
                size += std::abs(term);
              }
              ASSERT_NEAR(c[static_cast<size_t>(i * n + j)], expected, 1e-6 * size)
                  << k << " places " << places << " sign " << sign << " at " << i << " " << j;
            }
          }
        });
      }
    }
  }
}

TEST(GemmPrecisionTest, ConvertedRowsAreTheNearestNumbers) {
  for (const int64_t k : {1, 5, 16, 33, 100}) {
    std::vector<float> x = RandomFloats(static_cast<size_t>(3 * k), 6);
    for (int64_t j = 0; j < k; ++j) x[static_cast<size_t>(k + j)] = std::abs(x[static_cast<size_t>(k + j)]) + 3.0f;
    for (int64_t j = 0; j < k; ++j) x[static_cast<size_t>(2 * k + j)] = 0.0f;
    ForEachIsaAndPlainTiles([&] {
      for (const RowForm form : {RowForm::kBF16, RowForm::kF16, RowForm::kInt8, RowForm::kInt16}) {
        const Rows rows(form, 3, k, x.data(), k);
        std::vector<float> restored(static_cast<size_t>(3 * k));
        RestoreRows(rows.args, restored.data());
        for (int64_t i = 0; i < 3; ++i) {
          float low = 0.0f, high = 0.0f;
          for (int64_t j = 0; j < k; ++j) {
            low = std::min(low, x[static_cast<size_t>(i * k + j)]);
            high = std::max(high, x[static_cast<size_t>(i * k + j)]);
          }
          for (int64_t j = 0; j < k; ++j) {
            const float original = x[static_cast<size_t>(i * k + j)];
            // The zero point is rounded too, which costs the ends of the range up to half a step more.
            const float allowed = form == RowForm::kBF16   ? std::abs(original) / 256.0f
                                  : form == RowForm::kF16  ? std::abs(original) / 2048.0f + 1e-7f
                                  : form == RowForm::kInt8 ? (high - low) / 255.0f * 1.001f + 1e-30f
                                                           : (high - low) / 65000.0f;
            ASSERT_LE(std::abs(restored[static_cast<size_t>(i * k + j)] - original), allowed) << i << " " << j;
          }
        }
      }
    });
  }
}

// Short rows share what is found of each; every one is what it is by itself.
TEST(GemmPrecisionTest, RowsConvertedTogetherAreAsAlone) {
  constexpr float kMost = std::numeric_limits<float>::max(), kInf = std::numeric_limits<float>::infinity();
  const int64_t m = 19;
  for (const int64_t k : {1, 3, 4, 8, 15, 16, 17, 31, 32, 33, 64, 100, 257}) {
    const int64_t ldx = k + 3;
    std::vector<float> x = RandomFloats(static_cast<size_t>(m * ldx), 8);
    const auto at = [&](int64_t i, int64_t j) -> float& { return x[static_cast<size_t>(i * ldx + j % k)]; };
    at(1, 2) = std::numeric_limits<float>::quiet_NaN();
    at(2, k - 1) = kInf;
    at(3, 0) = -kInf;
    at(5, 0) = kMost;
    at(5, k - 1) = -kMost;
    for (int64_t j = 0; j < k; ++j) at(6, j) = 0.0f;
    for (int64_t j = 0; j < k; ++j) at(7, j) = -std::abs(at(7, j)) - 1.0f;
    for (int64_t j = 0; j < k; ++j) at(8, j) = std::abs(at(8, j)) + 1.0f;
    for (int64_t j = 0; j < k; ++j) at(9, j) *= 1e-38f;
    for (int64_t j = 0; j < k; ++j) at(10, j) = -0.0f;
    at(11, k / 2) = kMost;
    at(18, k / 2) = -kInf;
    ForEachIsaAndPlainTiles([&] {
      const Rows together(RowForm::kInt8, m, k, x.data(), ldx);
      const size_t bytes = static_cast<size_t>(RowBytes(RowForm::kInt8, k));
      for (int64_t i = 0; i < m; ++i) {
        const Rows alone(RowForm::kInt8, 1, k, x.data() + i * ldx, ldx);
        const auto row = static_cast<size_t>(i);
        EXPECT_EQ(std::memcmp(together.bytes.data() + row * bytes, alone.bytes.data(), bytes), 0) << k << " " << i;
        EXPECT_EQ(std::isnan(together.scale[row]), std::isnan(alone.scale[0])) << k << " " << i;
        if (!std::isnan(alone.scale[0])) {
          EXPECT_EQ(together.scale[row], alone.scale[0]) << k << " " << i;
        }
        EXPECT_EQ(together.zero[row], alone.zero[0]) << k << " " << i;
      }
      EXPECT_TRUE(std::isnan(together.scale[1]) && std::isnan(together.scale[2]) && std::isnan(together.scale[18]));
      EXPECT_FALSE(std::isnan(together.scale[0]) || std::isnan(together.scale[4]) || std::isnan(together.scale[17]));
    });
  }
}

TEST(GemmPrecisionTest, NumbersThatAreNotFiniteStayInTheirRow) {
  const int64_t m = 4, n = 20, k = 37;
  std::vector<float> a = RandomFloats(static_cast<size_t>(m * k), 1);
  const std::vector<float> b = RandomFloats(static_cast<size_t>(n * k), 2);
  a[static_cast<size_t>(k + 3)] = std::numeric_limits<float>::quiet_NaN();
  a[static_cast<size_t>(3 * k + 36)] = std::numeric_limits<float>::infinity();
  ForEachIsaAndPlainTiles([&] {
    for (const RowForm form : {RowForm::kBF16, RowForm::kF16, RowForm::kInt8, RowForm::kInt16}) {
      if (form == RowForm::kF16 && !isa::HasF16Tiles()) continue;
      const Precision precision = form == RowForm::kBF16   ? Precision::kBf16
                                  : form == RowForm::kF16  ? Precision::kFp16
                                  : form == RowForm::kInt8 ? Precision::kInt8
                                                           : Precision::kInt4Weight;
      AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, k, n)) / sizeof(float) + 16);
      PackWeight(precision, DenseWeight(b.data(), k, n, true), packed.data());
      const Rows rows(form, m, k, a.data(), k);
      std::vector<float> c(static_cast<size_t>(m * n));
      Multiply(rows.Times(packed.data(), n, c.data(), n));
      for (int64_t j = 0; j < n; ++j) {
        EXPECT_TRUE(std::isfinite(c[static_cast<size_t>(j)]));
        EXPECT_TRUE(std::isnan(c[static_cast<size_t>(n + j)]));
        EXPECT_TRUE(std::isfinite(c[static_cast<size_t>(2 * n + j)]));
        EXPECT_FALSE(std::isfinite(c[static_cast<size_t>(3 * n + j)]));
      }
    }
  });
}

// Memory whose first byte lies right behind a page that nobody may read.
class BehindUnreadable {
 public:
  explicit BehindUnreadable(size_t bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))), bytes_(bytes + page_) {
    void* const all = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return;
    memory_ = static_cast<uint8_t*>(all);
    readable_ = mprotect(memory_, page_, PROT_NONE) == 0;
  }
  ~BehindUnreadable() {
    if (memory_ != nullptr) munmap(memory_, bytes_);
  }
  BehindUnreadable(const BehindUnreadable&) = delete;
  BehindUnreadable& operator=(const BehindUnreadable&) = delete;
  bool made() const { return readable_; }
  uint8_t* data() { return memory_ + page_; }

 private:
  size_t page_, bytes_;
  uint8_t* memory_ = nullptr;
  bool readable_ = false;
};

// Packed weights are mapped from files, so that nothing in front of the first panel need be there.
TEST(GemmPrecisionTest, NothingInFrontOfAPanelIsRead) {
  ForEachIsaAndPlainTiles([] {
    for (const Precision precision : kAll) {
      for (const int64_t m : {1, 6, 7, 24, 300}) {
        for (const int64_t k : {1, 4, 8, 13, 64, 1024}) {
          for (const int64_t n : {5, 16, 40}) {
            if (RowsFor(precision, m) != RowForm::kF32) continue;
            SCOPED_TRACE(std::string(Name(precision)) + " m " + std::to_string(m) + " k " + std::to_string(k) + " n " +
                         std::to_string(n));
            const std::vector<float> a = RandomFloats(static_cast<size_t>(m * k), 1);
            const std::vector<float> b = RandomFloats(static_cast<size_t>(n * k), 2);
            const auto bytes = static_cast<size_t>(PackedBytes(precision, k, n));
            AlignedFloats elsewhere(bytes / sizeof(float) + 16);
            BehindUnreadable packed(bytes + 64);
            ASSERT_TRUE(packed.made());
            std::vector<std::vector<float>> results;
            for (void* const panels : {static_cast<void*>(elsewhere.data()), static_cast<void*>(packed.data())}) {
              PackWeight(precision, DenseWeight(b.data(), k, n, true), panels);
              std::vector<float> c(static_cast<size_t>(m * n));
              Multiply(GemmArgs{.m = m,
                                .n = n,
                                .k = k,
                                .a = a.data(),
                                .lda = k,
                                .precision = precision,
                                .packed_b = panels,
                                .c = c.data(),
                                .ldc = n});
              results.push_back(c);
            }
            ASSERT_EQ(results[0], results[1]);
          }
        }
      }
    }
  });
}

// A caller's thread may have a small stack, such as musl's threads and those of other languages.
TEST(GemmPrecisionTest, NeedsLittleStack) {
  const int64_t m = 300, n = 160, k = 2048;  // rows are gathered, blocks of panels are widened, sums wait
  const std::vector<float> a = RandomFloats(static_cast<size_t>(m * k), 1);
  const std::vector<float> b = RandomFloats(static_cast<size_t>(n * k), 2);
  for (const Precision precision : kAll) {
    AlignedFloats packed(static_cast<size_t>(PackedBytes(precision, k, n)) / sizeof(float) + 16);
    PackWeight(precision, DenseWeight(b.data(), k, n, true), packed.data());
    std::vector<float> c(static_cast<size_t>(m * n), kUntouched);
    const auto run = [](auto work) {
      pthread_attr_t small;
      ASSERT_EQ(pthread_attr_init(&small), 0);
      ASSERT_EQ(pthread_attr_setstacksize(&small, 128 * 1024), 0);
      pthread_t thread;
      ASSERT_EQ(pthread_create(
                    &thread, &small,
                    [](void* function) -> void* {
                      (*static_cast<decltype(work)*>(function))();
                      return nullptr;
                    },
                    &work),
                0);
      pthread_join(thread, nullptr);
      pthread_attr_destroy(&small);
    };
    const RowForm form = RowsFor(precision, m);
    if (form == RowForm::kF32) {
      const GemmArgs args{.m = m,
                          .n = n,
                          .k = k,
                          .a = a.data(),
                          .lda = k,
                          .precision = precision,
                          .packed_b = packed.data(),
                          .c = c.data(),
                          .ldc = n};
      run([&] { Multiply(args); });
    } else {
      const Rows rows(form, m, k, a.data(), k);
      run([&] { Multiply(rows.Times(packed.data(), n, c.data(), n)); });
    }
    EXPECT_NE(c.back(), kUntouched) << Name(precision);
  }
}

}  // namespace
}  // namespace thresher::kernels
