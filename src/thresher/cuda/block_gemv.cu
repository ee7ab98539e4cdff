#include "thresher/cuda/block_gemv_kernel.h"
#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/product_launch.h"

namespace thresher::cuda {

thresher_device_result RunBlockGemv(cudaStream_t stream, const Gemm& gemm) {
  return LaunchBlockGemv(Launcher{stream, KernelId::kStoredProduct}, gemm);
}

thresher_device_result RunUnpack(cudaStream_t stream, Encoding encoding, const void* blocks, int64_t numbers,
                                 DType dtype, void* to) {
  return LaunchUnpack(Launcher{stream, KernelId::kStoredProduct}, encoding, blocks, numbers, dtype, to);
}

}  // namespace thresher::cuda
