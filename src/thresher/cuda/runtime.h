// The CUDA runtime's errors as results of the device API.
#pragma once

#include <cuda_runtime_api.h>

#include "thresher/cuda/error.h"
#include "thresher/device_api.h"

namespace thresher::cuda {

// OK for cudaSuccess; else the result that fits, with a message that begins with `what`.
thresher_device_result Check(cudaError_t error, const char* what);

// Whether a kernel of the current device may take its place while the one before it ends (launcher.cuh): from compute
// capability 9.0 on, unless THRESHER_CUDA_OVERLAP is OFF or exact times are taken.
bool KernelsOverlap();

}  // namespace thresher::cuda
