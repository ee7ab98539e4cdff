// Copies that move elements before they are widened.
#pragma once

#include "thresher/plan/plan.h"

namespace thresher {

// Where elements of 16 bits become floats and these are put into another order, the other way around: half as much is
// moved, and who multiplies the elements as they were can read them (StoreRows()).
void CopyBeforeWidening(Plan& plan);

}  // namespace thresher
