#include "thresher/cuda/grouped.h"
#include "thresher/cuda/launcher.cuh"

namespace thresher::cuda {

template thresher_device_result LaunchOn<GroupedFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
