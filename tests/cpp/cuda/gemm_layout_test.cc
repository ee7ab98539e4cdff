// What cuBLASLt is told, against a column-major product in plain code that follows cuBLASLt's definition.
#include "thresher/cuda/gemm_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/float_testing.h"

namespace thresher::cuda {
namespace {

using kernels::testing::RandomFloats;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// D = op(first) * op(second) + bias along D's rows, column-major.
void ColumnMajorProduct(const GemmLayout& l, const float* first, const float* second, const float* bias, float* d) {
  const int64_t k = l.transpose_first ? l.first.rows : l.first.cols;
  ASSERT_EQ(l.transpose_first ? l.first.cols : l.first.rows, l.result.rows);
  ASSERT_EQ(l.transpose_second ? l.second.cols : l.second.rows, k);
  ASSERT_EQ(l.transpose_second ? l.second.rows : l.second.cols, l.result.cols);
  for (const ColumnMajor& m : {l.first, l.second, l.result}) ASSERT_GE(m.ld, m.rows);
  for (int64_t col = 0; col < l.result.cols; ++col) {
    for (int64_t row = 0; row < l.result.rows; ++row) {
      double sum = bias == nullptr ? 0 : bias[row];
      for (int64_t i = 0; i < k; ++i) {
        const float f = l.transpose_first ? first[i + row * l.first.ld] : first[row + i * l.first.ld];
        const float s = l.transpose_second ? second[col + i * l.second.ld] : second[i + col * l.second.ld];
        sum += static_cast<double>(f) * s;
      }
      d[row + col * l.result.ld] = static_cast<float>(sum);
    }
  }
}

TEST(GemmLayout, IsTheRowMajorProduct) {
  for (const int options : {0, 1, 2, 3, 4, 5, 6, 7}) {
    for (const int64_t extra : {0, 3}) {
      const bool transpose_a = (options & 1) != 0, transpose_b = (options & 2) != 0, with_bias = (options & 4) != 0;
      const int64_t m = 5, n = 7, k = 4;
      Gemm g{};
      g.m = m, g.n = n, g.k = k, g.batch = 1;
      g.lda = (transpose_a ? m : k) + extra;
      g.ldb = (transpose_b ? k : n) + extra;
      g.ldc = n + extra;
      g.transpose_a = transpose_a;
      g.transpose_b = transpose_b;
      const std::vector<float> a = RandomFloats(static_cast<size_t>((transpose_a ? k : m) * g.lda), 1);
      const std::vector<float> b = RandomFloats(static_cast<size_t>((transpose_b ? n : k) * g.ldb), 2);
      const std::vector<float> bias = RandomFloats(static_cast<size_t>(n), 3);
      std::vector<float> c(static_cast<size_t>(m * g.ldc), 9);
      ASSERT_THAT(CheckGemm(g), IsEmpty());
      ColumnMajorProduct(LayoutOf(g), b.data(), a.data(), with_bias ? bias.data() : nullptr, c.data());
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < g.ldc; ++j) {
          double want = 9;
          if (j < n) {
            want = with_bias ? bias[static_cast<size_t>(j)] : 0;
            for (int64_t p = 0; p < k; ++p) {
              const int64_t at_a = transpose_a ? p * g.lda + i : i * g.lda + p;
              const int64_t at_b = transpose_b ? j * g.ldb + p : p * g.ldb + j;
              want += static_cast<double>(a[static_cast<size_t>(at_a)]) * b[static_cast<size_t>(at_b)];
            }
          }
          ASSERT_NEAR(c[static_cast<size_t>(i * g.ldc + j)], want, 1e-6) << options << ": " << i << ", " << j;
        }
      }
    }
  }
}

