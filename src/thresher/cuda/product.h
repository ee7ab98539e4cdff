// Matrix products: of few rows by a kernel of our own (gemv_kernel.h), others by cuBLASLt (cublaslt.h).
#pragma once

#include <string>

#include "thresher/cuda/call.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

struct ProductFamily {
  static constexpr KernelId kKernels[] = {KernelId::kStoredProduct};
  static constexpr bool kOfLibrary = true;

  static Verdict Check(const Call& call) {
    if (Verdict verdict = Fits(call, sizeof(kernels::StoredProductParams), 5); !verdict.ok()) return verdict;
    const auto& p = call.as<kernels::StoredProductParams>();
    const DType a = call.views[0].dtype, b = call.views[1].dtype, c = call.views[4].dtype;
    // What is absent has no rank.
    const auto as_c = [&](int i) { return call.views[i].rank == 0 || call.views[i].dtype == c; };
    if (IsFloat(a) && b == a && EncodingOf(a) == p.encoding && (c == DType::kF32 || c == a) && as_c(2) && as_c(3)) {
      return {};
    }
    return Unsupported(
        "product: expected factors of one float type, and bias, residual and result of that or of f32, "
        "got " +
        std::string(Name(a)) + ", " + std::string(Name(p.encoding)) + ", " + std::string(Name(call.views[2].dtype)) +
        ", " + std::string(Name(call.views[3].dtype)) + " and " + std::string(Name(c)));
  }
};

}  // namespace thresher::cuda
