#include "thresher/run/device.h"

namespace thresher {
namespace {

Status CheckBytes(size_t bytes) {
  return bytes > 0 ? Status::Ok() : InvalidArgument("device memory: expected at least 1 byte, got 0");
}

}  // namespace

Result<DeviceMemory> Device::Allocate(size_t bytes) {
  THRESHER_TRY(CheckBytes(bytes));
  THRESHER_ASSIGN(void* const address, AllocateBytes(bytes));
  return DeviceMemory(shared_from_this(), address, bytes, false);
}

Result<DeviceMemory> Device::AllocateHost(size_t bytes) {
  THRESHER_TRY(CheckBytes(bytes));
  THRESHER_ASSIGN(void* const address, AllocateHostBytes(bytes));
  return DeviceMemory(shared_from_this(), address, bytes, true);
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  if (host_) {
    device_->ReleaseHostBytes(data_, size_);
  } else {
    device_->ReleaseBytes(data_, size_);
  }
}

}  // namespace thresher
