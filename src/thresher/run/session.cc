#include "thresher/run/session.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "thresher/base/arena.h"
#include "thresher/base/clock.h"
#include "thresher/base/tensor.h"
#include "thresher/kernels/copy.h"
#include "thresher/plan/extent.h"
#include "thresher/plan/sites.h"
#include "thresher/profile/memory.h"
#include "thresher/profile/nvtx.h"
#include "thresher/profile/profiler.h"
#include "thresher/profile/runtime_interval.h"
#include "thresher/run/cpu_device.h"
#include "thresher/run/run_context.h"

namespace thresher {
namespace {

std::string Describe(const PortType& port) { return ToString(port.dtype, port.shape); }

std::string Describe(const View& view) { return ToString(view.dtype, Dims(view.shape, view.shape + view.rank)); }

bool Fits(const PortType& port, const View& view) {
  return port.dtype == view.dtype &&
         std::equal(port.shape.begin(), port.shape.end(), view.shape, view.shape + view.rank);
}

Status CheckPorts(const SizedPlan& plan, std::span<const View> inputs, std::span<const View> outputs) {
  if (inputs.size() != plan.inputs.size() || outputs.size() != plan.outputs.size()) {
    return InvalidArgument("expected " + std::to_string(plan.inputs.size()) + " inputs and " +
                           std::to_string(plan.outputs.size()) + " outputs, got " + std::to_string(inputs.size()) +
                           " and " + std::to_string(outputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (plan.inputs[i].state && !inputs[i].contiguous()) {
      return InvalidArgument("input " + std::to_string(i) + " (" + plan.inputs[i].name +
                             "): expected a row-major tensor, since runs write to it, got one with gaps");
    }
    if (Fits(plan.inputs[i], inputs[i])) continue;
    return InvalidArgument("input " + std::to_string(i) + " (" + plan.inputs[i].name + "): expected " +
                           Describe(plan.inputs[i]) + ", got " + Describe(inputs[i]));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!Fits(plan.outputs[i], outputs[i])) {
      return InvalidArgument("output " + std::to_string(i) + ": expected " + Describe(plan.outputs[i]) + ", got " +
                             Describe(outputs[i]));
    }
    if (!outputs[i].contiguous())
      return InvalidArgument("output " + std::to_string(i) + ": expected a row-major tensor");
  }
  return Status::Ok();
}

}  // namespace

struct Session::Context : RunContext {
  struct Fixup {  // an operand whose address comes with each call
    size_t operand;
    int buffer;
  };
  struct Captured {
    Dims sizes;
    std::vector<std::byte*> places;      // where states lay; of one that is in place, all inputs and outputs
    std::unique_ptr<DeviceGraph> graph;  // null: these sizes were met once
    uint64_t used = 0;                   // by which of the context's runs last
    int met = 1;
  };

  using RunContext::RunContext;

  std::unique_ptr<Pauses> timing;         // of runs that are done in pieces
  std::unique_ptr<DeviceStream> stream;   // of runs on the host's memory
  std::unique_ptr<DeviceStream> foreign;  // the stream of LaunchOn() that it ran on last, and its number
  uint64_t foreign_number = 0;
  std::unique_ptr<DeviceEvent> done;      // the end of the last run; null where that is when the call returns
  const DeviceStream* follows = nullptr;  // a stream whose work is behind that end already
  std::vector<Fixup> fixups;
  std::vector<uint8_t> reads;               // per input: whether any step does
  std::vector<std::byte*> inputs;           // the call's, where the device reads them
  std::vector<std::byte*> outputs;          // and where it writes them
  std::vector<Arena> copies;                // per input: a row-major copy of one that came with other strides
  std::vector<DeviceMemory> staged_inputs;  // what is copied from and to the host's memory
  std::vector<DeviceMemory> staged_outputs;
  std::vector<DeviceMemory> sent;      // per input: host memory that it is sent from
  std::vector<DeviceMemory> received;  // per output
  std::vector<Captured> graphs;
  std::vector<Captured> in_place;  // of calls whose tensors lie where those of earlier ones lay
  std::vector<std::byte*> places;  // of the call; kept so that nothing is allocated
  uint64_t runs = 0;

