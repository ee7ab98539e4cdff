#include "thresher/cuda/launcher.cuh"
#include "thresher/cuda/paged_attention.h"

namespace thresher::cuda {

template thresher_device_result LaunchOn<PagedAttentionFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
