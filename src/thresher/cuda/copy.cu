#include "thresher/cuda/copy_kernel.h"
#include "thresher/cuda/launcher.cuh"

namespace thresher::cuda {

template thresher_device_result LaunchOn<CopyFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
