// Products whose sums pass a gate: bit for bit what the two products, the activation and the multiplication give one
// after the other.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block_testing.h"
#include "kernels/float_testing.h"
#include "kernels/product_testing.h"
#include "thresher/base/isa.h"
#include "thresher/kernels/gemm_block.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/pointwise.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::Blocked;
using testing::ForEachIsaAndPlainTiles;
using testing::Multiply;
using testing::RandomBlocks;
using testing::RandomFloats;

constexpr float kUntouched = 12345.0f;

struct Case {
  int64_t m, n, k;
  int num_parts = 1;
  Gate gate = Gate::kFirst;
  Activation activation = Activation::kSilu;
  int64_t wide_from = kNoRow;
  bool bias = false;
};

std::string ToString(const Case& c) {
  return "m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " k " + std::to_string(c.k) + " parts " +
         std::to_string(c.num_parts) + " gate " + std::to_string(static_cast<int>(c.gate)) + " " +
         std::string(Name(c.activation)) + " wide from " + std::to_string(c.wide_from) + " bias " +
         std::to_string(c.bias);
}

std::vector<uint8_t> RandomWeight(Encoding encoding, int64_t count, unsigned seed) {
  if (encoding != Encoding::kBf16) return RandomBlocks(encoding, count, seed);
  std::vector<float> floats = RandomFloats(static_cast<size_t>(count), seed);
  const std::vector<uint16_t> bits = testing::CutToBf16(floats);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(bits.data());
  return {bytes, bytes + bits.size() * sizeof(uint16_t)};
}

// Rows of x and two weights, which are packed as one.
struct Products {
  Products(RowForm form, Encoding encoding, const Case& of)
      : c(of),
        panels((c.n + PackedColumns() - 1) / PackedColumns()),
        precision(StoredPrecision(encoding)),
        x(RandomFloats(static_cast<size_t>(c.m * c.k), 2)),
        rows(static_cast<size_t>(c.m * RowBytes(form, c.k) + 64)),
        half(static_cast<size_t>(PackedBytes(precision, c.k, panels * PackedColumns()))),
        packed(2 * half / sizeof(float) + 64) {
    for (size_t i = 0; i < 2; ++i) {
      bias[i] = RandomFloats(static_cast<size_t>(c.n), static_cast<uint32_t>(5 + i));
      const std::vector<uint8_t> numbers = RandomWeight(encoding, c.n * c.k, static_cast<unsigned>(11 + i));
      PackWeight(precision, DenseWeight(numbers.data(), c.k, c.n, true, encoding), Packed(i));
    }
    ConvertRowsArgs convert;
    convert.form = form;
    convert.m = c.m, convert.k = c.k;
    convert.x = x.data(), convert.ldx = c.k;
    convert.rows = rows.data();
    convert.wide_from = c.wide_from;
    ConvertRows(convert);
    args.form = form;
    args.precision = precision;
    args.m = c.m, args.n = c.n, args.k = c.k;
    args.rows = rows.data();
    args.wide_from = c.wide_from;
  }

  uint8_t* Packed(size_t i) { return reinterpret_cast<uint8_t*>(packed.data()) + i * half; }

  std::vector<float> OneByOne() {
    std::vector<float> results[2];
    for (size_t i = 0; i < 2; ++i) {
      results[i].resize(static_cast<size_t>(c.m * c.n));
      GemmDotArgs one = args;
      one.packed_b = Packed(i);
      one.c = results[i].data(), one.ldc = c.n;
      if (c.bias) one.bias = bias[i].data();
      Multiply(one);
    }
    const auto view = [&](std::vector<float>& of) { return MakeView(of.data(), DType::kF32, {c.m, c.n}); };
    std::vector<float>& opened = results[c.gate == Gate::kFirst ? 0 : 1];
    Unary(ParseUnary(Name(c.activation)).value(), view(opened), view(opened));
    Binary(BinaryOp::kMul, view(results[0]), view(results[1]), view(results[0]));
    return results[0];
  }

