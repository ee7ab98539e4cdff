// The engine's memory in PyTorch's memory profile.
#pragma once

#include "thresher/pti.h"

namespace thresher::torch_shim {

// Tells PyTorch's profiler of the calling thread, if one runs with profile_memory, what the engine took or gave back.
void MemoryChanged(const thresher_pti_memory* change, void* user_data);

}  // namespace thresher::torch_shim
