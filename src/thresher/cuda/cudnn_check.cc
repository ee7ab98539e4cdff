// Compiled where cuDNN's headers are installed: the numbers of cudnn_constants.h are those of the headers.
#include <cudnn.h>

#include "thresher/cuda/cudnn_constants.h"

namespace thresher::cuda {

static_assert(CUDNN_MAJOR == 9);
static_assert(CUDNN_STATUS_SUCCESS == 0);
static_assert(kCudnnF32 == CUDNN_DATA_FLOAT);
static_assert(kCudnnF16 == CUDNN_DATA_HALF);
static_assert(kCudnnBf16 == CUDNN_DATA_BFLOAT16);
static_assert(kCudnnNhwc == CUDNN_TENSOR_NHWC);
static_assert(kCudnnCrossCorrelation == CUDNN_CROSS_CORRELATION);
static_assert(kCudnnTensorOpMath == CUDNN_TENSOR_OP_MATH);
static_assert(kCudnnFmaMath == CUDNN_FMA_MATH);
static_assert(kCudnnPropagateNan == CUDNN_PROPAGATE_NAN);
static_assert(kCudnnRelu == CUDNN_ACTIVATION_RELU);
static_assert(kCudnnIdentity == CUDNN_ACTIVATION_IDENTITY);
static_assert(kCudnnImplicitGemm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
static_assert(kCudnnImplicitPrecompGemm == CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM);

}  // namespace thresher::cuda
