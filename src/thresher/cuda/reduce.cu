#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/reduce_kernel.h"

namespace thresher::cuda {

template thresher_device_result LaunchOn<ReduceFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
