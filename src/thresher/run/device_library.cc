#include "thresher/run/device_library.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "thresher/base/clock.h"
#include "thresher/base/version.h"
#include "thresher/profile/memory.h"
#include "thresher/profile/nvtx.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/device_clock.h"
#include "thresher/run/run_context.h"
#include "thresher/run/transfer_sites.h"

namespace thresher {
namespace {

using Api = thresher_device_api;

Status ToStatus(const Api& api, thresher_device_result result) {
  Code code = Code::kInternal;
  switch (result) {
    case THRESHER_DEVICE_OK:
      return Status::Ok();
    case THRESHER_DEVICE_INVALID_ARGUMENT:
      code = Code::kInvalidArgument;
      break;
    case THRESHER_DEVICE_UNSUPPORTED:
    case THRESHER_DEVICE_UNAVAILABLE:
      code = Code::kUnsupported;
      break;
    case THRESHER_DEVICE_NO_MEMORY:
      code = Code::kResourceExhausted;
      break;
    case THRESHER_DEVICE_OUT_OF_RANGE:
      code = Code::kOutOfRange;
      break;
    case THRESHER_DEVICE_FAILED:
      break;
  }
  return {code, api.last_error()};
}

// A driver does not survive a fork(): in the child its calls fail, wait forever or worse, so none is made there, and
// what the parent had is left alone.
class Process {
 public:
  // Once a device has been looked for: whether this is the process that did so.
  static bool IsDevices() { return forks_.load(std::memory_order_relaxed) == first_.load(std::memory_order_relaxed); }
  static Status Check() {
    if (IsDevices()) return Status::Ok();
    return Unsupported(
        "expected the process that has used the GPU first, got a child that was forked from it, in which CUDA does not "
        "work; start processes with spawn or forkserver, or fork before a GPU is looked for");
  }
  // A device is looked for.
  static Status Enter() {
    static const bool watched = [] {
      pthread_atfork(nullptr, nullptr, [] { forks_.fetch_add(1, std::memory_order_relaxed); });
      return true;
    }();
    static_cast<void>(watched);
    int nobody = -1;
    first_.compare_exchange_strong(nobody, forks_.load(std::memory_order_relaxed));
    return Check();
  }

 private:
  static inline std::atomic<int> forks_{0};
  static inline std::atomic<int> first_{-1};
};

class Event : public DeviceEvent {
 public:
  Event(const Api& api, thresher_event* event) : api_(api), event_(event) {}
  ~Event() override {
    if (Process::IsDevices()) api_.event_destroy(event_);
  }

  Status Synchronize() override {
    THRESHER_TRY(Process::Check());
    return ToStatus(api_, api_.event_synchronize(event_));
  }
  Result<double> NsSince(DeviceEvent& earlier) override {
    double ns = 0;
    THRESHER_TRY(Process::Check());
    THRESHER_TRY(ToStatus(api_, api_.event_elapsed(static_cast<Event&>(earlier).event_, event_, &ns)));
    return ns;
  }
  thresher_event* get() const { return event_; }

 private:
  const Api& api_;
  thresher_event* const event_;
};

class GraphOfLibrary : public DeviceGraph {
 public:
  GraphOfLibrary(const Api& api, thresher_graph* graph) : api_(api), graph_(graph) {}
  ~GraphOfLibrary() override {
    if (Process::IsDevices()) api_.graph_destroy(graph_);
  }
  thresher_graph* get() const { return graph_; }

 private:
  const Api& api_;
  thresher_graph* const graph_;
};

// A moment that the device's and the profiler's clock share.
struct Epoch {
  std::unique_ptr<Event> event;
  DeviceClock clock;
};

const thresher_view* ToApi(const View* views) { return reinterpret_cast<const thresher_view*>(views); }

// What the library tells of work, by the correlation of its records. A process has one, as CUPTI has.
class ExactTimes {
 public:
  struct Span {
    int64_t start_ns;
    int64_t end_ns;
  };

