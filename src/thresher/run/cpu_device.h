// The CPU as a device: kernels run at once, on the shared thread pool.
#pragma once

#include <memory>

#include "thresher/base/communicator.h"
#include "thresher/run/device.h"

namespace thresher {

// The one CPU.
const std::shared_ptr<Device>& CpuDevice();

// The same as one rank of several: what plans exchange goes through the communicator.
std::shared_ptr<Device> CpuDeviceOfRank(std::shared_ptr<Communicator> communicator);

}  // namespace thresher
