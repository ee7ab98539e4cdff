#include "thresher/profile/profiler.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "thresher/base/cpu.h"
#include "thresher/base/env.h"
#include "thresher/base/isa.h"
#include "thresher/base/thread_pool.h"

namespace thresher::profile {
namespace {

// More threads than this record at the same time only by mistake; the rest is counted as dropped.
constexpr size_t kMaxRings = 256;
constexpr int64_t kDefaultCapacity = 1 << 16;

struct State {
  std::mutex mutex;  // guards all below, and the rings as ring.h says
  std::vector<std::unique_ptr<Ring>> rings;
  std::vector<Ring*> idle;  // rings whose thread has ended, for the next thread; their records are still read
  Aggregator aggregator;
  std::vector<std::string> names{""};
  std::map<std::string, uint32_t, std::less<>> numbers{{"", 0}};
  std::atomic<uint64_t> dropped{0};
  std::atomic<uint64_t> executions{0};

  void Fold(Ring& ring, const Record& record) { aggregator.Add(ring, record); }
};

void BeforeFork();
void AfterForkInParent();
void AfterForkInChild();

// Never destroyed: threads may record while static destructors run.
State& GetState() {
  static State* const state = [] {
    pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    return new State;
  }();
  return *state;
}

Ring* TakeRing() {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  if (!state.idle.empty()) {
    Ring* ring = state.idle.back();
    state.idle.pop_back();
    return ring;
  }
  if (state.rings.size() == kMaxRings) return nullptr;
  const Result<int64_t> capacity = env::GetInteger("THRESHER_PROFILE_RECORDS");
  Result<std::unique_ptr<Ring>> ring =
      Ring::Make(static_cast<size_t>(capacity.ok() ? capacity.value() : kDefaultCapacity));
  if (!ring.ok()) return nullptr;
  state.rings.push_back(std::move(ring).value());
  return state.rings.back().get();
}

// The calling thread's place in the profiler.
struct ThreadSlot {
  Ring* ring = nullptr;
  uint32_t thread = static_cast<uint32_t>(syscall(SYS_gettid));

  ~ThreadSlot() {
    if (ring == nullptr) return;
    State& state = GetState();
    const std::lock_guard lock(state.mutex);
    state.idle.push_back(ring);
  }

  bool Ready() {
    if (ring == nullptr) ring = TakeRing();
    return ring != nullptr;
  }
};

thread_local ThreadSlot slot;

void BeforeFork() { GetState().mutex.lock(); }
void AfterForkInParent() { GetState().mutex.unlock(); }
void AfterForkInChild() {
  // The records are the parent's to report.
  State& state = GetState();
  for (const auto& ring : state.rings) ring->Clear();
  state.aggregator.Clear();
  state.dropped.store(0, std::memory_order_relaxed);
  slot.thread = static_cast<uint32_t>(syscall(SYS_gettid));
  state.mutex.unlock();
}

}  // namespace

void Start() { internal::enabled.store(true, std::memory_order_relaxed); }
void Stop() { internal::enabled.store(false, std::memory_order_relaxed); }

void Reset() {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  for (const auto& ring : state.rings) ring->Clear();
  state.aggregator.Clear();
  state.dropped.store(0, std::memory_order_relaxed);
}

Status StartFromEnvironment() {
  THRESHER_ASSIGN(const bool on, env::GetSwitch("THRESHER_PROFILE"));
  THRESHER_TRY(env::GetInteger("THRESHER_PROFILE_RECORDS").status());
  if (on) Start();
  return Status::Ok();
}

uint32_t InternName(std::string_view name) {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  if (const auto it = state.numbers.find(name); it != state.numbers.end()) return it->second;
  const uint32_t number = static_cast<uint32_t>(state.names.size());
  state.names.emplace_back(name);
  state.numbers.emplace(name, number);
  return number;
}

uint64_t NextExecution() { return GetState().executions.fetch_add(1, std::memory_order_relaxed) + 1; }

void PrepareThread() {
  if (!slot.Ready() || slot.ring->pending() < slot.ring->capacity() / 4) return;
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  slot.ring->FoldAll([&](Ring& ring, const Record& record) { state.Fold(ring, record); });
}

void Add(const Record& record) {
  if (!Enabled()) return;
  if (!slot.Ready()) {
    GetState().dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Record stamped = record;
  stamped.thread = slot.thread;
  if (slot.ring->Push(stamped)) return;
  {
    State& state = GetState();
    const std::lock_guard lock(state.mutex);
    slot.ring->MakeRoom([&](Ring& ring, const Record& old) { state.Fold(ring, old); });
  }
  slot.ring->Push(stamped);
}

Status AddInterval(std::string_view section, std::string_view name, int64_t start_ns, int64_t end_ns) {
  if (end_ns < start_ns) {
    return InvalidArgument("profile record \"" + std::string(name) + "\": wanted an end after the start, found " +
                           std::to_string(end_ns) + " after " + std::to_string(start_ns));
  }
  for (size_t i = 0; i < kSectionNames.size(); ++i) {
    if (kSectionNames[i] != section) continue;
    Record record;
    record.start_ns = start_ns;
    record.end_ns = end_ns;
    record.section = static_cast<Section>(i);
    record.kind = record.section == Section::kCall ? Kind::kCall : Kind::kOp;
    record.name = InternName(name);
    Add(record);
    return Status::Ok();
  }
  return InvalidArgument("profile record \"" + std::string(name) +
                         "\": wanted the section forward, reshape, alloc or call, found \"" + std::string(section) +
                         "\"");
}

Summary Summarize() {
  Summary summary;
  summary.enabled = Enabled();
  summary.isa = isa::Name(isa::Current());
  summary.num_threads = ThreadPool::Global().num_threads();
  summary.cpu = CpuModel();
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  for (const auto& ring : state.rings) {
    ring->FoldAll([&](Ring& from, const Record& record) { state.Fold(from, record); });
    summary.overwritten += ring->overwritten();
  }
  summary.dropped = state.dropped.load(std::memory_order_relaxed);
  state.aggregator.Fill(state.names, summary);
  return summary;
}

std::vector<NamedRecord> Records() {
  std::vector<NamedRecord> records;
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  for (const auto& ring : state.rings) {
    ring->Visit([&](const Record& record) {
      records.push_back({record, state.names[record.name], state.names[record.detail]});
    });
  }
  return records;
}

uint64_t Dropped() { return GetState().dropped.load(std::memory_order_relaxed); }

}  // namespace thresher::profile
