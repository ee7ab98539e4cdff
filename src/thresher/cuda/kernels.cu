#include "thresher/cuda/chain_kernel.h"
#include "thresher/cuda/kernels.h"
#include "thresher/cuda/norm_kernel.h"
#include "thresher/cuda/runtime.h"
#include "thresher/cuda/softmax_kernel.h"
#include "thresher/cuda/thread.h"

// Nothing is in an unnamed namespace here: nvcc names those after the path of the file, and two builds would differ.
namespace thresher::cuda {

// Parameters travel in constant memory, of which a kernel has 4 KiB on every device.
constexpr size_t kMostParameterBytes = 4096;

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kMostThreads) Run(const __grid_constant__ Kernel kernel) {
  Thread thread;
  kernel(thread);
}

struct Launcher {
  cudaStream_t stream;
  const char* name;

  template <class Kernel>
  thresher_device_result operator()(const Shape& shape, const Kernel& kernel) const {
    static_assert(sizeof(Kernel) <= kMostParameterBytes);
    const dim3 grid(static_cast<unsigned>(shape.blocks));
    const dim3 block(static_cast<unsigned>(shape.width), static_cast<unsigned>(shape.height));
    Run<Kernel><<<grid, block, static_cast<size_t>(shape.shared_floats) * sizeof(float), stream>>>(kernel);
    return Check(cudaGetLastError(), name);
  }
};

thresher_device_result RunChain(cudaStream_t stream, const thresher_chain& chain) {
  if (chain.size == 0) return THRESHER_DEVICE_OK;
  return LaunchChain(Launcher{stream, "launching a chain of element-wise operators"}, chain);
}

thresher_device_result RunNorm(cudaStream_t stream, const thresher_norm& norm) {
  if (norm.rows <= 0 || norm.cols <= 0) return THRESHER_DEVICE_OK;
  return LaunchNorm(Launcher{stream, norm.rms != 0 ? "launching rms_norm" : "launching layer_norm"}, norm);
}

thresher_device_result RunSoftmax(cudaStream_t stream, const thresher_softmax& softmax) {
  if (softmax.outer <= 0 || softmax.dim <= 0 || softmax.inner <= 0) return THRESHER_DEVICE_OK;
  return LaunchSoftmax(Launcher{stream, "launching softmax"}, softmax);
}

}  // namespace thresher::cuda
