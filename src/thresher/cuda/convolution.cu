#include "thresher/cuda/convolution.h"
#include "thresher/cuda/launcher.cuh"

namespace thresher::cuda {

template thresher_device_result LaunchOn<ConvolutionFamily>(cudaStream_t stream, const Call& call);

thresher_device_result FinishConvolution(cudaStream_t stream, const Call& call) {
  return ConvolutionFamily::LaunchFinish(Launcher{stream, call.kernel()}, call);
}

}  // namespace thresher::cuda
