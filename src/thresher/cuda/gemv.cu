#include "thresher/cuda/gemv_kernel.h"
#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/product_launch.h"

namespace thresher::cuda {

thresher_device_result RunGemv(cudaStream_t stream, const Gemm& gemm) {
  return LaunchGemv(Launcher{stream, KernelId::kStoredProduct}, gemm);
}

thresher_device_result RunEpilogue(cudaStream_t stream, const Gemm& gemm, const Epilogue& rest) {
  return LaunchEpilogue(Launcher{stream, KernelId::kStoredProduct}, gemm, rest);
}

}  // namespace thresher::cuda
