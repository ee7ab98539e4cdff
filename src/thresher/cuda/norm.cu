#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/norm_kernel.h"

namespace thresher::cuda {

template thresher_device_result LaunchOn<NormFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
