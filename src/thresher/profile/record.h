// What the engine writes down about one interval.
#pragma once

#include <cstdint>

#include "thresher/profile/events.h"

namespace thresher::profile {

// 64 bytes, as they also stand in trace files (trace_file.h): the members' order and sizes are a format. What is the
// same every time a place in a plan runs, such as its shapes, is in its site (site.h).
struct alignas(64) Record {
  int64_t start_ns = 0;  // since the Unix epoch, base/clock.h
  int64_t end_ns = 0;
  // kOp: joins the launch on the host with the kernel; never 0. kDevice: its launch, a kRuntime, has the same; never 0.
  // kMemory: bytes that the engine holds on the device after it.
  uint64_t correlation = 0;
  // Which run of a plan, so that a reader can tell runs apart; 0: none. kMemory: the address.
  uint64_t execution = 0;
  // kCall: tokens of a language model that it computed. kExecution: the threads of its plan.
  // kOp: when the run that it belongs to began. kDevice: when its launch began. kMemory: bytes, negative when given
  // back.
  int64_t value = 0;
  uint32_t external = 0;  // the outer profiler's innermost operator on this thread; 0: none
  uint32_t user = 0;      // its innermost user annotation; 0: none
  uint32_t site = 0;      // SiteTable
  uint32_t thread = 0;    // filled in by Add(): the system's thread id; kDevice: that of the launch
  uint16_t lane = 0;      // filled in by Add(): the stream, one for each thread that runs plans; kDevice: the device's
  uint16_t event = kNodeComputeEvent;
  Kind kind = Kind::kOp;
  Section section = Section::kForward;
  Phase phase = Phase::kInference;
  uint8_t device = 0;  // kDevice, kMemory: CudaDevice(); else 0
};
static_assert(sizeof(Record) == 64, "one record is one cache line");

}  // namespace thresher::profile
