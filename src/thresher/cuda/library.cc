// The table of the CUDA library.

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "thresher/cuda/activity.h"
#include "thresher/cuda/choices.h"
#include "thresher/cuda/cublaslt.h"
#include "thresher/cuda/cudnn.h"
#include "thresher/cuda/dispatch.h"
#include "thresher/cuda/error.h"
#include "thresher/cuda/fault.h"
#include "thresher/cuda/kernels.h"
#include "thresher/cuda/runtime.h"
#include "thresher/cuda/stopwatch.h"
#include "thresher/device_api.h"

struct thresher_device {
  int index = 0;
  thresher::cuda::Choices choices;
  thresher::cuda::Products products{choices};
  thresher::cuda::Convolutions convolutions{choices};
  thresher::cuda::Faults faults;
};

struct thresher_stream {
  thresher_device* device = nullptr;
  cudaStream_t stream = nullptr;
  bool owned = true;
  thresher::cuda::Faults::Told told = {};
};

struct thresher_event {
  thresher_device* device = nullptr;
  cudaEvent_t event = nullptr;
};

struct thresher_graph {
  thresher_device* device = nullptr;
  cudaGraphExec_t graph = nullptr;
};

namespace thresher::cuda {
namespace {

constexpr int kOldestMajor = 8;
// What cuBLASLt recommends for the newest devices; older ones ask for less.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// Its algorithms refuse other addresses, while a plan's scratch memory begins at a multiple of 64.
constexpr size_t kWorkspaceAlignment = 256;

// No exception may leave a C function.
template <class Body>
thresher_device_result Guard(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(THRESHER_DEVICE_NO_MEMORY, "no host memory is left");
  } catch (const std::exception& error) {
    return Fail(THRESHER_DEVICE_FAILED, error.what());
  }
}

// The runtime's current device is a thread's, and others in the process use it, too: every call that wants it sets it,
// and sets it back.
class Used {
 public:
  explicit Used(const thresher_device& device) {
    result_ = Check(cudaGetDevice(&before_), "asking for the current device");
    if (result_ != THRESHER_DEVICE_OK || before_ == device.index) return;
    result_ = Check(cudaSetDevice(device.index), "choosing the device");
    changed_ = result_ == THRESHER_DEVICE_OK;
  }
  ~Used() {
    if (changed_) cudaSetDevice(before_);
  }
  Used(const Used&) = delete;
  Used& operator=(const Used&) = delete;
  thresher_device_result result() const { return result_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  thresher_device_result result_ = THRESHER_DEVICE_OK;
};

thresher_device_result CountAll(int& count) { return Check(cudaGetDeviceCount(&count), "looking for devices"); }

thresher_device_result Major(int index, int& major) {
  return Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "reading the device's type");
}

thresher_device_result Count(int32_t* count) {
  return Guard([&] {
    *count = 0;
    int all = 0;
    THRESHER_DEVICE_TRY(CountAll(all));
    // Devices are numbered as CUDA numbers them; one that is too old hides those behind it.
    while (*count < all) {
      int major = 0;
      THRESHER_DEVICE_TRY(Major(*count, major));
      if (major < kOldestMajor) break;
      ++*count;
    }
    if (*count > 0) return THRESHER_DEVICE_OK;
    if (all == 0) return Check(cudaErrorNoDevice, "looking for devices");
    return Fail(THRESHER_DEVICE_UNAVAILABLE,
                "expected a GPU of compute capability 8.0 or newer (A100, RTX 30 and later), got an older one; put a "
                "newer one first with CUDA_VISIBLE_DEVICES");
  });
}

thresher_device_result Info(int32_t index, thresher_device_info* info) {
  return Guard([&] {
    cudaDeviceProp properties;
    THRESHER_DEVICE_TRY(Check(cudaGetDeviceProperties(&properties, index), "reading the device's properties"));
    info->compute_major = properties.major;
    info->compute_minor = properties.minor;
    info->multiprocessors = properties.multiProcessorCount;
    info->memory_bytes = properties.totalGlobalMem;
    std::memset(info->name, 0, sizeof info->name);
    std::memcpy(info->name, properties.name, std::min(sizeof info->name - 1, strnlen(properties.name, 256)));
    THRESHER_DEVICE_TRY(Check(cudaDriverGetVersion(&info->driver_version), "reading the driver's version"));
    return Check(cudaRuntimeGetVersion(&info->runtime_version), "reading the runtime's version");
  });
}

thresher_device_result Open(int32_t index, thresher_device** device) {
  return Guard([&] {
    int32_t count = 0;
    THRESHER_DEVICE_TRY(Count(&count));
    if (index < 0 || index >= count) {
      return Fail(THRESHER_DEVICE_INVALID_ARGUMENT,
                  "expected a CUDA device from 0 to " + std::to_string(count - 1) + ", got " + std::to_string(index));
    }
    auto opened = std::make_unique<thresher_device>();
    opened->index = index;
    const Used used(*opened);
    THRESHER_DEVICE_TRY(used.result());
    void* fault = nullptr;
    THRESHER_DEVICE_TRY(Check(cudaHostAlloc(&fault, sizeof(Fault), cudaHostAllocMapped), "allocating pinned memory"));
    opened->faults.Watch(new (fault) Fault{});
    *device = opened.release();
    return THRESHER_DEVICE_OK;
  });
}

void Close(thresher_device* device) {
  cudaFreeHost(device->faults.fault());
  delete device;
}

thresher_device_result Allocate(thresher_device* device, size_t bytes, void** address) {
  return Guard([&] {
    const Used used(*device);
    THRESHER_DEVICE_TRY(used.result());
    // New memory is no work of a graph that this thread may be capturing for somebody.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    THRESHER_DEVICE_TRY(Check(cudaThreadExchangeStreamCaptureMode(&mode), "allowing for an allocation"));
    const cudaError_t error = cudaMalloc(address, bytes);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return Check(error, ("allocating " + std::to_string(bytes) + " bytes").c_str());
  });
}

thresher_device_result Release(thresher_device* device, void* address) {
  const Used used(*device);
  THRESHER_DEVICE_TRY(used.result());
  return Check(cudaFree(address), "releasing memory");
}

thresher_device_result AllocateHost(thresher_device* device, size_t bytes, void** address) {
  return Guard([&] {
    const Used used(*device);
    THRESHER_DEVICE_TRY(used.result());
    return Check(cudaHostAlloc(address, bytes, cudaHostAllocDefault),
                 ("allocating " + std::to_string(bytes) + " bytes of pinned host memory").c_str());
  });
}

thresher_device_result ReleaseHost(thresher_device* device, void* address) {
  const Used used(*device);
  THRESHER_DEVICE_TRY(used.result());
  return Check(cudaFreeHost(address), "releasing pinned host memory");
}

thresher_device_result StreamCreate(thresher_device* device, thresher_stream** stream) {
  return Guard([&] {
    const Used used(*device);
    THRESHER_DEVICE_TRY(used.result());
    cudaStream_t made = nullptr;
    THRESHER_DEVICE_TRY(Check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "making a stream"));
    *stream = new (std::nothrow) thresher_stream{device, made, true};
    if (*stream != nullptr) return THRESHER_DEVICE_OK;
    cudaStreamDestroy(made);
    return Fail(THRESHER_DEVICE_NO_MEMORY, "no host memory is left");
  });
}

