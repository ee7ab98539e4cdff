// What cuBLASLt, whose matrices are column-major, must be told to compute a row-major product.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/device_api.h"

namespace thresher::cuda {

// A column-major matrix in memory: element (row, col) is at row + col * ld.
struct ColumnMajor {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;
};

// D = op(first) * op(second). A row-major matrix read as column-major is its transpose, and (A B)^T = B^T A^T: so the
// first factor is our b, the second our a, and the result, read row by row, is ours. A bias along our columns is one
// along D's rows, which is the one that an epilogue can add.
struct GemmLayout {
  ColumnMajor first;   // of b
  ColumnMajor second;  // of a
  ColumnMajor result;  // of c
  bool transpose_first = false;
};

inline GemmLayout LayoutOf(const thresher_gemm& g) {
  GemmLayout layout;
  layout.transpose_first = g.transpose_b != 0;
  layout.first = layout.transpose_first ? ColumnMajor{g.k, g.n, g.ldb} : ColumnMajor{g.n, g.k, g.ldb};
  layout.second = {g.k, g.m, g.lda};
  layout.result = {g.n, g.m, g.ldc};
  return layout;
}

// What is wrong with the arguments; empty if nothing is.
inline std::string CheckGemm(const thresher_gemm& g) {
  const auto wanted = [](const char* name, int64_t least, int64_t found) {
    return std::string("gemm: wanted ") + name + " of at least " + std::to_string(least) + ", found " +
           std::to_string(found);
  };
  if (g.m <= 0) return wanted("m", 1, g.m);
  if (g.n <= 0) return wanted("n", 1, g.n);
  if (g.k <= 0) return wanted("k", 1, g.k);
  if (g.lda < g.k) return wanted("lda", g.k, g.lda);
  if (const int64_t row = g.transpose_b ? g.k : g.n; g.ldb < row) return wanted("ldb", row, g.ldb);
  if (g.ldc < g.n) return wanted("ldc", g.n, g.ldc);
  if (g.type != THRESHER_GEMM_F32 && g.type != THRESHER_GEMM_BF16) {
    return "gemm: wanted type 0 (f32) or 1 (bf16), found " + std::to_string(g.type);
  }
  return {};
}

// The largest power of two up to 256 that divides the address and every row's distance in bytes: what kernels may
// assume of how their operands are aligned.
inline uint32_t AlignmentOf(const void* data, int64_t ld, int64_t element_size) {
  const uint64_t bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data)) |
                        static_cast<uint64_t>(ld * element_size) | uint64_t{256};
  return static_cast<uint32_t>(bits & (~bits + 1));
}

}  // namespace thresher::cuda
