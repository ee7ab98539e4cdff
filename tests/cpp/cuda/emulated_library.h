// A device library whose device is the emulator: the kernels of src/thresher/cuda behind device_api.h, in host memory
// and with a clock of its own. thresher_emulated_device.so is the same for the Python tests.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "thresher/device_api.h"

namespace thresher::cuda::testing {

const thresher_device_api& EmulatedApi();

// What a device's clock shows more than the profiler's.
inline constexpr double kClockOffsetNs = 5e15;

// How many objects are alive that the library has handed out: memory, streams, events, devices.
int EmulatedObjects();

// A stream of another library, by its address as the handle.
struct ForeignStream {
  ForeignStream() : number(++made) {}
  inline static uint64_t made = 0;
  const uint64_t number;
  bool capturing = false;  // what it is asked for is recorded instead of done
  int device = 0;
  std::vector<std::function<thresher_device_result()>> recorded;
};

// How many graphs have been launched.
int EmulatedGraphLaunches();

// How many copies have been asked for.
int EmulatedCopies();

// How often a stream was made to wait for an event.
int EmulatedWaits();

// The next kernel or copy fails, as if the device had found a fault.
void FailNext();

}  // namespace thresher::cuda::testing
