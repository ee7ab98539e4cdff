// How kernels are launched on a device. Each family's .cu file instantiates LaunchOn<Family>() (kernels.h); nothing is
// in an unnamed namespace there: nvcc names those after the path of the file, and two builds would differ.
#pragma once

#include <string>

#include "thresher/cuda/call.h"
#include "thresher/cuda/kernels.h"
#include "thresher/cuda/runtime.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

// Parameters travel in constant memory, of which a kernel has 4 KiB on every device.
constexpr size_t kMostParameterBytes = 4096;

// How many blocks a multiprocessor has room for, at least, where the kernel says so: that bounds the registers of each.
template <class Kernel>
constexpr int LeastBlocks() {
  if constexpr (requires { Kernel::kLeastBlocks; }) return Kernel::kLeastBlocks;
  return 0;
}

// What every kernel does first. From compute capability 9.0 on, where launches allow for it, the blocks of a kernel may
// take their places while the last ones of the kernel before it run. They touch no memory before that kernel has ended
// and what it wrote can be seen; as all of them wait, so has every kernel before that one.
__device__ __forceinline__ void WaitForEarlierKernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kMostThreads, LeastBlocks<Kernel>())
    Run(const __grid_constant__ Kernel kernel) {
  WaitForEarlierKernels();
  Thread thread;
  kernel(thread);
}

struct Launcher {
  cudaStream_t stream;
  KernelId kernel;

  template <class Kernel>
  thresher_device_result operator()(const Shape& shape, const Kernel& arguments) const {
    static_assert(sizeof(Kernel) <= kMostParameterBytes);
    const dim3 grid(static_cast<unsigned>(shape.blocks));
    const dim3 block(static_cast<unsigned>(shape.width), static_cast<unsigned>(shape.height));
    const int shared_bytes = shape.shared_floats * static_cast<int>(sizeof(float));
    cudaError_t error = cudaSuccess;
    if (shared_bytes > kFreeSharedBytes) {
      error = cudaFuncSetAttribute(Run<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    }
    if (error == cudaSuccess) {
      cudaLaunchAttribute overlap{};
      overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      overlap.val.programmaticStreamSerializationAllowed = 1;
      cudaLaunchConfig_t config{};
      config.gridDim = grid;
      config.blockDim = block;
      config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
      config.stream = stream;
      config.attrs = &overlap;
      config.numAttrs = KernelsOverlap(shape.blocks) ? 1 : 0;
      error = cudaLaunchKernelEx(&config, Run<Kernel>, arguments);
    }
    if (error == cudaSuccess) return THRESHER_DEVICE_OK;
    return Check(error, ("launching " + std::string(Name(kernel))).c_str());
  }
  thresher_device_result Nothing() const { return THRESHER_DEVICE_OK; }
};

template <class Family>
thresher_device_result LaunchOn(cudaStream_t stream, const Call& call) {
  return Family::Launch(Launcher{stream, call.kernel()}, call);
}

}  // namespace thresher::cuda
