#include "thresher/cuda/create_kernel.h"
#include "thresher/cuda/launcher.cuh"

namespace thresher::cuda {

template thresher_device_result LaunchOn<CreateFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
