#include "thresher/run/session.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "thresher/base/barrier.h"
#include "thresher/base/clock.h"
#include "thresher/base/tensor.h"
#include "thresher/base/thread_pool.h"
#include "thresher/kernels/copy.h"
#include "thresher/plan/extent.h"
#include "thresher/plan/sites.h"
#include "thresher/profile/memory.h"
#include "thresher/profile/profiler.h"
#include "thresher/profile/runtime_interval.h"

namespace thresher {
namespace {

std::string Describe(const PortType& port) { return ToString(port.dtype, port.shape); }

std::string Describe(const View& view) { return ToString(view.dtype, Dims(view.shape, view.shape + view.rank)); }

bool Fits(const PortType& port, const View& view) {
  return port.dtype == view.dtype &&
         std::equal(port.shape.begin(), port.shape.end(), view.shape, view.shape + view.rank);
}

// The kernels of a run have been handed to the threads.
void AddLaunch(uint32_t site, uint64_t execution, int64_t start, int64_t end) {
  profile::Record record;
  record.kind = profile::Kind::kRuntime;
  record.section = profile::Section::kCall;
  record.event = profile::kLaunchKernelsEvent;
  record.site = site;
  record.execution = execution;
  record.start_ns = start;
  record.end_ns = end;
  profile::Add(record);
}

Status CheckPorts(const SizedPlan& plan, std::span<const View> inputs, std::span<const View> outputs) {
  if (inputs.size() != plan.inputs.size() || outputs.size() != plan.outputs.size()) {
    return InvalidArgument("wanted " + std::to_string(plan.inputs.size()) + " inputs and " +
                           std::to_string(plan.outputs.size()) + " outputs, found " + std::to_string(inputs.size()) +
                           " and " + std::to_string(outputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (Fits(plan.inputs[i], inputs[i])) continue;
    return InvalidArgument("input " + std::to_string(i) + " (" + plan.inputs[i].name + "): wanted " +
                           Describe(plan.inputs[i]) + ", found " + Describe(inputs[i]));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!Fits(plan.outputs[i], outputs[i])) {
      return InvalidArgument("output " + std::to_string(i) + ": wanted " + Describe(plan.outputs[i]) + ", found " +
                             Describe(outputs[i]));
    }
    if (!outputs[i].contiguous()) return InvalidArgument("output " + std::to_string(i) + ": wanted a row-major tensor");
  }
  return Status::Ok();
}

}  // namespace

// Everything one run writes, and what it reads of the plan.
struct Session::Context {
  struct Fixup {  // an operand whose address comes with each call
    size_t operand;
    int buffer;
  };

  explicit Context(std::shared_ptr<const Plan> plan) : sized(std::move(plan)) {}

  SizedPlan sized;  // the steps' operands with their addresses filled in
  Arena arena;
  int64_t scratch_bytes = 0;  // of one part
  std::byte* scratch = nullptr;
  std::vector<Fixup> fixups;
  std::vector<Arena> staging;  // per input: a row-major copy of one that came with other strides
  std::atomic<bool> failed{false};
  std::mutex error_mutex;
  Status error;

  ~Context() {
    const profile::RuntimeInterval interval(profile::kFreeEvent, "arena");
    profile::NoteRelease(arena.data(), static_cast<int64_t>(arena.size()));
    for (const Arena& copy : staging) profile::NoteRelease(copy.data(), static_cast<int64_t>(copy.size()));
  }
};

Session::Session(std::shared_ptr<const Plan> plan, std::vector<PrecisionDecision> decisions)
    : plan_(std::move(plan)), decisions_(std::move(decisions)) {}
Session::~Session() = default;

Result<std::unique_ptr<Session::Context>> Session::Acquire(std::span<const int64_t> sizes) {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const auto same = std::find_if(free_.rbegin(), free_.rend(), [sizes](const auto& context) {
        return std::equal(sizes.begin(), sizes.end(), context->sized.sizes().begin(), context->sized.sizes().end());
      });
      if (same != free_.rend()) std::swap(*same, free_.back());
      std::unique_ptr<Context> context = std::move(free_.back());
      free_.pop_back();
      return context;
    }
  }
  const profile::RuntimeInterval preparation(profile::kInitGraphEvent, plan_->name,
                                             plan_->recorded && profile::Enabled());
  auto context = std::make_unique<Context>(plan_);
  context->staging.resize(plan_->inputs.size());
  size_t operand = 0;
  for (const Step& step : plan_->steps) {
    for (const TensorRef& ref : step.operands) {
      if (ref.buffer >= 0) {
        const Buffer::Kind kind = plan_->buffers[static_cast<size_t>(ref.buffer)].kind;
        if (kind == Buffer::Kind::kInput || kind == Buffer::Kind::kOutput) {
          context->fixups.push_back({operand, ref.buffer});
        }
      }
      ++operand;
    }
  }
  THRESHER_TRY(Allocate(*context));
  return context;
}

