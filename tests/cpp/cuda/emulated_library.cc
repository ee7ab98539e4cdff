#include "cuda/emulated_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emulator.h"
#include "thresher/base/clock.h"
#include "thresher/base/half.h"
#include "thresher/base/version.h"
#include "thresher/cuda/activity.h"
#include "thresher/cuda/block_gemv_kernel.h"
#include "thresher/cuda/choices.h"
#include "thresher/cuda/cudnn.h"
#include "thresher/cuda/dispatch.h"
#include "thresher/cuda/error.h"
#include "thresher/cuda/fault.h"
#include "thresher/cuda/gemm_layout.h"
#include "thresher/cuda/gemv_kernel.h"
#include "thresher/cuda/tile_product.h"

struct thresher_device {
  explicit thresher_device(int number) : index(number) { faults.Watch(&fault); }
  int index;
  std::atomic<bool> window_open{false};
  thresher::cuda::Fault fault{};
  thresher::cuda::Faults faults;
  thresher::cuda::Choices choices;
  thresher::cuda::Convolutions convolutions{choices};
};
struct thresher_stream {
  thresher_device* device;
  thresher_graph* recording;  // what is asked of it goes there instead of being done
  thresher::cuda::testing::ForeignStream* foreign;
  bool owned;
  thresher::cuda::Faults::Told told;
};
struct thresher_graph {
  std::vector<std::function<thresher_device_result()>> work;
  bool spoilt;  // something was asked of the device that no graph can hold
};
struct thresher_event {
  double time_ns;
  bool timed;
};

namespace thresher::cuda::testing {
namespace {

constexpr size_t kProductScratch = 256;

std::atomic<int> objects{0};
std::atomic<int> graph_launches{0};
std::atomic<int> copies{0};
std::atomic<int> waits{0};
std::atomic<int> launched{0};
std::atomic<int> windows{0};
std::atomic<bool> idle{false};
std::atomic<bool> fail_next{false};
thread_local thresher_graph* recorded = nullptr;

// A driver that was asked for anything before a fork() is of no use to the child, nor may it be asked there.
void MustBeItsProcess() {
  static const pid_t process = getpid();
  if (getpid() == process) return;
  std::fprintf(stderr, "the emulator found: a call in a child that was forked from the process that used the device\n");
  std::abort();
}

// What a device refuses to a thread while it records work of a stream.
thresher_device_result Refused(const char* what) {
  MustBeItsProcess();
  if (recorded == nullptr) return THRESHER_DEVICE_OK;
  recorded->spoilt = true;
  return Fail(THRESHER_DEVICE_FAILED, std::string("the emulator found: ") + what + " while a graph is captured");
}

// Does the work, or leaves it to the graph that the stream records.
template <class Work>
thresher_device_result DoOrRecord(thresher_stream* stream, Work&& work) {
  MustBeItsProcess();
  if (stream->recording != nullptr) {
    stream->recording->work.emplace_back(std::forward<Work>(work));
  } else if (stream->foreign != nullptr && stream->foreign->capturing) {
    stream->foreign->recorded.emplace_back(std::forward<Work>(work));
  } else if (!idle) {
    return work();
  }
  return THRESHER_DEVICE_OK;
}

// A stand-in for CUPTI is told of the work that it would see on a device.
enum class Work : uint8_t { kKernel, kCopy, kFill };
void Tell(Work kind) {
  using Function = void (*)(int kind);
  static const auto tell = [] {
    void* const cupti = dlopen("libcupti.so.13", RTLD_NOLOAD | RTLD_NOW);
    return cupti == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(cupti, "emulated_work"));
  };
  if (!TakingTimes()) return;
  static const Function function = tell();
  if (function != nullptr) function(static_cast<int>(kind));
}

// A stand-in for cuDNN is told when a graph is captured: it refuses then what a device would.
void TellCapture(bool begins) {
  void* const cudnn = dlopen("libcudnn.so.9", RTLD_NOLOAD | RTLD_NOW);
  if (cudnn == nullptr) return;
  using Function = void (*)(int begins);
  const auto tell = reinterpret_cast<Function>(dlsym(cudnn, "emulated_capture"));
  if (tell != nullptr) tell(begins ? 1 : 0);
}

thresher_device_result Done(const std::string& problem) {
  if (fail_next.exchange(false)) return Fail(THRESHER_DEVICE_FAILED, "a planted fault");
  return problem.empty() ? THRESHER_DEVICE_OK : Fail(THRESHER_DEVICE_FAILED, "the emulator found: " + problem);
}

template <class T, class... Args>
thresher_device_result Make(T** object, Args... args) {
  MustBeItsProcess();
  *object = new T{args...};
  ++objects;
  return THRESHER_DEVICE_OK;
}

template <class T>
void Delete(T* object) {
  MustBeItsProcess();
  delete object;
  --objects;
}

struct Counted : Launcher {
  template <class Kernel>
  std::string operator()(const Shape& shape, const Kernel& kernel) const {
    ++launched;
    return Launcher::operator()(shape, kernel);
  }
};

// Numbers of a float type, as floats.
class Numbers {
 public:
  Numbers(const void* data, DType dtype) : data_(data), dtype_(dtype) {}
  float operator[](int64_t index) const {
    const auto* halves = static_cast<const uint16_t*>(data_) + index;
    if (dtype_ == DType::kBF16) return ToFloat(BF16{*halves});
    return dtype_ == DType::kF16 ? ToFloat(F16{*halves}) : static_cast<const float*>(data_)[index];
  }

