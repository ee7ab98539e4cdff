#include "thresher/torch_shim/summary.h"

#include <atomic>
#include <mutex>

namespace thresher::torch_shim {
namespace {

std::mutex mutex;
Summary last;
std::atomic<uint64_t> memory_events{0};

}  // namespace

Summary LastSession() {
  const std::lock_guard lock(mutex);
  return last;
}

Summary BeginSession() {
  const std::lock_guard lock(mutex);
  const uint64_t number = last.number + 1;
  last = {};
  last.number = number;
  memory_events.store(0, std::memory_order_relaxed);
  return last;
}

void StoreSession(const Summary& summary) {
  const std::lock_guard lock(mutex);
  if (summary.number == last.number) last = summary;
}

void CountMemoryEvent() { memory_events.fetch_add(1, std::memory_order_relaxed); }
uint64_t MemoryEvents() { return memory_events.load(std::memory_order_relaxed); }

}  // namespace thresher::torch_shim
