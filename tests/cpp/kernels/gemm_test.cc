#include "thresher/kernels/gemm.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "kernels/product_testing.h"
#include "thresher/base/cpu.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::ExpectClose;
using testing::ForEachIsa;
using testing::Multiply;
using testing::RandomFloats;

struct Case {
  int64_t m, n, k;
  bool bias = false;
  enum { kNoResidual, kResidual, kInPlace } residual = kNoResidual;
  Activation activation = Activation::kNone;
  bool residual_first = false;
  bool transposed = true;  // b is [n, k], as in torch Linear
  int64_t extra = 0;       // what every leading dimension exceeds its row by
  int num_parts = 1;
  Blocking blocking = {};
};

constexpr float kUntouched = 12345.0f;

void Check(const Case& c) {
  SCOPED_TRACE("m " + std::to_string(c.m) + " n " + std::to_string(c.n) + " k " + std::to_string(c.k) + " bias " +
               std::to_string(c.bias) + " residual " + std::to_string(c.residual) + " act " +
               std::string(Name(c.activation)) + " residual first " + std::to_string(c.residual_first) +
               " transposed " + std::to_string(c.transposed) + " extra " + std::to_string(c.extra) + " parts " +
               std::to_string(c.num_parts) + " " + testing::ToString(c.blocking));
  const int64_t lda = c.k + c.extra;
  const int64_t ldc = c.n + c.extra;
  const int64_t ldb = (c.transposed ? c.k : c.n) + c.extra;
  const int64_t stride_k = c.transposed ? 1 : ldb;
  const int64_t stride_n = c.transposed ? ldb : 1;
  // One float of offset misaligns everything but the packed matrix.
  const std::vector<float> a = RandomFloats(static_cast<size_t>(c.m * lda + 1), 1);
  const std::vector<float> b = RandomFloats(static_cast<size_t>((c.transposed ? c.n : c.k) * ldb + 1), 2);
  const std::vector<float> bias = RandomFloats(static_cast<size_t>(c.n + 1), 3);
  const std::vector<float> residual = RandomFloats(static_cast<size_t>(c.m * ldc + 1), 4);
  std::vector<float> expected =
      c.residual == Case::kInPlace ? residual : std::vector<float>(static_cast<size_t>(c.m * ldc + 1), kUntouched);
  const std::vector<float> initial = expected;

  GemmArgs args;
  args.m = c.m, args.n = c.n, args.k = c.k;
  args.a = a.data() + 1, args.lda = lda;
  args.c = expected.data() + 1, args.ldc = ldc;
  args.bias = c.bias ? bias.data() + 1 : nullptr;
  args.residual = c.residual == Case::kNoResidual ? nullptr
                  : c.residual == Case::kInPlace  ? args.c
                                                  : residual.data() + 1;
  args.ldr = ldc;
  args.activation = c.activation;
  args.residual_first = c.residual_first;
  args.blocking = c.blocking;
  GemmReference(args, b.data() + 1, stride_k, stride_n);

  ForEachIsa([&] {
    AlignedFloats packed(static_cast<size_t>(PackedSize(c.k, c.n)));
    std::vector<float> actual = initial;
    GemmArgs own = args;
    own.c = actual.data() + 1;
    own.packed_b = packed.data();
    if (c.residual == Case::kInPlace) own.residual = own.c;
    for (int part = 0; part < c.num_parts; ++part) {
      const Weight weight{b.data() + 1, Encoding::kF32, c.k, c.n, stride_k, stride_n};
      PackWeight(Precision::kFp32, weight, packed.data(), part, c.num_parts);
    }
    Multiply(own, c.num_parts);
    // The partial sums grow with the square root of k, and so does the number of roundings that add up; columns past n
    // must stay as they were.
    ExpectClose(actual, expected, 1e-6f + 1e-7f * static_cast<float>(c.k), 1e-6f);
  });
}

TEST(GemmTest, EveryRowRemainder) {
  for (int64_t m = 1; m <= 45; ++m) Check({.m = m, .n = 37, .k = 19});
}

