#include "thresher/plan/uses.h"

namespace thresher {

std::vector<Uses> UsesOf(const Plan& plan) {
  std::vector<Uses> uses(plan.buffers.size());
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    for (size_t i = 0; i < step.operands.size(); ++i) {
      if (step.operands[i].buffer < 0) continue;
      Uses& use = uses[static_cast<size_t>(step.operands[i].buffer)];
      std::vector<size_t>& steps = static_cast<int>(i) < step.num_inputs ? use.readers : use.writers;
      if (steps.empty() || steps.back() != s) steps.push_back(s);
    }
  }
  return uses;
}

}  // namespace thresher