  GemmDotArgs Gated(float* out, int64_t ldc) {
    GemmDotArgs gated = args;
    gated.packed_b = Packed(0);
    gated.gate = c.gate;
    gated.activation = c.activation;
    if (c.bias) gated.bias = bias[0].data(), gated.second_bias = bias[1].data();
    gated.c = out, gated.ldc = ldc;
    return gated;
  }

  Case c;
  int64_t panels;
  Precision precision;
  std::vector<float> x;
  std::vector<uint8_t> rows;
  std::vector<float> bias[2];
  size_t half;
  AlignedFloats packed;
  GemmDotArgs args;
};

void CheckGated(RowForm form, Encoding encoding, const Case& c) {
  SCOPED_TRACE(std::string(Name(encoding)) + " " + ToString(c));
  Products products(form, encoding, c);
  const std::vector<float> expected = products.OneByOne();
  const int64_t ldc = c.n + 3;
  std::vector<float> out(static_cast<size_t>(c.m * ldc), kUntouched);
  Multiply(products.Gated(out.data(), ldc), c.num_parts);
  for (int64_t i = 0; i < c.m; ++i) {
    const float* const row = out.data() + i * ldc;
    for (int64_t j = 0; j < c.n; ++j) ASSERT_EQ(row[j], expected[static_cast<size_t>(i * c.n + j)]) << i << ' ' << j;
    for (int64_t j = c.n; j < ldc; ++j) ASSERT_EQ(row[j], kUntouched) << i << ' ' << j;
  }
}

// What a product stores as rows in blocks is what ConvertRows() makes of the result.
void CheckStoredBlocks(Encoding encoding, const Case& c) {
  SCOPED_TRACE(std::string(Name(encoding)) + " " + ToString(c));
  Products products(RowForm::kBlocks, encoding, c);
  const std::vector<float> result = products.OneByOne();
  const size_t bytes = static_cast<size_t>(c.m * RowBytes(RowForm::kBlocks, c.n));
  AlignedFloats stored(bytes / sizeof(float)), expected(bytes / sizeof(float));
  std::memset(stored.data(), 0x5A, bytes);
  std::memset(expected.data(), 0x5A, bytes);
  ConvertRowsArgs convert;
  convert.form = RowForm::kBlocks;
  convert.m = c.m, convert.k = c.n;
  convert.x = result.data(), convert.ldx = c.n;
  convert.rows = expected.data();
  convert.wide_from = c.wide_from;
  ConvertRows(convert);
  GemmDotArgs gated = products.Gated(stored.data(), 0);
  gated.stores_blocks = true;
  Multiply(gated, c.num_parts);
  // Behind the groups of a row may be anything.
  constexpr int64_t kGroup = 32, kGroupBytes = 64;
  for (int64_t i = 0; i < c.m; ++i) {
    const auto at = [&](AlignedFloats& rows) {
      return reinterpret_cast<const uint8_t*>(rows.data()) + i * RowBytes(RowForm::kBlocks, c.n);
    };
    ASSERT_EQ(std::memcmp(at(stored), at(expected), static_cast<size_t>(c.n / kGroup * kGroupBytes)), 0) << i;
  }
}

constexpr Activation kGates[] = {Activation::kSilu,    Activation::kGelu, Activation::kGeluTanh,
                                 Activation::kSigmoid, Activation::kRelu, Activation::kTanh};

TEST(GatedProduct, OfBlocksHasTheBitsOfItsSteps) {
  ForEachIsaAndPlainTiles([] {
    const int64_t width = PackedColumns();
    for (const Encoding encoding : Blocked()) {
      for (const int64_t m : {1, 2, 3, 9, 40}) CheckGated(RowForm::kBlocks, encoding, {m, 5 * width, 512, 1});
      CheckGated(RowForm::kBlocks, encoding, {1, 11 * width, 256, 3});
      CheckGated(RowForm::kBlocks, encoding,
                 {2, 5 * width - 7, 256, 2, Gate::kSecond, Activation::kGelu, kNoRow, true});
      CheckGated(RowForm::kBlocks, encoding,
                 {33, 3 * width + 5, 256, 3, Gate::kSecond, Activation::kSilu, kNoRow, true});
    }
    for (const Activation activation : kGates) {
      CheckGated(RowForm::kBlocks, Encoding::kQ8_0, {7, 2 * width, 64, 2, Gate::kFirst, activation});
    }
    // More rows than wait at a time.
    CheckGated(RowForm::kBlocks, Encoding::kQ4_1, {600, 3 * width, 1024, 2});
  });
}