 private:
  const void* const data_;
  const DType dtype_;
};

void Put(void* data, DType dtype, int64_t index, float x) {
  if (dtype == DType::kF32) static_cast<float*>(data)[index] = x;
  if (dtype == DType::kBF16) static_cast<BF16*>(data)[index] = ToBF16(x);
  if (dtype == DType::kF16) static_cast<F16*>(data)[index] = ToF16(x);
}

// Column by column, as cuBLASLt would be told; what its epilogue leaves is done by the kernel that does it on a device.
thresher_device_result Multiply(const Gemm& g, void* scratch) {
  if (const std::string problem = CheckGemm(g); !problem.empty())
    return Fail(THRESHER_DEVICE_INVALID_ARGUMENT, problem);
  std::memset(scratch, 0xFF, kProductScratch);  // it must be there, and nobody else's
  if (IsGemv(g)) return Done(LaunchGemv(Counted{}, g));
  if (IsBlockGemv(g)) return Done(LaunchBlockGemv(Counted{}, g));
  if (IsBlocked(g.encoding)) {
    void* const unpacked = static_cast<std::byte*>(scratch) + kProductScratch;
    return ForUnpacked<thresher_device_result>(
        g, unpacked,
        [&](const void* blocks, int64_t numbers) {
          return Done(LaunchUnpack(Counted{}, g.encoding, blocks, numbers, g.type, unpacked));
        },
        [&](const Gemm& part) { return Multiply(part, scratch); },
        [](thresher_device_result result) { return result != THRESHER_DEVICE_OK; });
  }
  if (IsTileProduct(g)) return Done(LaunchTileProduct(Counted{}, g));
  ++launched;
  const GemmLayout l = LayoutOf(g);
  const Epilogue epilogue = EpilogueOf(g);
  const Numbers first(g.b, g.type), second(g.a, g.type), bias(g.bias, g.c_type), residual(g.residual, g.c_type);
  for (int64_t batch = 0; batch < g.batch; ++batch) {
    for (int64_t col = 0; col < l.result.cols; ++col) {
      for (int64_t row = 0; row < l.result.rows; ++row) {
        float sum = 0;
        for (int64_t i = 0; i < g.k; ++i) {
          const int64_t f = l.transpose_first ? i + row * l.first.ld : row + i * l.first.ld;
          const int64_t s = l.transpose_second ? col + i * l.second.ld : i + col * l.second.ld;
          sum += first[batch * g.stride_b + f] * second[batch * g.stride_a + s];
        }
        if (epilogue.adds_residual) sum += residual[row + col * l.residual.ld];
        if ((epilogue.bits & kEpilogueBias) != 0) sum += bias[row];
        if ((epilogue.bits & kEpilogueRelu) != 0) sum = Activate(kernels::Activation::kRelu, sum);
        if ((epilogue.bits & kEpilogueGeluTanh) != 0) sum = Activate(kernels::Activation::kGeluTanh, sum);
        Put(g.c, g.c_type, batch * g.stride_c + row + col * l.result.ld, sum);
      }
    }
  }
  return Done(epilogue.complete() ? std::string() : LaunchEpilogue(Counted{}, g, epilogue));
}

class Bench final : public ConvolutionBench {
 public:
  thresher_device_result Own(void*, const Call& call) override {
    return Done(ConvolutionFamily::Launch(Counted{}, call));
  }
  thresher_device_result Finish(void*, const Call& call) override {
    return Done(ConvolutionFamily::LaunchFinish(Counted{}, call));
  }
  thresher_device_result Time(const Call& call, Work work, float& ms) override {
    ms = -1;
    std::vector<std::byte> result(static_cast<size_t>(call.last().size()) * SizeOf(call.last().dtype));
    for (int round = 0; round < 2; ++round) {
      const int64_t begin = NowNs();
      THRESHER_DEVICE_TRY(work(nullptr, result.data()));
      ms = static_cast<float>(NowNs() - begin) * 1e-6f;
    }
    return THRESHER_DEVICE_OK;
  }
};

thresher_device_result Run(thresher_device* device, uint32_t kernel, const void* params, size_t params_bytes,
                           const View* views, int32_t num_views, void* scratch) {
  const Call call{kernel, params, params_bytes, views, num_views, scratch, &device->fault};
  if (const Verdict verdict = Check(call); !verdict.ok()) return Fail(verdict.result, verdict.problem);
  if (call.kernel() != KernelId::kStoredProduct) {
    const auto launch = [&]<class Family>() { return Family::Launch(Counted{}, call); };
    return Done(Dispatch(call, launch, std::string()));
  }
  return Multiply(GemmOf(call.as<kernels::StoredProductParams>(), call.views), scratch);
}

thresher_device_api Table() {
  thresher_device_api api{};
  api.kind = "cuda";
  api.architectures = "emulator";
  api.last_error = []() -> const char* { return Message(); };
  api.count = [](int32_t* count) {
    MustBeItsProcess();
    *count = 2;
    return THRESHER_DEVICE_OK;
  };
  api.info = [](int32_t, thresher_device_info* info) {
    info->compute_major = 9;
    info->compute_minor = 0;
    info->multiprocessors = 1;
    info->memory_bytes = uint64_t{1} << 30;
    info->driver_version = info->runtime_version = 13000;
    std::snprintf(info->name, sizeof info->name, "emulator");
    return THRESHER_DEVICE_OK;
  };
  api.open = [](int32_t index, thresher_device** device) { return Make(device, index); };
  api.close = [](thresher_device* device) { Delete(device); };
  api.allocate = [](thresher_device*, size_t bytes, void** address) {
    THRESHER_DEVICE_TRY(Refused("an allocation"));
    if (bytes > size_t{1} << 30) return Fail(THRESHER_DEVICE_NO_MEMORY, "the emulator has 1 GiB");
    // Exactly as much, so that AddressSanitizer sees what lies beyond.
    if (posix_memalign(address, 256, bytes) != 0) return Fail(THRESHER_DEVICE_NO_MEMORY, "the host has no more");
    ++objects;
    return THRESHER_DEVICE_OK;
  };
  api.release = [](thresher_device*, void* address) {
    MustBeItsProcess();
    std::free(address);
    --objects;
    return THRESHER_DEVICE_OK;
  };
  api.allocate_host = [](thresher_device*, size_t bytes, void** address) {
    THRESHER_DEVICE_TRY(Refused("an allocation"));
    *address = std::malloc(bytes);
    ++objects;
    return THRESHER_DEVICE_OK;
  };
  api.release_host = api.release;
  api.stream_create = [](thresher_device* device, thresher_stream** stream) {
    return Make(stream, device, static_cast<thresher_graph*>(nullptr), static_cast<ForeignStream*>(nullptr), true,
                Faults::Told{});
  };
  api.stream_wrap = [](thresher_device* device, void* handle, thresher_stream** stream) {
    const int owner = handle == nullptr ? device->index : static_cast<ForeignStream*>(handle)->device;
    if (owner != device->index) {
      return Fail(THRESHER_DEVICE_INVALID_ARGUMENT, "expected a stream of cuda:" + std::to_string(device->index) +
                                                        ", got one of cuda:" + std::to_string(owner));
    }
    return Make(stream, device, static_cast<thresher_graph*>(nullptr), static_cast<ForeignStream*>(handle), false,
                Faults::Told{});
  };
  api.stream_destroy = [](thresher_stream* stream) {
    Delete(stream);
    return THRESHER_DEVICE_OK;
  };
  api.stream_synchronize = [](thresher_stream* stream) {
    THRESHER_DEVICE_TRY(Refused("a synchronisation"));
    return stream->device->faults.End(stream->told);
  };
  api.stream_wait = [](thresher_stream*, thresher_event*) {
    ++waits;
    return THRESHER_DEVICE_OK;
  };
  api.stream_state = [](thresher_device*, void* handle, int32_t* capturing, uint64_t* number) {
    const auto* const stream = static_cast<const ForeignStream*>(handle);
    *capturing = stream != nullptr && stream->capturing ? 1 : 0;
    *number = stream != nullptr && !stream->capturing ? stream->number : 0;
    return THRESHER_DEVICE_OK;
  };
  api.capture_begin = [](thresher_stream* stream) {
    THRESHER_DEVICE_TRY(Refused("another capture"));
    const thresher_device_result made = Make(&stream->recording);
    recorded = stream->recording;
    TellCapture(true);
    return made;
  };
  api.capture_end = [](thresher_stream* stream, thresher_graph** graph) {
    thresher_graph* const made = std::exchange(stream->recording, nullptr);
    if (made == nullptr) return Fail(THRESHER_DEVICE_INVALID_ARGUMENT, "the stream captures nothing");
    recorded = nullptr;
    TellCapture(false);
    if (!made->spoilt) {
      *graph = made;
      return THRESHER_DEVICE_OK;
    }
    Delete(made);
    return Fail(THRESHER_DEVICE_FAILED, "the emulator found: a graph that was spoilt while it was captured");
  };
  api.graph_launch = [](thresher_graph* graph, thresher_stream* stream) {
    ++graph_launches;
    THRESHER_DEVICE_TRY(stream->device->faults.Begin(stream->told, !stream->owned));
    return DoOrRecord(stream, [graph] {
      for (const auto& work : graph->work) THRESHER_DEVICE_TRY(work());
      return THRESHER_DEVICE_OK;
    });
  };
  api.graph_destroy = [](thresher_graph* graph) { Delete(graph); };
  api.event_create = [](thresher_device*, int32_t timed, thresher_event** event) {
    return Make(event, 0.0, timed != 0);
  };
  api.event_destroy = [](thresher_event* event) { Delete(event); };
  api.event_record = [](thresher_event* event, thresher_stream*) {
    event->time_ns = static_cast<double>(NowNs()) + kClockOffsetNs;
    return THRESHER_DEVICE_OK;
  };
  api.event_synchronize = [](thresher_event*) { return Refused("a synchronisation"); };
  api.event_elapsed = [](thresher_event* start, thresher_event* end, double* ns) {
    if (!start->timed || !end->timed) {
      return Fail(THRESHER_DEVICE_INVALID_ARGUMENT, "expected events that are timed");
    }
    *ns = end->time_ns - start->time_ns;
    return THRESHER_DEVICE_OK;
  };
  api.copy = [](thresher_stream* stream, uint32_t, void* to, const void* from, size_t bytes) {
    Tell(Work::kCopy);
    ++copies;
    return DoOrRecord(stream, [=] {
      std::memcpy(to, from, bytes);
      return Done({});
    });
  };
  api.fill = [](thresher_stream* stream, void* to, uint8_t value, size_t bytes) {
    Tell(Work::kFill);
    return DoOrRecord(stream, [=] {
      std::memset(to, value, bytes);
      return Done({});
    });
  };
  api.query = [](thresher_device* device, uint32_t kernel, const void* params, size_t params_bytes,
                 const thresher_view* views, int32_t num_views, size_t* scratch_bytes) {
    THRESHER_DEVICE_TRY(Refused("a query"));
    const Call call{kernel, params, params_bytes, reinterpret_cast<const View*>(views), num_views};
    if (const Verdict verdict = Check(call); !verdict.ok()) return Fail(verdict.result, verdict.problem);
    *scratch_bytes = call.kernel() == KernelId::kStoredProduct ? kProductScratch + ProductFamily::UnpackedBytesOf(call)
                                                               : ScratchBytes(call);
    if (call.kernel() == KernelId::kConvolution) {
      *scratch_bytes = std::max(*scratch_bytes, device->convolutions.ScratchBytes(call));
    }
    return THRESHER_DEVICE_OK;
  };
  api.launch = [](thresher_stream* stream, uint32_t kernel, const void* params, size_t params_bytes,
                  const thresher_view* views, int32_t num_views, void* scratch) {
    thresher_device* const device = stream->device;
    THRESHER_DEVICE_TRY(device->faults.Begin(stream->told, !stream->owned));
    // What the call points at is gone when a graph is launched.
    const auto* const bytes = static_cast<const std::byte*>(params);
    const auto* const operands = reinterpret_cast<const View*>(views);
    const std::vector<std::byte> kept_params(bytes, bytes + params_bytes);
    const std::vector<View> kept_views(operands, operands + num_views);
    Tell(Work::kKernel);
    // Whose convolution it is must be known when it is asked for, not when a graph with it is launched.
    Convolutions::Known* known = nullptr;
    if (kernel == static_cast<uint32_t>(KernelId::kConvolution)) {
      const Call call{kernel, params, params_bytes, operands, num_views, scratch, &device->fault};
      if (const Verdict verdict = Check(call); !verdict.ok()) return Fail(verdict.result, verdict.problem);
      const bool foreign = stream->foreign != nullptr && stream->foreign->capturing;
      Bench bench;
      THRESHER_DEVICE_TRY(device->convolutions.Choose(call, stream->recording != nullptr || foreign, bench, known));
    }
    return DoOrRecord(stream, [=] {
      if (known != nullptr) {
        Bench bench;
        const Call call{kernel, kept_params.data(), params_bytes, kept_views.data(), num_views, scratch, nullptr};
        return device->convolutions.Run(*known, nullptr, call, bench);
      }
      return Run(device, kernel, kept_params.data(), params_bytes, kept_views.data(), num_views, scratch);
    });
  };
  api.times_begin = &BeginTimes;
  api.times_push = &PushTimes;
  api.times_pop = &PopTimes;
  api.times_flush = &FlushTimes;
  api.times_end = &EndTimes;
  api.window = [](thresher_device* device, int32_t open) {
    if (device->window_open.exchange(open != 0) == (open != 0)) {
      return Fail(THRESHER_DEVICE_FAILED, "the window is as it shall be");
    }
    windows += open == 0 ? 1 : 0;
    return THRESHER_DEVICE_OK;
  };
  api.choices = [](thresher_device* device, char* text, size_t bytes, size_t* wanted) {
    const std::string found = device->choices.Text();
    *wanted = found.size() + 1;
    std::snprintf(text, bytes, "%s", found.c_str());
    return THRESHER_DEVICE_OK;
  };
  api.choose = [](thresher_device* device, const char* text) {
    device->choices.Learn(text);
    return THRESHER_DEVICE_OK;
  };
  return api;
}

}  // namespace

