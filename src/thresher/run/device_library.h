// Devices whose kernels are in a library of their own (device_api.h), opened at run time.
#pragma once

#include <memory>
#include <string>

#include "thresher/base/status.h"
#include "thresher/device_api.h"
#include "thresher/run/device.h"

namespace thresher {

// Thread safe. The library stays open until the process ends.
class DeviceLibrary {
 public:
  // Errors: the file cannot be opened, is no such library, or belongs to another version of the engine.
  static Result<std::shared_ptr<DeviceLibrary>> Open(const std::string& path);
  // The same for a table that is in the process already. `origin` is where it comes from, for messages.
  static Result<std::shared_ptr<DeviceLibrary>> FromTable(const thresher_device_api& api, const std::string& origin);

  const thresher_device_api& api() const { return api_; }

  // At least 1; Unsupported where there is none, with the reason and the cure.
  Result<int> Count() const;
  Result<DeviceInfo> Info(int index) const;
  Result<std::shared_ptr<Device>> OpenDevice(int index) const;

 private:
  explicit DeviceLibrary(const thresher_device_api& api) : api_(api) {}

  const thresher_device_api& api_;
};

// Waits for the work of all streams of all devices that is recorded, so that its records are there. What fails has
// none.
void WaitForRecords();

// Where the times in the records of devices come from.
struct TimesOfRecords {
  bool exact = false;    // from a library that watches devices (CUPTI); else from events around each piece of work
  std::string obstacle;  // why they are not exact; "" where no device has been asked, or they are
};
// Of what has been recorded last.
TimesOfRecords HowRecordsAreTimed();
// Gives that library back to other tools, once neither report nor trace wants records. To be called after
// WaitForRecords() and what ends the recording.
void ReleaseExactTimes();

}  // namespace thresher
