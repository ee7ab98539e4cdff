// What a process does once before its first plan.
#pragma once

#include "thresher/base/status.h"

namespace thresher {

// Applies the THRESHER_* variables: instruction set, profiler. Once it has succeeded, further calls do nothing. Errors:
// a variable with a value that cannot be used; the message names it and what was wanted.
Status Initialize();

}  // namespace thresher