  ~Context() {
    // What uses the memory is done first.
    if (done != nullptr) static_cast<void>(done->Synchronize());
    graphs.clear();
    in_place.clear();
    const profile::RuntimeInterval interval(profile::kFreeEvent, "arena");
    arena = {};
    staged_inputs.clear();
    staged_outputs.clear();
    for (const Arena& copy : copies) profile::NoteRelease(copy.data(), static_cast<int64_t>(copy.size()));
  }
};

Session::Session(std::shared_ptr<const Plan> plan, std::vector<PrecisionDecision> decisions)
    : Session(CpuDevice(), std::move(plan), std::move(decisions), false) {}
Session::Session(std::shared_ptr<Device> device, std::shared_ptr<const Plan> plan,
                 std::vector<PrecisionDecision> decisions, bool graphs)
    : device_(std::move(device)), plan_(std::move(plan)), decisions_(std::move(decisions)), graphs_(graphs) {}
Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::Create(std::shared_ptr<Device> device, std::shared_ptr<const Plan> plan,
                                                 WeightStore& weights, std::vector<PrecisionDecision> decisions,
                                                 bool graphs) {
  if (plan->target != device->target()) {
    return InvalidArgument("expected a plan made for this device, " + device->target()->variant() +
                           ", got one made for " + plan->target->variant());
  }
  std::unique_ptr<Session> session(new Session(std::move(device), std::move(plan), std::move(decisions), graphs));
  if (!session->device_->is_host()) THRESHER_TRY(session->PlaceConstants(weights));
  return session;
}

Status Session::PlaceConstants(WeightStore& weights) {
  std::unique_ptr<DeviceStream> stream;
  constants_.resize(plan_->buffers.size());
  for (size_t b = 0; b < plan_->buffers.size(); ++b) {
    const Buffer& buffer = plan_->buffers[b];
    if (buffer.kind != Buffer::Kind::kConstant || buffer.data == nullptr || buffer.bytes == 0) continue;
    const auto copy = [&]() -> Result<std::shared_ptr<const void>> {
      if (stream == nullptr) {
        THRESHER_ASSIGN(stream, device_->CreateStream());
      }
      const auto bytes = static_cast<size_t>(buffer.bytes);
      THRESHER_ASSIGN(DeviceMemory memory, device_->Allocate(bytes));
      THRESHER_TRY(stream->CopyToDevice(memory.data(), buffer.data, bytes));
      const auto held = std::make_shared<DeviceMemory>(std::move(memory));
      return std::shared_ptr<const void>(held, held->data());
    };
    THRESHER_ASSIGN(constants_[b], weights.GetPlaced(buffer, device_.get(), copy));
  }
  return Status::Ok();
}

Result<std::unique_ptr<Session::Context>> Session::Acquire(std::span<const int64_t> sizes, bool fresh) {
  if (!fresh) {
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
  THRESHER_ASSIGN(context->stream, device_->CreateStream());
  if (!device_->is_host()) {
    THRESHER_ASSIGN(context->done, device_->CreateEvent(false));
  }
  context->reads.resize(plan_->inputs.size());
  context->inputs.resize(plan_->inputs.size());
  context->outputs.resize(plan_->outputs.size());
  context->copies.resize(plan_->inputs.size());
  context->staged_inputs.resize(plan_->inputs.size());
  context->staged_outputs.resize(plan_->outputs.size());
  context->sent.resize(plan_->inputs.size());
  context->received.resize(plan_->outputs.size());
  size_t operand = 0;
  for (const Step& step : plan_->steps) {
    for (const TensorRef& ref : step.operands) {
      if (ref.buffer >= 0) {
        const Buffer::Kind kind = plan_->buffers[static_cast<size_t>(ref.buffer)].kind;
        if (kind == Buffer::Kind::kInput || kind == Buffer::Kind::kState || kind == Buffer::Kind::kOutput) {
          const Buffer& buffer = plan_->buffers[static_cast<size_t>(ref.buffer)];
          context->fixups.push_back({operand, ref.buffer});
          if (kind != Buffer::Kind::kOutput) context->reads[static_cast<size_t>(buffer.index)] = 1;
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
  if (!context.graphs.empty() || !context.in_place.empty()) {  // they are on memory that goes now
    THRESHER_TRY(context.done->Synchronize());
    context.graphs.clear();
    context.in_place.clear();
  }
  context.arena = DeviceMemory();
  if (size > 0) {
    THRESHER_ASSIGN(context.arena, device_->Allocate(static_cast<size_t>(size)));
  }
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
  context.scratch_bytes = context.sized.scratch_bytes;
  context.scratch = size > 0 ? context.arena.data() + plan_->arena_bytes : nullptr;
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
        view.data = context.arena.data() + context.sized.arena_offsets[static_cast<size_t>(ref.buffer)] + offset;
      } else if (buffer.kind == Buffer::Kind::kConstant) {
        // Kernels take one kind of view for what they read and write; nothing writes to a constant.
        auto* const host = const_cast<std::byte*>(static_cast<const std::byte*>(buffer.data));
        auto* const placed = device_->is_host() ? host
                                                : const_cast<std::byte*>(static_cast<const std::byte*>(
                                                      constants_[static_cast<size_t>(ref.buffer)].get()));
        view.data = placed + offset;
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
  (context->recorded ? retired_ : free_).push_back(std::move(context));
}

const std::vector<uint32_t>* Session::Sites(const Context& context) {
  if (plan_->extent == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  auto [at, added] = sites_.try_emplace(context.sized.sizes());
  if (!added) return &at->second;
  const Result<Plan> plan = PlanAt(*plan_, at->first);
  const std::string variant = plan_->target->variant();
  for (size_t s = 0; s < plan_->steps.size(); ++s) {
    const Step& step = plan.ok() ? plan.value().steps[s] : plan_->steps[s];
    at->second.push_back(profile::NumberOf(SiteOfStep(step, plan_->name, static_cast<int>(s), variant)));
  }
  return &at->second;
}

Result<std::unique_ptr<Session::Context>> Session::Ready(std::span<const View> inputs, std::span<const View> outputs,
                                                         std::span<const int64_t> sizes, bool recorded) {
  const size_t wanted = plan_->extent == nullptr ? 0 : plan_->extent->names.size();
  if (sizes.size() != wanted) {
    return InvalidArgument("expected " + std::to_string(wanted) + " sizes, got " + std::to_string(sizes.size()));
  }
  THRESHER_ASSIGN(std::unique_ptr<Context> context, Acquire(sizes, recorded));
  context->recorded = recorded;
  context->next_step = 0;
  Status status = Fit(*context, sizes);
  if (status.ok()) status = CheckPorts(context->sized, inputs, outputs);
  if (status.ok()) return context;
  Release(std::move(context));
  return status;
}

template <class Body>
Status Session::Execute(Context& context, int64_t begin, Body&& body) {
  const bool profiled = begin != 0;
  context.execution = profiled ? profile::NextExecution() : 0;
  context.begin = begin;
  context.sites = profiled ? Sites(context) : nullptr;
  Status status = body(context);
  if (!profiled) return status;
  profile::Record record;
  record.kind = profile::Kind::kExecution;
  record.section = profile::Section::kCall;
  record.event = profile::kGraphExecutionEvent;
  record.site = plan_->site;
  record.execution = context.execution;
  record.value = plan_->num_threads;
  record.start_ns = begin;
  record.end_ns = NowNs();
  profile::Add(record);
  return status;
}

int64_t Session::ProfiledFrom() const {
  if (!plan_->recorded || !profile::Enabled()) return 0;
  profile::PrepareThread();
  return NowNs();
}

template <class Body>
Status Session::With(std::span<const View> inputs, std::span<const View> outputs, std::span<const int64_t> sizes,
                     Body&& body, bool recorded) {
  const profile::nvtx::Range range([&] { return plan_->recorded ? plan_->name.c_str() : nullptr; });
  const int64_t begin = ProfiledFrom();
  THRESHER_ASSIGN(std::unique_ptr<Context> context, Ready(inputs, outputs, sizes, recorded));
  Status status = Execute(*context, begin, body);
  Release(std::move(context));
  return status;
}

Result<std::unique_ptr<PausableRun>> Session::Begin(std::span<const View> inputs, std::span<const View> outputs,
                                                    std::span<const int64_t> sizes) {
  if (!device_->is_host())
    return Unsupported("expected a plan for the CPU, whose runs can pause, got one for a device");
  THRESHER_ASSIGN(std::unique_ptr<Context> context, Ready(inputs, outputs, sizes, false));
  std::unique_ptr<PausableRun> run(new PausableRun(*this, std::move(context)));
  THRESHER_TRY(Place(*run->context_, inputs, outputs));
  return run;
}

PausableRun::PausableRun(Session& session, std::unique_ptr<Session::Context> context)
    : session_(session), context_(std::move(context)) {
  if (context_->timing == nullptr) context_->timing = std::make_unique<Pauses>(*session.plan_);
  context_->timing->Restart();
}

PausableRun::~PausableRun() { session_.Release(std::move(context_)); }

Result<bool> PausableRun::Continue(int64_t budget_ns) {
  if (over_) return InvalidArgument("expected a run that is not over, got one that has ended");
  const profile::nvtx::Range range([&] { return session_.plan_->recorded ? session_.plan_->name.c_str() : nullptr; });
  context_->timing->Begin(budget_ns);
  const Status status = session_.Execute(*context_, session_.ProfiledFrom(), [&](Session::Context& context) {
    context.pauses = context.timing.get();
    Status ran = session_.RunOn(*context.stream, context);
    context.pauses = nullptr;
    return ran;
  });
  over_ = !status.ok() || context_->next_step == session_.plan_->steps.size();
  if (!status.ok()) return status;
  return over_;
}

int64_t PausableRun::longest_ns() const { return context_->timing->longest_ns(); }

Status Session::Run(std::span<const View> inputs, std::span<const View> outputs, std::span<const int64_t> sizes) {
  return With(inputs, outputs, sizes, [&](Context& context) {
    return device_->is_host() ? RunHere(context, inputs, outputs) : RunStaged(context, inputs, outputs);
  });
}

Status Session::Launch(DeviceStream& stream, std::span<const View> inputs, std::span<const View> outputs,
                       std::span<const int64_t> sizes) {
  THRESHER_ASSIGN(const bool recorded, stream.IsCapturing());
  return With(
      inputs, outputs, sizes, [&](Context& context) { return LaunchIn(context, stream, inputs, outputs); }, recorded);
}

Status Session::LaunchOn(void* stream, std::span<const View> inputs, std::span<const View> outputs,
                         std::span<const int64_t> sizes) {
  THRESHER_ASSIGN(const ForeignStreamState state, device_->StateOf(stream));
  return With(
      inputs, outputs, sizes,
      [&](Context& context) -> Status {
        if (context.foreign == nullptr || context.foreign_number != state.number) {
          context.follows = nullptr;  // another stream object may get the old one's address
          THRESHER_ASSIGN(context.foreign, device_->WrapStream(stream));
          context.foreign_number = state.number;
        }
        return LaunchIn(context, *context.foreign, inputs, outputs);
      },
      state.capturing);
}

Status Session::LaunchIn(Context& context, DeviceStream& stream, std::span<const View> inputs,
                         std::span<const View> outputs) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].contiguous()) {
      return InvalidArgument("input " + std::to_string(i) + " (" + plan_->inputs[i].name +
                             "): expected a row-major tensor");
    }
  }
  const auto bytes_of = [](const View& view) { return static_cast<size_t>(view.size()) * SizeOf(view.dtype); };
  for (size_t i = 0; i < inputs.size(); ++i) context.inputs[i] = inputs[i].as<std::byte>();
  for (size_t i = 0; i < outputs.size(); ++i) context.outputs[i] = outputs[i].as<std::byte>();
  THRESHER_ASSIGN(DeviceGraph* const in_place, GraphInPlace(context));
  if (in_place != nullptr) {
    THRESHER_TRY(Follow(context, stream));
    Status status = stream.Launch(*in_place);
    const Status recorded = stream.Record(*context.done);
    return status.ok() ? recorded : status;
  }
  if (WantsGraph(context, true)) {
    THRESHER_TRY(Follow(context, stream));
    THRESHER_TRY(Stage(context));
    THRESHER_ASSIGN(DeviceGraph* const graph, GraphOf(context));
    if (graph != nullptr) {
      const auto run = [&]() -> Status {
        for (size_t i = 0; i < inputs.size(); ++i) {
          if (context.reads[i] == 0 || plan_->inputs[i].state) continue;
          THRESHER_TRY(stream.CopyOnDevice(context.staged_inputs[i].data(), inputs[i].data, bytes_of(inputs[i])));
        }
        THRESHER_TRY(stream.Launch(*graph));
        for (size_t i = 0; i < outputs.size(); ++i) {
          THRESHER_TRY(stream.CopyOnDevice(outputs[i].data, context.staged_outputs[i].data(), bytes_of(outputs[i])));
        }
        return Status::Ok();
      };
      Status status = run();
      const Status recorded = stream.Record(*context.done);
      return status.ok() ? recorded : status;
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) context.inputs[i] = inputs[i].as<std::byte>();
  for (size_t i = 0; i < outputs.size(); ++i) context.outputs[i] = outputs[i].as<std::byte>();
  return RunOn(stream, context);
}

Status Session::Place(Context& context, std::span<const View> inputs, std::span<const View> outputs) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (context.reads[i] == 0) continue;
    THRESHER_ASSIGN(const std::byte* const data, RowMajor(context, i, inputs[i]));
    context.inputs[i] = const_cast<std::byte*>(data);  // nothing writes to an input
  }
  for (size_t i = 0; i < outputs.size(); ++i) context.outputs[i] = outputs[i].as<std::byte>();
  return Status::Ok();
}

Status Session::RunHere(Context& context, std::span<const View> inputs, std::span<const View> outputs) const {
  THRESHER_TRY(Place(context, inputs, outputs));
  return RunOn(*context.stream, context);
}

Status Session::Stage(Context& context) const {
  // Taken once, at capacity: what a run reads and writes stays where it is.
  const auto stage = [this](DeviceMemory& memory, const PortType& largest) -> Status {
    const auto bytes = static_cast<size_t>(NumElements(largest.shape)) * SizeOf(largest.dtype);
    if (memory.data() != nullptr || bytes == 0) return Status::Ok();
    THRESHER_ASSIGN(memory, device_->Allocate(bytes));
    return Status::Ok();
  };
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (context.reads[i] == 0 || plan_->inputs[i].state) continue;
    THRESHER_TRY(stage(context.staged_inputs[i], plan_->inputs[i]));
    context.inputs[i] = context.staged_inputs[i].data();
  }
  for (size_t i = 0; i < context.outputs.size(); ++i) {
    THRESHER_TRY(stage(context.staged_outputs[i], plan_->outputs[i]));
    context.outputs[i] = context.staged_outputs[i].data();
  }
  return Status::Ok();
}

Status Session::RunStaged(Context& context, std::span<const View> inputs, std::span<const View> outputs) const {
  const auto pinned = [this](DeviceMemory& memory, const PortType& largest) -> Status {
    const auto bytes = static_cast<size_t>(NumElements(largest.shape)) * SizeOf(largest.dtype);
    if (memory.data() != nullptr || bytes == 0) return Status::Ok();
    THRESHER_ASSIGN(memory, device_->AllocateHost(bytes));
    return Status::Ok();
  };
  const auto bytes_of = [](const View& view) { return static_cast<size_t>(view.size()) * SizeOf(view.dtype); };
  THRESHER_TRY(Follow(context, *context.stream));
  THRESHER_TRY(Stage(context));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PortType& port = context.sized.inputs[i];
    if (port.state) context.inputs[i] = inputs[i].as<std::byte>();
    if (port.state || context.reads[i] == 0 || inputs[i].size() == 0) continue;
    THRESHER_TRY(pinned(context.sent[i], plan_->inputs[i]));
    kernels::Copy(inputs[i], MakeView(context.sent[i].data(), port.dtype, port.shape));
    THRESHER_TRY(context.stream->SendToDevice(context.inputs[i], context.sent[i].data(), bytes_of(inputs[i])));
  }
  DeviceGraph* graph = nullptr;
  if (WantsGraph(context, false)) {
    THRESHER_ASSIGN(graph, GraphOf(context));
  }
  if (graph != nullptr) {
    THRESHER_TRY(context.stream->Launch(*graph));
  } else {
    THRESHER_TRY(RunOn(*context.stream, context));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].size() == 0) continue;
    THRESHER_TRY(pinned(context.received[i], plan_->outputs[i]));
    THRESHER_TRY(context.stream->SendToHost(context.received[i].data(), context.outputs[i], bytes_of(outputs[i])));
  }
  THRESHER_TRY(context.stream->Synchronize());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].size() > 0) std::memcpy(outputs[i].data, context.received[i].data(), bytes_of(outputs[i]));
  }
  return Status::Ok();
}

