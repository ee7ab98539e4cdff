// Local rules about views, shared by view_simplification and by passes that create views and want them collapsed.
#pragma once

#include <span>

#include "thresher/graph/rewriter.h"

namespace thresher::passes {

std::span<const RuleRewriter::Rule> ViewRules();

}  // namespace thresher::passes