TEST(GemmLayout, EpiloguesDoWhatTheyCanAndLeaveTheRest) {
  using kernels::Activation;
  float there = 0;
  Gemm g{};
  g.c_type = DType::kBF16;
  const auto of = [&](Activation activation, bool bias, bool residual, bool fused = true) {
    g.activation = activation;
    g.bias = bias ? &there : nullptr;
    g.residual = residual ? &there : nullptr;
    return EpilogueOf(g, fused);
  };
  EXPECT_EQ(of(Activation::kNone, false, false).bits, kEpilogueNone);
  EXPECT_TRUE(of(Activation::kNone, false, false).complete());
  EXPECT_EQ(of(Activation::kNone, true, true).bits, kEpilogueBias);
  EXPECT_TRUE(of(Activation::kNone, true, true).adds_residual);
  EXPECT_TRUE(of(Activation::kNone, true, true).complete());
  EXPECT_EQ(of(Activation::kRelu, true, false).bits, kEpilogueRelu | kEpilogueBias);
  EXPECT_EQ(of(Activation::kGeluTanh, true, false).bits, kEpilogueGeluTanh | kEpilogueBias);
  // The residual comes behind the activation.
  EXPECT_FALSE(of(Activation::kRelu, true, true).adds_residual);
  EXPECT_TRUE(of(Activation::kRelu, true, true).residual);
  EXPECT_EQ(of(Activation::kRelu, true, true).activation, Activation::kNone);
  // Or before it, which leaves nothing, or the activation alone.
  g.residual_first = true;
  EXPECT_TRUE(of(Activation::kRelu, true, true).adds_residual);
  EXPECT_TRUE(of(Activation::kRelu, true, true).complete());
  EXPECT_EQ(of(Activation::kRelu, true, true, false).activation, Activation::kRelu);
  EXPECT_TRUE(of(Activation::kSilu, true, true).adds_residual);
  EXPECT_EQ(of(Activation::kSilu, true, true).activation, Activation::kSilu);
  EXPECT_FALSE(of(Activation::kSilu, true, true).residual);
  g.residual_first = false;
  // That gelu is not the one by erf.
  EXPECT_EQ(of(Activation::kGelu, true, false).bits, kEpilogueBias);
  EXPECT_EQ(of(Activation::kGelu, true, false).activation, Activation::kGelu);
  EXPECT_EQ(of(Activation::kGeluTanh, true, false, false).activation, Activation::kGeluTanh);
  g.c_type = DType::kF32;
  EXPECT_EQ(of(Activation::kGeluTanh, true, false).activation, Activation::kGeluTanh);
}

TEST(GemmLayout, WrongArgumentsAreNamed) {
  Gemm g{};
  g.m = 2, g.n = 3, g.k = 4, g.batch = 1, g.lda = 4, g.ldb = 3, g.ldc = 3;
  EXPECT_THAT(CheckGemm(g), IsEmpty());
  const auto with = [&](auto change) {
    Gemm changed = g;
    change(changed);
    return CheckGemm(changed);
  };
  EXPECT_THAT(with([](Gemm& c) { c.k = 0; }), HasSubstr("expected k of at least 1, got 0"));
  EXPECT_THAT(with([](Gemm& c) { c.lda = 3; }), HasSubstr("expected lda of at least 4, got 3"));
  EXPECT_THAT(with([](Gemm& c) { c.transpose_b = true; }), HasSubstr("expected ldb of at least 4, got 3"));
  EXPECT_THAT(with([](Gemm& c) { c.ldc = 2; }), HasSubstr("expected ldc of at least 3, got 2"));
  EXPECT_THAT(with([](Gemm& c) { c.batch = 0; }), HasSubstr("expected batch of at least 1, got 0"));
  EXPECT_THAT(with([](Gemm& c) { c.batch = 2, c.bias = &c; }), HasSubstr("expected neither bias nor residual"));
  EXPECT_THAT(with([](Gemm& c) { c.encoding = Encoding::kQ8_0; }), HasSubstr("weights [n, k]"));
}

TEST(GemmLayout, Alignment) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<const void*>(address); };
  EXPECT_EQ(AlignmentOf(at(4096), 64, 0, 4), 256u);
  EXPECT_EQ(AlignmentOf(at(4096), 4, 0, 4), 16u);
  EXPECT_EQ(AlignmentOf(at(4096), 1, 0, 2), 2u);
  EXPECT_EQ(AlignmentOf(at(4096 + 4), 64, 0, 4), 4u);
  EXPECT_EQ(AlignmentOf(at(4096 + 1024), 1024, 0, 4), 256u);
  EXPECT_EQ(AlignmentOf(at(4096), 64, 12, 2), 8u);
}

}  // namespace
}  // namespace thresher::cuda