bool Session::WantsGraph(const Context& context, bool copies) const {
  // Of a launch in a graph and outside of it, and of a copy on the device, in microseconds; bytes per microsecond.
  constexpr double kSaved = 2, kGraph = 8, kCopy = 3, kRate = 1e6;
  if (!graphs_ || context.recorded || context.execution != 0 || context.done == nullptr) return false;
  double cost = kGraph;
  const auto add = [&](const PortType& port) {
    cost += kCopy + static_cast<double>(NumElements(port.shape)) * static_cast<double>(SizeOf(port.dtype)) / kRate;
  };
  if (copies) {
    for (size_t i = 0; i < context.inputs.size(); ++i) {
      if (context.reads[i] != 0 && !plan_->inputs[i].state) add(context.sized.inputs[i]);
    }
    for (const PortType& port : context.sized.outputs) add(port);
  }
  return static_cast<double>(plan_->steps.size()) * kSaved > cost;
}

Result<DeviceGraph*> Session::GraphInPlace(Context& context) const {
  constexpr size_t kMost = 8, kAlignment = 256;
  // Addresses come again where a program calls in a loop: its allocator gives back what it was given. What comes once
  // or twice is not worth a capture, and what was used within so many runs is not dropped for another.
  constexpr int kMeetings = 3;
  constexpr uint64_t kKept = 512;
  if (!WantsGraph(context, false)) return nullptr;
  const Dims& sizes = context.sized.sizes();
  std::vector<std::byte*>& places = context.places;
  places.clear();
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (context.reads[i] != 0) places.push_back(context.inputs[i]);
  }
  places.insert(places.end(), context.outputs.begin(), context.outputs.end());
  // The steps have run on memory that is aligned so: what they chose then is what is captured.
  for (const std::byte* place : places) {
    if (reinterpret_cast<uintptr_t>(place) % kAlignment != 0) return nullptr;
  }
  const uint64_t run = ++context.runs;
  std::vector<Context::Captured>& known = context.in_place;
  auto found = std::find_if(known.begin(), known.end(), [&](const Context::Captured& captured) {
    return captured.sizes == sizes && captured.places == places;
  });
  if (found == known.end()) {
    if (known.size() == kMost) {
      found = std::min_element(known.begin(), known.end(), [](const auto& a, const auto& b) {
        return std::pair(a.graph != nullptr, a.used) < std::pair(b.graph != nullptr, b.used);
      });
      if (found->graph != nullptr) {
        if (run - found->used < kKept) return nullptr;
        THRESHER_TRY(context.done->Synchronize());
      }
      known.erase(found);
    }
    known.push_back({sizes, places, nullptr, run});
    return nullptr;
  }
  found->used = run;
  if (found->graph == nullptr && ++found->met < kMeetings) return nullptr;
  if (found->graph == nullptr) {
    Fix(context);
    THRESHER_ASSIGN(found->graph, context.stream->Capture([&] { return context.stream->Run(context); }));
  }
  return found->graph.get();
}

