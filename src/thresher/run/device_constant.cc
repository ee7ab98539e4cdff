#include "thresher/run/device_constant.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace thresher {
namespace {

Status NoMemory(size_t bytes, const char* what) {
  return ResourceExhausted("expected " + std::string(what) + " for " + std::to_string(bytes) +
                           " bytes of a device's constant, got: " + std::generic_category().message(errno) +
                           "; raise the process's limits");
}

}  // namespace

DeviceConstant::DeviceConstant(std::shared_ptr<Device> device, const void* address, size_t bytes,
                               std::shared_ptr<const void> owner)
    : device_(std::move(device)),
      target_(device_->target()),
      address_(address),
      bytes_(bytes),
      owner_(std::move(owner)) {}

Result<std::shared_ptr<DeviceConstant>> DeviceConstant::Create(std::shared_ptr<Device> device, const void* address,
                                                               size_t bytes, std::shared_ptr<const void> owner) {
  if (bytes == 0) return InvalidArgument("expected a constant of at least 1 byte, got 0");
  std::shared_ptr<DeviceConstant> made(new DeviceConstant(std::move(device), address, bytes, std::move(owner)));
  void* const data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return NoMemory(bytes, "an address");
  made->data_ = data;
  return made;
}

DeviceConstant::~DeviceConstant() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

int64_t DeviceConstant::copies() const {
  const std::lock_guard lock(mutex_);
  return copies_;
}

Status DeviceConstant::Load() {
  if (mprotect(data_, bytes_, PROT_READ | PROT_WRITE) != 0) return NoMemory(bytes_, "memory");
  THRESHER_ASSIGN(const std::unique_ptr<DeviceStream> stream, device_->CreateStream());
  THRESHER_TRY(stream->CopyToHost(data_, address_, bytes_));
  ++copies_;
  return Status::Ok();
}

void DeviceConstant::Drop() {
  madvise(data_, bytes_, MADV_DONTNEED);
  mprotect(data_, bytes_, PROT_NONE);
}

Result<std::shared_ptr<const void>> DeviceConstant::Hold(const void*) {
  const std::lock_guard lock(mutex_);
  if (holders_ == 0) {
    if (const Status status = Load(); !status.ok()) {
      Drop();
      return status;
    }
  }
  ++holders_;
  return std::shared_ptr<const void>(data_, [self = shared_from_this()](const void*) {
    const std::lock_guard released(self->mutex_);
    if (--self->holders_ == 0) self->Drop();
  });
}

}  // namespace thresher
