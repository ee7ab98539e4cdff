#include "thresher/cuda/cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <type_traits>
#include <utility>

#include "thresher/cuda/cudnn_constants.h"
#include "thresher/cuda/error.h"
#include "thresher/cuda/rows.h"
#include "thresher/kernels/convolution_params.h"

namespace thresher::cuda {

// ---- The part of cuDNN's C interface that is used here: the functions of its version 7, which version 9 still has.
// They take a convolution with bias, relu and residual in one call; the newer interface, of graphs, needs some thirty
// attributes for the same and would bring kernels that are compiled when they are first asked for. ----

struct Cudnn {
  size_t (*version)();
  const char* (*error_string)(int status);
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*set_stream)(void* handle, void* stream);
  int (*tensor_create)(void** tensor);
  int (*tensor_destroy)(void* tensor);
  int (*tensor_set)(void* tensor, int type, int n, int c, int h, int w, int n_stride, int c_stride, int h_stride,
                    int w_stride);
  int (*filter_create)(void** filter);
  int (*filter_destroy)(void* filter);
  int (*filter_set)(void* filter, int type, int format, int k, int c, int h, int w);
  int (*convolution_create)(void** convolution);
  int (*convolution_destroy)(void* convolution);
  int (*convolution_set)(void* convolution, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,
                         int dilation_w, int mode, int compute_type);
  int (*set_groups)(void* convolution, int groups);
  int (*set_math)(void* convolution, int math);
  int (*activation_create)(void** activation);
  int (*activation_destroy)(void* activation);
  int (*activation_set)(void* activation, int mode, int nan, double coefficient);
  int (*workspace)(void* handle, void* x, void* filter, void* convolution, void* y, int algorithm, size_t* bytes);
  int (*forward)(void* handle, const void* alpha, void* x_desc, const void* x, void* filter, const void* weight,
                 void* convolution, int algorithm, void* workspace, size_t workspace_bytes, const void* beta,
                 void* y_desc, void* y);
  int (*fused)(void* handle, const void* alpha1, void* x_desc, const void* x, void* filter, const void* weight,
               void* convolution, int algorithm, void* workspace, size_t workspace_bytes, const void* alpha2,
               void* z_desc, const void* z, void* bias_desc, const void* bias, void* activation, void* y_desc, void* y);
};

namespace {

constexpr const char* kLibrary = "libcudnn.so.9";
constexpr size_t kMostKnown = 4096;
constexpr size_t kMostWorkspace = size_t{32} << 20;  // as cuBLASLt gets
constexpr size_t kAlignment = 256;
// As for products: what differs by less differs from run to run.
constexpr float kClearlyFaster = 0.95f;

// The ways in which cuDNN may compute one convolution. Both algorithms add up products; those by transforms, which are
// left out, round otherwise.
struct Way {
  bool fused;  // with all that follows
  int algorithm;
  const char* name;
};
constexpr Way kWays[] = {{true, kCudnnImplicitPrecompGemm, "fused implicit_precomp_gemm"},
                         {true, kCudnnImplicitGemm, "fused implicit_gemm"},
                         {false, kCudnnImplicitPrecompGemm, "implicit_precomp_gemm"},
                         {false, kCudnnImplicitGemm, "implicit_gemm"}};
constexpr int kWayCount = static_cast<int>(std::size(kWays));
constexpr int kOwn = -1;

// The library stays open until the process ends.
const Cudnn* Load(std::string& problem) {
  static Cudnn functions;
  static std::string error;
  static const bool loaded = [] {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const found = dlerror();
      error = std::string(kLibrary) + " cannot be opened (" + (found != nullptr ? found : "no reason given") + ")";
      return false;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && error.empty()) error = std::string(kLibrary) + " has no function " + name;
    };
    find(functions.version, "cudnnGetVersion");
    find(functions.error_string, "cudnnGetErrorString");
    find(functions.create, "cudnnCreate");
    find(functions.destroy, "cudnnDestroy");
    find(functions.set_stream, "cudnnSetStream");
    find(functions.tensor_create, "cudnnCreateTensorDescriptor");
    find(functions.tensor_destroy, "cudnnDestroyTensorDescriptor");
    find(functions.tensor_set, "cudnnSetTensor4dDescriptorEx");
    find(functions.filter_create, "cudnnCreateFilterDescriptor");
    find(functions.filter_destroy, "cudnnDestroyFilterDescriptor");
    find(functions.filter_set, "cudnnSetFilter4dDescriptor");
    find(functions.convolution_create, "cudnnCreateConvolutionDescriptor");
    find(functions.convolution_destroy, "cudnnDestroyConvolutionDescriptor");
    find(functions.convolution_set, "cudnnSetConvolution2dDescriptor");
    find(functions.set_groups, "cudnnSetConvolutionGroupCount");
    find(functions.set_math, "cudnnSetConvolutionMathType");
    find(functions.activation_create, "cudnnCreateActivationDescriptor");
    find(functions.activation_destroy, "cudnnDestroyActivationDescriptor");
    find(functions.activation_set, "cudnnSetActivationDescriptor");
    find(functions.workspace, "cudnnGetConvolutionForwardWorkspaceSize");
    find(functions.forward, "cudnnConvolutionForward");
    find(functions.fused, "cudnnConvolutionBiasActivationForward");
    return error.empty();
  }();
  problem = error;
  return loaded ? &functions : nullptr;
}

