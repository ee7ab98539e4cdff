// Products of few rows, and what follows a product, on the emulator against float64.
#include "thresher/cuda/gemv_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "cuda/product_testing.h"
#include "kernels/float_testing.h"
#include "thresher/cuda/block_gemv_kernel.h"
#include "thresher/kernels/block_format.h"

namespace thresher::cuda::testing {
namespace {

void CheckGemv(const Case& c) {
  CheckProduct(c, [](const Launcher& launch, const Gemm& g) {
    return IsGemv(g) ? LaunchGemv(launch, g) : "not for this kernel";
  });
}

TEST(GemvKernel, EveryNumberOfRowsAndType) {
  for (int64_t m = 1; m <= kMostMatrixRows; ++m) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      if (!IsHalf(type) && m > kMostGemvRows) continue;
      CheckGemv({m, 37, 256, type, type});
      CheckGemv({m, 9, 72, type, DType::kF32});
    }
  }
}

TEST(GemvKernel, LengthsAroundWhatAWarpAndABlockLoad) {
  for (const int64_t k : {8, 16, 248, 256, 264, 504, 512, 520, 2040, 2048, 2056, 4864}) {
    CheckGemv({1, 5, k, DType::kBF16, DType::kBF16});
    CheckGemv({3, 5, k, DType::kF16, DType::kF16});
    CheckGemv({12, 20, k, DType::kBF16, DType::kBF16, 8});
    CheckGemv({7, 6, k, DType::kF32, DType::kF32});
  }
}

TEST(GemvKernel, OneWarpARowWhereThereAreManyRows) {
  CheckGemv({1, 2200, 64, DType::kBF16, DType::kBF16});
  CheckGemv({5, 2113 * 4, 8, DType::kBF16, DType::kBF16});
  CheckGemv({2, 1100, 512, DType::kBF16, DType::kBF16});
}

TEST(GemvKernel, EveryActivationWithAndWithoutBiasAndResidual) {
  for (int i = 0; i <= static_cast<int>(Activation::kSigmoid); ++i) {
    for (const bool bias : {false, true}) {
      for (const bool residual : {false, true}) {
        CheckGemv({2, 11, 40, DType::kF32, DType::kF32, 8, bias, residual, static_cast<Activation>(i)});
        CheckGemv({2, 11, 40, DType::kF32, DType::kF32, 8, bias, residual, static_cast<Activation>(i), true});
      }
    }
  }
}

TEST(GemvKernel, MoreRowsThanBlocksWalkOverTheGrid) {
  Numbers a(DType::kBF16, RandomFloats(512, 1)), b(DType::kBF16, RandomFloats(512 * 31, 2));
  Numbers all(DType::kF32, std::vector<float>(31)), few(DType::kF32, std::vector<float>(31));
  Gemm g{};
  g.m = 1, g.n = 31, g.k = 512, g.batch = 1, g.lda = g.ldb = 512, g.ldc = 31;
  g.transpose_b = true;
  g.encoding = Encoding::kBf16;
  g.type = DType::kBF16, g.c_type = DType::kF32;
  g.a = a.data(), g.b = b.data(), g.c = all.data();
  ASSERT_EQ(LaunchGemv(Launcher{}, g), "");
  g.c = few.data();
  const auto with_few = [](Shape shape, const auto& kernel) {
    shape.blocks = 2;
    return Launcher{}(shape, kernel);
  };
  ASSERT_EQ(LaunchGemv(with_few, g), "");
  for (size_t i = 0; i < 31; ++i) ASSERT_EQ(few[i], all[i]);
}

TEST(GemvKernel, WhatItDoesNotTake) {
  const HalfProduct product(2, Activation::kNone);
  product.ExpectOthersRefused(&IsGemv);
  const auto with = [&](auto change) { return IsGemv(product.With(change)); };
  EXPECT_TRUE(with([](Gemm& c) { c.m = 16; }));
  EXPECT_FALSE(with([](Gemm& c) { c.m = 17; }));
  EXPECT_FALSE(with([](Gemm& c) { c.m = 9, c.type = DType::kF32; }));
}