thresher_device_result StreamSynchronize(thresher_stream* stream) {
  const Used used(*stream->device);
  THRESHER_DEVICE_TRY(used.result());
  THRESHER_DEVICE_TRY(Check(cudaStreamSynchronize(stream->stream), "waiting for a stream"));
  return Guard([&] { return stream->device->faults.End(stream->told); });
}

thresher_device_result StreamWrap(thresher_device* device, void* handle, thresher_stream** stream) {
  // The null stream, and two more that the runtime names, are those of the current device.
  bool capturing = false;
  THRESHER_DEVICE_TRY(AskCapturing(static_cast<cudaStream_t>(handle), capturing));
  const bool named = reinterpret_cast<uintptr_t>(handle) > reinterpret_cast<uintptr_t>(cudaStreamPerThread);
  if (named && !capturing) {  // else asking would end the capture
    int owner = device->index;
    THRESHER_DEVICE_TRY(
        Check(cudaStreamGetDevice(static_cast<cudaStream_t>(handle), &owner), "asking a stream for its device"));
    if (owner != device->index) {
      return Fail(THRESHER_DEVICE_INVALID_ARGUMENT, "expected a stream of cuda:" + std::to_string(device->index) +
                                                        ", got one of cuda:" + std::to_string(owner));
    }
  }
  *stream = new (std::nothrow) thresher_stream{device, static_cast<cudaStream_t>(handle), false};
  return *stream != nullptr ? THRESHER_DEVICE_OK : Fail(THRESHER_DEVICE_NO_MEMORY, "no host memory is left");
}

