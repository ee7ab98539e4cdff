#include "thresher/run/cpu_device.h"

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "thresher/base/arena.h"
#include "thresher/base/clock.h"
#include "thresher/base/cpu.h"
#include "thresher/base/thread_pool.h"
#include "thresher/plan/cpu_kernel.h"
#include "thresher/profile/memory.h"
#include "thresher/profile/nvtx.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/run_context.h"
#include "thresher/run/transfer_sites.h"

namespace thresher {
namespace {

// Records what the calling thread and the pool do from one brace to the other as one operator.
class OpRecord {
 public:
  template <class MakeSite>
    requires std::invocable<MakeSite>
  explicit OpRecord(MakeSite&& make_site) : on_(profile::Enabled()) {
    if (!on_) return;
    profile::Site site = make_site();
    section_ = site.section;
    site_ = profile::NumberOf(std::move(site));
    start_ = NowNs();
  }
  ~OpRecord() {
    if (!on_) return;
    profile::Record record;
    record.end_ns = NowNs();
    record.start_ns = record.value = start_;
    record.kind = profile::Kind::kOp;
    record.section = section_;
    record.site = site_;
    record.correlation = profile::NextCorrelations(1);
    profile::Add(record);
  }
  OpRecord(const OpRecord&) = delete;
  OpRecord& operator=(const OpRecord&) = delete;

 private:
  const bool on_;
  profile::Section section_ = profile::Section::kForward;
  uint32_t site_ = 0;
  int64_t start_ = 0;
};

class CpuEvent : public DeviceEvent {
 public:
  Status Synchronize() override { return Status::Ok(); }
  Result<double> NsSince(DeviceEvent& earlier) override {
    return static_cast<double>(time_ns_ - static_cast<CpuEvent&>(earlier).time_ns_);
  }
  void Record() { time_ns_ = NowNs(); }

 private:
  int64_t time_ns_ = 0;
};

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

// What steps [first, last) of a run have taken. The end of one is the start of the next, so that waiting and dispatch
// are somebody's time.
void AddSteps(const RunContext& context, size_t first, size_t last, uint64_t correlation, int64_t start) {
  const Plan& plan = context.sized.plan();
  for (size_t s = first; s < last; ++s) {
    profile::Record record;
    record.kind = profile::Kind::kOp;
    record.section = static_cast<profile::Section>(plan.steps[s].section);
    record.site = context.SiteOf(s);
    record.execution = context.execution;
    record.correlation = correlation + s - first;
    record.value = context.begin;
    record.start_ns = start;
    record.end_ns = context.step_ends[s];
    profile::Add(record);
    start = record.end_ns;
  }
}

// The steps of a round have ended, of which bands are given shares of its time as their threads have spent it on them.
void NoteEnds(RunContext& context, const StepRange& steps, int64_t start) {
  const int64_t end = NowNs();
  context.step_ends[steps.end - 1] = end;
  if (steps.bands == nullptr) return;
  double all = 0, so_far = 0;
  for (size_t s = steps.first; s < steps.end; ++s) all += static_cast<double>(context.took[s]);
  for (size_t s = steps.first; s + 1 < steps.end; ++s) {
    so_far += static_cast<double>(context.took[s]);
    const double share = all > 0 ? so_far / all : 0;
    context.step_ends[s] = start + static_cast<int64_t>(share * static_cast<double>(end - start));
  }
}

// The first error of those that the parts of a run meet.
class FirstError {
 public:
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  void Set(Status status) {
    const std::lock_guard lock(mutex_);
    if (!failed_.exchange(true)) error_ = std::move(status);
  }
  // Once all parts have ended.
  Status Take() { return failed() ? std::move(error_) : Status::Ok(); }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Status error_;
};

class CpuStream : public DeviceStream {
 public:
  explicit CpuStream(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}

  Status CopyToDevice(void* to, const void* host, size_t bytes) override { return Copy("HtoD", to, host, bytes); }
  Status CopyToHost(void* host, const void* from, size_t bytes) override { return Copy("DtoH", host, from, bytes); }
  Status SendToDevice(void* to, const void* host, size_t bytes) override { return Copy("HtoD", to, host, bytes); }
  Status SendToHost(void* host, const void* from, size_t bytes) override { return Copy("DtoH", host, from, bytes); }
  Status CopyOnDevice(void* to, const void* from, size_t bytes) override { return Copy("DtoD", to, from, bytes); }

  Status Fill(void* to, uint8_t value, size_t bytes) override {
    if (bytes == 0) return Status::Ok();
    const OpRecord record([&] { return SiteOfFill(bytes); });
    std::memset(to, value, bytes);
    return Status::Ok();
  }

