// Runs a plan on the device that it was made for.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "thresher/base/fork_mutex.h"
#include "thresher/base/precision.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/plan/plan.h"
#include "thresher/plan/weight_store.h"
#include "thresher/run/device.h"

namespace thresher {

class PausableRun;

// Thread safe: runs in progress at the same time get memory of their own, which is kept for later runs. After the first
// run of a kind nothing is allocated on the host between two steps or at their start.
class Session {
 public:
  // On the CPU.
  explicit Session(std::shared_ptr<const Plan> plan, std::vector<PrecisionDecision> decisions = {});
  ~Session();
  // On any device; copies the plan's constants there. Errors: the plan was made for another one, no memory.
  // `weights` shares them with the other plans of the model. `graphs`: from the second run at some sizes on the steps
  // are launched as one graph, where the device has that and it is faster.
  static Result<std::unique_ptr<Session>> Create(std::shared_ptr<Device> device, std::shared_ptr<const Plan> plan,
                                                 WeightStore& weights, std::vector<PrecisionDecision> decisions = {},
                                                 bool graphs = false);

  // Inputs may have any strides; outputs are row-major, overlap nothing and hold nothing useful after an error. All but
  // states, which are the device's, are the host's memory. `sizes` are those of the call, where the plan is for many.
  // Errors: InvalidArgument where a view does not fit the plan (wanted and found are named), OutOfRange from indices in
  // the data, ResourceExhausted. An error leaves the session as good as before.
  Status Run(std::span<const View> inputs, std::span<const View> outputs, std::span<const int64_t> sizes = {});
  // The same in pieces, between which anything else may run; on the host's memory alone. Inputs with gaps between their
  // elements are read here, everything else stays where it is until the run is over, as does the session.
  Result<std::unique_ptr<PausableRun>> Begin(std::span<const View> inputs, std::span<const View> outputs,
                                             std::span<const int64_t> sizes = {});
  // The same on memory of the session's device, where inputs are row-major, too; returns when the work is handed to
  // the stream, which is one of that device. Where what the stream is asked for is being recorded, the steps are, and
  // the session has to live as long as what was recorded is used.
  Status Launch(DeviceStream& stream, std::span<const View> inputs, std::span<const View> outputs,
                std::span<const int64_t> sizes = {});

  // The same on a stream that another library of the process made for the session's device, by its handle.
  Status LaunchOn(void* stream, std::span<const View> inputs, std::span<const View> outputs,
                  std::span<const int64_t> sizes = {});

  const Plan& plan() const { return *plan_; }
  const std::shared_ptr<Device>& device() const { return device_; }
  // What precision_assignment decided for the plan's products; empty in fp32.
  const std::vector<PrecisionDecision>& precision_decisions() const { return decisions_; }

 private:
  friend class PausableRun;
  struct Context;

  Session(std::shared_ptr<Device> device, std::shared_ptr<const Plan> plan, std::vector<PrecisionDecision> decisions,
          bool graphs);
  Status PlaceConstants(WeightStore& weights);
  // A context, if possible one that has run at these sizes last; a new one where `fresh`.
  Result<std::unique_ptr<Context>> Acquire(std::span<const int64_t> sizes, bool fresh);
  void Release(std::unique_ptr<Context> context);
  // Takes memory for the context, and binds the operands that lie in it.
  Status Allocate(Context& context) const;
  void Bind(Context& context) const;
  // Makes the context one for these sizes.
  Status Fit(Context& context, std::span<const int64_t> sizes) const;
  // The sites of the steps at the context's sizes; null: those of the plan.
  const std::vector<uint32_t>* Sites(const Context& context);
  // A context for these views and sizes.
  Result<std::unique_ptr<Context>> Ready(std::span<const View> inputs, std::span<const View> outputs,
                                         std::span<const int64_t> sizes, bool recorded);
  // Calls body(context), which is an execution of the plan in profiles.
  template <class Body>
  Status Execute(Context& context, int64_t begin, Body&& body);
  // When an execution that is to be in profiles begins, which is now; else 0.
  int64_t ProfiledFrom() const;
  // All of it, and gives the context back.
  template <class Body>
  Status With(std::span<const View> inputs, std::span<const View> outputs, std::span<const int64_t> sizes, Body&& body,
              bool recorded = false);
  // What each of them does with its context.
  Status Place(Context& context, std::span<const View> inputs, std::span<const View> outputs) const;
  Status RunHere(Context& context, std::span<const View> inputs, std::span<const View> outputs) const;
  Status RunStaged(Context& context, std::span<const View> inputs, std::span<const View> outputs) const;
  Status LaunchIn(Context& context, DeviceStream& stream, std::span<const View> inputs,
                  std::span<const View> outputs) const;
  Status RunOn(DeviceStream& stream, Context& context) const;
  // What is asked of the stream from now on comes behind the context's last run.
  static Status Follow(Context& context, DeviceStream& stream);
  // Makes the steps' addresses those of the context's inputs and outputs.
  void Fix(Context& context) const;
  // Takes the device's memory for inputs and outputs that do not come with each call.
  Status Stage(Context& context) const;
  // Whether copying inputs and outputs and launching a graph beats launching the steps; `copies`: whether the caller's
  // tensors would have to be copied for it.
  bool WantsGraph(const Context& context, bool copies) const;
  // The graph of the steps at the context's sizes, where its inputs and outputs lie now; null: they have not lain there
  // often enough.
  Result<DeviceGraph*> GraphInPlace(Context& context) const;
  // The graph of the steps at the context's sizes, on what it has staged; null: there is none (yet).
  Result<DeviceGraph*> GraphOf(Context& context) const;
  // The input, or a row-major copy of it in the host's memory.
  Result<const std::byte*> RowMajor(Context& context, size_t input, const View& view) const;

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<const Plan> plan_;
  const std::vector<PrecisionDecision> decisions_;
  const bool graphs_;
  std::vector<std::shared_ptr<const void>> constants_;  // per buffer, where the device has memory of its own
  ForkMutex mutex_{LockRank::kSession};
  std::vector<std::unique_ptr<Context>> free_;
  std::vector<std::unique_ptr<Context>> retired_;  // whose memory a graph of the caller's uses
  std::map<Dims, std::vector<uint32_t>> sites_;    // by the sizes that were profiled
};

// One thread at a time; its memory is the session's again when it is destroyed, wherever it has paused.
class PausableRun {
 public:
  ~PausableRun();
  PausableRun(const PausableRun&) = delete;
  PausableRun& operator=(const PausableRun&) = delete;

  // Does the next steps, as many as are likely to end within `budget_ns` and at least one. True: all are done. Errors:
  // as Run; the run is over then. InvalidArgument where it was over before.
  Result<bool> Continue(int64_t budget_ns);
  // The longest step so far.
  int64_t longest_ns() const;

 private:
  friend class Session;
  PausableRun(Session& session, std::unique_ptr<Session::Context> context);

  Session& session_;
  std::unique_ptr<Session::Context> context_;
  bool over_ = false;
};

}  // namespace thresher
