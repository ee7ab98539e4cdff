#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/sort_kernel.h"

namespace thresher::cuda {

template thresher_device_result LaunchOn<SortFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
