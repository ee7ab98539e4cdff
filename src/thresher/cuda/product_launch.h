// The kernels of this library's own that take part in products (gemv_kernel.h, tile_product.h); each returns when the
// work is handed to the stream.
#pragma once

#include <cuda_runtime_api.h>

#include "thresher/cuda/gemm_layout.h"
#include "thresher/device_api.h"

namespace thresher::cuda {

thresher_device_result RunGemv(cudaStream_t stream, const Gemm& gemm);
thresher_device_result RunBlockGemv(cudaStream_t stream, const Gemm& gemm);
thresher_device_result RunUnpack(cudaStream_t stream, Encoding encoding, const void* blocks, int64_t numbers,
                                 DType dtype, void* to);
thresher_device_result RunTileProduct(cudaStream_t stream, const Gemm& gemm);
thresher_device_result RunEpilogue(cudaStream_t stream, const Gemm& gemm, const Epilogue& rest);

}  // namespace thresher::cuda
