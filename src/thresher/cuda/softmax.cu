#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/softmax_kernel.h"

namespace thresher::cuda {

template thresher_device_result LaunchOn<SoftmaxFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
