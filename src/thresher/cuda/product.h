// Matrix products: of few rows by a kernel of our own (gemv_kernel.h), others by cuBLASLt (cublaslt.h), or where it has
// no epilogue for what follows by the faster of the two (tile_product.h).
#pragma once

#include <string>

#include "thresher/cuda/block_gemv_kernel.h"
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
    const bool one_type = b == a && EncodingOf(a) == p.encoding && (c == DType::kF32 || c == a);
    if (IsFloat(a) && (one_type || (HasBlocks(p.encoding) && c == a)) && as_c(2) && as_c(3)) return {};
    if (IsBlocked(p.encoding) && !HasBlocks(p.encoding)) {
      return Unsupported("product: expected weights in q8_0, q4_0 or q4_1 where they are in blocks, got " +
                         std::string(Name(p.encoding)) + "; quantise the model's own weights to one of these");
    }
    return Unsupported(
        "product: expected factors of one float type, and bias, residual and result of that or of f32, "
        "got " +
        std::string(Name(a)) + ", " + std::string(Name(p.encoding)) + ", " + std::string(Name(call.views[2].dtype)) +
        ", " + std::string(Name(call.views[3].dtype)) + " and " + std::string(Name(c)));
  }

  // Beside what cuBLASLt has.
  static size_t UnpackedBytesOf(const Call& call) {
    return UnpackedBytes(call.as<kernels::StoredProductParams>(), call.views[0].dtype);
  }
};

}  // namespace thresher::cuda
