// The profiler: switched on and off while the process runs; every report and trace reads what it keeps.
//
// How an executor uses it:
//   const bool profiled = profile::Enabled();            // one relaxed load
//   if (profiled) profile::PrepareThread();              // before the first operator: all allocation happens here
//   ... per operator: { .start_ns, .end_ns, .name, ... } filled in, then profile::Add(record);
//   ... at the end: one record of Kind::kExecution and Section::kCall.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/profile/ring.h"
#include "thresher/profile/summary.h"

namespace thresher::profile {

namespace internal {
inline std::atomic<bool> enabled{false};
}  // namespace internal

inline bool Enabled() { return internal::enabled.load(std::memory_order_relaxed); }

// Start and Stop keep what was recorded before; Reset forgets it.
void Start();
void Stop();
void Reset();

// Starts the profiler if THRESHER_PROFILE is ON. Called once when the engine is loaded. Error: an invalid value of one
// of the THRESHER_PROFILE variables.
Status StartFromEnvironment();

// A number for a name, the same for the same text as long as the process lives. Call it when a plan is made, not when
// it runs. 0 is the empty name.
uint32_t InternName(std::string_view name);

// A number for one run of a plan, never 0.
uint64_t NextExecution();

// Gives the calling thread its ring and sums up what piled up in it, so that Add allocates nothing for as many records
// as three quarters of the ring.
void PrepareThread();

// Keeps a record. Its `thread` is filled in here. Does nothing while the profiler is off.
void Add(const Record& record);

// The same for an interval from outside the engine. `section` is "forward", "reshape", "alloc" (an operator) or "call"
// (one call of a compiled model). Errors: another section, or an end before the start.
Status AddInterval(std::string_view section, std::string_view name, int64_t start_ns, int64_t end_ns);

// All sums since the start or the last Reset. Reading does not erase.
Summary Summarize();

// A record with its names, as a trace shows it.
struct NamedRecord {
  Record record;
  std::string name;
  std::string detail;
};

// The newest records of every thread, oldest first within a thread. Reading does not erase.
std::vector<NamedRecord> Records();

// Records lost for lack of memory since the last Reset.
uint64_t Dropped();

}  // namespace thresher::profile
