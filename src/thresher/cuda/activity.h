// Exact times of the work on devices, by CUPTI, which is opened when they are wanted: libcupti of CUDA 13, from the
// package nvidia-cuda-cupti, a toolkit, or PyTorch. The functions are those of device_api.h.
#pragma once

#include "thresher/device_api.h"

namespace thresher::cuda {

// UNAVAILABLE where CUPTI is not installed or refuses, or while another tool of the process has it.
thresher_device_result BeginTimes(thresher_device_clock clock, thresher_device_timed timed);
void PushTimes(uint64_t id);
void PopTimes();
thresher_device_result FlushTimes();
void EndTimes();

// Whether times are being taken. Kernels must not overlap then, or each would contain a part of the one before it.
bool TakingTimes();

}  // namespace thresher::cuda
