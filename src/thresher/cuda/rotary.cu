#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/rotary_kernel.h"

namespace thresher::cuda {

template thresher_device_result LaunchOn<RotaryFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
