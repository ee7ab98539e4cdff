// What a process does once before its first plan.
#pragma once

#include "thresher/base/status.h"

namespace thresher {

// Applies the THRESHER_* variables: instruction set, profiler. Calling it again reads them again. Errors: a variable
// with a value that cannot be used; the message names it and what was wanted.
Status Initialize();

// The same, unless Initialize() has succeeded before.
Status EnsureInitialized();

}  // namespace thresher
