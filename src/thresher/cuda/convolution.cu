#include "thresher/cuda/convolution.h"
#include "thresher/cuda/launcher.cuh"

namespace thresher::cuda {

template thresher_device_result LaunchOn<ConvolutionFamily>(cudaStream_t stream, const Call& call);

}  // namespace thresher::cuda
