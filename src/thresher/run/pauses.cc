#include "thresher/run/pauses.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "thresher/base/clock.h"

namespace thresher {

Pauses::Pauses(const Plan& plan) {
  std::map<std::tuple<KernelId, std::string_view, double, double>, size_t> kinds;
  for (const Step& step : plan.steps) {
    kind_.push_back(kinds.try_emplace({step.kernel, step.name, step.flops, step.bytes}, kinds.size()).first->second);
  }
  took_ns_.resize(kinds.size());
}

void Pauses::Begin(int64_t budget_ns) {
  start_ns_ = NowNs();
  end_ns_ = start_ns_ + budget_ns;
  first_ = true;
}

bool Pauses::Before(size_t step) {
  if (first_) {
    first_ = false;
    start_ns_ = NowNs();
    return false;
  }
  return start_ns_ + took_ns_[kind_[step]] > end_ns_;  // it starts when the one before has ended
}

void Pauses::Ended(size_t step) {
  const int64_t now = NowNs();
  const int64_t took = now - start_ns_;
  took_ns_[kind_[step]] = took;
  longest_ns_ = std::max(longest_ns_, took);
  start_ns_ = now;
}

}  // namespace thresher
