#include "thresher/profile/memory.h"

#include <atomic>
#include <mutex>

#include "thresher/base/clock.h"
#include "thresher/profile/profiler.h"

namespace thresher::profile {
namespace {

std::atomic<int64_t> allocated{0};
std::atomic<bool> observed{false};

struct Observer {
  std::mutex mutex;
  MemoryObserver call = nullptr;
  void* data = nullptr;
};

Observer& GetObserver() {
  static auto* const observer = new Observer;  // memory is given back while static destructors run, too
  return *observer;
}

void Note(const void* address, int64_t change) {
  if (change == 0) return;
  const int64_t total = allocated.fetch_add(change, std::memory_order_relaxed) + change;
  const bool call = observed.load(std::memory_order_relaxed);
  if (!Enabled() && !call) return;
  Record record;
  record.kind = Kind::kMemory;
  record.section = Section::kCall;
  record.event = change > 0 ? kAllocationEvent : kReleaseEvent;
  record.start_ns = record.end_ns = NowNs();
  record.value = change;
  record.execution = reinterpret_cast<uintptr_t>(address);
  record.correlation = static_cast<uint64_t>(total);
  Add(record);
  if (!call) return;
  Observer& observer = GetObserver();
  const std::lock_guard lock(observer.mutex);
  if (observer.call != nullptr) observer.call(record, observer.data);
}

}  // namespace

void NoteAllocation(const void* address, int64_t bytes) { Note(address, bytes); }
void NoteRelease(const void* address, int64_t bytes) { Note(address, -bytes); }
int64_t AllocatedBytes() { return allocated.load(std::memory_order_relaxed); }

void SetMemoryObserver(MemoryObserver call, void* data) {
  Observer& observer = GetObserver();
  const std::lock_guard lock(observer.mutex);
  observer.call = call;
  observer.data = data;
  observed.store(call != nullptr, std::memory_order_relaxed);
}

}  // namespace thresher::profile
