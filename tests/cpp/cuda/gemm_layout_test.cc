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
  ASSERT_EQ(l.second.rows, k);
  ASSERT_EQ(l.second.cols, l.result.cols);
  for (const ColumnMajor& m : {l.first, l.second, l.result}) ASSERT_GE(m.ld, m.rows);
  for (int64_t col = 0; col < l.result.cols; ++col) {
    for (int64_t row = 0; row < l.result.rows; ++row) {
      double sum = bias == nullptr ? 0 : bias[row];
      for (int64_t i = 0; i < k; ++i) {
        const float f = l.transpose_first ? first[i + row * l.first.ld] : first[row + i * l.first.ld];
        sum += static_cast<double>(f) * second[i + col * l.second.ld];
      }
      d[row + col * l.result.ld] = static_cast<float>(sum);
    }
  }
}

TEST(GemmLayout, IsTheRowMajorProduct) {
  for (const bool transpose_b : {false, true}) {
    for (const bool with_bias : {false, true}) {
      for (const int64_t extra : {0, 3}) {
        const int64_t m = 5, n = 7, k = 4;
        Gemm g{};
        g.m = m, g.n = n, g.k = k;
        g.lda = k + extra;
        g.ldb = (transpose_b ? k : n) + extra;
        g.ldc = n + extra;
        g.transpose_b = transpose_b;
        const std::vector<float> a = RandomFloats(static_cast<size_t>(m * g.lda), 1);
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
                const int64_t at = transpose_b ? j * g.ldb + p : p * g.ldb + j;
                want += static_cast<double>(a[static_cast<size_t>(i * g.lda + p)]) * b[static_cast<size_t>(at)];
              }
            }
            ASSERT_NEAR(c[static_cast<size_t>(i * g.ldc + j)], want, 1e-6) << i << ", " << j;
          }
        }
      }
    }
  }
}

TEST(GemmLayout, WrongArgumentsAreNamed) {
  Gemm g{};
  g.m = 2, g.n = 3, g.k = 4, g.lda = 4, g.ldb = 3, g.ldc = 3;
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
}

TEST(GemmLayout, Alignment) {
  const auto at = [](uintptr_t address) { return reinterpret_cast<const void*>(address); };
  EXPECT_EQ(AlignmentOf(at(4096), 64, 4), 256u);
  EXPECT_EQ(AlignmentOf(at(4096), 4, 4), 16u);
  EXPECT_EQ(AlignmentOf(at(4096), 1, 2), 2u);
  EXPECT_EQ(AlignmentOf(at(4096 + 4), 64, 4), 4u);
  EXPECT_EQ(AlignmentOf(at(4096 + 1024), 1024, 4), 256u);
}

}  // namespace
}  // namespace thresher::cuda
