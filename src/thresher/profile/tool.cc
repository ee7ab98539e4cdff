// The C ABI of pti.h over the profiler's records.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "thresher/base/clock.h"
#include "thresher/base/cpu.h"
#include "thresher/base/isa.h"
#include "thresher/base/json.h"
#include "thresher/base/thread_pool.h"
#include "thresher/base/version.h"
#include "thresher/profile/memory.h"
#include "thresher/profile/profiler.h"
#include "thresher/pti.h"

namespace thresher::profile {
namespace {

constexpr size_t kLeastBuffer = 4096;
constexpr size_t kRecordAlignment = 8;

constexpr uint32_t BitOf(uint32_t kind) { return 1u << kind; }
bool IsKind(uint32_t kind) { return kind >= THRESHER_PTI_KIND_KERNEL && kind <= THRESHER_PTI_KIND_RUNTIME; }

const char* EventText(uint32_t event) {
  if (event < kEvents.size()) return kEvents[event].name.data();  // a literal, which ends in a zero
  static std::mutex mutex;
  static auto* const unknown = new std::map<uint32_t, std::string>;
  const std::lock_guard lock(mutex);
  return unknown->emplace(event, EventName(event)).first->second.c_str();
}

thresher_pti_memory MemoryOf(const Record& record) {
  thresher_pti_memory out{};
  out.header = {sizeof out, THRESHER_PTI_KIND_MEMORY};
  out.event = record.event;
  out.thread = record.thread;
  out.time_ns = record.start_ns;
  out.bytes = record.value;
  out.address = record.execution;
  out.allocated = record.correlation;
  out.reserved = record.correlation;  // the engine gives back to the system what it does not use
  out.device = record.device;
  out.external_id = record.external;
  return out;
}

// The one tool that listens.
class Tool {
 public:
  thresher_pti_result Register(thresher_pti_buffer_requested requested, thresher_pti_buffer_completed completed,
                               void* data) {
    const std::lock_guard lock(control_);
    if ((requested == nullptr) != (completed == nullptr)) return THRESHER_PTI_INVALID_ARGUMENT;
    if (kinds_.load() != 0 || (requested != nullptr && requested_ != nullptr)) return THRESHER_PTI_BUSY;
    const std::lock_guard buffer_lock(buffer_mutex_);
    CompleteBuffer();
    requested_ = requested;
    completed_ = completed;
    data_ = data;
    dropped_.store(0);
    return THRESHER_PTI_OK;
  }

  thresher_pti_result Enable(uint32_t kind) {
    if (!IsKind(kind)) return THRESHER_PTI_INVALID_ARGUMENT;
    const std::lock_guard lock(control_);
    if (requested_ == nullptr) return THRESHER_PTI_NOT_REGISTERED;
    const bool first = kinds_.load() == 0;
    if (!first) Deliver();  // what came before is not of the new kind's time
    kinds_.fetch_or(BitOf(kind));
    if (first) Attach(Outlet::kTool, [this](std::span<const Record> batch) { Take(batch); });
    return THRESHER_PTI_OK;
  }

  thresher_pti_result Disable(uint32_t kind) {
    if (!IsKind(kind)) return THRESHER_PTI_INVALID_ARGUMENT;
    const std::lock_guard lock(control_);
    if ((kinds_.load() & BitOf(kind)) == 0) return THRESHER_PTI_OK;
    if (kinds_.load() == BitOf(kind)) {
      Detach(Outlet::kTool);
      dropped_.fetch_add(Lost(Outlet::kTool));
    } else {
      Deliver();
    }
    kinds_.fetch_and(~BitOf(kind));
    return THRESHER_PTI_OK;
  }

  thresher_pti_result Flush() {
    const std::lock_guard lock(control_);
    if (requested_ == nullptr) return THRESHER_PTI_NOT_REGISTERED;
    Deliver();
    const std::lock_guard buffer_lock(buffer_mutex_);
    CompleteBuffer();
    return THRESHER_PTI_OK;
  }

  uint64_t dropped() const { return dropped_.load() + (kinds_.load() != 0 ? Lost(Outlet::kTool) : 0); }

  void SetMemoryCallback(thresher_pti_memory_changed changed, void* data) {
    const std::lock_guard lock(control_);
    // Kept for good: a change of memory on another thread may still be on its way with the old pair.
    MemoryCallback& callback = memory_callbacks_.emplace_back(changed, data);
    SetMemoryObserver(changed == nullptr ? nullptr : &ForwardMemory, &callback);
  }

 private:
  struct MemoryCallback {
    MemoryCallback(thresher_pti_memory_changed f, void* d) : changed(f), data(d) {}
    thresher_pti_memory_changed changed;
    void* data;
  };

