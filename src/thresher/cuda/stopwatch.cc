#include "thresher/cuda/stopwatch.h"

#include <algorithm>
#include <utility>

#include "thresher/cuda/error.h"
#include "thresher/cuda/runtime.h"

namespace thresher::cuda {
namespace {

constexpr int kTimedRounds = 3;
// Results that are written while kernels are timed. Where they are larger, nothing is.
constexpr size_t kMostTimedBytes = size_t{512} << 20;

thresher_device_result Gone() {
  cudaGetLastError();
  return THRESHER_DEVICE_OK;
}

}  // namespace

Stopwatch::~Stopwatch() {
  Forget();
  for (cudaEvent_t event : {start_, end_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
  if (memory_ != nullptr) cudaFree(memory_);
}

void Stopwatch::Forget() {
  if (instance_ != nullptr) cudaGraphExecDestroy(std::exchange(instance_, nullptr));
  if (graph_ != nullptr) cudaGraphDestroy(std::exchange(graph_, nullptr));
}

thresher_device_result Stopwatch::Prepare(cudaStream_t stream, size_t result_bytes, bool& ready) {
  ready = false;
  if (result_bytes > kMostTimedBytes) return THRESHER_DEVICE_OK;
  if (cudaMalloc(&memory_, result_bytes) != cudaSuccess) return Gone();
  THRESHER_DEVICE_TRY(Check(cudaStreamSynchronize(stream), "waiting for a stream"));
  if (cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) != cudaSuccess ||
      cudaEventCreate(&start_) != cudaSuccess || cudaEventCreate(&end_) != cudaSuccess) {
    return Gone();
  }
  ready = true;
  return THRESHER_DEVICE_OK;
}

thresher_device_result Stopwatch::Time(FunctionRef<bool(cudaStream_t stream)> work, float& ms) {
  ms = -1;
  // Once outside of a capture: the kernel is loaded then.
  if (!work(stream_)) return Gone();
  THRESHER_DEVICE_TRY(Check(cudaStreamSynchronize(stream_), "timing a kernel"));
  Forget();  // no graph can be destroyed while another is captured
  if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return Gone();
  bool asked = true;
  for (int i = 0; i < kTimedLaunches && asked; ++i) asked = work(stream_);
  if (cudaStreamEndCapture(stream_, &graph_) != cudaSuccess || !asked ||
      cudaGraphInstantiate(&instance_, graph_, 0) != cudaSuccess) {
    return Gone();
  }
  for (int round = 0; round < kTimedRounds; ++round) {
    float taken = 0;
    if (cudaEventRecord(start_, stream_) != cudaSuccess || cudaGraphLaunch(instance_, stream_) != cudaSuccess ||
        cudaEventRecord(end_, stream_) != cudaSuccess) {
      ms = -1;
      return Gone();
    }
    THRESHER_DEVICE_TRY(Check(cudaEventSynchronize(end_), "timing a kernel"));
    THRESHER_DEVICE_TRY(Check(cudaEventElapsedTime(&taken, start_, end_), "timing a kernel"));
    ms = round == 0 ? taken : std::min(ms, taken);
  }
  return THRESHER_DEVICE_OK;
}

}  // namespace thresher::cuda