  // Never destroyed: CUPTI's thread may bring times while the process ends.
  static ExactTimes& Global() {
    static auto& times = *new ExactTimes;
    return times;
  }

  // Whether the library takes times; it is asked at the first launch since the profiler was switched on.
  bool On(const Api& api) {
    if (!profile::EnabledForReports()) return false;
    State state = state_.load(std::memory_order_acquire);
    return state == State::kNotAsked ? Ask(api) : state == State::kOn;
  }
  TimesOfRecords state() {
    const std::lock_guard session(session_);
    return {was_on_, obstacle_};
  }
  void Release() {
    if (profile::EnabledForReports() || !Process::IsDevices()) return;
    const std::lock_guard session(session_);
    if (state_.exchange(State::kNotAsked) == State::kOn) api_->times_end();
    const std::lock_guard lock(mutex_);
    told_.clear();
  }

  void Flush(const Api& api) { api.times_flush(); }
  std::optional<Span> Take(uint64_t correlation) {
    const std::lock_guard lock(mutex_);
    const auto at = told_.find(correlation);
    if (at == told_.end()) return std::nullopt;
    const Span span = at->second;
    told_.erase(at);
    return span;
  }

 private:
  enum class State : uint8_t { kNotAsked, kOn, kRefused };

  bool Ask(const Api& api) {
    const std::lock_guard session(session_);
    if (state_ != State::kNotAsked) return state_ == State::kOn;
    was_on_ = api.times_begin(&NowNs, &Told) == THRESHER_DEVICE_OK;
    obstacle_ = was_on_ ? "" : api.last_error();
    api_ = &api;
    state_.store(was_on_ ? State::kOn : State::kRefused, std::memory_order_release);
    return was_on_;
  }
  // A step may be several kernels: from the beginning of the first to the end of the last.
  static void Told(uint64_t id, int64_t start_ns, int64_t end_ns) {
    ExactTimes& times = Global();
    const std::lock_guard lock(times.mutex_);
    const auto [at, first] = times.told_.try_emplace(id, Span{start_ns, end_ns});
    if (first) return;
    at->second.start_ns = std::min(at->second.start_ns, start_ns);
    at->second.end_ns = std::max(at->second.end_ns, end_ns);
  }

  std::atomic<State> state_{State::kNotAsked};
  std::mutex session_;  // guards the next three, and asking; taken before the other one
  bool was_on_ = false;
  std::string obstacle_;
  const Api* api_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<uint64_t, Span> told_;
};

class LibraryDevice : public Device, public Target {
 public:
  LibraryDevice(const Api& api, thresher_device* device, DeviceInfo info)
      : Device(std::move(info)), api_(api), device_(device), number_(profile::CudaDevice(this->info().index)) {
    variant_ = this->info().kind + " sm_" + this->info().compute_capability;
    std::erase(variant_, '.');
  }
  ~LibraryDevice() override {
    epoch_.reset();
    if (!Process::IsDevices()) return;
    if (clock_stream_ != nullptr) api_.stream_destroy(clock_stream_);
    api_.close(device_);
  }

  std::shared_ptr<const Target> target() override {
    return std::static_pointer_cast<LibraryDevice>(shared_from_this());
  }
  bool is_host() const override { return false; }

  std::string variant() const override { return variant_; }
  bool packs_weights() const override { return false; }
  bool takes_halves() const override { return true; }
  bool chains_take_halves() const override { return true; }
  kernels::RowForm RowsFor(Precision, int64_t, kernels::Variant) const override { return kernels::RowForm::kF32; }
  int Parts(int) const override { return 1; }
  Result<size_t> ScratchBytes(const Step& step, const View* operands, const void* params) const override {
    size_t bytes = 0;
    THRESHER_TRY(ToStatus(api_, api_.query(device_, static_cast<uint32_t>(step.kernel), params, step.params_type->bytes,
                                           ToApi(operands), static_cast<int32_t>(step.operands.size()), &bytes)));
    return bytes;
  }

