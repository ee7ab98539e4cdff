// Which steps use which buffers, for what changes steps of a plan that is lowered already.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "thresher/plan/plan.h"

namespace thresher {

// The steps that use a buffer, each once, in their order.
struct Uses {
  std::vector<size_t> writers, readers;
};

// One for each buffer of the plan.
std::vector<Uses> UsesOf(const Plan& plan);

// Leaves out what stands where `gone` is true; the list may be longer.
template <class T>
void LeaveOut(const std::vector<bool>& gone, std::vector<T>& list) {
  size_t kept = 0;
  for (size_t s = 0; s < list.size(); ++s) {
    if (s < gone.size() && gone[s]) continue;
    if (kept != s) list[kept] = std::move(list[s]);
    ++kept;
  }
  list.resize(kept);
}

}  // namespace thresher