Result<DeviceGraph*> Session::GraphOf(Context& context) const {
  constexpr size_t kMost = 64;
  // One that was used within so many runs is not dropped for another: capturing costs as much as many launches.
  constexpr uint64_t kKept = 512;
  const uint64_t run = ++context.runs;
  const Dims& sizes = context.sized.sizes();
  std::vector<std::byte*>& states = context.places;
  states.clear();
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (plan_->inputs[i].state) states.push_back(context.inputs[i]);
  }
  auto found = std::find_if(context.graphs.begin(), context.graphs.end(), [&](const Context::Captured& captured) {
    return captured.sizes == sizes && captured.places == states;
  });
  if (found == context.graphs.end()) {
    // The first run chooses algorithms and loads kernels, which no capture allows for.
    if (context.graphs.size() == kMost) {
      const auto oldest = std::min_element(context.graphs.begin(), context.graphs.end(),
                                           [](const auto& a, const auto& b) { return a.used < b.used; });
      if (run - oldest->used < kKept) return nullptr;
      THRESHER_TRY(context.done->Synchronize());
      context.graphs.erase(oldest);
    }
    context.graphs.push_back({sizes, states, nullptr, run});
    return nullptr;
  }
  found->used = run;
  if (found->graph == nullptr) {
    Fix(context);
    THRESHER_ASSIGN(found->graph, context.stream->Capture([&] { return context.stream->Run(context); }));
  }
  return found->graph.get();
}

