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

std::byte* At(std::byte* base, const TensorRef& ref) {
  return base + ref.offset * static_cast<int64_t>(SizeOf(ref.view.dtype));
}

}  // namespace

// Everything one run writes: temporaries, and the steps' operands with their addresses filled in.
struct Session::Context {
  struct Fixup {  // an operand whose address comes with each call
    size_t operand;
    int buffer;
    int64_t byte_offset;
  };
  Arena arena;
  std::byte* scratch = nullptr;
  std::vector<View> operands;         // of all steps, one after the other
  std::vector<size_t> first_operand;  // per step
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

Result<std::unique_ptr<Session::Context>> Session::Acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<Context> context = std::move(free_.back());
      free_.pop_back();
      return context;
    }
  }
  const Plan& plan = *plan_;
  const bool profiled = plan.recorded && profile::Enabled();
  const profile::RuntimeInterval preparation(profile::kInitGraphEvent, plan.name, profiled);
  auto context = std::make_unique<Context>();
  const int64_t size = plan.arena_bytes + plan.scratch_bytes * plan.num_threads;
  const int64_t start = profiled ? NowNs() : 0;
  THRESHER_ASSIGN(context->arena, Arena::Allocate(static_cast<size_t>(size)));
  if (profiled) {
    profile::Site site;
    site.name = "arena";
    site.section = profile::Section::kAlloc;
    site.graph = plan.name;
    profile::Record record;
    record.kind = profile::Kind::kRuntime;
    record.section = profile::Section::kAlloc;
    record.event = profile::kMallocEvent;
    record.site = profile::NumberOf(std::move(site));
    record.start_ns = start;
    record.end_ns = NowNs();
    profile::Add(record);
  }
  profile::NoteAllocation(context->arena.data(), size);
  context->scratch = context->arena.data() + plan.arena_bytes;
  context->staging.resize(plan.inputs.size());
  for (const Step& step : plan.steps) {
    context->first_operand.push_back(context->operands.size());
    for (const TensorRef& ref : step.operands) {
      View view = ref.view;
      if (ref.buffer >= 0) {
        const Buffer& buffer = plan.buffers[static_cast<size_t>(ref.buffer)];
        switch (buffer.kind) {
          case Buffer::Kind::kArena:
            view.data = At(context->arena.data() + buffer.arena_offset, ref);
            break;
          case Buffer::Kind::kConstant:
            // Kernels take one kind of view for what they read and write; nothing writes to a constant.
            view.data = At(const_cast<std::byte*>(static_cast<const std::byte*>(buffer.data)), ref);
            break;
          case Buffer::Kind::kInput:
          case Buffer::Kind::kOutput:
            context->fixups.push_back(
                {context->operands.size(), ref.buffer, ref.offset * static_cast<int64_t>(SizeOf(ref.view.dtype))});
            break;
        }
      }
      context->operands.push_back(view);
    }
  }
  return context;
}

void Session::Release(std::unique_ptr<Context> context) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(context));
}

