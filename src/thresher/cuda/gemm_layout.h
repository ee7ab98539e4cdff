// What cuBLASLt, whose matrices are column-major, must be told to compute a row-major product.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/cuda/cublaslt_constants.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

// C = act(A * B + bias) + residual, or act(A * B + bias + residual), all row-major; see KernelId::kStoredProduct.
struct Gemm : kernels::StoredProductParams {
  const void* a;
  const void* b;
  const void* bias;      // or null
  const void* residual;  // or null; may be c
  void* c;
  DType type;    // of a, and of b where it is not in blocks
  DType c_type;  // of c, bias and residual
};

inline Gemm GemmOf(const kernels::StoredProductParams& params, const View* operands) {
  return {params,           operands[0].data, operands[1].data,  operands[2].data,
          operands[3].data, operands[4].data, operands[0].dtype, operands[4].dtype};
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
  ColumnMajor first;     // of b
  ColumnMajor second;    // of a
  ColumnMajor result;    // of c
  ColumnMajor residual;  // of what is added
  bool transpose_first = false;
  bool transpose_second = false;
};

inline GemmLayout LayoutOf(const Gemm& g) {
  GemmLayout layout;
  layout.transpose_first = g.transpose_b;
  layout.first = layout.transpose_first ? ColumnMajor{g.k, g.n, g.ldb} : ColumnMajor{g.n, g.k, g.ldb};
  layout.transpose_second = g.transpose_a;
  layout.second = layout.transpose_second ? ColumnMajor{g.m, g.k, g.lda} : ColumnMajor{g.k, g.m, g.lda};
  layout.result = {g.n, g.m, g.ldc};
  layout.residual = {g.n, g.m, g.residual != nullptr ? g.ldr : g.ldc};
  return layout;
}

// How much of what follows the product cuBLASLt does: bits of its epilogue, and whether the residual comes in as the
// matrix that is added before them. What is left is a kernel of our own, in place: `activation`, then `residual`.
struct Epilogue {
  uint32_t bits = kEpilogueNone;
  bool adds_residual = false;
  kernels::Activation activation = kernels::Activation::kNone;
  bool residual = false;

  bool complete() const { return activation == kernels::Activation::kNone && !residual; }
};

// `fused`: of the activation as much as there is.
inline Epilogue EpilogueOf(const Gemm& g, bool fused = true) {
  using kernels::Activation;
  Epilogue epilogue;
  epilogue.bits = g.bias != nullptr ? kEpilogueBias : 0;
  epilogue.activation = g.activation;
  epilogue.adds_residual = g.residual != nullptr && (g.residual_first || g.activation == Activation::kNone);
  if (g.activation == Activation::kRelu && fused) {
    epilogue.bits |= kEpilogueRelu;
    epilogue.activation = Activation::kNone;
  } else if (g.activation == Activation::kGeluTanh && fused && g.c_type != DType::kF32) {
    // Its tanh has the digits of a float of 16 bits.
    epilogue.bits |= kEpilogueGeluTanh;
    epilogue.activation = Activation::kNone;
  }
  epilogue.residual = g.residual != nullptr && !epilogue.adds_residual;
  if (epilogue.bits == 0) epilogue.bits = kEpilogueNone;
  return epilogue;
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
  if (g.batch <= 0) return wanted("batch", 1, g.batch);
  if (const int64_t row = g.transpose_a ? g.m : g.k; g.lda < row) return wanted("lda", row, g.lda);
  if (const int64_t row = g.transpose_b ? g.k : g.n; g.ldb < row) return wanted("ldb", row, g.ldb);
  if (g.ldc < g.n) return wanted("ldc", g.n, g.ldc);
  if (g.residual != nullptr && g.ldr < g.n) return wanted("ldr", g.n, g.ldr);
  if (g.batch > 1 && (g.bias != nullptr || g.residual != nullptr)) {
    return "product: expected neither bias nor residual in a batch of products";
  }
  if (IsBlocked(g.encoding) && (!g.transpose_b || g.transpose_a || g.batch > 1 || g.ldb != g.k)) {
    return "product: expected one product with weights [n, k] where they are in blocks";
  }
  return {};
}

// Elements from the first to behind the last of the result.
inline int64_t ResultElements(const Gemm& g) { return (g.batch - 1) * g.stride_c + (g.m - 1) * g.ldc + g.n; }

// The largest power of two up to 256 that divides the address and every distance in bytes, from row to row and from
// matrix to matrix: what kernels may assume of how their operands are aligned.
inline uint32_t AlignmentOf(const void* data, int64_t ld, int64_t stride, int64_t element_size) {
  const uint64_t bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data)) |
                        static_cast<uint64_t>(ld * element_size) | static_cast<uint64_t>(stride * element_size) |
                        uint64_t{256};
  return static_cast<uint32_t>(bits & (~bits + 1));
}

}  // namespace thresher::cuda