int TypeOf(DType dtype) {
  if (dtype == DType::kBF16) return kCudnnBf16;
  return dtype == DType::kF16 ? kCudnnF16 : kCudnnF32;
}

void* Workspace(void* scratch) {
  const auto address = reinterpret_cast<uintptr_t>(scratch);
  return reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment);
}

// In two dimensions, with as many zeros behind as before, of one type. A shape that this lets pass is one for cuDNN.
bool Suits(const Call& call) {
  if (call.kernel() != KernelId::kConvolution) return false;
  const auto& p = call.as<kernels::ConvolutionParams>();
  const kernels::ConvolutionShape& s = p.shape;
  const View &x = call.views[0], &weight = call.views[1], &out = call.last();
  if (s.plain || out.dtype != x.dtype || weight.dtype != x.dtype || out.size() == 0) return false;
  if (s.kernel[0] != 1 || p.in_d != 1 || p.out_d != 1 || s.padding[0] != 0) return false;
  if (weight.strides[0] != p.k) return false;
  const kernels::Windows w = WindowsOf(p);
  for (int d = 0; d < 3; ++d) {
    if (w.spread[d] != 1) return false;
    const int64_t reach = w.in[d] + 2 * w.padding[d] - (w.kernel[d] - 1) * w.dilation[d] - 1;
    if (reach < 0 || reach / w.stride[d] + 1 != w.out[d]) return false;
  }
  return true;
}

bool AllAligned(const Call& call) {
  return std::all_of(call.views, call.views + call.num_views, [](const View& view) { return IsAligned(view.data); });
}

std::string Describe(const Call& call) {
  const auto& p = call.as<kernels::ConvolutionParams>();
  const kernels::ConvolutionShape& s = p.shape;
  const auto pair = [](const int64_t* d) { return std::to_string(d[1]) + "x" + std::to_string(d[2]); };
  std::string text = "convolution " + std::string(Name(call.views[0].dtype)) + " " +
                     std::to_string(p.m / (p.out_h * p.out_w)) + "x" + std::to_string(p.in_h) + "x" +
                     std::to_string(p.in_w) + "x" + std::to_string(s.channels * s.groups) + " to " +
                     std::to_string(p.n * s.groups) + " by " + pair(s.kernel);
  text += " stride " + pair(s.stride) + " padding " + pair(s.padding) + " dilation " + pair(s.dilation) + " groups " +
          std::to_string(s.groups) + " steps " + std::to_string(p.x_batch) + "," + std::to_string(p.x_h) + "," +
          std::to_string(p.x_w);
  if (call.views[2].rank != 0) text += " bias " + std::string(Name(call.views[2].dtype));
  text += " activation " + std::to_string(static_cast<int>(s.activation));
  if (call.views[3].rank != 0) {
    text += std::string(s.residual_first ? " after residual " : " before residual ") + std::to_string(p.ldr);
  }
  return text;
}

std::string Milliseconds(float ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f ms", static_cast<double>(ms));
  return text;
}

std::string Line(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char letter) { return letter == '\t' || letter == '\n'; }, ' ');
  return text;
}

}  // namespace

struct Convolutions::Known {
  explicit Known(const Cudnn& functions) : library(functions) {}
  ~Known() {
    for (void* tensor : {x, y, bias}) {
      if (tensor != nullptr) library.tensor_destroy(tensor);
    }
    if (filter != nullptr) library.filter_destroy(filter);
    if (convolution != nullptr) library.convolution_destroy(convolution);
    if (activation != nullptr) library.activation_destroy(activation);
  }
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;

