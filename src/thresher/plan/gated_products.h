// Gates of products, as gated linear units have them: act(x W0) * (x W1).
#pragma once

#include <vector>

#include "thresher/graph/graph.h"
#include "thresher/plan/plan.h"

namespace thresher {

// Where a chain multiplies one half of a product's result by an activation of the other and nothing else reads either,
// the product does so as its sums are made, with the same bits, and stores half as much. What a step makes of that
// result for the next product, if that is all that is done with it, the first product stores, too. `origins`: of the
// steps. Scratch memory of such steps is to be assigned again.
void GateProducts(Plan& plan, std::vector<const Node*>& origins);

}  // namespace thresher
