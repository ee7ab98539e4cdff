#include "thresher/profile/memory.h"

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <utility>

#include "thresher/base/clock.h"
#include "thresher/profile/profiler.h"

namespace thresher::profile {
namespace {

std::array<std::atomic<int64_t>, 256> allocated{};  // by device
struct Observer {
  MemoryObserver call;
  void* data;
};

// What it points to is never freed: a change of memory on another thread may still be on its way to it.
std::atomic<const Observer*> observer{nullptr};

void Note(const void* address, int64_t change, uint8_t device) {
  if (change == 0) return;
  const int64_t total = allocated[device].fetch_add(change, std::memory_order_relaxed) + change;
  const Observer* const told = observer.load(std::memory_order_acquire);
  if (!Enabled() && told == nullptr) return;
  Record record;
  record.kind = Kind::kMemory;
  record.section = Section::kCall;
  record.event = change > 0 ? kAllocationEvent : kReleaseEvent;
  record.start_ns = record.end_ns = NowNs();
  record.value = change;
  record.execution = reinterpret_cast<uintptr_t>(address);
  record.correlation = static_cast<uint64_t>(total);
  record.device = device;
  if (device != 0) {  // readers tell devices by their places
    Site site;
    site.name = DeviceName(device);
    site.section = Section::kCall;
    record.site = NumberOf(std::move(site));
  }
  Add(record);
  if (told != nullptr) told->call(record, told->data);
}

}  // namespace

void NoteAllocation(const void* address, int64_t bytes, uint8_t device) { Note(address, bytes, device); }
void NoteRelease(const void* address, int64_t bytes, uint8_t device) { Note(address, -bytes, device); }
int64_t AllocatedBytes(uint8_t device) { return allocated[device].load(std::memory_order_relaxed); }

void SetMemoryObserver(MemoryObserver call, void* data) {
  static std::mutex mutex;
  static auto* const kept = new std::deque<Observer>;  // grows by a few bytes each time that a tool starts to listen
  const std::lock_guard lock(mutex);
  observer.store(call == nullptr ? nullptr : &kept->emplace_back(Observer{call, data}), std::memory_order_release);
}

}  // namespace thresher::profile
