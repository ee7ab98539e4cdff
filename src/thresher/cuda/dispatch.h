// From the number of a kernel to its family: what device libraries with these kernels have in common.
#pragma once

#include <cstddef>
#include <string>

#include "thresher/cuda/attention.h"
#include "thresher/cuda/call.h"
#include "thresher/cuda/chain_kernel.h"
#include "thresher/cuda/convolution.h"
#include "thresher/cuda/copy_kernel.h"
#include "thresher/cuda/create_kernel.h"
#include "thresher/cuda/grouped.h"
#include "thresher/cuda/index_kernel.h"
#include "thresher/cuda/norm_kernel.h"
#include "thresher/cuda/paged_attention.h"
#include "thresher/cuda/product.h"
#include "thresher/cuda/reduce_kernel.h"
#include "thresher/cuda/resample_kernel.h"
#include "thresher/cuda/rotary_kernel.h"
#include "thresher/cuda/softmax_kernel.h"
#include "thresher/cuda/sort_kernel.h"

namespace thresher::cuda {

template <class... F>
struct FamilyList {};

// Each has a file of its own (chain.cu) where nvcc compiles its kernels.
using Families = FamilyList<CopyFamily, CreateFamily, ChainFamily, NormFamily, SoftmaxFamily, IndexFamily, ReduceFamily,
                            SdpaFamily, PagedAttentionFamily, RotaryFamily, ConvolutionFamily, ResampleFamily,
                            SortFamily, GroupedFamily, ProductFamily>;

template <class Family>
concept OfLibrary = requires { Family::kOfLibrary; };

template <class Family>
bool Answers(const Call& call) {
  for (const KernelId kernel : Family::kKernels) {
    if (call.number == static_cast<uint32_t>(kernel)) return true;
  }
  return false;
}

// body.template operator()<Family>() of the call's family, `missing()` where there is none.
template <class Body, class Missing, class... F>
auto WithFamily(const Call& call, Body&& body, Missing&& missing, FamilyList<F...>) {
  decltype(missing()) result{};
  const bool found = ((Answers<F>(call) && (result = body.template operator()<F>(), true)) || ...);
  return found ? result : missing();
}

// Whether there is the kernel for such operands.
inline Verdict Check(const Call& call) {
  const auto missing = [&] {
    std::string found;
    const auto add = [&]<class... F>(FamilyList<F...>) {
      const auto each = [&](const auto& kernels) {
        for (const KernelId kernel : kernels) found += (found.empty() ? "" : ", ") + std::string(Name(kernel));
      };
      (each(F::kKernels), ...);
    };
    add(Families{});
    const std::string name =
        call.number < kKernelNames.size() ? std::string(Name(call.kernel())) : std::to_string(call.number);
    return Unsupported("expected a kernel " + name + " on this device, got " + found + "; run the model on the CPU");
  };
  return WithFamily(call, [&]<class Family>() { return Family::Check(call); }, missing, Families{});
}

// Of what Check() lets pass, for a launch of a kernel of our own.
inline size_t ScratchBytes(const Call& call) {
  return WithFamily(
      call,
      [&]<class Family>() -> size_t {
        if constexpr (OfLibrary<Family>) {
          return 0;
        } else {
          return Family::ScratchBytes(call);
        }
      },
      [] { return size_t{0}; }, Families{});
}

// launch_family.template operator()<Family>() for what Check() lets pass, but for kernels of another library:
// `nothing`.
template <class LaunchFamily, class Nothing>
Nothing Dispatch(const Call& call, LaunchFamily&& launch_family, const Nothing& nothing) {
  return WithFamily(
      call,
      [&]<class Family>() -> Nothing {
        if constexpr (OfLibrary<Family>) {
          return nothing;
        } else {
          return launch_family.template operator()<Family>();
        }
      },
      [&] { return nothing; }, Families{});
}

}  // namespace thresher::cuda
