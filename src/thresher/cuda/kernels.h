// The kernels' launches; each returns when the work is handed to the stream.
#pragma once

#include <cuda_runtime_api.h>

#include "thresher/device_api.h"

namespace thresher::cuda {

thresher_device_result RunChain(cudaStream_t stream, const thresher_chain& chain);
thresher_device_result RunNorm(cudaStream_t stream, const thresher_norm& norm);
thresher_device_result RunSoftmax(cudaStream_t stream, const thresher_softmax& softmax);

}  // namespace thresher::cuda