TEST(GemmTest, EveryColumnRemainder) {
  for (int64_t n = 1; n <= 70; ++n) {
    Check({.m = 7, .n = n, .k = 21, .bias = true, .residual = Case::kResidual});
    Check({.m = 15, .n = n, .k = 66, .residual = Case::kResidual, .activation = Activation::kRelu6, .extra = 3});
  }
}

TEST(GemmTest, EveryDepthRemainder) {
  for (int64_t k = 0; k <= 35; ++k) {
    for (const int64_t m : {1, 2, 3, 5}) Check({.m = m, .n = 33, .k = k, .bias = true});
  }
  // Many tiles fetch a line of the panel in each turn, and take two turns at once, as soon as their results are
  // fetched.
  for (int64_t k = 30; k <= 70; ++k) Check({.m = 23, .n = 33, .k = k, .bias = true});
}

TEST(GemmTest, DepthBlocks) {
  for (const int64_t k : {191, 193, 383, 384, 385, 769, 1157, 2000}) {
    for (const auto residual : {Case::kNoResidual, Case::kResidual, Case::kInPlace}) {
      Check({.m = 31, .n = 50, .k = k, .bias = true, .residual = residual});
      Check({.m = 31, .n = 50, .k = k, .bias = true, .residual = residual, .activation = Activation::kGelu});
    }
  }
}

TEST(GemmTest, RowBlocks) {
  for (const int64_t m : {143, 144, 145, 300}) {
    Check({.m = m, .n = 40, .k = 70});
    Check({.m = m, .n = 40, .k = 1400, .residual = Case::kInPlace});
  }
}

// Tiles of two heights, each several times, that are finished at once: in one call each.
TEST(GemmTest, SeveralTilesInOneCall) {
  for (const int64_t m : {27, 83, 145}) {
    for (const int64_t n : {8, 37, 64}) {
      for (const auto residual : {Case::kNoResidual, Case::kResidual, Case::kInPlace}) {
        for (const bool residual_first : {false, true}) {
          Check({.m = m,
                 .n = n,
                 .k = 16,
                 .bias = residual_first,
                 .residual = residual,
                 .activation = n == 64 ? Activation::kNone : Activation::kRelu6,
                 .residual_first = residual_first,
                 .extra = n == 8 ? 3 : 0});
        }
      }
    }
  }
}

// Rows that lie a multiple of 4 KiB apart, and rows of which L2 holds too few, are gathered where there are several
// panels, of which the last may have columns beyond n.
TEST(GemmTest, GatheredRows) {
  for (const int64_t k : {2048, 4096}) {
    for (const int64_t n : {127, 128, 290}) {
      for (const auto residual : {Case::kNoResidual, Case::kResidual, Case::kInPlace}) {
        for (const int32_t panel_kib : {0, 64}) {  // where a panel fits L2 as a whole, nothing is gathered by default
          const Blocking blocking = {.panel_kib = panel_kib};
          Check({.m = 29, .n = n, .k = k, .bias = true, .residual = residual, .blocking = blocking});
          Check({.m = 29,
                 .n = n,
                 .k = k,
                 .bias = true,
                 .residual = residual,
                 .activation = Activation::kRelu,
                 .residual_first = n == 128,
                 .blocking = blocking});
        }
      }
    }
  }
  Check({.m = 331, .n = 161, .k = 2051, .bias = true, .residual = Case::kInPlace, .extra = 3, .num_parts = 3});
  Check({.m = 331, .n = 161, .k = 2051, .activation = Activation::kSilu, .num_parts = 2});
  Check({.m = 64, .n = 160, .k = 2048, .blocking = {.panel_kib = 1, .most_rows = 20}});
  Check({.m = 300, .n = 160, .k = 2048, .blocking = {.panel_kib = 64, .most_rows = 288}});
}

TEST(GemmTest, Epilogues) {
  for (int act = 0; act <= static_cast<int>(kLastActivation); ++act) {
    for (const bool bias : {false, true}) {
      for (const auto residual : {Case::kNoResidual, Case::kResidual, Case::kInPlace}) {
        for (const bool residual_first : {false, true}) {
          Check({.m = 13,
                 .n = 75,
                 .k = 30,
                 .bias = bias,
                 .residual = residual,
                 .activation = static_cast<Activation>(act),
                 .residual_first = residual_first});
        }
      }
    }
  }
}

