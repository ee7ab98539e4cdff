#include "thresher/cuda/activity.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "thresher/cuda/activity_records.h"
#include "thresher/cuda/error.h"

namespace thresher::cuda {
namespace {

constexpr const char* kLibrary = "libcupti.so.13";
constexpr size_t kBufferBytes = size_t{1} << 20;
// Of calls that launch nothing, or whose work is never told: the oldest are forgotten.
constexpr size_t kMostUnmatched = size_t{1} << 16;
// The calls that launch come from the runtime, and from libraries that call the driver; records of calls carry the ids.
constexpr std::array kKinds = {kActivityExternalCorrelation, kActivityRuntime, kActivityDriver,
                               kActivityConcurrentKernel,    kActivityMemcpy,  kActivityMemset};

using Callback = void (*)(void* user, uint32_t domain, uint32_t id, const void* data);
using BufferRequested = void (*)(uint8_t** buffer, size_t* bytes, size_t* most_records);
using BufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t bytes, size_t valid_bytes);

struct Cupti {
  int (*subscribe)(void** subscriber, Callback callback, void* user);
  int (*unsubscribe)(void* subscriber);
  int (*register_clock)(uint64_t (*clock)());
  int (*register_buffers)(BufferRequested requested, BufferCompleted completed);
  int (*enable)(uint32_t kind);
  int (*disable)(uint32_t kind);
  int (*push_id)(uint32_t kind, uint64_t id);
  int (*pop_id)(uint32_t kind, uint64_t* id);
  int (*flush)(uint32_t flag);
  int (*next_record)(uint8_t* buffer, size_t valid_bytes, ActivityRecord** record);
  int (*result_string)(int result, const char** text);
};

struct Span {
  int64_t start_ns;
  int64_t end_ns;
};

// Never destroyed: CUPTI's own thread may bring records while the process ends.
struct State {
  std::mutex session;  // guards `subscriber` and beginning and ending
  void* subscriber = nullptr;
  std::atomic<bool> on{false};
  std::atomic<thresher_device_clock> clock{nullptr};
  std::atomic<thresher_device_timed> timed{nullptr};

  std::mutex records;                // guards what follows
  std::map<uint32_t, uint64_t> ids;  // by the number of a call; calls are numbered in their order
  std::map<uint32_t, Span> spans;    // of work that came before the id of its call
};

State& GetState() {
  static auto& state = *new State;
  return state;
}

// The library stays open until the process ends.
const Cupti* Load(std::string& problem) {
  static Cupti functions;
  static std::string error;
  static const bool loaded = [] {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const found = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps one for each thread
      error = std::string(kLibrary) + " cannot be opened (" + (found != nullptr ? found : "no reason given") +
              "); `pip install nvidia-cuda-cupti` brings it, as does `pip install thresher-cuda[cupti]`";
      return false;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && error.empty()) {
        error = std::string(kLibrary) + ": expected the function " + name + ", got none; install nvidia-cuda-cupti 13";
      }
    };
    find(functions.subscribe, "cuptiSubscribe");
    find(functions.unsubscribe, "cuptiUnsubscribe");
    find(functions.register_clock, "cuptiActivityRegisterTimestampCallback");
    find(functions.register_buffers, "cuptiActivityRegisterCallbacks");
    find(functions.enable, "cuptiActivityEnable");
    find(functions.disable, "cuptiActivityDisable");
    find(functions.push_id, "cuptiActivityPushExternalCorrelationId");
    find(functions.pop_id, "cuptiActivityPopExternalCorrelationId");
    find(functions.flush, "cuptiActivityFlushAll");
    find(functions.next_record, "cuptiActivityGetNextRecord");
    find(functions.result_string, "cuptiGetResultString");
    return error.empty();
  }();
  problem = error;
  return loaded ? &functions : nullptr;
}

const Cupti* Loaded() {
  std::string ignored;
  return Load(ignored);
}

template <class Value>
void Keep(std::map<uint32_t, Value>& unmatched, uint32_t call, const Value& value) {
  unmatched[call] = value;
  if (unmatched.size() > kMostUnmatched) unmatched.erase(unmatched.begin());
}

