#include "thresher/cuda/attention.h"
#include "thresher/cuda/launcher.cuh"

namespace thresher::cuda {

template thresher_device_result LaunchOn<SdpaFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
