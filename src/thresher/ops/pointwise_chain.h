// The text of a chain of element-wise operators as what kernels run.
#pragma once

#include <span>
#include <string>

#include "thresher/base/status.h"
#include "thresher/graph/operator.h"
#include "thresher/kernels/pointwise_chain.h"

namespace thresher {

// The chain of operator "pointwise" with this program. Errors: those of its shape inference.
Result<kernels::Chain> ParseChain(const std::string& program, std::span<const OperandType> operands);

}  // namespace thresher
