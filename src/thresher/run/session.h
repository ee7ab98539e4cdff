// Runs a plan on the CPU.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "thresher/base/arena.h"
#include "thresher/base/fork_mutex.h"
#include "thresher/base/precision.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/plan/plan.h"

namespace thresher {

// Thread safe: runs in progress at the same time get memory of their own, which is kept for later runs. After the first
// run of a kind nothing is allocated between two steps or at their start.
class Session {
 public:
  explicit Session(std::shared_ptr<const Plan> plan, std::vector<PrecisionDecision> decisions = {});
  ~Session();

  // Inputs may have any strides; outputs are row-major, overlap nothing and hold nothing useful after an error. `sizes`
  // are those of the call, where the plan is for many.
  // Errors: InvalidArgument where a view does not fit the plan (wanted and found are named), OutOfRange from indices in
  // the data, ResourceExhausted. An error leaves the session as good as before.
  Status Run(std::span<const View> inputs, std::span<const View> outputs, std::span<const int64_t> sizes = {});

  const Plan& plan() const { return *plan_; }
  // What precision_assignment decided for the plan's products; empty in fp32.
  const std::vector<PrecisionDecision>& precision_decisions() const { return decisions_; }

 private:
  struct Context;

  // A context, if possible one that has run at these sizes last.
  Result<std::unique_ptr<Context>> Acquire(std::span<const int64_t> sizes);
  void Release(std::unique_ptr<Context> context);
  // Takes memory for the context, and binds the operands that lie in it.
  Status Allocate(Context& context) const;
  void Bind(Context& context) const;
  // Makes the context one for these sizes.
  Status Fit(Context& context, std::span<const int64_t> sizes) const;
  // `execution` is 0 when nothing is recorded, else the run's number; `begin` is then when it began.
  Status Run(Context& context, std::span<const View> inputs, std::span<const View> outputs, uint64_t execution,
             int64_t begin);
  // The sites of the steps at the context's sizes; null: those of the plan.
  const std::vector<uint32_t>* Sites(const Context& context);
  Status RunSteps(Context& context, uint64_t execution, int64_t begin);

  const std::shared_ptr<const Plan> plan_;
  const std::vector<PrecisionDecision> decisions_;
  ForkMutex mutex_{LockRank::kSession};
  std::vector<std::unique_ptr<Context>> free_;
  std::map<Dims, std::vector<uint32_t>> sites_;  // by the sizes that were profiled
};

}  // namespace thresher