  Result<std::unique_ptr<DeviceStream>> CreateStream() override;
  Result<std::unique_ptr<DeviceStream>> WrapStream(void* handle) override;
  Result<ForeignStreamState> StateOf(void* handle) override {
    THRESHER_TRY(Process::Check());
    int32_t capturing = 0;
    ForeignStreamState state;
    THRESHER_TRY(ToStatus(api_, api_.stream_state(device_, handle, &capturing, &state.number)));
    state.capturing = capturing != 0;
    return state;
  }
  Result<std::unique_ptr<DeviceEvent>> CreateEvent(bool timed) override {
    THRESHER_ASSIGN(std::unique_ptr<Event> event, NewEvent(timed));
    return std::unique_ptr<DeviceEvent>(std::move(event));
  }

  Status SetToolWindow(bool open) override {
    THRESHER_TRY(Process::Check());
    return ToStatus(api_, api_.window(device_, open ? 1 : 0));
  }

  Result<std::string> Choices() override {
    THRESHER_TRY(Process::Check());
    std::string text;
    // Another thread may add to it in between.
    for (size_t wanted = 1; text.size() < wanted;) {
      text.resize(wanted);
      THRESHER_TRY(ToStatus(api_, api_.choices(device_, text.data(), text.size(), &wanted)));
    }
    text.resize(std::strlen(text.c_str()));
    return text;
  }

  Status Learn(const std::string& choices) override {
    THRESHER_TRY(Process::Check());
    return ToStatus(api_, api_.choose(device_, choices.c_str()));
  }

  Result<std::unique_ptr<Event>> NewEvent(bool timed = true) {
    thresher_event* event = nullptr;
    THRESHER_TRY(Process::Check());
    THRESHER_TRY(ToStatus(api_, api_.event_create(device_, timed ? 1 : 0, &event)));
    return std::make_unique<Event>(api_, event);
  }

  // A recent common moment. The clocks drift apart by some microseconds a second, and differences of events have seven
  // digits, so it is renewed every second.
  Result<std::shared_ptr<Epoch>> CurrentEpoch() {
    constexpr int64_t kRenewNs = 1'000'000'000;
    constexpr int kAttempts = 8;
    const std::lock_guard lock(clock_mutex_);
    const int64_t begin = NowNs();
    if (epoch_ != nullptr && begin - epoch_->clock.base_ns() < kRenewNs) return epoch_;
    if (clock_stream_ == nullptr) THRESHER_TRY(ToStatus(api_, api_.stream_create(device_, &clock_stream_)));
    auto epoch = std::make_shared<Epoch>();
    for (int i = 0; i < kAttempts; ++i) {
      THRESHER_ASSIGN(std::unique_ptr<Event> event, NewEvent());
      const int64_t before = NowNs();
      THRESHER_TRY(ToStatus(api_, api_.event_record(event->get(), clock_stream_)));
      THRESHER_TRY(event->Synchronize());
      if (epoch->clock.Calibrate(before, NowNs())) epoch->event = std::move(event);
    }
    epoch_ = epoch;
    profile::Record record;
    record.kind = profile::Kind::kRuntime;
    record.section = profile::Section::kCall;
    record.event = profile::kClockCalibrationEvent;
    profile::Site site;
    site.name = profile::DeviceName(number_);
    site.section = profile::Section::kCall;
    record.site = profile::NumberOf(std::move(site));
    record.start_ns = begin;
    record.end_ns = NowNs();
    profile::Add(record);
    return epoch;
  }

  uint8_t number() const { return number_; }

