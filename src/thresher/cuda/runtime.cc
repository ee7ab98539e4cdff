#include "thresher/cuda/runtime.h"

#include <strings.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>

#include "thresher/cuda/activity.h"

namespace thresher::cuda {

thresher_device_result Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return THRESHER_DEVICE_OK;
  cudaGetLastError();  // an error that was told is not told again by the next call
  const std::string found = std::string(what) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")";
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Fail(THRESHER_DEVICE_NO_MEMORY, found + "; free memory of the device, or use smaller batches");
    case cudaErrorInsufficientDriver:
      return Fail(THRESHER_DEVICE_UNAVAILABLE,
                  "expected an NVIDIA driver for CUDA 13 (release 580 or newer), got none or an older one; install it, "
                  "or start the container with access to the GPU");
    case cudaErrorNoDevice:
      return Fail(THRESHER_DEVICE_UNAVAILABLE,
                  "expected a GPU, the driver shows none; look at nvidia-smi and at CUDA_VISIBLE_DEVICES");
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return Fail(THRESHER_DEVICE_UNAVAILABLE,
                  found + "; this library has kernels for compute capability 8.0 and newer: update the driver");
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
      return Fail(THRESHER_DEVICE_INVALID_ARGUMENT, found);
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
      return Fail(THRESHER_DEVICE_FAILED,
                  found +
                      "; a kernel launched before has failed, and the GPU is of no more use to this process: start "
                      "another one, with CUDA_LAUNCH_BLOCKING=1 to have the kernel named");
    default:
      return Fail(THRESHER_DEVICE_FAILED, found);
  }
}

thresher_device_result AskCapturing(cudaStream_t stream, bool& capturing) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const thresher_device_result result =
      Check(cudaStreamIsCapturing(stream, &status), "asking whether a stream is captured");
  capturing = status != cudaStreamCaptureStatusNone;
  return result;
}

bool KernelsOverlap(int64_t blocks) {
  static const bool wanted = [] {
    const char* const choice = std::getenv("THRESHER_CUDA_OVERLAP");
    return choice == nullptr || (strcasecmp(choice, "off") != 0 && std::string_view(choice) != "0");
  }();
  constexpr int kUnknown = 0, kNever = -1, kBlocksEach = 2;
  static std::array<std::atomic<int>, 64> most{};  // blocks, by device
  int device = 0;
  if (!wanted || TakingTimes() || cudaGetDevice(&device) != cudaSuccess || device >= static_cast<int>(most.size()))
    return false;
  std::atomic<int>& known = most[static_cast<size_t>(device)];
  int limit = known.load(std::memory_order_relaxed);
  if (limit == kUnknown) {
    int major = 0, multiprocessors = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
      return false;
    }
    limit = major >= 9 ? kBlocksEach * multiprocessors : kNever;
    known.store(limit, std::memory_order_relaxed);
  }
  return blocks <= limit;
}

}  // namespace thresher::cuda
