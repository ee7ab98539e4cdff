#include "thresher/torch_shim/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include "thresher/torch_shim/collector.h"
#include "thresher/torch_shim/summary.h"

namespace thresher::torch_shim {

void MemoryChanged(const thresher_pti_memory* change, void*) {
  if (change == nullptr || change->header.struct_size < sizeof(thresher_pti_memory)) return;
  if (!collector::Running() || !c10::memoryProfilingEnabled()) return;
  const c10::Device device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(change->device));
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(change->address), change->bytes, change->allocated,
                                   change->reserved, device);
  CountMemoryEvent();
}

}  // namespace thresher::torch_shim
