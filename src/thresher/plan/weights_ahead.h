// Which packed weights the products of a plan read next.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thresher/plan/plan.h"

namespace thresher {

class WeightsAhead {
 public:
  explicit WeightsAhead(const Plan& plan);

  // What a thread of the plan's begins with in the next product behind `step`, at the plan's own sizes; no more than
  // leaves most of its second cache to what it has there. Empty: there is no such product, or which of its weights are
  // read follows from data.
  std::span<const std::byte> Behind(size_t step, int thread) const;

  // The share of it that the thread fetches while it does part `part` of `num_parts` of the step; of the parts of other
  // threads (Rounds): none.
  std::span<const std::byte> During(size_t step, int part, int num_parts, int thread) const;

 private:
  int num_threads_ = 1;
  std::vector<std::span<const std::byte>> next_;  // per step and thread
};

}  // namespace thresher