thresher_device_result StreamDestroy(thresher_stream* stream) {
  if (!stream->owned) {
    delete stream;
    return THRESHER_DEVICE_OK;
  }
  const thresher_device_result waited = StreamSynchronize(stream);
  cudaStreamDestroy(stream->stream);
  delete stream;
  return waited;
}

thresher_device_result StreamWait(thresher_stream* stream, thresher_event* event) {
  const Used used(*stream->device);
  THRESHER_DEVICE_TRY(used.result());
  return Check(cudaStreamWaitEvent(stream->stream, event->event, 0), "making a stream wait");
}

thresher_device_result StreamState(thresher_device* device, void* handle, int32_t* capturing, uint64_t* number) {
  const Used used(*device);
  THRESHER_DEVICE_TRY(used.result());
  bool recorded = false;
  THRESHER_DEVICE_TRY(AskCapturing(static_cast<cudaStream_t>(handle), recorded));
  *capturing = recorded ? 1 : 0;
  *number = 0;
  // Asking for more would end the capture.
  if (recorded) return THRESHER_DEVICE_OK;
  unsigned long long found = 0;  // NOLINT(google-runtime-int): as the runtime has it
  THRESHER_DEVICE_TRY(
      Check(cudaStreamGetId(static_cast<cudaStream_t>(handle), &found), "asking a stream for its number"));
  *number = found;
  return THRESHER_DEVICE_OK;
}

thresher_device_result CaptureBegin(thresher_stream* stream) {
  const Used used(*stream->device);
  THRESHER_DEVICE_TRY(used.result());
  // Other threads may allocate meanwhile.
  return Check(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal), "capturing a graph");
}

thresher_device_result CaptureEnd(thresher_stream* stream, thresher_graph** graph) {
  return Guard([&] {
    const Used used(*stream->device);
    THRESHER_DEVICE_TRY(used.result());
    cudaGraph_t captured = nullptr;
    THRESHER_DEVICE_TRY(Check(cudaStreamEndCapture(stream->stream, &captured), "capturing a graph"));
    cudaGraphExec_t made = nullptr;
    const thresher_device_result result = Check(cudaGraphInstantiate(&made, captured, 0), "making a graph executable");
    cudaGraphDestroy(captured);
    THRESHER_DEVICE_TRY(result);
    *graph = new (std::nothrow) thresher_graph{stream->device, made};
    if (*graph != nullptr) return THRESHER_DEVICE_OK;
    cudaGraphExecDestroy(made);
    return Fail(THRESHER_DEVICE_NO_MEMORY, "no host memory is left");
  });
}

thresher_device_result GraphLaunch(thresher_graph* graph, thresher_stream* stream) {
  const Used used(*stream->device);
  THRESHER_DEVICE_TRY(used.result());
  THRESHER_DEVICE_TRY(Guard([&] { return stream->device->faults.Begin(stream->told, !stream->owned); }));
  return Check(cudaGraphLaunch(graph->graph, stream->stream), "launching a graph");
}

void GraphDestroy(thresher_graph* graph) {
  cudaGraphExecDestroy(graph->graph);
  delete graph;
}

thresher_device_result EventCreate(thresher_device* device, int32_t timed, thresher_event** event) {
  return Guard([&] {
    const Used used(*device);
    THRESHER_DEVICE_TRY(used.result());
    cudaEvent_t made = nullptr;
    THRESHER_DEVICE_TRY(Check(cudaEventCreateWithFlags(&made, timed != 0 ? cudaEventDefault : cudaEventDisableTiming),
                              "making an event"));
    *event = new (std::nothrow) thresher_event{device, made};
    if (*event != nullptr) return THRESHER_DEVICE_OK;
    cudaEventDestroy(made);
    return Fail(THRESHER_DEVICE_NO_MEMORY, "no host memory is left");
  });
}

void EventDestroy(thresher_event* event) {
  cudaEventDestroy(event->event);
  delete event;
}

thresher_device_result EventRecord(thresher_event* event, thresher_stream* stream) {
  const Used used(*stream->device);
  THRESHER_DEVICE_TRY(used.result());
  return Check(cudaEventRecord(event->event, stream->stream), "recording an event");
}

