// What the profiler is told about work that is handed to a device directly, without a plan.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "thresher/device_api.h"
#include "thresher/kernels/pointwise_chain.h"
#include "thresher/profile/site.h"

namespace thresher {

// `variant` ends the kernel's name: what it was compiled for.
profile::Site SiteOfChain(const kernels::Chain& chain, const View& out, std::string_view variant);
profile::Site SiteOf(const thresher_norm& norm, std::string_view variant);
profile::Site SiteOf(const thresher_softmax& softmax, std::string_view variant);
profile::Site SiteOf(const thresher_gemm& gemm, std::string_view variant);
// "Memcpy HtoD", "Memset".
profile::Site SiteOfCopy(std::string_view name, size_t bytes);
profile::Site SiteOfFill(size_t bytes);

}  // namespace thresher
