// Products in tiles with what follows them, on the emulator against float64.
#include "thresher/cuda/tile_product.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "cuda/product_testing.h"

namespace thresher::cuda::testing {
namespace {

void CheckTiles(Case c) {
  c.dense = true;
  CheckProduct(c, [](const Launcher& launch, const Gemm& g) {
    return IsTileProduct(g) ? LaunchTileProduct(launch, g) : "not for this kernel";
  });
}

TEST(TileProductKernel, TypesAndOddSizes) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const DType c_type : {type, DType::kF32}) {
      CheckTiles({17, 70, 72, type, c_type, 0, true, false, Activation::kGelu});
      CheckTiles({65, 129, 40, type, c_type, 8, true, true, Activation::kSilu});
      CheckTiles({1, 1, 8, type, c_type, 0, false, true, Activation::kGelu});
    }
  }
}

TEST(TileProductKernel, LengthsAroundTheStagesOfATile) {
  for (const int64_t k : {8, 24, 32, 40, 64, 72, 96, 104, 200}) {
    CheckTiles({70, 66, k, DType::kBF16, DType::kBF16, 0, true, false, Activation::kGelu});
  }
}

TEST(TileProductKernel, EveryActivationWithAndWithoutBiasAndResidual) {
  for (const Activation activation : {Activation::kGelu, Activation::kSilu, Activation::kTanh, Activation::kSigmoid}) {
    for (const bool bias : {false, true}) {
      for (const bool residual : {false, true}) {
        CheckTiles({19, 11, 40, DType::kBF16, DType::kBF16, 0, bias, residual, activation});
        CheckTiles({19, 12, 40, DType::kF16, DType::kF16, 8, bias, residual, activation, true});
      }
    }
  }
}

TEST(TileProductKernel, EveryTiling) {
  CheckTiles({300, 30, 16, DType::kBF16, DType::kBF16, 0, true, false, Activation::kGelu});        // narrow
  CheckTiles({1400, 600, 8, DType::kBF16, DType::kBF16, 0, true, false, Activation::kGelu});       // tall
  CheckTiles({128 * 8, 128 * 16, 8, DType::kF16, DType::kF16, 0, true, true, Activation::kSilu});  // wide
}

TEST(TileProductKernel, MoreTilesThanBlocks) {
  const Case c{200, 140, 48, DType::kBF16, DType::kBF16, 0, true, false, Activation::kGelu, false, true};
  CheckProduct(c, [](const Launcher& launch, const Gemm& g) {
    const auto with_few = [&](Shape shape, const auto& kernel) {
      shape.blocks = 2;
      return launch(shape, kernel);
    };
    return LaunchTileProduct(with_few, g);
  });
}

TEST(TileProductKernel, TheResidualMayBeTheResult) {
  const int64_t m = 70, n = 66, k = 40;
  const auto count = [](int64_t size) { return static_cast<size_t>(size); };
  Numbers a(DType::kBF16, RandomFloats(count(m * k), 1)), b(DType::kBF16, RandomFloats(count(n * k), 2));
  const std::vector<float> before = RandomFloats(count(m * n), 3);
  Numbers residual(DType::kBF16, before), apart(DType::kBF16, before), in_place(DType::kBF16, before);
  Gemm g{};
  g.m = m, g.n = n, g.k = k, g.batch = 1, g.lda = g.ldb = k, g.ldc = g.ldr = n;
  g.transpose_b = true;
  g.activation = Activation::kGelu;
  g.encoding = Encoding::kBf16;
  g.type = g.c_type = DType::kBF16;
  g.a = a.data(), g.b = b.data(), g.residual = residual.data(), g.c = apart.data();
  ASSERT_EQ(LaunchTileProduct(Launcher{}, g), "");
  g.residual = g.c = in_place.data();
  ASSERT_EQ(LaunchTileProduct(Launcher{}, g), "");
  for (size_t i = 0; i < count(m * n); ++i) ASSERT_EQ(in_place[i], apart[i]) << i;
}

TEST(TileProductKernel, WhatItDoesNotTake) {
  const HalfProduct product(20, Activation::kGelu);
  product.ExpectOthersRefused(&IsTileProduct);
  const auto with = [&](auto change) { return IsTileProduct(product.With(change)); };
  // cuBLASLt does these three by itself.
  EXPECT_FALSE(with([](Gemm& c) { c.activation = Activation::kNone; }));
  EXPECT_FALSE(with([](Gemm& c) { c.activation = Activation::kRelu; }));
  EXPECT_FALSE(with([](Gemm& c) { c.activation = Activation::kGeluTanh; }));
  EXPECT_TRUE(with([](Gemm& c) { c.activation = Activation::kGeluTanh, c.c_type = DType::kF32; }));
  EXPECT_FALSE(with([](Gemm& c) { c.type = c.c_type = DType::kF32; }));
  EXPECT_FALSE(with([](Gemm& c) { c.ldc = 8; }));
}

}  // namespace
}  // namespace thresher::cuda::testing
