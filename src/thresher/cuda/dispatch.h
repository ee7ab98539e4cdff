// From the number of a kernel to its launch: what device libraries with these kernels have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "thresher/cuda/chain_kernel.h"
#include "thresher/cuda/copy_kernel.h"
#include "thresher/cuda/norm_kernel.h"
#include "thresher/cuda/softmax_kernel.h"
#include "thresher/device_api.h"
#include "thresher/kernels/kernel_id.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

inline constexpr KernelId kKernels[] = {KernelId::kCopy,    KernelId::kCast,      KernelId::kUnary,
                                        KernelId::kBinary,  KernelId::kPointwise, KernelId::kLayerNorm,
                                        KernelId::kRmsNorm, KernelId::kSoftmax,   KernelId::kStoredProduct};

// A step, as device_api.h passes it.
struct Call {
  uint32_t number;
  const void* params;
  size_t params_bytes;
  const View* views;
  int32_t num_views;

  KernelId kernel() const { return static_cast<KernelId>(number); }
  template <class Params>
  const Params& as() const {
    return *static_cast<const Params*>(params);
  }
};

struct Verdict {
  thresher_device_result result = THRESHER_DEVICE_OK;
  std::string problem;
};

// Whether there is the kernel for such operands.
inline Verdict Check(const Call& call) {
  const auto unsupported = [](std::string text) { return Verdict{THRESHER_DEVICE_UNSUPPORTED, std::move(text)}; };
  const auto has_type = [&](int i, DType dtype) { return call.views[i].dtype == dtype; };
  const auto fits = [&](size_t params_bytes, int32_t num_views) {
    if (call.params_bytes == params_bytes && call.num_views == num_views) return Verdict{};
    return Verdict{THRESHER_DEVICE_INVALID_ARGUMENT,
                   std::string(Name(call.kernel())) + ": expected " + std::to_string(params_bytes) +
                       " bytes of parameters and " + std::to_string(num_views) + " operands, got " +
                       std::to_string(call.params_bytes) + " and " + std::to_string(call.num_views) +
                       "; the engine is of another release"};
  };
  const auto all_f32 = [&] {
    for (int i = 0; i < call.num_views; ++i) {
      if (!has_type(i, DType::kF32)) {
        return unsupported(std::string(Name(call.kernel())) + ": expected operands of f32 on this device, got " +
                           std::string(Name(call.views[i].dtype)));
      }
    }
    return Verdict{};
  };
  Verdict verdict;
  switch (call.number < kKernelNames.size() ? call.kernel() : KernelId::kSdpa) {
    case KernelId::kCopy:
      return fits(sizeof(NoParams), 2);
    case KernelId::kCast:
      verdict = fits(sizeof(NoParams), 2);
      if (verdict.result != THRESHER_DEVICE_OK || CanCast(call.views[0].dtype, call.views[1].dtype)) return verdict;
      return unsupported("cast: expected f32 to bf16 or back on this device, got " +
                         std::string(Name(call.views[0].dtype)) + " to " + std::string(Name(call.views[1].dtype)));
    case KernelId::kUnary:
      verdict = fits(sizeof(kernels::UnaryParams), 2);
      return verdict.result != THRESHER_DEVICE_OK ? verdict : all_f32();
    case KernelId::kBinary:
      verdict = fits(sizeof(kernels::BinaryParams), 3);
      return verdict.result != THRESHER_DEVICE_OK ? verdict : all_f32();
    case KernelId::kPointwise:
      verdict = fits(sizeof(Chain), call.params_bytes == sizeof(Chain) ? call.as<Chain>().num_operands + 1 : 0);
      return verdict.result != THRESHER_DEVICE_OK ? verdict : all_f32();
    case KernelId::kLayerNorm:
    case KernelId::kRmsNorm:
      verdict = fits(sizeof(kernels::NormParams), 6);
      return verdict.result != THRESHER_DEVICE_OK ? verdict : all_f32();
    case KernelId::kSoftmax:
      verdict = fits(sizeof(kernels::SoftmaxParams), 2);
      return verdict.result != THRESHER_DEVICE_OK ? verdict : all_f32();
    case KernelId::kStoredProduct: {
      verdict = fits(sizeof(kernels::StoredProductParams), 4);
      if (verdict.result != THRESHER_DEVICE_OK) return verdict;
      const DType a = call.views[0].dtype;
      const bool known = (a == DType::kF32 || a == DType::kBF16) && has_type(1, a);
      if (known && has_type(2, DType::kF32) && has_type(3, DType::kF32)) return verdict;
      return unsupported("product: expected factors of f32 or bf16, and bias and result of f32, got " +
                         std::string(Name(a)) + ", " + std::string(Name(call.views[1].dtype)) + ", " +
                         std::string(Name(call.views[2].dtype)) + " and " + std::string(Name(call.views[3].dtype)));
    }
    default: {
      std::string found;
      for (const KernelId kernel : kKernels) found += (found.empty() ? "" : ", ") + std::string(Name(kernel));
      const std::string name =
          call.number < kKernelNames.size() ? std::string(Name(call.kernel())) : std::to_string(call.number);
      return unsupported("expected a kernel " + name + " on this device, got " + found + "; run the model on the CPU");
    }
  }
}

// One operator as a chain of its own.
inline Chain AloneOf(const Call& call) {
  Chain chain;
  chain.num_steps = 1;
  ChainStep& step = chain.steps[0];
  if (call.kernel() == KernelId::kUnary) {
    chain.num_operands = 1;
    step.unary = call.as<kernels::UnaryParams>().op;
  } else {
    chain.num_operands = 2;
    step.kind = ChainStep::Kind::kBinary;
    step.binary = call.as<kernels::BinaryParams>().op;
    step.args[1].index = 1;
  }
  return chain;
}

// launch(shape, kernel) for what Check() lets pass, but products. Nothing happens where there is no element: gives
// `nothing`.
template <class Launch, class Nothing>
Nothing Dispatch(const Call& call, Launch&& launch, Nothing nothing) {
  const View& out =
      call.views[call.kernel() == KernelId::kLayerNorm || call.kernel() == KernelId::kRmsNorm ? 4 : call.num_views - 1];
  if (out.size() == 0) return nothing;
  switch (call.kernel()) {
    case KernelId::kCopy:
      return LaunchCopy(launch, call.views[0], out);
    case KernelId::kCast:
      return LaunchCast(launch, call.views[0], out);
    case KernelId::kUnary:
    case KernelId::kBinary:
      return LaunchChain(launch, AloneOf(call), call.views, out);
    case KernelId::kPointwise:
      return LaunchChain(launch, call.as<Chain>(), call.views, out);
    case KernelId::kLayerNorm:
    case KernelId::kRmsNorm:
      return LaunchNorm(launch, kernels::ArgsOf(call.as<kernels::NormParams>(), call.views),
                        call.kernel() == KernelId::kRmsNorm);
    case KernelId::kSoftmax: {
      const auto& p = call.as<kernels::SoftmaxParams>();
      const View& x = call.views[0];
      return LaunchSoftmax(launch, SoftmaxArgs{x.as<const float>(), out.as<float>(), p.outer, p.dim, p.inner, p.log});
    }
    default:
      return nothing;
  }
}

}  // namespace thresher::cuda