// Whichever comes first of a call's id and of the work that it launched waits for the other.
struct Told {
  uint64_t id;
  Span span;
};
void Match(State& state, const ActivityRecord& record, std::vector<Told>& told) {
  const auto work = [&]<class Record>(const Record& w) {
    if (w.start_ns == 0 || w.end_ns < w.start_ns) return;  // CUPTI could not tell
    const Span span = {static_cast<int64_t>(w.start_ns), static_cast<int64_t>(w.end_ns)};
    if (const auto at = state.ids.find(w.correlation); at != state.ids.end()) {
      told.push_back({at->second, span});
      state.ids.erase(at);
    } else {
      Keep(state.spans, w.correlation, span);
    }
  };
  switch (record.kind) {
    case kActivityKernel:
    case kActivityConcurrentKernel:
      return work(reinterpret_cast<const ActivityOfKernel&>(record));
    case kActivityMemcpy:
      return work(reinterpret_cast<const ActivityOfMemcpy&>(record));
    case kActivityMemset:
      return work(reinterpret_cast<const ActivityOfMemset&>(record));
    case kActivityExternalCorrelation: {
      const auto& call = reinterpret_cast<const ActivityOfExternalId&>(record);
      if (call.external_kind != kOwnIds) return;
      if (const auto at = state.spans.find(call.correlation); at != state.spans.end()) {
        told.push_back({call.external_id, at->second});
        state.spans.erase(at);
      } else {
        Keep(state.ids, call.correlation, call.external_id);
      }
      return;
    }
    default:
      return;
  }
}

uint64_t Now() { return static_cast<uint64_t>(GetState().clock.load(std::memory_order_relaxed)()); }

void GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(alignof(std::max_align_t), kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;  // without one, records are dropped
  *most_records = 0;                               // as many as it holds
}

void TakeBuffer(void*, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  State& state = GetState();
  std::vector<Told> told;
  {
    const std::lock_guard lock(state.records);
    ActivityRecord* record = nullptr;
    while (Loaded()->next_record(buffer, valid_bytes, &record) == kCuptiSuccess) Match(state, *record, told);
  }
  std::free(buffer);
  const thresher_device_timed timed = state.timed.load(std::memory_order_relaxed);
  for (const Told& work : told) timed(work.id, work.span.start_ns, work.span.end_ns);
}

}  // namespace

thresher_device_result BeginTimes(thresher_device_clock clock, thresher_device_timed timed) {
  State& state = GetState();
  const std::lock_guard lock(state.session);
  if (state.subscriber != nullptr) return THRESHER_DEVICE_OK;
  std::string problem;
  const Cupti* const cupti = Load(problem);
  if (cupti == nullptr) return Fail(THRESHER_DEVICE_UNAVAILABLE, problem);
  // A subscriber of this process keeps all others out, and is kept out by them; its callback is never asked for.
  const int held = cupti->subscribe(&state.subscriber, [](void*, uint32_t, uint32_t, const void*) {}, nullptr);
  if (held == kCuptiHeldByAnother) {
    state.subscriber = nullptr;
    return Fail(THRESHER_DEVICE_UNAVAILABLE,
                "another tool of this process, such as torch.profiler or Nsight, has CUPTI");
  }
  state.clock = clock;
  state.timed = timed;
  const char* failed = "cuptiSubscribe";
  int result = held;
  const auto step = [&](const char* name, auto&& call) {
    if (result != kCuptiSuccess) return;
    failed = name;
    result = call();
  };
  step("cuptiActivityRegisterTimestampCallback", [&] { return cupti->register_clock(&Now); });
  step("cuptiActivityRegisterCallbacks", [&] { return cupti->register_buffers(&GiveBuffer, &TakeBuffer); });
  for (const uint32_t kind : kKinds) step("cuptiActivityEnable", [&] { return cupti->enable(kind); });
  if (result == kCuptiSuccess) {
    state.on = true;
    return THRESHER_DEVICE_OK;
  }
  for (const uint32_t kind : kKinds) cupti->disable(kind);
  if (held == kCuptiSuccess) cupti->unsubscribe(state.subscriber);
  state.subscriber = nullptr;
  const char* text = nullptr;
  cupti->result_string(result, &text);
  return Fail(THRESHER_DEVICE_UNAVAILABLE,
              std::string(failed) + " failed: " + (text != nullptr ? text : std::to_string(result)));
}

void PushTimes(uint64_t id) { Loaded()->push_id(kOwnIds, id); }

void PopTimes() {
  uint64_t id = 0;
  Loaded()->pop_id(kOwnIds, &id);
}

thresher_device_result FlushTimes() {
  if (!TakingTimes() || Loaded()->flush(kFlushCompleted) == kCuptiSuccess) return THRESHER_DEVICE_OK;
  return Fail(THRESHER_DEVICE_FAILED, "CUPTI does not give out its records");
}

void EndTimes() {
  State& state = GetState();
  const std::lock_guard lock(state.session);
  if (state.subscriber == nullptr) return;
  const Cupti& cupti = *Loaded();
  cupti.flush(kFlushCompleted);
  state.on = false;
  for (const uint32_t kind : kKinds) cupti.disable(kind);
  cupti.unsubscribe(std::exchange(state.subscriber, nullptr));
  const std::lock_guard records(state.records);
  state.ids.clear();
  state.spans.clear();
}

bool TakingTimes() { return GetState().on.load(std::memory_order_relaxed); }

}  // namespace thresher::cuda
