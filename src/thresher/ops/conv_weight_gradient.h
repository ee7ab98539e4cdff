// The gradient of a convolution as to its weight.
#pragma once

#include "thresher/graph/operator.h"
#include "thresher/plan/cpu_kernel.h"

namespace thresher::ops {

OpDef WeightGradientOp();
CpuKernel WeightGradientKernel();

}  // namespace thresher::ops