Status Session::Check(std::span<const View> inputs, std::span<const View> outputs) const {
  if (inputs.size() != plan_->inputs.size() || outputs.size() != plan_->outputs.size()) {
    return InvalidArgument("wanted " + std::to_string(plan_->inputs.size()) + " inputs and " +
                           std::to_string(plan_->outputs.size()) + " outputs, found " + std::to_string(inputs.size()) +
                           " and " + std::to_string(outputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (Fits(plan_->inputs[i], inputs[i])) continue;
    return InvalidArgument("input " + std::to_string(i) + " (" + plan_->inputs[i].name + "): wanted " +
                           Describe(plan_->inputs[i]) + ", found " + Describe(inputs[i]));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!Fits(plan_->outputs[i], outputs[i])) {
      return InvalidArgument("output " + std::to_string(i) + ": wanted " + Describe(plan_->outputs[i]) + ", found " +
                             Describe(outputs[i]));
    }
    if (!outputs[i].contiguous()) return InvalidArgument("output " + std::to_string(i) + ": wanted a row-major tensor");
  }
  return Status::Ok();
}

Status Session::Run(std::span<const View> inputs, std::span<const View> outputs) {
  THRESHER_TRY(Check(inputs, outputs));
  const bool profiled = plan_->recorded && profile::Enabled();
  if (profiled) profile::PrepareThread();
  const uint64_t execution = profiled ? profile::NextExecution() : 0;
  const int64_t start = profiled ? NowNs() : 0;
  THRESHER_ASSIGN(std::unique_ptr<Context> context, Acquire());
  for (const Context::Fixup& fixup : context->fixups) {
    const Buffer& buffer = plan_->buffers[static_cast<size_t>(fixup.buffer)];
    const size_t index = static_cast<size_t>(buffer.index);
    std::byte* base;
    if (buffer.kind == Buffer::Kind::kOutput) {
      base = outputs[index].as<std::byte>();
    } else if (inputs[index].contiguous()) {
      base = inputs[index].as<std::byte>();
    } else {
      Arena& staging = context->staging[index];
      if (staging.data() == nullptr) {
        THRESHER_ASSIGN(staging, Arena::Allocate(static_cast<size_t>(buffer.bytes)));
        profile::NoteAllocation(staging.data(), buffer.bytes);
      }
      base = staging.data();
    }
    context->operands[fixup.operand].data = base + fixup.byte_offset;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    std::byte* base = context->staging[i].data();
    if (inputs[i].contiguous() || base == nullptr) continue;
    const profile::RuntimeInterval interval(profile::kDataConvertEvent, "input copy", profiled,
                                            profile::Section::kReshape);
    kernels::Copy(inputs[i], MakeView(base, plan_->inputs[i].dtype, plan_->inputs[i].shape));
  }
  const Status status = RunSteps(*context, execution, start);
  Release(std::move(context));
  if (profiled) {
    profile::Record record;
    record.kind = profile::Kind::kExecution;
    record.section = profile::Section::kCall;
    record.event = profile::kGraphExecutionEvent;
    record.site = plan_->site;
    record.execution = execution;
    record.start_ns = start;
    record.end_ns = NowNs();
    profile::Add(record);
  }
  return status;
}

Status Session::RunSteps(Context& context, uint64_t execution, int64_t begin) {
  const Plan& plan = *plan_;
  if (plan.steps.empty()) return Status::Ok();
  context.failed.store(false, std::memory_order_relaxed);
  const bool profiled = execution != 0;
  const uint64_t correlation = profiled ? profile::NextCorrelations(plan.steps.size()) : 0;
  ThreadPool& pool = ThreadPool::Global();
  bool any_parallel = false;
  for (const Step& step : plan.steps) any_parallel |= step.parallel;
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
          const bool shared = step.parallel && !alone;
          if ((part == 0 || shared) && !context.failed.load(std::memory_order_relaxed)) {
            StepContext c;
            c.operands = &context.operands[context.first_operand[s]];
            c.num_inputs = step.num_inputs;
            c.params = step.params.data();
            c.scratch = context.scratch + plan.scratch_bytes * part;
            c.part = shared ? part : 0;
            c.num_parts = shared ? num_parts : 1;
            if (Status status = step.fn(c); !status.ok()) {
              const std::lock_guard lock(context.error_mutex);
              if (!context.failed.exchange(true)) context.error = std::move(status);
            }
          }
          // Two steps of one thread in a row need no hand-over.
          const bool next_parallel = s + 1 < plan.steps.size() && plan.steps[s + 1].parallel;
          if (!alone && (step.parallel || next_parallel)) barrier.Wait();
          if (profiled && part == 0) {
            // The end of one step is the start of the next, so that waiting and dispatch are somebody's time.
            profile::Record record;
            record.kind = profile::Kind::kOp;
            record.section = static_cast<profile::Section>(step.section);
            record.site = step.site;
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