  Status Run(RunContext& context) override {
    const SizedPlan& sized = context.sized;
    const Plan& plan = sized.plan();
    const size_t first = context.next_step;
    if (first == plan.steps.size()) return Status::Ok();
    const auto begin = std::ranges::find(context.rounds, first, &StepRange::first);
    const auto round_of = [&](int round) -> const StepRange& { return begin[round]; };
    const std::span<const CpuKernel> kernels = CpuKernels();
    const bool profiled = context.execution != 0;
    const uint64_t correlation = profiled ? profile::NextCorrelations(plan.steps.size() - first) : 0;
    FirstError error;
    const int64_t launch = profiled ? NowNs() : 0;
    const int64_t start = profiled ? NowNs() : 0;
    if (profiled) std::ranges::fill(context.took, 0);
    const auto run = [&](int round, int part, int thread) {
      if (error.failed()) return;
      const StepRange& steps = round_of(round);
      const size_t s = steps.first;
      const profile::nvtx::Range range([&] { return NameOfStep(context, s); });
      StepContext c;
      c.scratch = context.scratch + context.scratch_bytes * thread;
      c.communicator = communicator_.get();
      c.ahead = context.ahead.During(steps.end - 1, part, sized.parts[s], thread);
      Status status;
      if (steps.bands != nullptr) {
        status = RunBand(sized, *steps.bands, part, c, profiled ? context.took.data() : nullptr);
      } else {
        const Step& step = plan.steps[s];
        c.operands = sized.operands.data() + sized.first_operand[s];
        c.num_inputs = step.num_inputs;
        c.params = sized.params[s];
        c.part = part;
        c.num_parts = sized.parts[s];
        status = kernels[static_cast<size_t>(step.kernel)].run(c);
      }
      if (!status.ok()) error.Set(std::move(status));
    };
    const auto ended = [&](int round) {
      const StepRange& steps = round_of(round);
      if (profiled) NoteEnds(context, steps, steps.first == first ? start : context.step_ends[steps.first - 1]);
      if (context.pauses == nullptr) return;
      context.pauses->Ended(steps.first);
      context.next_step = steps.end;
    };
    const auto goes_on = [&](int round) {
      return context.pauses == nullptr || !context.pauses->Before(round_of(round).first);
    };
    const auto ahead = [&](int round, int thread) { return context.ahead.Behind(round_of(round).end - 1, thread); };
    const bool shared = std::any_of(sized.parts.begin(), sized.parts.end(), [](int parts) { return parts > 1; });
    ThreadPool::RunOnATeam({.num_rounds = static_cast<int>(context.rounds.end() - begin),
                            .parts = [&](int round) { return sized.parts[round_of(round).first]; },
                            .work = run,
                            .ended = ended,
                            .goes_on = goes_on,
                            .ahead = ahead},
                           shared ? plan.num_threads : 1);
    if (profiled) {
      AddLaunch(plan.site, context.execution, launch, start);
      AddSteps(context, first, context.pauses == nullptr ? plan.steps.size() : context.next_step, correlation, start);
    }
    return error.Take();
  }

  Status Record(DeviceEvent& event) override {
    static_cast<CpuEvent&>(event).Record();
    return Status::Ok();
  }
  Status Wait(DeviceEvent&) override { return Status::Ok(); }
  Status Synchronize() override { return Status::Ok(); }
  Result<bool> IsCapturing() override { return false; }
  Result<std::unique_ptr<DeviceGraph>> Capture(FunctionRef<Status()>) override {
    return Unsupported("the CPU has no graphs");
  }
  Status Launch(DeviceGraph&) override { return Unsupported("the CPU has no graphs"); }

 private:
  static Status Copy(const char* direction, void* to, const void* from, size_t bytes) {
    if (bytes == 0) return Status::Ok();
    const OpRecord record([&] { return SiteOfCopy(std::string("Memcpy ") + direction, bytes); });
    std::memcpy(to, from, bytes);
    return Status::Ok();
  }

  const std::shared_ptr<Communicator> communicator_;
};

class Cpu : public Device {
 public:
  explicit Cpu(DeviceInfo info, std::shared_ptr<Communicator> communicator = nullptr)
      : Device(std::move(info)), communicator_(std::move(communicator)) {}

  std::shared_ptr<const Target> target() override { return CpuTarget(); }
  bool is_host() const override { return true; }

  Result<std::unique_ptr<DeviceStream>> CreateStream() override {
    return std::unique_ptr<DeviceStream>(std::make_unique<CpuStream>(communicator_));
  }
  Result<std::unique_ptr<DeviceStream>> WrapStream(void*) override {
    return Unsupported("expected a device with streams that have handles, got the CPU");
  }
  Result<ForeignStreamState> StateOf(void*) override { return ForeignStreamState{}; }
  Result<std::unique_ptr<DeviceEvent>> CreateEvent(bool) override {
    return std::unique_ptr<DeviceEvent>(std::make_unique<CpuEvent>());
  }
  Status SetToolWindow(bool) override { return Status::Ok(); }
  Result<std::string> Choices() override { return std::string(); }  // those of the CPU are tuned: plan/tuning.h
  Status Learn(const std::string&) override { return Status::Ok(); }

 private:
  Result<void*> AllocateBytes(size_t bytes) override {
    THRESHER_ASSIGN(Arena arena, Arena::Allocate(bytes));
    profile::NoteAllocation(arena.data(), static_cast<int64_t>(bytes));
    return arena.Release();
  }
  void ReleaseBytes(void* address, size_t bytes) override {
    profile::NoteRelease(address, static_cast<int64_t>(bytes));
    Arena::Adopt(address, bytes);
  }
  Result<void*> AllocateHostBytes(size_t bytes) override { return AllocateBytes(bytes); }
  void ReleaseHostBytes(void* address, size_t bytes) override { ReleaseBytes(address, bytes); }

  const std::shared_ptr<Communicator> communicator_;  // null: it runs alone
};

}  // namespace

const std::shared_ptr<Device>& CpuDevice() {
  // Never destroyed: memory of it may be given back by whatever is destroyed last.
  static const auto& device = *new std::shared_ptr<Device>([] {
    DeviceInfo info;
    info.kind = "cpu";
    info.name = CpuModel();
    info.memory_bytes = static_cast<uint64_t>(AvailableMemory());
    info.multiprocessors = UsableCores();
    return std::make_shared<Cpu>(std::move(info));
  }());
  return device;
}

std::shared_ptr<Device> CpuDeviceOfRank(std::shared_ptr<Communicator> communicator) {
  return std::make_shared<Cpu>(CpuDevice()->info(), std::move(communicator));
}

}  // namespace thresher
