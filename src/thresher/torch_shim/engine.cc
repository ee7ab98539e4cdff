#include "thresher/torch_shim/engine.h"

#include <atomic>

namespace thresher::torch_shim {
namespace {

std::atomic<const thresher_pti_api*> engine{nullptr};

}  // namespace

const thresher_pti_api* Engine() { return engine.load(std::memory_order_acquire); }

const char* SetEngine(const thresher_pti_api* api) {
  if (api == nullptr) return "the engine knows no tracing interface of this version";
  // Structures only grow at their ends: a larger one is a newer engine's, with all that is wanted here.
  if (api->struct_size < sizeof(thresher_pti_api)) return "the engine's tracing interface is older than this library";
  engine.store(api, std::memory_order_release);
  return nullptr;
}

}  // namespace thresher::torch_shim