Status Session::Allocate(Context& context) const {
  const bool profiled = plan_->recorded && profile::Enabled();
  const int64_t size = plan_->arena_bytes + context.sized.scratch_bytes * plan_->num_threads;
  const int64_t start = profiled ? NowNs() : 0;
  if (context.arena.data() != nullptr) {
    profile::NoteRelease(context.arena.data(), static_cast<int64_t>(context.arena.size()));
  }
  context.arena = Arena();
  THRESHER_ASSIGN(context.arena, Arena::Allocate(static_cast<size_t>(size)));
  if (profiled) {
    profile::Site site;
    site.name = "arena";
    site.section = profile::Section::kAlloc;
    site.graph = plan_->name;
    profile::Record record;
    record.kind = profile::Kind::kRuntime;
    record.section = profile::Section::kAlloc;
    record.event = profile::kMallocEvent;
    record.site = profile::NumberOf(std::move(site));
    record.start_ns = start;
    record.end_ns = NowNs();
    profile::Add(record);
  }
  profile::NoteAllocation(context.arena.data(), size);
  context.scratch_bytes = context.sized.scratch_bytes;
  context.scratch = context.arena.data() + plan_->arena_bytes;
  Bind(context);
  return Status::Ok();
}

void Session::Bind(Context& context) const {
  size_t operand = 0;
  for (const Step& step : plan_->steps) {
    for (const TensorRef& ref : step.operands) {
      View& view = context.sized.operands[operand];
      const int64_t offset = context.sized.offsets[operand];
      ++operand;
      if (ref.buffer < 0) continue;
      const Buffer& buffer = plan_->buffers[static_cast<size_t>(ref.buffer)];
      if (buffer.kind == Buffer::Kind::kArena) {
        view.data = context.arena.data() + buffer.arena_offset + offset;
      } else if (buffer.kind == Buffer::Kind::kConstant) {
        // Kernels take one kind of view for what they read and write; nothing writes to a constant.
        view.data = const_cast<std::byte*>(static_cast<const std::byte*>(buffer.data)) + offset;
      }
    }
  }
}

Status Session::Fit(Context& context, std::span<const int64_t> sizes) const {
  const Dims& known = context.sized.sizes();
  if (std::equal(sizes.begin(), sizes.end(), known.begin(), known.end())) return Status::Ok();
  THRESHER_TRY(context.sized.Set(sizes));
  // Scratch memory does not always shrink with the sizes.
  if (context.sized.scratch_bytes > context.scratch_bytes) return Allocate(context);
  Bind(context);
  return Status::Ok();
}

void Session::Release(std::unique_ptr<Context> context) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(context));
}

