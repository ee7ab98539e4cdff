#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/product_launch.h"
#include "thresher/cuda/tile_product.h"

namespace thresher::cuda {

thresher_device_result RunTileProduct(cudaStream_t stream, const Gemm& gemm) {
  return LaunchTileProduct(Launcher{stream, KernelId::kStoredProduct}, gemm);
}

}  // namespace thresher::cuda