 private:
  Result<void*> AllocateBytes(size_t bytes) override {
    void* address = nullptr;
    THRESHER_TRY(Process::Check());
    THRESHER_TRY(ToStatus(api_, api_.allocate(device_, bytes, &address)));
    profile::NoteAllocation(address, static_cast<int64_t>(bytes), number_);
    return address;
  }
  void ReleaseBytes(void* address, size_t bytes) override {
    profile::NoteRelease(address, static_cast<int64_t>(bytes), number_);
    if (Process::IsDevices())
      api_.release(device_, address);  // after a fault in a kernel it fails, and there is nothing left to release
  }
  Result<void*> AllocateHostBytes(size_t bytes) override {
    void* address = nullptr;
    THRESHER_TRY(Process::Check());
    THRESHER_TRY(ToStatus(api_, api_.allocate_host(device_, bytes, &address)));
    profile::NoteAllocation(address, static_cast<int64_t>(bytes));
    return address;
  }
  void ReleaseHostBytes(void* address, size_t bytes) override {
    profile::NoteRelease(address, static_cast<int64_t>(bytes));
    if (Process::IsDevices()) api_.release_host(device_, address);
  }

  const Api& api_;
  thresher_device* const device_;
  const uint8_t number_;
  std::string variant_;
  uint16_t streams_ = 0;
  std::mutex clock_mutex_;  // guards all below
  thresher_stream* clock_stream_ = nullptr;
  std::shared_ptr<Epoch> epoch_;
};

class Stream;

// The streams whose work waits for its times.
struct Waiting {
  std::mutex mutex;
  std::set<Stream*> streams;
};
Waiting& AllWaiting() {
  static auto& waiting = *new Waiting;  // never destroyed: streams may outlive whatever is destroyed at exit
  return waiting;
}

class Stream : public DeviceStream {
 public:
  Stream(const Api& api, std::shared_ptr<LibraryDevice> device, thresher_stream* stream, uint16_t number,
         std::optional<void*> handle = std::nullopt)
      : api_(api), device_(std::move(device)), stream_(stream), number_(number), handle_(handle) {}
  ~Stream() override {
    if (Process::IsDevices()) {
      const std::lock_guard lock(AllWaiting().mutex);
      AllWaiting().streams.erase(this);
    }
    try {
      if (!pending_.empty() && Process::IsDevices() && api_.stream_synchronize(stream_) == THRESHER_DEVICE_OK)
        static_cast<void>(Resolve());
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // Only records are lost: there was no memory for them.
    }
    pending_.clear();
    spare_.clear();
    if (Process::IsDevices()) api_.stream_destroy(stream_);
  }

  Status CopyToDevice(void* to, const void* host, size_t bytes) override {
    THRESHER_TRY(SendToDevice(to, host, bytes));
    return Synchronize();
  }
  Status CopyToHost(void* host, const void* from, size_t bytes) override {
    THRESHER_TRY(SendToHost(host, from, bytes));
    return Synchronize();
  }
  Status SendToDevice(void* to, const void* host, size_t bytes) override {
    return Copy(THRESHER_COPY_TO_DEVICE, "Memcpy HtoD", profile::kTransferToDeviceEvent, to, host, bytes);
  }
  Status SendToHost(void* host, const void* from, size_t bytes) override {
    return Copy(THRESHER_COPY_TO_HOST, "Memcpy DtoH", profile::kTransferToHostEvent, host, from, bytes);
  }
  Status CopyOnDevice(void* to, const void* from, size_t bytes) override {
    return Copy(THRESHER_COPY_ON_DEVICE, "Memcpy DtoD", profile::kLaunchStreamEvent, to, from, bytes);
  }
  Status Fill(void* to, uint8_t value, size_t bytes) override {
    if (bytes == 0) return Status::Ok();
    THRESHER_TRY(Process::Check());
    const auto fill = [&] { return api_.fill(stream_, to, value, bytes); };
    if (!profile::Enabled()) return ToStatus(api_, fill());
    return Launch(profile::kLaunchStreamEvent, profile::NumberOf(SiteOfFill(bytes)), 0, fill, true);
  }

