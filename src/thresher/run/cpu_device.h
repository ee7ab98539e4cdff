// The CPU as a device: kernels run at once, on the shared thread pool.
#pragma once

#include <memory>

#include "thresher/run/device.h"

namespace thresher {

// The one CPU.
const std::shared_ptr<Device>& CpuDevice();

}  // namespace thresher
