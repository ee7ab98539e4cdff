// What the profiler is told about copies and fills, which belong to no plan.
#pragma once

#include <cstddef>
#include <string_view>

#include "thresher/profile/site.h"

namespace thresher {

// "Memcpy HtoD", "Memset".
profile::Site SiteOfCopy(std::string_view name, size_t bytes);
profile::Site SiteOfFill(size_t bytes);

}  // namespace thresher
