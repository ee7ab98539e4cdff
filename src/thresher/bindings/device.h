// Devices and what came from them, as Python holds them.
#pragma once

#include <memory>
#include <string>

#include "thresher/bindings/convert.h"
#include "thresher/run/device.h"

namespace thresher::bindings {

// nanobind keeps no device alive for what came out of it, so each holds one, released last.
struct HeldBuffer {
  std::shared_ptr<Device> device;
  DeviceMemory memory;
};

struct HeldEvent {
  std::shared_ptr<Device> device;
  std::unique_ptr<DeviceEvent> event;
};

struct HeldStream {
  std::shared_ptr<Device> device;
  std::unique_ptr<DeviceStream> stream;
};

// Bytes [offset, offset + bytes) of a buffer of this stream's device. Raises ValueError, which names the buffer as
// `name`.
std::byte* Part(const HeldStream& stream, const HeldBuffer& buffer, int64_t offset, int64_t bytes,
                const std::string& name);

}  // namespace thresher::bindings