thresher_device_result EventSynchronize(thresher_event* event) {
  const Used used(*event->device);
  THRESHER_DEVICE_TRY(used.result());
  return Check(cudaEventSynchronize(event->event), "waiting for an event");
}

thresher_device_result EventElapsed(thresher_event* start, thresher_event* end, double* nanoseconds) {
  const Used used(*end->device);
  THRESHER_DEVICE_TRY(used.result());
  float milliseconds = 0;
  THRESHER_DEVICE_TRY(Check(cudaEventElapsedTime(&milliseconds, start->event, end->event), "reading the time"));
  *nanoseconds = static_cast<double>(milliseconds) * 1e6;
  return THRESHER_DEVICE_OK;
}

thresher_device_result Copy(thresher_stream* stream, uint32_t direction, void* to, const void* from, size_t bytes) {
  constexpr cudaMemcpyKind kKinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
  if (direction > THRESHER_COPY_ON_DEVICE) return Fail(THRESHER_DEVICE_INVALID_ARGUMENT, "copy: unknown direction");
  if (bytes == 0) return THRESHER_DEVICE_OK;
  const Used used(*stream->device);
  THRESHER_DEVICE_TRY(used.result());
  return Check(cudaMemcpyAsync(to, from, bytes, kKinds[direction], stream->stream), "copying");
}

thresher_device_result Fill(thresher_stream* stream, void* to, uint8_t value, size_t bytes) {
  if (bytes == 0) return THRESHER_DEVICE_OK;
  const Used used(*stream->device);
  THRESHER_DEVICE_TRY(used.result());
  return Check(cudaMemsetAsync(to, value, bytes, stream->stream), "filling memory");
}

Call CallOf(uint32_t kernel, const void* params, size_t params_bytes, const thresher_view* views, int32_t num_views) {
  return {kernel, params, params_bytes, reinterpret_cast<const View*>(views), num_views};
}

size_t ProductScratch(const Call& call) {
  return kWorkspaceBytes + kWorkspaceAlignment + ProductFamily::UnpackedBytesOf(call);
}