  // The first status that is not success, 0 if all went well.
  int Make(void* handle, const Call& call) {
    const auto& p = call.as<kernels::ConvolutionParams>();
    const kernels::ConvolutionShape& s = p.shape;
    const DType dtype = call.views[0].dtype;
    const int type = TypeOf(dtype);
    const auto i = [](int64_t number) { return static_cast<int>(number); };
    const int64_t images = p.m / (p.out_h * p.out_w), in = s.channels * s.groups, out = p.n * s.groups;
    // A dimension of one position may have any distance.
    const int64_t x_w = p.in_w > 1 ? p.x_w : in;
    const int64_t x_h = p.in_h > 1 ? p.x_h : x_w * p.in_w;
    const int64_t x_batch = images > 1 ? p.x_batch : x_h * p.in_h;
    const bool relu = s.activation == kernels::Activation::kRelu;
    int status = library.tensor_create(&x);
    const auto then = [&](auto next) {
      if (status == 0) status = next();
    };
    then([&] {
      return library.tensor_set(x, type, i(images), i(in), i(p.in_h), i(p.in_w), i(x_batch), 1, i(x_h), i(x_w));
    });
    then([&] { return library.tensor_create(&y); });
    then([&] {
      return library.tensor_set(y, type, i(images), i(out), i(p.out_h), i(p.out_w), i(p.out_h * p.out_w * out), 1,
                                i(p.out_w * out), i(out));
    });
    then([&] { return library.tensor_create(&bias); });
    then([&] { return library.tensor_set(bias, type, 1, i(out), 1, 1, i(out), 1, i(out), i(out)); });
    then([&] { return library.filter_create(&filter); });
    then([&] {
      return library.filter_set(filter, type, kCudnnNhwc, i(out), i(s.channels), i(s.kernel[1]), i(s.kernel[2]));
    });
    then([&] { return library.convolution_create(&convolution); });
    then([&] {
      return library.convolution_set(convolution, i(s.padding[1]), i(s.padding[2]), i(s.stride[1]), i(s.stride[2]),
                                     i(s.dilation[1]), i(s.dilation[2]), kCudnnCrossCorrelation, kCudnnF32);
    });
    then([&] { return library.set_groups(convolution, i(s.groups)); });
    // fp32 stays fp32: other kinds of math would round the factors to 10 bits.
    then([&] { return library.set_math(convolution, dtype == DType::kF32 ? kCudnnFmaMath : kCudnnTensorOpMath); });
    then([&] { return library.activation_create(&activation); });
    then([&] {
      return library.activation_set(activation, relu ? kCudnnRelu : kCudnnIdentity, kCudnnPropagateNan, 0.0);
    });
    if (status != 0) return status;
    adds = call.views[3].rank != 0 && (s.residual_first || s.activation == kernels::Activation::kNone);
    const bool known_rest = relu || s.activation == kernels::Activation::kNone;
    const bool fuses = call.views[2].rank != 0 && call.views[2].dtype == dtype && known_rest &&
                       (call.views[3].rank == 0 || (adds && p.ldr == out));
    rest = call.views[2].rank != 0 || call.views[3].rank != 0 || s.activation != kernels::Activation::kNone;
    for (int way = 0; way < kWayCount; ++way) {
      if (kWays[way].fused && (!fuses || (!relu && kWays[way].algorithm != kCudnnImplicitPrecompGemm))) continue;
      size_t bytes = 0;
      if (library.workspace(handle, x, filter, convolution, y, kWays[way].algorithm, &bytes) != 0) continue;
      if (bytes > kMostWorkspace) continue;
      works[way] = true;
      workspaces[way] = bytes;
      workspace = std::max(workspace, bytes);
    }
    return 0;
  }

  const Cudnn& library;
  void* x = nullptr;
  void* y = nullptr;  // the residual's, too
  void* bias = nullptr;
  void* filter = nullptr;
  void* convolution = nullptr;
  void* activation = nullptr;
  bool adds = false;  // the residual comes before the activation
  bool rest = false;  // something follows the sum
  bool works[kWayCount] = {};
  size_t workspaces[kWayCount] = {};
  size_t workspace = 0;  // the largest
  bool chosen = false;
  int way = kOwn;
};

