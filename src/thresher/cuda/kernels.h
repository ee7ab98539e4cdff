// The kernels' launches; each returns when the work is handed to the stream.
#pragma once

#include <cuda_runtime_api.h>

#include "thresher/device_api.h"

namespace thresher::cuda {

struct Call;

// A kernel of this library's own: none of cuBLASLt's.
template <class Family>
thresher_device_result LaunchOn(cudaStream_t stream, const Call& call);

// ConvolutionFamily::LaunchFinish.
thresher_device_result FinishConvolution(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
