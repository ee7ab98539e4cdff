// The CPU as a device: kernels run at once, on the shared thread pool.
#pragma once

#include <memory>

#include "thresher/run/device.h"

namespace thresher {

std::shared_ptr<Device> CpuDevice();

}  // namespace thresher