// Rows enough for tiles of two panels, where a processor takes them: every height, panels left over, every ending.
TEST(GemmTest, TwoPanelsAtOnce) {
  for (int64_t m = 15; m <= 40; ++m) Check({.m = m, .n = 96 + m % 2, .k = 18 + m % 5, .bias = m % 3 == 0});
  for (const int64_t k : {0, 1, 3, 4, 70, 300}) Check({.m = 33, .n = 64, .k = k, .bias = true, .extra = 5});
  for (int act = 0; act <= static_cast<int>(kLastActivation); ++act) {
    for (const auto residual : {Case::kNoResidual, Case::kResidual, Case::kInPlace}) {
      for (const bool residual_first : {false, true}) {
        Check({.m = 59,
               .n = 170,
               .k = 30,
               .bias = act % 2 == 0,
               .residual = residual,
               .activation = static_cast<Activation>(act),
               .residual_first = residual_first,
               .extra = 7,
               .num_parts = 2});
      }
    }
  }
}

// So long a k that one panel of 32 columns fits a quarter of L2 and two do not: they are cut for any rows.
int64_t DepthThatIsCut() { return std::min<int64_t>(Caches().l2 / 4 / 128 / 4 * 3, 8192); }

TEST(GemmTest, TwoPanelsInBlocksOfDepth) {
  // Few rows in smaller blocks, where more have none, too.
  for (const int64_t m : {15, 49, 64, 65}) Check({.m = m, .n = 64, .k = 515, .bias = true, .extra = 3});
  Check({.m = 120, .n = 64, .k = 515, .num_parts = 2});
  for (const int64_t extra : {0, 1, 3}) Check({.m = 61, .n = 97, .k = DepthThatIsCut() + extra, .bias = extra > 0});
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu}) {
    for (const auto residual : {Case::kNoResidual, Case::kResidual, Case::kInPlace}) {
      Check({.m = 199,
             .n = 64,
             .k = DepthThatIsCut(),
             .bias = true,
             .residual = residual,
             .activation = activation,
             .extra = 7,
             .num_parts = 2});
    }
  }
}

// However panels are taken, each sum adds the same numbers in the same order.
class TwoPanelsAtOnce : public ::testing::TestWithParam<int64_t> {};

TEST_P(TwoPanelsAtOnce, AreTheSameBits) {
  constexpr int64_t kM = 47, kN = 160;
  const int64_t k = GetParam();
  const std::vector<float> a = RandomFloats(kM * k, 1);
  const std::vector<float> b = RandomFloats(k * kN, 2);
  const std::vector<float> bias = RandomFloats(kN, 3);
  ForEachIsa([&] {
    AlignedFloats packed(static_cast<size_t>(PackedSize(k, kN)));
    PackWeight(Precision::kFp32, {b.data(), Encoding::kF32, k, kN, kN, 1}, packed.data());
    std::vector<float> results[2];
    for (const int32_t panel_kib : {0, 8}) {  // blocks of panels: one at a time
      GemmArgs args;
      args.m = kM, args.n = kN, args.k = k;
      args.a = a.data(), args.lda = k;
      args.packed_b = packed.data();
      args.bias = bias.data();
      args.blocking.panel_kib = panel_kib;
      std::vector<float>& c = results[panel_kib == 0 ? 0 : 1];
      c.resize(kM * kN);
      args.c = c.data(), args.ldc = kN;
      Multiply(args, 1);
    }
    EXPECT_EQ(results[0], results[1]);
  });
}

INSTANTIATE_TEST_SUITE_P(Depths, TwoPanelsAtOnce, ::testing::Values(200, 600, DepthThatIsCut()));

TEST(GemmTest, LayoutsAndLeadingDimensions) {
  for (const bool transposed : {false, true}) {
    for (const int64_t extra : {0, 1, 5, 16}) {
      for (const int64_t n : {3, 32, 61}) {
        Check({.m = 14,
               .n = n,
               .k = 27,
               .bias = true,
               .residual = Case::kInPlace,
               .transposed = transposed,
               .extra = extra});
      }
    }
  }
}