  Status Run(RunContext& context) override {
    THRESHER_TRY(Process::Check());
    const SizedPlan& sized = context.sized;
    const Plan& plan = sized.plan();
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const Step& step = plan.steps[s];
      const profile::nvtx::Range range([&] { return NameOfStep(context, s); });
      const auto launch = [&] {
        return api_.launch(stream_, static_cast<uint32_t>(step.kernel), sized.params[s], step.params_type->bytes,
                           ToApi(sized.operands.data() + sized.first_operand[s]),
                           static_cast<int32_t>(step.operands.size()), context.scratch);
      };
      if (context.execution == 0 || context.recorded) {
        THRESHER_TRY(ToStatus(api_, launch()));
      } else {
        const bool last = s + 1 == plan.steps.size();
        THRESHER_TRY(Launch(profile::kLaunchStreamEvent, context.SiteOf(s), context.execution, launch, last));
      }
    }
    return Status::Ok();
  }

  Status Record(DeviceEvent& event) override {
    THRESHER_TRY(Process::Check());
    return ToStatus(api_, api_.event_record(static_cast<Event&>(event).get(), stream_));
  }
  Status Wait(DeviceEvent& event) override {
    THRESHER_TRY(Process::Check());
    return ToStatus(api_, api_.stream_wait(stream_, static_cast<Event&>(event).get()));
  }
  Status Synchronize() override {
    THRESHER_TRY(Process::Check());
    THRESHER_TRY(ToStatus(api_, api_.stream_synchronize(stream_)));
    const std::lock_guard lock(pending_mutex_);
    return Resolve();
  }
  // From any thread: the records of what is done and of what is not yet.
  void WaitForRecords() {
    const std::lock_guard lock(pending_mutex_);
    for (const Pending& work : pending_) {
      if (work.end != nullptr && !work.end->Synchronize().ok()) return;
    }
    static_cast<void>(Resolve());
  }

  Result<bool> IsCapturing() override {
    if (!handle_) return capturing_;
    THRESHER_ASSIGN(const ForeignStreamState state, device_->StateOf(*handle_));
    return state.capturing;
  }
  Result<std::unique_ptr<DeviceGraph>> Capture(FunctionRef<Status()> work) override {
    THRESHER_TRY(Process::Check());
    THRESHER_TRY(ToStatus(api_, api_.capture_begin(stream_)));
    capturing_ = true;
    const Status status = work();
    capturing_ = false;
    thresher_graph* graph = nullptr;
    const Status ended = ToStatus(api_, api_.capture_end(stream_, &graph));
    std::unique_ptr<DeviceGraph> made = graph == nullptr ? nullptr : std::make_unique<GraphOfLibrary>(api_, graph);
    THRESHER_TRY(status);
    THRESHER_TRY(ended);
    return made;
  }
  Status Launch(DeviceGraph& graph) override {
    THRESHER_TRY(Process::Check());
    return ToStatus(api_, api_.graph_launch(static_cast<GraphOfLibrary&>(graph).get(), stream_));
  }

 private:
  // Work that was launched while records were wanted: its times are known when it is done. Without a start its times
  // are exact ones; then the work behind it may have the end.
  struct Pending {
    profile::Record record;
    std::shared_ptr<Epoch> epoch;
    std::unique_ptr<Event> start;
    std::unique_ptr<Event> end;
  };
  // So many wait before the stream is synchronised for their sake.
  static constexpr size_t kMostPending = 4096;

  Status Copy(thresher_copy_direction direction, const char* name, uint16_t event, void* to, const void* from,
              size_t bytes) {
    if (bytes == 0) return Status::Ok();
    THRESHER_TRY(Process::Check());
    const auto copy = [&] { return api_.copy(stream_, static_cast<uint32_t>(direction), to, from, bytes); };
    if (!profile::Enabled()) return ToStatus(api_, copy());
    return Launch(event, profile::NumberOf(SiteOfCopy(name, bytes)), 0, copy, true);
  }

