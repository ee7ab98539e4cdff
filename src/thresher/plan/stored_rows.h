// Which results are stored as rows of bf16 instead of floats.
#pragma once

#include <vector>

#include "thresher/graph/graph.h"
#include "thresher/plan/plan.h"

namespace thresher {

// What only products and attention read, which multiply bf16, their writers store so, rounded once instead of once by
// each of them; steps that would have made rows of bf16 of it are left out. So are conversions of the plan's results
// that nothing else wants in float. `origins`: of the steps.
void StoreRows(Plan& plan, std::vector<const Node*>& origins);

}  // namespace thresher
