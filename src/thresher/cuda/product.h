// Matrix products, which cuBLASLt has (cublaslt.h).
#pragma once

#include <string>

#include "thresher/cuda/call.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

struct ProductFamily {
  static constexpr KernelId kKernels[] = {KernelId::kStoredProduct};
  static constexpr bool kOfLibrary = true;

  static Verdict Check(const Call& call) {
    if (Verdict verdict = Fits(call, sizeof(kernels::StoredProductParams), 4); !verdict.ok()) return verdict;
    const View* v = call.views;
    const bool known = (v[0].dtype == DType::kF32 || v[0].dtype == DType::kBF16) && v[1].dtype == v[0].dtype;
    if (known && v[2].dtype == DType::kF32 && v[3].dtype == DType::kF32) return {};
    return Unsupported("product: expected factors of f32 or bf16, and bias and result of f32, got " +
                       std::string(Name(v[0].dtype)) + ", " + std::string(Name(v[1].dtype)) + ", " +
                       std::string(Name(v[2].dtype)) + " and " + std::string(Name(v[3].dtype)));
  }
};

}  // namespace thresher::cuda
