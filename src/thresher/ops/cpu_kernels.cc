// The CPU's kernels by their numbers.
#include <array>

#include "thresher/plan/cpu_kernel.h"

namespace thresher {

std::span<const CpuKernel> CpuKernels() {
  static const std::array<CpuKernel, kKernelNames.size()> table = [] {
    std::array<CpuKernel, kKernelNames.size()> made;
    for (size_t i = 0; i < made.size(); ++i) made[i].id = static_cast<KernelId>(i);
    for (const auto family :
         {LinearKernels(), GroupedLinearKernels(), ConvolutionKernels(), ResampleKernels(), AttentionKernels(),
          PagedAttentionKernels(), RotaryKernels(), NormKernels(), PointwiseKernels(), PointwiseChainKernels(),
          ReduceKernels(), IndexKernels(), SortKernels(), ShapeKernels(), CreateKernels(), CommunicationKernels(),
          OutsideKernels()}) {
      for (const CpuKernel& kernel : family) made[static_cast<size_t>(kernel.id)] = kernel;
    }
    return made;
  }();
  return table;
}

}  // namespace thresher
