// Compiled where cuBLASLt's header is installed: the numbers of cublaslt_constants.h are those of the header.
#include <cublasLt.h>

#include "thresher/cuda/cublaslt_constants.h"

namespace thresher::cuda {

static_assert(kTypeF32 == CUDA_R_32F);
static_assert(kTypeF16 == CUDA_R_16F);
static_assert(kTypeBf16 == CUDA_R_16BF);
static_assert(kComputeF32 == CUBLAS_COMPUTE_32F);
static_assert(kComputeTf32 == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(kNoTranspose == CUBLAS_OP_N);
static_assert(kTranspose == CUBLAS_OP_T);
static_assert(kEpilogueNone == CUBLASLT_EPILOGUE_DEFAULT);
static_assert(kEpilogueRelu == CUBLASLT_EPILOGUE_RELU);
static_assert((kEpilogueRelu | kEpilogueBias) == CUBLASLT_EPILOGUE_RELU_BIAS);
static_assert(kEpilogueBias == CUBLASLT_EPILOGUE_BIAS);
static_assert(kEpilogueGeluTanh == CUBLASLT_EPILOGUE_GELU);
static_assert((kEpilogueGeluTanh | kEpilogueBias) == CUBLASLT_EPILOGUE_GELU_BIAS);
static_assert(kLayoutBatchCount == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
static_assert(kLayoutBatchStride == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
static_assert(kDescTransposeA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(kDescTransposeB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(kDescEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(kDescBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(kPreferWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kPreferAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(kPreferAlignmentB == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(kPreferAlignmentC == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(kPreferAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(CUBLAS_STATUS_SUCCESS == 0);
static_assert(sizeof(HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(sizeof(HeuristicResult::algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(offsetof(HeuristicResult, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(HeuristicResult, status) == offsetof(cublasLtMatmulHeuristicResult_t, state));

}  // namespace thresher::cuda