const std::vector<uint32_t>* Session::Sites(const Context& context) {
  if (plan_->extent == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  auto [at, added] = sites_.try_emplace(context.sized.sizes());
  if (!added) return &at->second;
  const Result<Plan> plan = PlanAt(*plan_, at->first);
  for (size_t s = 0; s < plan_->steps.size(); ++s) {
    const Step& step = plan.ok() ? plan.value().steps[s] : plan_->steps[s];
    at->second.push_back(profile::NumberOf(SiteOfStep(step, plan_->name, static_cast<int>(s))));
  }
  return &at->second;
}

Status Session::Run(std::span<const View> inputs, std::span<const View> outputs, std::span<const int64_t> sizes) {
  const size_t wanted = plan_->extent == nullptr ? 0 : plan_->extent->names.size();
  if (sizes.size() != wanted) {
    return InvalidArgument("wanted " + std::to_string(wanted) + " sizes, found " + std::to_string(sizes.size()));
  }
  const bool profiled = plan_->recorded && profile::Enabled();
  if (profiled) profile::PrepareThread();
  const uint64_t execution = profiled ? profile::NextExecution() : 0;
  const int64_t start = profiled ? NowNs() : 0;
  THRESHER_ASSIGN(std::unique_ptr<Context> context, Acquire(sizes));
  Status status = Fit(*context, sizes);
  if (status.ok()) status = CheckPorts(context->sized, inputs, outputs);
  if (status.ok()) status = Run(*context, inputs, outputs, execution, start);
  Release(std::move(context));
  return status;
}

Status Session::Run(Context& context, std::span<const View> inputs, std::span<const View> outputs, uint64_t execution,
                    int64_t begin) {
  const bool profiled = execution != 0;
  for (const Context::Fixup& fixup : context.fixups) {
    const Buffer& buffer = plan_->buffers[static_cast<size_t>(fixup.buffer)];
    const size_t index = static_cast<size_t>(buffer.index);
    std::byte* base;
    if (buffer.kind == Buffer::Kind::kOutput) {
      base = outputs[index].as<std::byte>();
    } else if (inputs[index].contiguous()) {
      base = inputs[index].as<std::byte>();
    } else {
      Arena& staging = context.staging[index];
      if (staging.data() == nullptr) {
        THRESHER_ASSIGN(staging, Arena::Allocate(static_cast<size_t>(buffer.bytes)));
        profile::NoteAllocation(staging.data(), buffer.bytes);
      }
      base = staging.data();
    }
    context.sized.operands[fixup.operand].data = base + context.sized.offsets[fixup.operand];
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::byte* base = context.staging[i].data();
    if (inputs[i].contiguous() || base == nullptr) continue;
    const profile::RuntimeInterval interval(profile::kDataConvertEvent, "input copy", profiled,
                                            profile::Section::kReshape);
    const PortType& port = context.sized.inputs[i];
    kernels::Copy(inputs[i], MakeView(base, port.dtype, port.shape));
  }
  const Status status = RunSteps(context, execution, begin);
  if (profiled) {
    profile::Record record;
    record.kind = profile::Kind::kExecution;
    record.section = profile::Section::kCall;
    record.event = profile::kGraphExecutionEvent;
    record.site = plan_->site;
    record.execution = execution;
    record.start_ns = begin;
    record.end_ns = NowNs();
    profile::Add(record);
  }
  return status;
}

Status Session::RunSteps(Context& context, uint64_t execution, int64_t begin) {
  const Plan& plan = *plan_;
  const SizedPlan& sized = context.sized;
  if (plan.steps.empty()) return Status::Ok();
  context.failed.store(false, std::memory_order_relaxed);
  const bool profiled = execution != 0;
  const std::vector<uint32_t>* sites = profiled ? Sites(context) : nullptr;
  const uint64_t correlation = profiled ? profile::NextCorrelations(plan.steps.size()) : 0;
  ThreadPool& pool = ThreadPool::Global();
  bool any_parallel = false;
  for (const uint8_t parallel : sized.parallel) any_parallel |= parallel != 0;
  const int parties = any_parallel ? std::min(pool.num_threads(), plan.num_threads) : 1;
  SpinBarrier barrier(parties);
  const int64_t launch = profiled ? NowNs() : 0;
  pool.Run(
      [&](int part, int num_parts) {
        // The pool may have shrunk since it was asked; then part 0 does everything.
        const bool alone = num_parts == 1 || num_parts != parties;
        if (alone && part != 0) return;
        int64_t start = 0;
        if (profiled && part == 0) {
          start = NowNs();
          AddLaunch(plan.site, execution, launch, start);
        }
        for (size_t s = 0; s < plan.steps.size(); ++s) {
          const Step& step = plan.steps[s];
          const bool shared = sized.parallel[s] != 0 && !alone;
          if ((part == 0 || shared) && !context.failed.load(std::memory_order_relaxed)) {
            StepContext c;
            c.operands = sized.operands.data() + sized.first_operand[s];
            c.num_inputs = step.num_inputs;
            c.params = sized.params[s];
            c.scratch = context.scratch + context.scratch_bytes * part;
            c.part = shared ? part : 0;
            c.num_parts = shared ? num_parts : 1;
            if (Status status = step.fn(c); !status.ok()) {
              const std::lock_guard lock(context.error_mutex);
              if (!context.failed.exchange(true)) context.error = std::move(status);
            }
          }
          // Two steps of one thread in a row need no hand-over.
          const bool next_parallel = s + 1 < plan.steps.size() && sized.parallel[s + 1] != 0;
          if (!alone && (sized.parallel[s] != 0 || next_parallel)) barrier.Wait();
          if (profiled && part == 0) {
            // The end of one step is the start of the next, so that waiting and dispatch are somebody's time.
            profile::Record record;
            record.kind = profile::Kind::kOp;
            record.section = static_cast<profile::Section>(step.section);
            record.site = sites == nullptr ? step.site : (*sites)[s];
            record.execution = execution;
            record.correlation = correlation + s;
            record.value = begin;
            record.start_ns = start;
            record.end_ns = NowNs();
            profile::Add(record);
            start = record.end_ns;
          }
        }
      },
      parties);
  if (!context.failed.load(std::memory_order_relaxed)) return Status::Ok();
  return std::exchange(context.error, Status::Ok());
}

}  // namespace thresher