TEST(GemmTest, PartsCoverEverythingOnce) {
  for (const int parts : {2, 3, 5, 16}) {
    for (const int64_t m : {1, 4, 29, 130}) {
      for (const int64_t n : {1, 31, 200}) {
        // In place, a residual added twice would show.
        Check({.m = m, .n = n, .k = 40, .residual = Case::kInPlace, .num_parts = parts});
      }
    }
  }
}

TEST(GemmTest, EveryBlockingComputesTheSame) {
  for (const Blocking& blocking : testing::OddBlockings()) {
    for (const auto residual : {Case::kNoResidual, Case::kInPlace}) {
      for (const int parts : {1, 3}) {
        Check({.m = 31,
               .n = 75,
               .k = 700,
               .bias = true,
               .residual = residual,
               .activation = residual == Case::kInPlace ? Activation::kGelu : Activation::kNone,
               .num_parts = parts,
               .blocking = blocking});
        Check({.m = 3, .n = 75, .k = 70, .residual = residual, .num_parts = parts, .blocking = blocking});
      }
    }
    Check({.m = 601, .n = 33, .k = 90, .bias = true, .num_parts = 2, .blocking = blocking});
  }
}

TEST(GemmTest, EmptyShapesTouchNothing) {
  Check({.m = 0, .n = 5, .k = 5});
  Check({.m = 5, .n = 0, .k = 5});
}

TEST(GemmTest, PackingAcceptsAnyStrides) {
  // Every second row and every third column, backwards.
  const std::vector<float> b = RandomFloats(2000, 9);
  const std::vector<float> a = RandomFloats(6 * 10, 10);
  std::vector<float> expected(6 * 17);
  GemmArgs args{.m = 6, .n = 17, .k = 10, .a = a.data(), .lda = 10, .c = expected.data(), .ldc = 17};
  const float* last = b.data() + 1999;
  GemmReference(args, last, -100, -3);
  ForEachIsa([&] {
    AlignedFloats packed(static_cast<size_t>(PackedSize(10, 17)));
    PackWeight(Precision::kFp32, {last, Encoding::kF32, 10, 17, -100, -3}, packed.data());
    std::vector<float> actual(6 * 17);
    GemmArgs own = args;
    own.packed_b = packed.data();
    own.c = actual.data();
    Multiply(own);
    ExpectClose(actual, expected, 1e-5f);
  });
}

TEST(GemmTest, NanAndInfinityStayInTheirRow) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> a(8 * 20, 1.0f);
  a[3 * 20 + 7] = std::numeric_limits<float>::quiet_NaN();
  a[5 * 20 + 9] = kInf;
  const std::vector<float> b(20 * 33, 0.5f);
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kGelu}) {
    ForEachIsa([&] {
      AlignedFloats packed(static_cast<size_t>(PackedSize(20, 33)));
      PackWeight(Precision::kFp32, DenseWeight(b.data(), 20, 33, false), packed.data());
      std::vector<float> c(8 * 33);
      Multiply(GemmArgs{.m = 8,
                        .n = 33,
                        .k = 20,
                        .a = a.data(),
                        .lda = 20,
                        .packed_b = packed.data(),
                        .c = c.data(),
                        .ldc = 33,
                        .activation = activation});
      for (int i = 0; i < 8; ++i) {
        for (int j = 0; j < 33; ++j) {
          const float v = c[static_cast<size_t>(i * 33 + j)];
          if (i == 3) {
            ASSERT_TRUE(std::isnan(v));
          } else if (i == 5) {
            ASSERT_EQ(v, kInf);
          } else {
            ASSERT_NEAR(v, 10.0f, 1e-4f);
          }
        }
      }
    });
  }
}

TEST(GemmTest, ActivationNamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(kLastActivation); ++i) {
    const Activation activation = static_cast<Activation>(i);
    EXPECT_EQ(ParseActivation(Name(activation)), activation);
  }
  EXPECT_FALSE(ParseActivation("swish").has_value());
}

}  // namespace
}  // namespace thresher::kernels