Convolutions::Convolutions(Choices& choices)
    : choices_(choices), wanted_([] {
        const char* const choice = std::getenv("THRESHER_CUDA_PRODUCTS");
        return choice == nullptr || std::string_view(choice) != "first";
      }()) {}

Convolutions::~Convolutions() {
  known_.clear();
  if (handle_ != nullptr) library_->destroy(handle_);
}

bool Convolutions::Open(std::string& problem) {
  if (!opened_) {
    opened_ = true;
    library_ = Load(problem_);
    if (library_ != nullptr) {
      if (const int status = library_->create(&handle_); status != 0) {
        handle_ = nullptr;
        problem_ = std::string("cuDNN could not start: ") + library_->error_string(status);
      }
    }
  }
  problem = problem_;
  return handle_ != nullptr;
}

Convolutions::Key Convolutions::KeyOf(const Call& call) {
  const auto& p = call.as<kernels::ConvolutionParams>();
  const kernels::ConvolutionShape& s = p.shape;
  Key key{};
  size_t at = 0;
  const auto add = [&](int64_t number) { key[at++] = number; };
  for (int64_t size : {p.m, p.n, p.k, p.ldr, p.x_batch, p.x_h, p.x_w, p.in_d, p.in_h, p.in_w, p.out_d, p.out_h, p.out_w,
                       s.channels, s.groups}) {
    add(size);
  }
  for (const auto* sizes : {s.kernel, s.stride, s.padding, s.dilation, s.spread}) {
    for (int d = 0; d < 3; ++d) add(sizes[d]);
  }
  add((s.plain ? 1 : 0) | (s.residual_first ? 2 : 0) | static_cast<int64_t>(s.activation) << 8);
  for (int i = 0; i < 5; ++i) add(call.views[i].rank == 0 ? -1 : static_cast<int64_t>(call.views[i].dtype));
  return key;
}

// Null where cuDNN has nothing for it, which is kept as a choice of our own. Called with the lock held.
Convolutions::Known* Convolutions::Find(const Call& call) {
  const Key key = KeyOf(call);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second.get();
  if (known_.size() == kMostKnown) return nullptr;  // graphs have what is known
  auto made = std::make_unique<Known>(*library_);
  const int status = made->Make(handle_, call);
  const bool any = std::any_of(made->works, made->works + kWayCount, [](bool works) { return works; });
  if (status != 0 || !any) {
    const std::string why = status != 0 ? library_->error_string(status) : "no algorithm of the two that are asked for";
    choices_.Keep(Describe(call), {"own", "cuDNN has none: " + why});
    made->chosen = true;
  }
  return known_.emplace(key, std::move(made)).first->second.get();
}

size_t Convolutions::ScratchBytes(const Call& call) {
  if (!wanted_ || !Suits(call)) return 0;
  const std::lock_guard lock(mutex_);
  std::string problem;
  if (!Open(problem)) return 0;
  const Known* const known = Find(call);
  return known == nullptr || known->workspace == 0 ? 0 : known->workspace + kAlignment;
}

thresher_device_result Convolutions::Choose(const Call& call, bool captured, ConvolutionBench& bench, Known*& known) {
  known = nullptr;
  // In place, what is added would be gone before it is read.
  const bool in_place = call.views[3].rank != 0 && call.views[3].data == call.last().data;
  if (!wanted_ || in_place || !Suits(call) || !AllAligned(call)) return THRESHER_DEVICE_OK;
  const std::lock_guard lock(mutex_);
  if (captured) {
    const auto found = known_.find(KeyOf(call));
    if (found != known_.end() && found->second->chosen && found->second->way != kOwn) known = found->second.get();
    return THRESHER_DEVICE_OK;
  }
  std::string problem;
  if (!Open(problem)) {
    if (choices_.Find("convolutions").empty())
      choices_.Keep("convolutions", {"own", Line("without cuDNN: " + problem)});
    return THRESHER_DEVICE_OK;
  }
  Known* const found = Find(call);
  if (found == nullptr) return THRESHER_DEVICE_OK;
  if (!found->chosen) THRESHER_DEVICE_TRY(Contest(call, bench, *found));
  if (found->way != kOwn) known = found;
  return THRESHER_DEVICE_OK;
}