void* WorkspaceIn(void* scratch) {
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  return reinterpret_cast<void*>((address + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment);
}

// Contests on the stream of a launch.
class Bench final : public ConvolutionBench {
 public:
  explicit Bench(cudaStream_t stream) : stream_(stream) {}

  thresher_device_result Own(void* stream, const Call& call) override {
    return LaunchOn<ConvolutionFamily>(static_cast<cudaStream_t>(stream), call);
  }
  thresher_device_result Finish(void* stream, const Call& call) override {
    return FinishConvolution(static_cast<cudaStream_t>(stream), call);
  }
  thresher_device_result Time(const Call& call, Work work, float& ms) override {
    ms = -1;
    if (watch_ == nullptr) {
      watch_ = std::make_unique<Stopwatch>();
      const View& out = call.last();
      THRESHER_DEVICE_TRY(watch_->Prepare(stream_, static_cast<size_t>(out.size()) * SizeOf(out.dtype), ready_));
    }
    if (!ready_) return THRESHER_DEVICE_OK;
    thresher_device_result asked = THRESHER_DEVICE_OK;
    const auto ask = [&](cudaStream_t timed) {
      asked = work(timed, watch_->memory());
      return asked == THRESHER_DEVICE_OK;
    };
    THRESHER_DEVICE_TRY(watch_->Time(ask, ms));
    return asked;
  }

 private:
  cudaStream_t stream_;
  std::unique_ptr<Stopwatch> watch_;
  bool ready_ = false;
};

thresher_device_result Convolve(thresher_stream& stream, const Call& call) {
  bool capturing = false;
  THRESHER_DEVICE_TRY(AskCapturing(stream.stream, capturing));
  Bench bench(stream.stream);
  Convolutions& convolutions = stream.device->convolutions;
  Convolutions::Known* known = nullptr;
  THRESHER_DEVICE_TRY(convolutions.Choose(call, capturing, bench, known));
  return known != nullptr ? convolutions.Run(*known, stream.stream, call, bench) : bench.Own(stream.stream, call);
}

thresher_device_result Query(thresher_device* device, uint32_t kernel, const void* params, size_t params_bytes,
                             const thresher_view* views, int32_t num_views, size_t* scratch_bytes) {
  return Guard([&] {
    const Call call = CallOf(kernel, params, params_bytes, views, num_views);
    if (const Verdict verdict = Check(call); !verdict.ok()) return Fail(verdict.result, verdict.problem);
    *scratch_bytes = call.kernel() == KernelId::kStoredProduct ? ProductScratch(call) : ScratchBytes(call);
    if (call.kernel() != KernelId::kConvolution) return THRESHER_DEVICE_OK;
    const Used used(*device);
    THRESHER_DEVICE_TRY(used.result());
    *scratch_bytes = std::max(*scratch_bytes, device->convolutions.ScratchBytes(call));
    return THRESHER_DEVICE_OK;
  });
}

thresher_device_result Launch(thresher_stream* stream, uint32_t kernel, const void* params, size_t params_bytes,
                              const thresher_view* views, int32_t num_views, void* scratch) {
  return Guard([&] {
    Call call = CallOf(kernel, params, params_bytes, views, num_views);
    if (const Verdict verdict = Check(call); !verdict.ok()) return Fail(verdict.result, verdict.problem);
    call.scratch = scratch;
    Faults& faults = stream->device->faults;
    call.fault = faults.fault();
    THRESHER_DEVICE_TRY(faults.Begin(stream->told, !stream->owned));
    const Used used(*stream->device);
    THRESHER_DEVICE_TRY(used.result());
    if (call.kernel() == KernelId::kConvolution) return Convolve(*stream, call);
    if (call.kernel() != KernelId::kStoredProduct) {
      const auto launch = [&]<class Family>() { return LaunchOn<Family>(stream->stream, call); };
      return Dispatch(call, launch, THRESHER_DEVICE_OK);
    }
    const Gemm gemm = GemmOf(call.as<kernels::StoredProductParams>(), call.views);
    return stream->device->products.Run(stream->stream, WorkspaceIn(scratch), kWorkspaceBytes, gemm);
  });
}

thresher_device_result ChoicesOf(thresher_device* device, char* text, size_t bytes, size_t* wanted) {
  return Guard([&] {
    const std::string found = device->choices.Text();
    *wanted = found.size() + 1;
    std::snprintf(text, bytes, "%s", found.c_str());
    return THRESHER_DEVICE_OK;
  });
}

thresher_device_result Choose(thresher_device* device, const char* text) {
  return Guard([&] {
    device->choices.Learn(text);
    return THRESHER_DEVICE_OK;
  });
}

thresher_device_result Window(thresher_device* device, int32_t open) {
  const Used used(*device);
  THRESHER_DEVICE_TRY(used.result());
  return Check(open != 0 ? cudaProfilerStart() : cudaProfilerStop(), "opening the window of a tool");
}

constexpr thresher_device_api kApi = {
    .engine_version = THRESHER_VERSION,
    .kind = "cuda",
    .architectures = THRESHER_CUDA_ARCHITECTURES,
    .last_error = []() -> const char* { return Message(); },
    .count = &Count,
    .info = &Info,
    .open = &Open,
    .close = &Close,
    .allocate = &Allocate,
    .release = &Release,
    .allocate_host = &AllocateHost,
    .release_host = &ReleaseHost,
    .stream_create = &StreamCreate,
    .stream_wrap = &StreamWrap,
    .stream_destroy = &StreamDestroy,
    .stream_synchronize = &StreamSynchronize,
    .stream_wait = &StreamWait,
    .stream_state = &StreamState,
    .capture_begin = &CaptureBegin,
    .capture_end = &CaptureEnd,
    .graph_launch = &GraphLaunch,
    .graph_destroy = &GraphDestroy,
    .event_create = &EventCreate,
    .event_destroy = &EventDestroy,
    .event_record = &EventRecord,
    .event_synchronize = &EventSynchronize,
    .event_elapsed = &EventElapsed,
    .copy = &Copy,
    .fill = &Fill,
    .query = &Query,
    .launch = &Launch,
    .times_begin = [](thresher_device_clock clock,
                      thresher_device_timed timed) { return Guard([&] { return BeginTimes(clock, timed); }); },
    .times_push = &PushTimes,
    .times_pop = &PopTimes,
    .times_flush = [] { return Guard([] { return FlushTimes(); }); },
    .times_end = &EndTimes,
    .window = &Window,
    .choices = &ChoicesOf,
    .choose = &Choose,
};

}  // namespace
}  // namespace thresher::cuda

extern "C" const thresher_device_api* thresher_device_get_api() { return &thresher::cuda::kApi; }
