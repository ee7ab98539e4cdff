// What cuBLASLt, whose matrices are column-major, must be told to compute a row-major product.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

// C = A * B + bias, all row-major; see KernelId::kStoredProduct.
struct Gemm : kernels::StoredProductParams {
  const void* a;
  const void* b;
  const float* bias;  // or null
  float* c;
  bool bf16;  // of a and b, else f32
};

inline Gemm GemmOf(const kernels::StoredProductParams& params, const View* operands) {
  return {params,
          operands[0].data,
          operands[1].data,
          operands[2].as<const float>(),
          operands[3].as<float>(),
          operands[0].dtype == DType::kBF16};
}

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

inline GemmLayout LayoutOf(const Gemm& g) {
  GemmLayout layout;
  layout.transpose_first = g.transpose_b;
  layout.first = layout.transpose_first ? ColumnMajor{g.k, g.n, g.ldb} : ColumnMajor{g.n, g.k, g.ldb};
  layout.second = {g.k, g.m, g.lda};
  layout.result = {g.n, g.m, g.ldc};
  return layout;
}

// What is wrong with the arguments; empty if nothing is.
inline std::string CheckGemm(const Gemm& g) {
  const auto wanted = [](const char* name, int64_t least, int64_t found) {
    return std::string("product: expected ") + name + " of at least " + std::to_string(least) + ", got " +
           std::to_string(found);
  };
  if (g.m <= 0) return wanted("m", 1, g.m);
  if (g.n <= 0) return wanted("n", 1, g.n);
  if (g.k <= 0) return wanted("k", 1, g.k);
  if (g.lda < g.k) return wanted("lda", g.k, g.lda);
  if (const int64_t row = g.transpose_b ? g.k : g.n; g.ldb < row) return wanted("ldb", row, g.ldb);
  if (g.ldc < g.n) return wanted("ldc", g.n, g.ldc);
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