  static void ForwardMemory(const Record& record, void* data) {
    const auto& callback = *static_cast<const MemoryCallback*>(data);
    const thresher_pti_memory change = MemoryOf(record);
    callback.changed(&change, callback.data);
  }

  bool Wants(uint32_t kind) const { return (kinds_.load(std::memory_order_relaxed) & BitOf(kind)) != 0; }

  void Take(std::span<const Record> batch) {
    const std::lock_guard lock(buffer_mutex_);
    for (const Record& record : batch) {
      switch (record.kind) {
        case Kind::kOp:
          TakeOp(record);
          break;
        case Kind::kDevice:
          TakeDevice(record);
          break;
        case Kind::kMemory:
          if (Wants(THRESHER_PTI_KIND_MEMORY)) Put(MemoryOf(record));
          break;
        case Kind::kExecution:
        case Kind::kCall:
        case Kind::kRuntime:
        case Kind::kRange:
        case Kind::kStep:
          // Of these only the launch of a kernel on a device of its own has one.
          TakeRuntime(record, record.kind == Kind::kRuntime ? record.correlation : 0);
          break;
      }
    }
  }

  void TakeRuntime(const Record& record, uint64_t correlation) {
    if (!Wants(THRESHER_PTI_KIND_RUNTIME)) return;
    thresher_pti_runtime out{};
    out.header = {sizeof out, THRESHER_PTI_KIND_RUNTIME};
    out.event = record.event;
    out.thread = record.thread;
    out.start_ns = record.start_ns;
    out.end_ns = record.end_ns;
    out.correlation = correlation;
    out.external_id = record.external;
    out.user_id = record.user;
    out.name = EventText(record.event);
    out.detail = SiteOf(record.site).name.c_str();
    Put(out);
  }

  // The thread that launched it has done it, too.
  void TakeOp(const Record& record) {
    TakeRuntime(record, record.correlation);
    TakeDevice(record);
  }

  void TakeDevice(const Record& record) {
    const Site& site = SiteOf(record.site);
    const bool copies = site.hardware == kMemcpyEvent || site.hardware == kMemsetEvent;
    const uint32_t kind = copies ? THRESHER_PTI_KIND_COPY : THRESHER_PTI_KIND_KERNEL;
    if (!Wants(kind)) return;
    thresher_pti_kernel out{};
    out.header = {sizeof out, kind};
    out.event = site.hardware;
    out.thread = record.thread;
    out.queued_ns = record.value;
    out.submitted_ns = record.kind == Kind::kDevice ? record.value : record.start_ns;
    out.start_ns = record.start_ns;
    out.end_ns = record.end_ns;
    out.correlation = record.correlation;
    out.execution = record.execution;
    out.external_id = record.external;
    out.user_id = record.user;
    out.device = record.device;
    out.stream = record.lane;
    out.flops = site.flops;
    out.bytes = site.bytes;
    out.name = (site.kernel.empty() ? site.name : site.kernel).c_str();
    out.shapes = site.shapes.c_str();
    out.dtypes = site.dtypes.c_str();
    out.module = site.module.c_str();
    out.source = site.source.c_str();
    Put(out);
  }

  template <class Out>
  void Put(const Out& out) {
    static_assert(sizeof(Out) % kRecordAlignment == 0);
    if (buffer_ != nullptr && size_ - used_ < sizeof out) CompleteBuffer();
    if (buffer_ == nullptr) {
      size_ = 0;
      requested_(&buffer_, &size_, data_);
      const bool aligned = reinterpret_cast<uintptr_t>(buffer_) % kRecordAlignment == 0;
      if (buffer_ != nullptr && (size_ < kLeastBuffer || !aligned)) {
        completed_(buffer_, size_, 0, data_);  // of no use, but the tool's own
        buffer_ = nullptr;
      }
      used_ = 0;
    }
    if (buffer_ == nullptr) {
      dropped_.fetch_add(1);
      return;
    }
    std::memcpy(buffer_ + used_, &out, sizeof out);
    used_ += sizeof out;
  }

  void CompleteBuffer() {
    if (buffer_ == nullptr) return;
    completed_(std::exchange(buffer_, nullptr), size_, used_, data_);
  }

  std::mutex control_;  // register, enable, disable, flush: one at a time
  std::atomic<uint32_t> kinds_{0};
  std::atomic<uint64_t> dropped_{0};
  std::deque<MemoryCallback> memory_callbacks_;

