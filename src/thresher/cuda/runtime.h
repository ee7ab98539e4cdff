// The CUDA runtime's errors as results of the device API.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "thresher/cuda/error.h"
#include "thresher/device_api.h"

namespace thresher::cuda {

// OK for cudaSuccess; else the result that fits, with a message that begins with `what`.
thresher_device_result Check(cudaError_t error, const char* what);

// Sets `capturing` to whether what the stream is asked for is recorded instead of done.
thresher_device_result AskCapturing(cudaStream_t stream, bool& capturing);

// Whether a kernel of so many blocks on the current device may take its place while the one before it ends
// (launcher.cuh): from compute capability 9.0 on, unless THRESHER_CUDA_OVERLAP is OFF or exact times are taken. Of many
// blocks, those that wait are in the way of those that run: 48 small kernels in a graph take 39 us in place of 64 with
// 96 blocks each, and 140 in place of 108 with 2048 (H100).
bool KernelsOverlap(int64_t blocks);

}  // namespace thresher::cuda
