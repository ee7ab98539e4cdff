// How long the device takes for work, to choose among kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "thresher/base/function_ref.h"
#include "thresher/device_api.h"

namespace thresher::cuda {

// On the current device. Not while a stream is captured: it waits and allocates.
class Stopwatch {
 public:
  Stopwatch() = default;
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  // Waits for `stream`, which has what the work reads. False: there is no room to time in.
  thresher_device_result Prepare(cudaStream_t stream, size_t result_bytes, bool& ready);
  void* memory() const { return memory_; }  // for results

  // The shortest of a few rounds, in milliseconds for some launches in a row. The work is captured several times in a
  // row, as it will run: launches cost the host more than small kernels cost the device. It returns whether it could be
  // asked for. Below zero: it could not be timed.
  thresher_device_result Time(FunctionRef<bool(cudaStream_t stream)> work, float& ms);

 private:
  void Forget();

  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t instance_ = nullptr;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
};

inline constexpr int kTimedLaunches = 10;

}  // namespace thresher::cuda