const thresher_device_api& EmulatedApi() {
  static const thresher_device_api api = [] {
    thresher_device_api table = Table();
    table.engine_version = kVersion;
    return table;
  }();
  return api;
}

int EmulatedObjects() { return objects; }

int EmulatedGraphLaunches() { return graph_launches; }

int EmulatedCopies() { return copies; }

int EmulatedWaits() { return waits; }

void FailNext() { fail_next = true; }

}  // namespace thresher::cuda::testing

extern "C" const thresher_device_api* thresher_device_get_api() { return &thresher::cuda::testing::EmulatedApi(); }

// For tests in Python. Windows of tools: how many have been opened and closed again.
extern "C" THRESHER_DEVICE_EXPORT int emulated_graph_launches() { return thresher::cuda::testing::graph_launches; }
// Kernels that were launched, those of cuBLASLt among them.
extern "C" THRESHER_DEVICE_EXPORT int emulated_kernels() { return thresher::cuda::testing::launched; }
// Whether what is asked for is not done: then the time of a call is the host's.
extern "C" THRESHER_DEVICE_EXPORT void emulated_idle(int idle) { thresher::cuda::testing::idle = idle != 0; }
extern "C" THRESHER_DEVICE_EXPORT int emulated_windows() { return thresher::cuda::testing::windows; }