// The lock is held: nobody else uses the handle.
thresher_device_result Convolutions::Contest(const Call& call, ConvolutionBench& bench, Known& known) {
  known.chosen = true;
  const std::string subject = Describe(call), version = " (cuDNN " + std::to_string(library_->version()) + ")";
  const std::string kept = choices_.Find(subject);
  if (kept == "own" + version) return THRESHER_DEVICE_OK;
  for (int way = 0; way < kWayCount; ++way) {
    // It runs once before it is trusted, and before anything is captured.
    if (!known.works[way] || kept != "cuDNN " + std::string(kWays[way].name) + version) continue;
    float ms = 0;
    const auto work = [&](void* stream, void* result) { return Ask(known, way, stream, call, result, bench); };
    if (bench.Time(call, work, ms) == THRESHER_DEVICE_OK && ms >= 0) {
      known.way = way;
      return THRESHER_DEVICE_OK;
    }
  }
  float own = -1;
  THRESHER_DEVICE_TRY(bench.Time(
      call,
      [&](void* stream, void* result) {
        Call elsewhere = call;
        std::vector<View> views(call.views, call.views + call.num_views);
        views.back().data = result;
        elsewhere.views = views.data();
        return bench.Own(stream, elsewhere);
      },
      own));
  if (own < 0) return THRESHER_DEVICE_OK;  // no room to time in: ours
  std::string remark = "own " + Milliseconds(own);
  float best = own;
  for (int way = 0; way < kWayCount; ++way) {
    if (!known.works[way]) continue;
    float ms = -1;
    const auto work = [&](void* stream, void* result) { return Ask(known, way, stream, call, result, bench); };
    const thresher_device_result timed = bench.Time(call, work, ms);
    remark += std::string(", ") + kWays[way].name + " ";
    if (timed != THRESHER_DEVICE_OK) {
      remark += std::string("failed: ") + Message();
    } else {
      remark += ms < 0 ? "could not be timed" : Milliseconds(ms);
    }
    if (timed == THRESHER_DEVICE_OK && ms >= 0 && ms < best * kClearlyFaster) {
      best = ms;
      known.way = way;
    }
  }
  const std::string taken = known.way == kOwn ? "own" : std::string("cuDNN ") + kWays[known.way].name;
  choices_.Keep(subject, {taken + version, Line(std::move(remark))});
  return THRESHER_DEVICE_OK;
}

// The lock is held.
thresher_device_result Convolutions::Ask(const Known& known, int way, void* stream, const Call& call, void* result,
                                         ConvolutionBench& bench) {
  const auto failed = [&](const char* function, int status) {
    return Fail(THRESHER_DEVICE_FAILED, std::string("cuDNN: ") + function + ": " + library_->error_string(status));
  };
  if (const int status = library_->set_stream(handle_, stream); status != 0) return failed("cudnnSetStream", status);
  const View* const views = call.views;
  const Way& w = kWays[way];
  void* const workspace = known.workspaces[way] > 0 ? Workspace(call.scratch) : nullptr;
  const float one = 1.0f, zero = 0.0f;
  if (w.fused) {
    // Without a residual the factor of what would be added is zero, and it is not read.
    const void* const added = known.adds ? views[3].data : result;
    const int status =
        library_->fused(handle_, &one, known.x, views[0].data, known.filter, views[1].data, known.convolution,
                        w.algorithm, workspace, known.workspaces[way], known.adds ? &one : &zero, known.y, added,
                        known.bias, views[2].data, known.activation, known.y, result);
    return status == 0 ? THRESHER_DEVICE_OK : failed("cudnnConvolutionBiasActivationForward", status);
  }
  const int status =
      library_->forward(handle_, &one, known.x, views[0].data, known.filter, views[1].data, known.convolution,
                        w.algorithm, workspace, known.workspaces[way], &zero, known.y, result);
  if (status != 0) return failed("cudnnConvolutionForward", status);
  if (!known.rest) return THRESHER_DEVICE_OK;
  std::vector<View> elsewhere(views, views + call.num_views);
  elsewhere.back().data = result;
  Call finished = call;
  finished.views = elsewhere.data();
  return bench.Finish(stream, finished);
}

thresher_device_result Convolutions::Run(Known& known, void* stream, const Call& call, ConvolutionBench& bench) {
  {
    const std::lock_guard lock(mutex_);
    if (known.way == kOwn) return bench.Own(stream, call);  // since another thread found what follows
    if (Ask(known, known.way, stream, call, call.last().data, bench) == THRESHER_DEVICE_OK) return THRESHER_DEVICE_OK;
    known.way = kOwn;
    choices_.Keep(Describe(call), {"own", Line(Message())});
  }
  return bench.Own(stream, call);
}

}  // namespace thresher::cuda