TEST(GatedProduct, OfWideRowsHasTheBitsOfItsSteps) {
  ForEachIsaAndPlainTiles([] {
    if (!WidensBlocks()) return;
    const int64_t width = PackedColumns();
    for (const Encoding encoding : Blocked()) {
      for (const int64_t m : {1, 17, 32, 33, 70}) {
        CheckGated(RowForm::kBlocks, encoding, {m, 5 * width, 512, 1, Gate::kFirst, Activation::kSilu, 0});
      }
      // Of both kinds, and parts that begin anywhere.
      for (const int64_t wide_from : {1, 5, 40}) {
        CheckGated(RowForm::kBlocks, encoding,
                   {50, 11 * width - 4, 256, 3, Gate::kSecond, Activation::kGeluTanh, wide_from, true});
      }
    }
  });
}

TEST(GatedProduct, StoresWhatTheNextProductTakes) {
  ForEachIsaAndPlainTiles([] {
    for (const Encoding encoding : {Encoding::kQ8_0, Encoding::kQ4_1, Encoding::kQ6K}) {
      for (const int64_t m : {1, 2, 7, 40}) {
        for (const int64_t wide_from : {int64_t{0}, int64_t{3}, kNoRow}) {
          for (const int64_t n : {32, 96, 256, 416}) {
            const int parts = static_cast<int>(m % 3 + 1);
            CheckStoredBlocks(encoding, {m, n, 256, parts, Gate::kFirst, Activation::kSilu, wide_from, n == 96});
          }
        }
      }
    }
    CheckStoredBlocks(Encoding::kQ4_0, {300, 224, 512, 3, Gate::kFirst, Activation::kSilu, 150});
  });
}

TEST(GatedProduct, OfBf16HasTheBitsOfItsSteps) {
  ForEachIsaAndPlainTiles([] {
    if (!TakesGate(RowForm::kBF16)) return;
    const int64_t width = PackedColumns();
    for (const Activation activation : kGates) {
      for (const int64_t m : {1, 5, 16, 31, 32, 33, 70, 300}) {
        CheckGated(RowForm::kBF16, Encoding::kBf16,
                   {m, 19 * width + m % 3 * 5, 72, static_cast<int>(m % 3 + 1),
                    m % 2 == 0 ? Gate::kFirst : Gate::kSecond, activation, kNoRow, m % 4 == 1});
      }
    }
  });
}

// As rows of bf16, rounded from the floats that would be stored else.
TEST(GatedProduct, StoresRowsOfBf16) {
  ForEachIsaAndPlainTiles([] {
    if (!TakesGate(RowForm::kBF16)) return;
    for (const int64_t m : {1, 33, 70}) {
      for (const int64_t n : {64, 40, 19 * 32 + 8}) {
        const Case c{m, n, 96, 2};
        SCOPED_TRACE(ToString(c));
        Products products(RowForm::kBF16, Encoding::kBf16, c);
        const std::vector<float> result = products.OneByOne();
        const size_t bytes = static_cast<size_t>(m * RowBytes(RowForm::kBF16, n));
        AlignedFloats stored(bytes / sizeof(float));
        ConvertRowsArgs convert;
        convert.m = m, convert.k = n;
        convert.x = result.data(), convert.ldx = n;
        std::vector<uint8_t> expected(bytes);
        convert.rows = expected.data();
        ConvertRows(convert);
        GemmDotArgs gated = products.Gated(stored.data(), RowBytes(RowForm::kBF16, n) / 4);
        gated.stores_bf16 = true;
        Multiply(gated, c.num_parts);
        for (int64_t i = 0; i < m; ++i) {
          const auto at = static_cast<size_t>(i * RowBytes(RowForm::kBF16, n));
          const auto* const row = reinterpret_cast<const uint8_t*>(stored.data()) + at;
          ASSERT_EQ(std::memcmp(row, expected.data() + at, static_cast<size_t>(n) * sizeof(uint16_t)), 0) << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace thresher::kernels
