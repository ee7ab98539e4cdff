// A chain of element-wise operators in the form that other devices take.
#pragma once

#include "thresher/base/view.h"
#include "thresher/device_api.h"
#include "thresher/kernels/pointwise_chain.h"

namespace thresher {

// `operands` and `out` as kernels::RunChain takes them, their memory being the device's.
thresher_chain DeviceChain(const kernels::Chain& chain, const View* operands, const View& out);

}  // namespace thresher
