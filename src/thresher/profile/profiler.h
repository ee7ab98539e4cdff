// The profiler: switched on and off while the process runs. Threads write records into rings of their own; whoever
// wants them gets every one: the sums of the operator report, a trace file, an outside tool.
//
// How an executor uses it:
//   const bool profiled = profile::Enabled();            // one relaxed load
//   if (profiled) profile::PrepareThread();              // before the first operator: all allocation happens here
//   ... per operator: { .start_ns, .end_ns, .site, ... } filled in, then profile::Add(record);
//   ... at the end: one record of Kind::kExecution and Section::kCall.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/profile/record.h"
#include "thresher/profile/site.h"
#include "thresher/profile/summary.h"

namespace thresher::profile {

namespace internal {
inline std::atomic<uint32_t> consumers{0};
}  // namespace internal

// Whether the sums of the operator report or a trace want records: others may bring times of their own.
bool EnabledForReports();

// Whether anybody wants records.
inline bool Enabled() { return internal::consumers.load(std::memory_order_relaxed) != 0; }

// ---- The operator report ----

// Whether sums are kept. Start and Stop keep what was summed up before; Reset forgets it.
void Start();
void Stop();
bool Started();
void Reset();

// Starts the profiler if THRESHER_PROFILE is ON. Called once when the engine is loaded. Error: an invalid value of one
// of the THRESHER_PROFILE variables.
Status StartFromEnvironment();

// All sums since the start or the last Reset. Reading does not erase.
Summary Summarize();

// ---- Writing ----

// A number for a place, the same for the same content as long as the process lives. Call it when a plan is made, not
// when it runs.
uint32_t NumberOf(Site site);

// A number for one run of a plan, never 0.
uint64_t NextExecution();

// The first of `count` numbers that no record has yet, never 0: joins launches and kernels. Below 2^32 until 4 billion
// have been given out, because readers keep them in 32 bits.
uint64_t NextCorrelations(uint64_t count);

// Gives the calling thread its ring and makes room in it, so that Add allocates nothing for as many records as three
// quarters of the ring.
void PrepareThread();

// Keeps a record. Thread, lane and the outer profiler's identifiers are filled in here. Does nothing while nobody wants
// records.
void Add(const Record& record);

// For what a device does, which is known only after its launch, and perhaps on another thread: Stamp fills in the
// thread and the outer profiler's identifiers at the launch, AddStamped keeps the record as it is.
void Stamp(Record& record);
void AddStamped(const Record& record);
// One that there should have been.
void AddLost();

// The phase that records of the calling thread belong to from now on, unless they say another.
void SetPhase(Phase phase);

// The same for an interval from outside the engine. `section` is "forward", "reshape", "alloc" (an operator) or "call"
// (one call of a compiled model). Errors: another section, or an end before the start.
Status AddInterval(std::string_view section, std::string_view name, int64_t start_ns, int64_t end_ns);

// ---- Identifiers of an outer profiler, per thread ----

enum class IdKind : uint8_t { kOperator = 0, kUser = 1 };
void PushExternalId(IdKind kind, uint32_t id);
void PopExternalId(IdKind kind);
// Empties the stacks of all threads.
void ClearExternalIds();

// ---- Reading records one by one ----

// Who can ask for every record, beside the sums.
enum class Outlet : uint8_t { kTrace = 0, kTool = 1 };

// Called with records in the order of each thread, never twice at the same time, on any thread, without a lock of the
// profiler that Add or Summarize needs. It must not call Attach, Detach or Deliver.
using Receiver = std::function<void(std::span<const Record>)>;

// From now on the receiver gets all records, a few times a second. Replaces an earlier receiver of the outlet.
void Attach(Outlet outlet, Receiver receiver);
// The receiver gets what was recorded until now, and no more after that.
void Detach(Outlet outlet);
// All receivers get what was recorded until now.
void Deliver();
// Records that an outlet's receiver did not get because it was too slow, since it was attached.
uint64_t Lost(Outlet outlet);

// A record with its place, as a reader wants it.
struct PlacedRecord {
  Record record;
  Site site;
};

// The newest records of every thread, oldest first within a thread. Reading does not erase.
std::vector<PlacedRecord> Records();

// Places from number `first` on. The table only grows.
std::vector<Site> SitesFrom(uint32_t first);
// One place; the reference stays valid as long as the process.
const Site& SiteOf(uint32_t number);

// Records lost for want of a ring since the last Reset.
uint64_t Dropped();

}  // namespace thresher::profile
