// A constant that lies in a device's memory. The host has its bytes only while somebody reads them, which most passes
// do not: kernels read it where it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "thresher/base/status.h"
#include "thresher/graph/constant_source.h"
#include "thresher/run/device.h"

namespace thresher {

class DeviceConstant : public ConstantSource, public std::enable_shared_from_this<DeviceConstant> {
 public:
  // `bytes` at `address` of the device, which `owner` keeps alive and nobody writes to. InvalidArgument for 0 bytes,
  // ResourceExhausted.
  static Result<std::shared_ptr<DeviceConstant>> Create(std::shared_ptr<Device> device, const void* address,
                                                        size_t bytes, std::shared_ptr<const void> owner);
  ~DeviceConstant() override;
  DeviceConstant(const DeviceConstant&) = delete;
  DeviceConstant& operator=(const DeviceConstant&) = delete;

  // Its address in the host's memory, which is kept for it: readable only while it is held.
  const void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const void* address() const { return address_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  // How often the device was asked for the bytes.
  int64_t copies() const;

  Result<std::shared_ptr<const void>> Hold(const void* data) override;
  void Trim() override {}
  const Target* placed_for() const override { return target_.get(); }

 private:
  DeviceConstant(std::shared_ptr<Device> device, const void* address, size_t bytes, std::shared_ptr<const void> owner);
  Status Load();
  void Drop();

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<const Target> target_;
  const void* const address_;
  const size_t bytes_;
  const std::shared_ptr<const void> owner_;
  void* data_ = nullptr;
  mutable std::mutex mutex_;  // guards all below
  int64_t holders_ = 0;
  int64_t copies_ = 0;
};

}  // namespace thresher