// Weights in blocks, as they are decoded.
void CheckBlocks(Encoding encoding, DType type, int64_t m, int64_t n, int64_t k) {
  SCOPED_TRACE(std::string(Name(encoding)) + " " + std::string(Name(type)) + " " + std::to_string(m) + " x " +
               std::to_string(n) + " x " + std::to_string(k));
  const auto count = [](int64_t size) { return static_cast<size_t>(size); };
  std::vector<std::byte> blocks(count(EncodedBytes(encoding, n * k)));
  ASSERT_TRUE(kernels::EncodeNumbers(encoding, RandomFloats(count(n * k), 2).data(), n * k, 32, blocks.data()).ok());
  std::vector<float> w(count(n * k)), first;
  kernels::DecodeNumbers(encoding, blocks.data(), n * k, w.data());
  Numbers a(type, RandomFloats(count(m * k), 1)), bias(type, RandomFloats(count(n), 3));
  for (const Order order : {Order::kForward, Order::kBackward}) {
    Numbers out(type, std::vector<float>(count(m * n), kGuard));
    Gemm g{};
    g.m = m, g.n = n, g.k = k, g.batch = 1, g.lda = g.ldb = k, g.ldc = n;
    g.transpose_b = true;
    g.encoding = encoding;
    g.activation = Activation::kSilu;
    g.type = g.c_type = type;
    g.a = a.data(), g.b = blocks.data(), g.bias = bias.data(), g.c = out.data();
    ASSERT_EQ(CheckGemm(g), "");
    ASSERT_TRUE(IsBlockGemv(g));
    ASSERT_EQ(LaunchBlockGemv(Launcher{order}, g), "");
    std::vector<float> found;
    for (int64_t i = 0; i < m * n; ++i) found.push_back(out[count(i)]);
    for (int64_t i = 0; i < m * n; ++i) {
      double sum = bias[count(i % n)], absolute = std::abs(sum);
      for (int64_t p = 0; p < k; ++p) {
        const double product = static_cast<double>(a[count(i / n * k + p)]) * w[count(i % n * k + p)];
        sum += product;
        absolute += std::abs(product);
      }
      const double want = Activated(Activation::kSilu, sum);
      // A scale times a sum is not the sum of what is scaled: offsets and scales are apart.
      ASSERT_NEAR(found[count(i)], want, 1e-6 * absolute + 1e-6 + Unit(type) * (std::abs(want) + 1e-3)) << i;
    }
    if (order == Order::kForward) first = found;
    ASSERT_EQ(found, first);
  }
  // The same as floats.
  for (const DType to : {DType::kF32, DType::kBF16}) {
    Numbers unpacked(to, std::vector<float>(count(n * k)));
    ASSERT_EQ(LaunchUnpack(Launcher{}, encoding, blocks.data(), n * k, to, unpacked.data()), "");
    for (size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(unpacked[i], w[i], Unit(to) * std::abs(w[i]) + 1e-9) << i;
  }
}

TEST(BlockGemvKernel, EveryFormatTypeAndNumberOfRows) {
  for (const Encoding encoding : {Encoding::kQ8_0, Encoding::kQ4_0, Encoding::kQ4_1}) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (int64_t m = 1; m <= 8; ++m) CheckBlocks(encoding, type, m, 7, 96);
    }
    CheckBlocks(encoding, DType::kBF16, 1, 33, 32);
    CheckBlocks(encoding, DType::kBF16, 2, 5, 32 * 67);
    CheckBlocks(encoding, DType::kBF16, 1, 3, 32 * 300);
  }
}

TEST(BlockGemvKernel, MoreRowsAreUnpackedInParts) {
  Gemm g{};
  g.m = 9, g.n = 100, g.k = int64_t{1} << 20, g.ldc = 100;
  g.encoding = Encoding::kQ4_0;
  g.type = g.c_type = DType::kBF16;
  float b = 0, c = 0, memory = 0;
  g.b = &b, g.c = &c, g.bias = &c;
  EXPECT_EQ(UnpackedRows(g, g.type), 32);
  EXPECT_EQ(UnpackedBytes(g, g.type), size_t{64} << 20);
  std::vector<int64_t> widths;
  const std::string problem = ForUnpacked<std::string>(
      g, &memory, [](const void*, int64_t) { return std::string(); },
      [&](const Gemm& part) {
        EXPECT_EQ(part.b, &memory);
        EXPECT_EQ(part.encoding, Encoding::kBf16);
        EXPECT_EQ(static_cast<const std::byte*>(part.bias) - reinterpret_cast<std::byte*>(&c), 64 * widths.size());
        EXPECT_EQ(static_cast<std::byte*>(part.c) - reinterpret_cast<std::byte*>(&c), 64 * widths.size());
        widths.push_back(part.n);
        return std::string(widths.size() == 4 ? "last" : "");
      },
      [](const std::string& text) { return !text.empty(); });
  EXPECT_EQ(problem, "last");
  EXPECT_THAT(widths, ::testing::ElementsAre(32, 32, 32, 4));
}

TEST(EpilogueKernel, ActivationThenResidualInPlace) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t n : {1, 7, 64, 40}) {
      for (const int64_t extra : {0, 3, 8}) {
        for (const bool residual : {false, true}) {
          const int64_t m = 5, ld = n + extra;
          const auto size = static_cast<size_t>(m * ld);
          const std::vector<float> numbers = RandomFloats(size, 1, -3, 3);
          Numbers c(type, numbers), before(type, numbers), added(type, RandomFloats(size, 2));
          Gemm g{};
          g.m = m, g.n = n, g.ldc = ld, g.ldr = ld;
          g.c_type = type;
          g.c = c.data(), g.residual = added.data();
          Epilogue rest;
          rest.activation = Activation::kGelu;
          rest.residual = residual;
          ASSERT_EQ(LaunchEpilogue(Launcher{}, g, rest), "");
          for (size_t i = 0; i < size; ++i) {
            double want = before[i];
            const bool inside = static_cast<int64_t>(i) % ld < n;
            if (inside) want = Activated(Activation::kGelu, want) + (residual ? added[i] : 0);
            ASSERT_NEAR(c[i], want, Unit(type) * std::abs(want) + 1e-6) << n << ", " << extra << ", " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace thresher::cuda::testing
