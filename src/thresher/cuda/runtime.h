// The CUDA runtime's errors as results of the device API.
#pragma once

#include <cuda_runtime_api.h>

#include "thresher/cuda/error.h"
#include "thresher/device_api.h"

namespace thresher::cuda {

// OK for cudaSuccess; else the result that fits, with a message that begins with `what`.
thresher_device_result Check(cudaError_t error, const char* what);

}  // namespace thresher::cuda
