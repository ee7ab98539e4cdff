// Where a run that is done in pieces pauses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thresher/plan/plan.h"

namespace thresher {

// Knows how long steps take from those like them in layers before, and in earlier runs.
class Pauses {
 public:
  explicit Pauses(const Plan& plan);

  // A run begins.
  void Restart() { longest_ns_ = 0; }
  // A piece of it begins that is to take so long.
  void Begin(int64_t budget_ns);
  // Whether to pause before a step: it would likely end too late, and is not the piece's first.
  bool Before(size_t step);
  void Ended(size_t step);
  // The longest step of the run so far.
  int64_t longest_ns() const { return longest_ns_; }

 private:
  std::vector<size_t> kind_;      // per step; those of one kind take about as long
  std::vector<int64_t> took_ns_;  // per kind, the last time; 0: not known
  int64_t end_ns_ = 0;            // of the piece
  int64_t start_ns_ = 0;          // of the present step
  int64_t longest_ns_ = 0;
  bool first_ = true;
};

}  // namespace thresher
