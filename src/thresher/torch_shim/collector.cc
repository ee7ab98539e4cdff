#include "thresher/torch_shim/collector.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "thresher/torch_shim/engine.h"
#include "thresher/torch_shim/memory.h"

namespace thresher::torch_shim::collector {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;
constexpr uint32_t kKinds[] = {THRESHER_PTI_KIND_KERNEL, THRESHER_PTI_KIND_COPY, THRESHER_PTI_KIND_RUNTIME};

std::atomic<bool> running{false};
std::mutex* const buffers_mutex = new std::mutex;  // callbacks may come while the process ends
std::vector<Buffer>* const buffers = new std::vector<Buffer>;
// A child process inherits a session that it does not own: its engine still has our callbacks.
std::atomic<bool> inherited{false};

void GiveBuffer(uint8_t** buffer, size_t* size, void*) {
  *buffer = nullptr;
  *size = 0;
  if (!running.load(std::memory_order_relaxed)) return;
  *buffer = new (std::nothrow) uint8_t[kBufferBytes];
  if (*buffer != nullptr) *size = kBufferBytes;
}

void TakeBuffer(uint8_t* buffer, size_t, size_t valid_size, void*) {
  std::unique_ptr<uint8_t[]> bytes(buffer);
  if (buffer == nullptr || valid_size == 0 || !running.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(*buffers_mutex);
  buffers->push_back({std::move(bytes), valid_size});
}

void InChild() {
  if (!running.exchange(false)) return;
  inherited.store(true);
  // Another thread of the parent may have held it.
  new (buffers_mutex) std::mutex;
}

void Detach(const thresher_pti_api& api) {
  api.set_memory_callback(nullptr, nullptr);
  for (const uint32_t kind : kKinds) api.disable(kind);
  api.register_callbacks(nullptr, nullptr, nullptr);
}

std::string Failed(const thresher_pti_api& api, const char* what, thresher_pti_result result) {
  std::string message = std::string("the engine refused to ") + what + ": " + api.result_name(result);
  if (result == THRESHER_PTI_BUSY) message += "; another tool holds the tracing interface: end it first";
  return message;
}

}  // namespace

std::string Start() {
  static const int watches_forks = pthread_atfork(nullptr, nullptr, InChild);
  (void)watches_forks;
  const thresher_pti_api* api = Engine();
  if (api == nullptr) return "no engine is connected";
  if (running.load()) return "another session of the profiler is collecting already";
  if (inherited.exchange(false)) {
    Detach(*api);
    buffers->clear();
  }
  if (const auto result = api->register_callbacks(GiveBuffer, TakeBuffer, nullptr); result != THRESHER_PTI_OK) {
    return Failed(*api, "register the profiler's callbacks", result);
  }
  api->clear_external_ids();
  running.store(true);
  api->set_memory_callback(MemoryChanged, nullptr);
  for (const uint32_t kind : kKinds) {
    if (const auto result = api->enable(kind); result != THRESHER_PTI_OK) {
      running.store(false);
      Detach(*api);
      return Failed(*api, "record", result);
    }
  }
  return {};
}

Collected Stop() {
  Collected collected;
  const thresher_pti_api* api = Engine();
  if (api == nullptr || !running.load()) return collected;
  for (const uint32_t kind : kKinds) api->disable(kind);
  api->flush_all();
  api->dropped(&collected.dropped);
  running.store(false);
  Detach(*api);
  const std::lock_guard lock(*buffers_mutex);
  collected.buffers = std::exchange(*buffers, {});
  return collected;
}

bool Running() { return running.load(std::memory_order_relaxed); }

}  // namespace thresher::torch_shim::collector
