#include "thresher/profile/profiler.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "thresher/base/cpu.h"
#include "thresher/base/env.h"
#include "thresher/base/fork_mutex.h"
#include "thresher/base/isa.h"
#include "thresher/base/thread_pool.h"
#include "thresher/profile/rank.h"
#include "thresher/profile/ring.h"

namespace thresher::profile {
namespace {

// More threads than this record at the same time only by mistake; the rest is counted as dropped.
constexpr size_t kMaxRings = 256;
constexpr int64_t kDefaultCapacity = 1 << 16;

// A receiver that takes no records for so long loses some: 64 MiB of them.
constexpr size_t kMaxStaged = size_t{1} << 20;
constexpr std::chrono::milliseconds kDeliveryPeriod{20};

constexpr uint32_t kSums = 1;
constexpr uint32_t BitOf(Outlet outlet) { return 2u << static_cast<uint32_t>(outlet); }

// What waits for one receiver.
struct Mailbox {
  Receiver receiver;  // guarded by State::delivery
  std::vector<Record> staged;
  std::atomic<uint64_t> lost{0};
};

// The thread that carries records to receivers. Detached: it ends with the process.
struct Carrier {
  std::condition_variable wake;
};

struct State {
  std::mutex delivery;                   // held while receivers are called; taken before `mutex`
  ForkMutex mutex{LockRank::kProfiler};  // guards all below, and the rings as ring.h says
  std::vector<std::unique_ptr<Ring>> rings;
  std::vector<Ring*> idle;  // rings whose thread has ended, for the next thread; their records are still read
  Aggregator aggregator;
  SiteTable sites;
  std::array<Mailbox, 2> mailboxes;  // by Outlet
  Carrier* carrier = nullptr;
  std::atomic<uint64_t> dropped{0};
  std::atomic<uint64_t> executions{0};
  std::atomic<uint64_t> correlations{1};
  std::atomic<uint32_t> id_epoch{0};

  void Fold(Ring& ring, const Record& record) {
    const uint32_t consumers = internal::consumers.load(std::memory_order_relaxed);
    if ((consumers & kSums) != 0) aggregator.Add(ring, record, sites);
    for (size_t i = 0; i < mailboxes.size(); ++i) {
      if ((consumers & BitOf(static_cast<Outlet>(i))) == 0) continue;
      if (mailboxes[i].staged.size() < kMaxStaged) {
        mailboxes[i].staged.push_back(record);
      } else {
        mailboxes[i].lost.fetch_add(1, std::memory_order_relaxed);
      }
    }
  }

  // Gives all records to those who are to get them now.
  void FoldAll() {
    for (const auto& ring : rings) {
      ring->FoldAll([&](Ring& from, const Record& record) { Fold(from, record); });
    }
  }