  // What `run` asks the library for, with records of it. `execution`: the run it belongs to, or 0. `last`: somebody may
  // wait for it before anything else is launched.
  template <class Run>
  Status Launch(uint16_t event, uint32_t site, uint64_t execution, Run&& run, bool last) {
    Pending work;
    const bool exact = ExactTimes::Global().On(api_);
    if (!exact) {
      THRESHER_ASSIGN(work.epoch, device_->CurrentEpoch());
      THRESHER_ASSIGN(work.start, TakeEvent());
    }
    if (!exact || last) {
      THRESHER_ASSIGN(work.end, TakeEvent());
    }
    profile::Record launch;
    launch.kind = profile::Kind::kRuntime;
    launch.section = profile::Section::kCall;
    launch.event = event;
    launch.site = site;
    launch.execution = execution;
    launch.correlation = profile::NextCorrelations(1);
    launch.start_ns = NowNs();
    if (exact) {
      api_.times_push(launch.correlation);
    } else {
      THRESHER_TRY(Record(*work.start));
    }
    const thresher_device_result result = run();
    if (exact) api_.times_pop();
    THRESHER_TRY(ToStatus(api_, result));
    if (work.end != nullptr) THRESHER_TRY(Record(*work.end));
    launch.end_ns = NowNs();
    profile::Add(launch);

    work.record.kind = profile::Kind::kDevice;
    work.record.section = profile::SiteOf(site).section;
    work.record.event = profile::SiteOf(site).hardware;
    work.record.site = site;
    work.record.execution = execution;
    work.record.correlation = launch.correlation;
    work.record.value = launch.start_ns;
    work.record.device = device_->number();
    work.record.lane = number_;
    profile::Stamp(work.record);
    bool first = false, full = false;
    {
      const std::lock_guard lock(pending_mutex_);
      first = pending_.empty();
      pending_.push_back(std::move(work));
      full = pending_.size() >= kMostPending;
    }
    if (first) {
      const std::lock_guard lock(AllWaiting().mutex);
      AllWaiting().streams.insert(this);
    }
    return full ? Synchronize() : Status::Ok();
  }

  // All pending work is done. The caller has the lock.
  Status Resolve() {
    ExactTimes& times = ExactTimes::Global();
    if (std::any_of(pending_.begin(), pending_.end(), [](const Pending& work) { return work.start == nullptr; })) {
      times.Flush(api_);
    }
    for (Pending& work : pending_) {
      if (work.start == nullptr) {
        const std::optional<ExactTimes::Span> span = times.Take(work.record.correlation);
        if (span) {
          work.record.start_ns = span->start_ns;
          work.record.end_ns = span->end_ns;
          profile::AddStamped(work.record);
        } else {
          profile::AddLost();
        }
        if (work.end != nullptr) spare_.push_back(std::move(work.end));
        continue;
      }
      THRESHER_ASSIGN(const double start, work.start->NsSince(*work.epoch->event));
      THRESHER_ASSIGN(const double duration, work.end->NsSince(*work.start));
      work.record.start_ns = work.epoch->clock.ToHost(start, work.record.value);
      work.record.end_ns = work.record.start_ns + std::max<int64_t>(static_cast<int64_t>(duration), 0);
      profile::AddStamped(work.record);
      spare_.push_back(std::move(work.start));
      spare_.push_back(std::move(work.end));
    }
    pending_.clear();
    return Status::Ok();
  }

  Result<std::unique_ptr<Event>> TakeEvent() {
    const std::lock_guard lock(pending_mutex_);
    if (spare_.empty()) return device_->NewEvent();
    std::unique_ptr<Event> event = std::move(spare_.back());
    spare_.pop_back();
    return event;
  }

