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

  // What a thread of the plan's begins with in the next product behind `step`, where each takes its share of the
  // weights in order; no more than leaves most of its second cache to what it has there. Empty: there is no such
  // product, or which of its weights are read follows from data.
  std::span<const std::byte> Behind(size_t step, int thread) const;

 private:
  int num_threads_ = 1;
  std::vector<std::span<const std::byte>> next_;  // per step: weights of the next product behind it
};

}  // namespace thresher
