// The engine as the shim sees it: a table of functions, whose address Python hands over. The shim links no engine.
#pragma once

#include "thresher/pti.h"

namespace thresher::torch_shim {

// The engine's functions; null until SetEngine has been called.
const thresher_pti_api* Engine();

// Null for success, else what is wrong with the table.
const char* SetEngine(const thresher_pti_api* api);

}  // namespace thresher::torch_shim