  const Api& api_;
  const std::shared_ptr<LibraryDevice> device_;
  thresher_stream* const stream_;
  const uint16_t number_;
  const std::optional<void*> handle_;  // of one that is another library's
  bool capturing_ = false;             // where it is the engine's own
  std::mutex pending_mutex_;           // guards what follows; taken behind that of AllWaiting()
  std::vector<Pending> pending_;
  std::vector<std::unique_ptr<Event>> spare_;
};

Result<std::unique_ptr<DeviceStream>> LibraryDevice::CreateStream() {
  thresher_stream* stream = nullptr;
  THRESHER_TRY(Process::Check());
  THRESHER_TRY(ToStatus(api_, api_.stream_create(device_, &stream)));
  const std::lock_guard lock(clock_mutex_);
  return std::unique_ptr<DeviceStream>(
      std::make_unique<Stream>(api_, std::static_pointer_cast<LibraryDevice>(shared_from_this()), stream, ++streams_));
}

Result<std::unique_ptr<DeviceStream>> LibraryDevice::WrapStream(void* handle) {
  thresher_stream* stream = nullptr;
  THRESHER_TRY(Process::Check());
  THRESHER_TRY(ToStatus(api_, api_.stream_wrap(device_, handle, &stream)));
  const std::lock_guard lock(clock_mutex_);
  return std::unique_ptr<DeviceStream>(std::make_unique<Stream>(
      api_, std::static_pointer_cast<LibraryDevice>(shared_from_this()), stream, ++streams_, handle));
}

}  // namespace

void WaitForRecords() {
  if (!Process::IsDevices()) return;
  const std::lock_guard lock(AllWaiting().mutex);
  for (Stream* const stream : AllWaiting().streams) stream->WaitForRecords();
  AllWaiting().streams.clear();
}

TimesOfRecords HowRecordsAreTimed() { return ExactTimes::Global().state(); }

void ReleaseExactTimes() { ExactTimes::Global().Release(); }

Result<std::shared_ptr<DeviceLibrary>> DeviceLibrary::Open(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps one for each thread
    return Unsupported("device library " + path + " cannot be opened: " + (reason != nullptr ? reason : "no reason"));
  }
  using GetApi = const thresher_device_api* (*)();
  const auto get = reinterpret_cast<GetApi>(dlsym(library, "thresher_device_get_api"));
  if (get == nullptr) return InvalidArgument(path + ": expected a device library of Thresher, got another library");
  return FromTable(*get(), path);
}

Result<std::shared_ptr<DeviceLibrary>> DeviceLibrary::FromTable(const thresher_device_api& api,
                                                                const std::string& origin) {
  if (std::string_view(api.engine_version) != kVersion) {
    const std::string package = std::string("thresher-") + api.kind;
    return Unsupported(origin + ": expected " + package + " " + kVersion + ", got " + api.engine_version +
                       "; pip install " + package + "==" + kVersion);
  }
  return std::shared_ptr<DeviceLibrary>(new DeviceLibrary(api));
}

Result<int> DeviceLibrary::Count() const {
  int32_t count = 0;
  THRESHER_TRY(Process::Enter());
  THRESHER_TRY(ToStatus(api_, api_.count(&count)));
  return static_cast<int>(count);
}

Result<DeviceInfo> DeviceLibrary::Info(int index) const {
  THRESHER_ASSIGN(const int count, Count());
  if (index < 0 || index >= count) {
    return InvalidArgument("expected a " + std::string(api_.kind) + " device from 0 to " + std::to_string(count - 1) +
                           ", got " + std::to_string(index));
  }
  thresher_device_info found{};
  THRESHER_TRY(ToStatus(api_, api_.info(index, &found)));
  DeviceInfo info;
  info.kind = api_.kind;
  info.index = index;
  info.name = found.name;
  info.memory_bytes = found.memory_bytes;
  info.multiprocessors = found.multiprocessors;
  info.compute_capability = std::to_string(found.compute_major) + "." + std::to_string(found.compute_minor);
  info.driver_version = found.driver_version;
  info.runtime_version = found.runtime_version;
  return info;
}

Result<std::shared_ptr<Device>> DeviceLibrary::OpenDevice(int index) const {
  THRESHER_ASSIGN(DeviceInfo info, Info(index));
  thresher_device* device = nullptr;
  THRESHER_TRY(ToStatus(api_, api_.open(index, &device)));
  return std::shared_ptr<Device>(std::make_shared<LibraryDevice>(api_, device, std::move(info)));
}

}  // namespace thresher
