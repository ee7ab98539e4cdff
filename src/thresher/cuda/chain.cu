#include "thresher/cuda/chain_kernel.h"
#include "thresher/cuda/launcher.cuh"

namespace thresher::cuda {

template thresher_device_result LaunchOn<ChainFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
