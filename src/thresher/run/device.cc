#include "thresher/run/device.h"

namespace thresher {

Result<DeviceMemory> Device::Allocate(size_t bytes) {
  if (bytes == 0) return InvalidArgument("device memory: expected at least 1 byte, got 0");
  THRESHER_ASSIGN(void* const address, AllocateBytes(bytes));
  return DeviceMemory(shared_from_this(), address, bytes);
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) device_->ReleaseBytes(data_, size_);
}

}  // namespace thresher