  std::mutex buffer_mutex_;  // guards all below; taken after `control_`
  thresher_pti_buffer_requested requested_ = nullptr;
  thresher_pti_buffer_completed completed_ = nullptr;
  void* data_ = nullptr;
  uint8_t* buffer_ = nullptr;
  size_t size_ = 0;
  size_t used_ = 0;
};

Tool& GetTool() {
  struct Owned {
    pid_t owner = getpid();
    Tool tool;
  };
  static std::atomic<Owned*> current{new Owned};
  Owned* owned = current.load();
  if (owned->owner != getpid()) {
    // A forked child: the parent's tool may have been in the middle of anything, so it is left alone.
    auto* fresh = new Owned;
    owned = current.compare_exchange_strong(owned, fresh) ? fresh : owned;
  }
  return owned->tool;
}

thresher_pti_result NextRecord(const uint8_t* buffer, size_t valid_size, const thresher_pti_record** record) {
  if (buffer == nullptr || record == nullptr) return THRESHER_PTI_INVALID_ARGUMENT;
  const auto* current = reinterpret_cast<const uint8_t*>(*record);
  size_t at = 0;
  if (current != nullptr) {
    if (current < buffer || current >= buffer + valid_size) return THRESHER_PTI_INVALID_ARGUMENT;
    at = static_cast<size_t>(current - buffer) + (*record)->struct_size;
  }
  if (at == valid_size) return THRESHER_PTI_END;
  if (at > valid_size || valid_size - at < sizeof(thresher_pti_record)) return THRESHER_PTI_INVALID_ARGUMENT;
  const auto* next = reinterpret_cast<const thresher_pti_record*>(buffer + at);
  if (next->struct_size < sizeof *next || next->struct_size > valid_size - at) return THRESHER_PTI_INVALID_ARGUMENT;
  *record = next;
  return THRESHER_PTI_OK;
}

bool ToIdKind(uint32_t number, IdKind& kind) {
  if (number > THRESHER_PTI_ID_USER) return false;
  kind = static_cast<IdKind>(number);
  return true;
}

const char* ResultText(uint32_t result) {
  static constexpr std::array kTexts = {
      "ok",
      "no more records",
      "invalid argument: a null pointer, an unknown kind or a damaged buffer",
      "no callbacks are registered: call register_callbacks first",
      "another tool has registered its callbacks, or kinds are still enabled",
      "no memory",
  };
  return result < kTexts.size() ? kTexts[result] : "unknown result";
}

const char* DeviceProperties() {
  static std::mutex mutex;
  static auto* const texts = new std::map<std::string, bool>;  // instruction set and threads may be changed
  const std::string text = "{\"engine_version\": " + json::Quote(kVersion) +
                           ", \"isa\": " + json::Quote(isa::Name(isa::Current())) +
                           ", \"cpu\": " + json::Quote(CpuModel()) +
                           ", \"num_threads\": " + std::to_string(ThreadPool::Global().num_threads()) + "}";
  const std::lock_guard lock(mutex);
  return texts->emplace(text, true).first->first.c_str();
}

constexpr thresher_pti_api kApi = {
    .struct_size = sizeof(thresher_pti_api),
    .version = THRESHER_PTI_VERSION,
    .register_callbacks = [](thresher_pti_buffer_requested requested, thresher_pti_buffer_completed completed,
                             void* data) { return GetTool().Register(requested, completed, data); },
    .enable = [](uint32_t kind) { return GetTool().Enable(kind); },
    .disable = [](uint32_t kind) { return GetTool().Disable(kind); },
    .flush_all = [] { return GetTool().Flush(); },
    .next_record = &NextRecord,
    .dropped =
        [](uint64_t* count) {
          if (count == nullptr) return THRESHER_PTI_INVALID_ARGUMENT;
          *count = GetTool().dropped();
          return THRESHER_PTI_OK;
        },
    .push_external_id =
        [](uint32_t number, uint32_t id) {
          IdKind kind;
          if (!ToIdKind(number, kind)) return THRESHER_PTI_INVALID_ARGUMENT;
          PushExternalId(kind, id);
          return THRESHER_PTI_OK;
        },
    .pop_external_id =
        [](uint32_t number) {
          IdKind kind;
          if (!ToIdKind(number, kind)) return THRESHER_PTI_INVALID_ARGUMENT;
          PopExternalId(kind);
          return THRESHER_PTI_OK;
        },
    .clear_external_ids =
        [] {
          ClearExternalIds();
          return THRESHER_PTI_OK;
        },
    .set_memory_callback =
        [](thresher_pti_memory_changed changed, void* data) {
          GetTool().SetMemoryCallback(changed, data);
          return THRESHER_PTI_OK;
        },
    .timestamp_ns = [] { return NowNs(); },
    .event_name = &EventText,
    .result_name = &ResultText,
    .device_properties = &DeviceProperties,
};

}  // namespace
}  // namespace thresher::profile

extern "C" const thresher_pti_api* thresher_pti_get_api(uint32_t version) {
  return version == THRESHER_PTI_VERSION ? &thresher::profile::kApi : nullptr;
}
