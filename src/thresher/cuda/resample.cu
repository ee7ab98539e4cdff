#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/resample_kernel.h"

namespace thresher::cuda {

template thresher_device_result LaunchOn<ResampleFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