  // Records until now go to who wanted them until now.
  void Switch(uint32_t on, uint32_t off) {
    FoldAll();
    internal::consumers.store((internal::consumers.load(std::memory_order_relaxed) | on) & ~off,
                              std::memory_order_relaxed);
  }
};

void AfterForkInChild();

// Never destroyed: threads may record while static destructors run.
State& GetState() {
  static State* const state = [] {
    pthread_atfork(nullptr, nullptr, AfterForkInChild);
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
      Ring::Make(static_cast<size_t>(capacity.ok() ? capacity.value() : kDefaultCapacity),
                 static_cast<uint16_t>(state.rings.size()));
  if (!ring.ok()) return nullptr;
  state.rings.push_back(std::move(ring).value());
  return state.rings.back().get();
}

// The calling thread's place in the profiler.
struct ThreadSlot {
  Ring* ring = nullptr;
  uint32_t thread = static_cast<uint32_t>(syscall(SYS_gettid));
  uint32_t id_epoch = 0;
  std::array<std::vector<uint32_t>, 2> ids;  // by IdKind

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

  std::vector<uint32_t>& Ids(IdKind kind) {
    if (const uint32_t epoch = GetState().id_epoch.load(std::memory_order_relaxed); epoch != id_epoch) {
      id_epoch = epoch;
      for (std::vector<uint32_t>& stack : ids) stack.clear();
    }
    return ids[static_cast<size_t>(kind)];
  }

  uint32_t Id(IdKind kind) {
    const std::vector<uint32_t>& stack = Ids(kind);
    return stack.empty() ? 0 : stack.back();
  }
};

thread_local ThreadSlot slot;
thread_local Phase current_phase = Phase::kInference;

void AfterForkInChild() {
  // The records are the parent's to report, and its receivers are its own. Nobody else is here to be locked out.
  State& state = GetState();
  for (const auto& ring : state.rings) ring->Clear();
  state.aggregator.Clear();
  for (Mailbox& mailbox : state.mailboxes) {
    mailbox.staged.clear();
    // The parent's carrier may have been in the middle of a call: what it used is left alone, not destroyed.
    new (&mailbox.receiver) Receiver;
    mailbox.lost.store(0, std::memory_order_relaxed);
  }
  new (&state.delivery) std::mutex;
  state.carrier = nullptr;
  internal::consumers.fetch_and(kSums, std::memory_order_relaxed);
  state.dropped.store(0, std::memory_order_relaxed);
  slot.thread = static_cast<uint32_t>(syscall(SYS_gettid));
}

// The thread has its ring.
void Push(const Record& record) {
  if (slot.ring->Push(record)) return;
  {
    State& state = GetState();
    const std::lock_guard lock(state.mutex);
    slot.ring->MakeRoom([&](Ring& ring, const Record& old) { state.Fold(ring, old); });
  }
  slot.ring->Push(record);
}

// Calls the receivers with what waits for them. The caller holds `delivery`, and not `mutex`.
void CallReceivers(State& state) {
  std::array<std::vector<Record>, 2> batches;
  {
    const std::lock_guard lock(state.mutex);
    state.FoldAll();
    for (size_t i = 0; i < batches.size(); ++i) batches[i].swap(state.mailboxes[i].staged);
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    if (!batches[i].empty() && state.mailboxes[i].receiver) state.mailboxes[i].receiver(batches[i]);
  }
}

bool AnyReceiver(const State& state) {
  return std::any_of(state.mailboxes.begin(), state.mailboxes.end(), [](const Mailbox& m) { return !!m.receiver; });
}

void Carry(State& state, Carrier& carrier) {
  std::unique_lock delivery(state.delivery);
  for (;;) {
    if (AnyReceiver(state)) {
      carrier.wake.wait_for(delivery, kDeliveryPeriod);
      CallReceivers(state);
    } else {
      carrier.wake.wait(delivery);
    }
  }
}

}  // namespace

void Start() {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  state.Switch(kSums, 0);
}

void Stop() {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  state.Switch(0, kSums);
}

bool EnabledForReports() {
  return (internal::consumers.load(std::memory_order_relaxed) & (kSums | BitOf(Outlet::kTrace))) != 0;
}

bool Started() { return (internal::consumers.load(std::memory_order_relaxed) & kSums) != 0; }

void Reset() {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  state.FoldAll();
  for (const auto& ring : state.rings) ring->Clear();
  state.aggregator.Clear();
  state.dropped.store(0, std::memory_order_relaxed);
}

void Attach(Outlet outlet, Receiver receiver) {
  State& state = GetState();
  const std::lock_guard delivery(state.delivery);
  CallReceivers(state);
  Mailbox& mailbox = state.mailboxes[static_cast<size_t>(outlet)];
  mailbox.receiver = std::move(receiver);
  mailbox.lost.store(0, std::memory_order_relaxed);
  {
    const std::lock_guard lock(state.mutex);
    state.Switch(BitOf(outlet), 0);
  }
  if (state.carrier == nullptr) {
    state.carrier = new Carrier;  // its thread uses it until the process ends
    std::thread(Carry, std::ref(state), std::ref(*state.carrier)).detach();
  }
  state.carrier->wake.notify_one();
}

void Detach(Outlet outlet) {
  State& state = GetState();
  const std::lock_guard delivery(state.delivery);
  {
    const std::lock_guard lock(state.mutex);
    state.Switch(0, BitOf(outlet));
  }
  CallReceivers(state);
  state.mailboxes[static_cast<size_t>(outlet)].receiver = nullptr;
}

void Deliver() {
  State& state = GetState();
  const std::lock_guard delivery(state.delivery);
  CallReceivers(state);
}

uint64_t Lost(Outlet outlet) {
  return GetState().mailboxes[static_cast<size_t>(outlet)].lost.load(std::memory_order_relaxed);
}

void PushExternalId(IdKind kind, uint32_t id) { slot.Ids(kind).push_back(id); }

void PopExternalId(IdKind kind) {
  std::vector<uint32_t>& stack = slot.Ids(kind);
  if (!stack.empty()) stack.pop_back();
}

void ClearExternalIds() { GetState().id_epoch.fetch_add(1, std::memory_order_relaxed); }

Status StartFromEnvironment() {
  THRESHER_ASSIGN(const bool on, env::GetSwitch("THRESHER_PROFILE"));
  THRESHER_TRY(env::GetInteger("THRESHER_PROFILE_RECORDS").status());
  if (on) Start();
  return Status::Ok();
}

uint32_t NumberOf(Site site) {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  return state.sites.Number(std::move(site));
}

std::vector<Site> SitesFrom(uint32_t first) {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  std::vector<Site> sites;
  for (size_t i = first; i < state.sites.size(); ++i) sites.push_back(state.sites[static_cast<uint32_t>(i)]);
  return sites;
}

const Site& SiteOf(uint32_t number) {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  return state.sites[number];
}

uint64_t NextCorrelations(uint64_t count) {
  return GetState().correlations.fetch_add(count, std::memory_order_relaxed);
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
  Stamp(stamped);
  stamped.lane = slot.ring->lane();
  Push(stamped);
}

void SetPhase(Phase phase) { current_phase = phase; }

void Stamp(Record& record) {
  if (record.phase == Phase::kInference) record.phase = current_phase;
  record.thread = slot.thread;
  record.external = slot.Id(IdKind::kOperator);
  record.user = slot.Id(IdKind::kUser);
}

void AddStamped(const Record& record) {
  if (!Enabled()) return;
  if (!slot.Ready()) {
    GetState().dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Push(record);
}

void AddLost() { GetState().dropped.fetch_add(1, std::memory_order_relaxed); }

Status AddInterval(std::string_view section, std::string_view name, int64_t start_ns, int64_t end_ns) {
  if (end_ns < start_ns) {
    return InvalidArgument("profile record \"" + std::string(name) + "\": expected an end after the start, got " +
                           std::to_string(end_ns) + " after " + std::to_string(start_ns));
  }
  for (size_t i = 0; i < kSectionNames.size(); ++i) {
    if (kSectionNames[i] != section) continue;
    Record record;
    record.start_ns = start_ns;
    record.end_ns = end_ns;
    record.section = static_cast<Section>(i);
    if (record.section == Section::kCall) {
      record.kind = Kind::kCall;
      record.event = kCallEvent;
    } else if (record.section == Section::kAlloc) {
      record.kind = Kind::kRuntime;
      record.event = kMallocEvent;
    } else {
      record.correlation = NextCorrelations(1);
    }
    Site site;
    site.name = name;
    site.section = record.section;
    record.site = NumberOf(std::move(site));
    Add(record);
    return Status::Ok();
  }
  return InvalidArgument("profile record \"" + std::string(name) +
                         "\": expected the section forward, reshape, alloc or call, got \"" + std::string(section) +
                         "\"");
}

Summary Summarize() {
  Summary summary;
  summary.enabled = Started();
  summary.isa = isa::Name(isa::Current());
  summary.num_threads = ThreadPool::Global().num_threads();
  summary.rank = Rank();
  summary.cpu = CpuModel();
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  state.FoldAll();
  for (const auto& ring : state.rings) summary.overwritten += ring->overwritten();
  summary.dropped = state.dropped.load(std::memory_order_relaxed);
  state.aggregator.Fill(state.sites, summary);
  return summary;
}

std::vector<PlacedRecord> Records() {
  std::vector<PlacedRecord> records;
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  for (const auto& ring : state.rings) {
    ring->Visit([&](const Record& record) { records.push_back({record, state.sites[record.site]}); });
  }
  return records;
}

uint64_t Dropped() { return GetState().dropped.load(std::memory_order_relaxed); }

}  // namespace thresher::profile