Status Session::Follow(Context& context, DeviceStream& stream) {
  if (context.follows == &stream) return Status::Ok();
  THRESHER_TRY(stream.Wait(*context.done));
  context.follows = &stream;
  return Status::Ok();
}

void Session::Fix(Context& context) const {
  for (const Context::Fixup& fixup : context.fixups) {
    const Buffer& buffer = plan_->buffers[static_cast<size_t>(fixup.buffer)];
    const auto& ports = buffer.kind == Buffer::Kind::kOutput ? context.outputs : context.inputs;
    context.sized.operands[fixup.operand].data =
        ports[static_cast<size_t>(buffer.index)] + context.sized.offsets[fixup.operand];
  }
}

Status Session::RunOn(DeviceStream& stream, Context& context) const {
  Fix(context);
  if (context.done == nullptr || context.recorded) return stream.Run(context);
  // Whoever has the context next waits for what this run has handed over, even where it failed half way.
  THRESHER_TRY(Follow(context, stream));
  Status status = stream.Run(context);
  const Status recorded = stream.Record(*context.done);
  return status.ok() ? recorded : status;
}

Result<const std::byte*> Session::RowMajor(Context& context, size_t input, const View& view) const {
  if (view.contiguous()) return view.as<const std::byte>();
  const PortType& port = context.sized.inputs[input];
  Arena& copy = context.copies[input];
  if (copy.data() == nullptr) {
    const PortType& largest = plan_->inputs[input];
    const size_t bytes = static_cast<size_t>(NumElements(largest.shape)) * SizeOf(largest.dtype);
    THRESHER_ASSIGN(copy, Arena::Allocate(bytes));
    profile::NoteAllocation(copy.data(), static_cast<int64_t>(bytes));
  }
  const profile::RuntimeInterval interval(profile::kDataConvertEvent, "input copy", context.execution != 0,
                                          profile::Section::kReshape);
  kernels::Copy(view, MakeView(copy.data(), port.dtype, port.shape));
  return copy.data();
}

}  // namespace thresher
