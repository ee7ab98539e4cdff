#include "thresher/cuda/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "thresher/cuda/block_gemv_kernel.h"
#include "thresher/cuda/cublaslt_constants.h"
#include "thresher/cuda/error.h"
#include "thresher/cuda/gemm_layout.h"
#include "thresher/cuda/gemv_kernel.h"
#include "thresher/cuda/product_launch.h"
#include "thresher/cuda/runtime.h"
#include "thresher/cuda/stopwatch.h"
#include "thresher/cuda/tile_product.h"

namespace thresher::cuda {

// ---- The part of cuBLASLt's C interface that is used here, so that building needs no copy of it. The numbers are its
// binary interface; where its header is installed, cublaslt_check.cc compares them. ----

struct CublasLt {
  int (*create)(void** handle);
  int (*destroy)(void* handle);
  int (*matmul_desc_create)(void** desc, int compute_type, int scale_type);
  int (*matmul_desc_destroy)(void* desc);
  int (*matmul_desc_set)(void* desc, int attribute, const void* value, size_t bytes);
  int (*layout_create)(void** layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
  int (*layout_destroy)(void* layout);
  int (*layout_set)(void* layout, int attribute, const void* value, size_t bytes);
  int (*preference_create)(void** preference);
  int (*preference_destroy)(void* preference);
  int (*preference_set)(void* preference, int attribute, const void* value, size_t bytes);
  int (*heuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference, int wanted,
                   void* results, int* found);
  int (*matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                const void* algorithm, void* workspace, size_t workspace_bytes, cudaStream_t stream);
  const char* (*status_string)(int status);
  size_t (*version)();
};

namespace {

constexpr const char* kLibrary = "libcublasLt.so.13";
constexpr size_t kMostKnown = 4096;
constexpr int kMostCandidates = 8;
// One that is not the library's own choice must be so much faster: what differs by less differs from run to run, and
// algorithms differ in the last bits.
constexpr float kClearlyFaster = 0.95f;
// In place of the number of a candidate, and its name: the kernel of this library's own.
constexpr int kTiles = -1;
constexpr const char* kTilesName = "tiles";

// The library stays open until the process ends.
const CublasLt* Load(std::string& problem) {
  static CublasLt functions;
  static std::string error;
  static const bool loaded = [] {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* const found = dlerror();
      error = std::string("matrix products need ") + kLibrary + ", which could not be opened (" +
              (found != nullptr ? found : "no reason given") +
              "); `pip install nvidia-cublas` brings it, as does `pip install thresher-cuda[cublas]`";
      return false;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && error.empty()) {
        error = std::string(kLibrary) + ": expected the function " + name + ", got none; install nvidia-cublas 13";
      }
    };
    find(functions.create, "cublasLtCreate");
    find(functions.destroy, "cublasLtDestroy");
    find(functions.matmul_desc_create, "cublasLtMatmulDescCreate");
    find(functions.matmul_desc_destroy, "cublasLtMatmulDescDestroy");
    find(functions.matmul_desc_set, "cublasLtMatmulDescSetAttribute");
    find(functions.layout_create, "cublasLtMatrixLayoutCreate");
    find(functions.layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(functions.layout_set, "cublasLtMatrixLayoutSetAttribute");
    find(functions.preference_create, "cublasLtMatmulPreferenceCreate");
    find(functions.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(functions.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(functions.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(functions.matmul, "cublasLtMatmul");
    find(functions.status_string, "cublasLtGetStatusString");
    find(functions.version, "cublasLtGetVersion");
    return error.empty();
  }();
  problem = error;
  return loaded ? &functions : nullptr;
}

int TypeOf(DType dtype) {
  if (dtype == DType::kBF16) return kTypeBf16;
  return dtype == DType::kF16 ? kTypeF16 : kTypeF32;
}

std::string Describe(const Gemm& g) {
  return (g.batch > 1 ? std::to_string(g.batch) + " products" : std::string("product")) + " in " +
         std::string(Name(g.type)) + " of " + std::to_string(g.m) + "x" + std::to_string(g.k) + " and " +
         std::to_string(g.k) + "x" + std::to_string(g.n);
}

// What a choice is of: all that cuBLASLt is told.
std::string Subject(const Gemm& g, const uint32_t (&alignments)[4]) {
  std::string text = Describe(g) + " to " + std::string(Name(g.c_type)) + (g.transpose_a ? " t" : " n") +
                     (g.transpose_b ? "t" : "n") + " distances";
  for (const int64_t distance : {g.lda, g.ldb, g.ldc, g.stride_a, g.stride_b, g.stride_c}) {
    text += " " + std::to_string(distance);
  }
  text += " alignments";
  for (const uint32_t alignment : alignments) text += " " + std::to_string(alignment);
  if (g.allow_tf32) text += " tf32";
  if (g.bias != nullptr) text += " bias";
  text += " activation " + std::to_string(static_cast<int>(g.activation));
  if (g.residual != nullptr) {
    text += (g.residual_first ? " after residual " : " before residual ") + std::to_string(g.ldr);
  }
  return text;
}

// An algorithm by its bits, which mean something to one version of the library.
std::string NameOf(const HeuristicResult& candidate, const std::string& version) {
  std::string name = "cuBLASLt " + version;
  for (const uint64_t word : candidate.algorithm) {
    char digits[24];
    std::snprintf(digits, sizeof digits, " %llx", static_cast<unsigned long long>(word));
    name += digits;
  }
  return name;
}

}  // namespace

struct Products::Known {
  explicit Known(const CublasLt& functions) : library(functions) {}
  ~Known() { Forget(); }
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;

  void Forget() {
    if (operation != nullptr) library.matmul_desc_destroy(std::exchange(operation, nullptr));
    for (void** layout : {&first, &second, &result, &residual}) {
      if (*layout != nullptr) library.layout_destroy(std::exchange(*layout, nullptr));
    }
    if (preference != nullptr) library.preference_destroy(std::exchange(preference, nullptr));
  }

  // The first status that is not success, 0 if all went well.
  int Make(const Gemm& g, const Epilogue& wanted) {
    Forget();
    epilogue = wanted;
    const GemmLayout layout = LayoutOf(g);
    const int type = TypeOf(g.type), c_type = TypeOf(g.c_type);
    const int compute = g.allow_tf32 && g.type == DType::kF32 ? kComputeTf32 : kComputeF32;
    int status = library.matmul_desc_create(&operation, compute, kTypeF32);
    const auto then = [&](auto next) {
      if (status == 0) status = next();
    };
    then([&] { return Set(kDescTransposeA, layout.transpose_first ? kTranspose : kNoTranspose); });
    then([&] { return Set(kDescTransposeB, layout.transpose_second ? kTranspose : kNoTranspose); });
    then([&] { return Set(kDescEpilogue, epilogue.bits); });
    then([&] { return SetBias(g.bias); });
    then([&] { return Layout(&first, type, layout.first, g.batch, g.stride_b); });
    then([&] { return Layout(&second, type, layout.second, g.batch, g.stride_a); });
    then([&] { return Layout(&result, c_type, layout.result, g.batch, g.stride_c); });
    then([&] {
      return Layout(&residual, c_type, epilogue.adds_residual ? layout.residual : layout.result, g.batch, g.stride_c);
    });
    return status;
  }

  int MakePreference(uint64_t workspace_bytes, const uint32_t (&alignments)[4]) {
    int status = library.preference_create(&preference);
    if (status == 0) {
      status = library.preference_set(preference, kPreferWorkspace, &workspace_bytes, sizeof workspace_bytes);
    }
    const int attributes[] = {kPreferAlignmentA, kPreferAlignmentB, kPreferAlignmentC, kPreferAlignmentD};
    for (int i = 0; i < 4 && status == 0; ++i) {
      status = library.preference_set(preference, attributes[i], &alignments[i], sizeof alignments[i]);
    }
    return status;
  }

  int SetBias(const void* bias) {
    if ((epilogue.bits & kEpilogueBias) == 0) return 0;
    return library.matmul_desc_set(operation, kDescBiasPointer, &bias, sizeof bias);
  }

  const CublasLt& library;
  Epilogue epilogue;
  uint64_t algorithm[8] = {};  // cuBLASLt's own, we only keep it
  bool tiles = false;          // a kernel of this library's own takes its place
  void* operation = nullptr;
  void* first = nullptr;
  void* second = nullptr;
  void* result = nullptr;
  void* residual = nullptr;
  void* preference = nullptr;

 private:
  int Set(int attribute, uint32_t value) { return library.matmul_desc_set(operation, attribute, &value, sizeof value); }
  int Layout(void** layout, int type, const ColumnMajor& m, int64_t batch, int64_t stride) {
    int status =
        library.layout_create(layout, type, static_cast<uint64_t>(m.rows), static_cast<uint64_t>(m.cols), m.ld);
    if (batch == 1 || status != 0) return status;
    const auto count = static_cast<int32_t>(batch);
    status = library.layout_set(*layout, kLayoutBatchCount, &count, sizeof count);
    return status != 0 ? status : library.layout_set(*layout, kLayoutBatchStride, &stride, sizeof stride);
  }
};

Products::Products(Choices& choices)
    : choices_(choices), measures_([] {
        const char* const choice = std::getenv("THRESHER_CUDA_PRODUCTS");
        return choice == nullptr || std::string_view(choice) != "first";
      }()) {}

Products::~Products() {
  known_.clear();
  if (handle_ != nullptr) library_->destroy(handle_);
}

thresher_device_result Products::Open() {
  if (handle_ != nullptr) return THRESHER_DEVICE_OK;
  std::string problem;
  library_ = Load(problem);
  if (library_ == nullptr) return Fail(THRESHER_DEVICE_UNAVAILABLE, problem);
  if (const int status = library_->create(&handle_); status != 0) {
    handle_ = nullptr;
    return Fail(THRESHER_DEVICE_FAILED, std::string("cuBLASLt could not start: ") + library_->status_string(status));
  }
  return THRESHER_DEVICE_OK;
}

int Products::Multiply(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& g, const Known& known,
                       const uint64_t* algorithm, void* to) const {
  const float alpha = 1.0f, beta = known.epilogue.adds_residual ? 1.0f : 0.0f;
  const void* const added = known.epilogue.adds_residual ? g.residual : to;
  return library_->matmul(handle_, known.operation, &alpha, g.b, known.first, g.a, known.second, &beta, added,
                          known.residual, to, known.result, algorithm, workspace, workspace_bytes, stream);
}

thresher_device_result Products::Choose(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& g,
                                        const uint32_t (&alignments)[4], Known& known) {
  const auto failed = [&](const char* what, int status) {
    return Fail(THRESHER_DEVICE_FAILED,
                std::string("cuBLASLt: ") + what + " the " + Describe(g) + ": " + library_->status_string(status));
  };
  HeuristicResult candidates[kMostCandidates] = {};
  int count = 0;
  // Not every product is there with every epilogue.
  for (const bool fused : {true, false}) {
    const Epilogue epilogue = EpilogueOf(g, fused);
    if (!fused && epilogue.bits == known.epilogue.bits) break;
    if (const int status = known.Make(g, epilogue); status != 0) return failed("describing", status);
    if (const int status = known.MakePreference(workspace_bytes, alignments); status != 0) {
      return failed("stating preferences for", status);
    }
    const int wanted = measures_ ? kMostCandidates : 1;
    const int status = library_->heuristic(handle_, known.operation, known.first, known.second, known.residual,
                                           known.result, known.preference, wanted, candidates, &count);
    if (status != 0) count = 0;
    if (count > 0) break;
  }
  if (count == 0) return Fail(THRESHER_DEVICE_UNSUPPORTED, "cuBLASLt has no kernel for the " + Describe(g));
  int best = 0;
  if (measures_ && (count > 1 || IsTileProduct(g))) {
    const std::string subject = Subject(g, alignments), version = std::to_string(library_->version());
    const std::string kept = choices_.Find(subject);
    // What was measured before is among what is proposed, as long as the library is the same.
    const auto named = [&](const HeuristicResult& candidate) { return NameOf(candidate, version) == kept; };
    const HeuristicResult* const known_best = std::find_if(candidates, candidates + count, named);
    bool capturing = false;
    THRESHER_DEVICE_TRY(AskCapturing(stream, capturing));
    if (kept == kTilesName && IsTileProduct(g)) {
      best = kTiles;
    } else if (known_best != candidates + count) {
      best = static_cast<int>(known_best - candidates);
    } else if (!capturing) {
      std::string remark;
      THRESHER_DEVICE_TRY(Fastest(stream, workspace, workspace_bytes, g, known, candidates, count, best, remark));
      const std::string name = best == kTiles ? kTilesName : NameOf(candidates[best], version);
      if (!remark.empty()) choices_.Keep(subject, {name, remark});
    }
  }
  known.tiles = best == kTiles;
  static_assert(sizeof known.algorithm == sizeof candidates[0].algorithm);
  std::copy_n(candidates[std::max(best, 0)].algorithm, 8, known.algorithm);
  return THRESHER_DEVICE_OK;
}

// What cannot be timed is not chosen; where nothing can, the library's first choice stays.
thresher_device_result Products::Fastest(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& g,
                                         const Known& known, const HeuristicResult* candidates, int count, int& fastest,
                                         std::string& remark) {
  Stopwatch watch;
  bool ready = false;
  THRESHER_DEVICE_TRY(watch.Prepare(stream, static_cast<size_t>(ResultElements(g)) * SizeOf(g.c_type), ready));
  const auto note = [&](const std::string& name, float ms) {
    char text[24];
    std::snprintf(text, sizeof text, ": %.4f ms", static_cast<double>(ms));
    if (ms >= 0) remark += (remark.empty() ? "" : ", ") + name + text;
  };
  float best = 0;
  for (int i = 0; i < count && ready; ++i) {
    if (candidates[i].status != 0 || candidates[i].workspace_bytes > workspace_bytes) continue;
    const auto multiply = [&](cudaStream_t timed) {
      return Multiply(timed, workspace, workspace_bytes, g, known, candidates[i].algorithm, watch.memory()) == 0;
    };
    float ms = 0;
    THRESHER_DEVICE_TRY(watch.Time(multiply, ms));
    note(std::to_string(i), ms);
    if (ms >= 0 && (best == 0 || ms < best * kClearlyFaster)) {
      best = ms;
      fastest = i;
    }
  }
  if (!ready || !IsTileProduct(g)) return THRESHER_DEVICE_OK;
  // What cuBLASLt leaves counts, too.
  Gemm there = g;
  there.c = watch.memory();
  const uint64_t* const algorithm = candidates[fastest].algorithm;
  const auto in_two = [&](cudaStream_t timed) {
    return Multiply(timed, workspace, workspace_bytes, g, known, algorithm, there.c) == 0 &&
           RunEpilogue(timed, there, known.epilogue) == THRESHER_DEVICE_OK;
  };
  const auto in_tiles = [&](cudaStream_t timed) { return RunTileProduct(timed, there) == THRESHER_DEVICE_OK; };
  float two = 0, tiles = 0;
  THRESHER_DEVICE_TRY(watch.Time(in_two, two));
  THRESHER_DEVICE_TRY(watch.Time(in_tiles, tiles));
  note("with what follows", two);
  note(kTilesName, tiles);
  if (two >= 0 && tiles >= 0 && tiles < two * kClearlyFaster) fastest = kTiles;
  return THRESHER_DEVICE_OK;
}

thresher_device_result Products::Run(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& g) {
  if (const std::string problem = CheckGemm(g); !problem.empty())
    return Fail(THRESHER_DEVICE_INVALID_ARGUMENT, problem);
  if (IsGemv(g)) return RunGemv(stream, g);
  if (IsBlockGemv(g)) return RunBlockGemv(stream, g);
  if (IsBlocked(g.encoding)) {
    void* const unpacked = static_cast<std::byte*>(workspace) + workspace_bytes;
    return ForUnpacked<thresher_device_result>(
        g, unpacked,
        [&](const void* blocks, int64_t numbers) {
          return RunUnpack(stream, g.encoding, blocks, numbers, g.type, unpacked);
        },
        [&](const Gemm& part) { return Run(stream, workspace, workspace_bytes, part); },
        [](thresher_device_result result) { return result != THRESHER_DEVICE_OK; });
  }
  const auto element = static_cast<int64_t>(SizeOf(g.type)), c_element = static_cast<int64_t>(SizeOf(g.c_type));
  const uint32_t c_alignment = AlignmentOf(g.c, g.ldc, g.stride_c, c_element);
  const uint32_t alignments[4] = {
      AlignmentOf(g.b, g.ldb, g.stride_b, element), AlignmentOf(g.a, g.lda, g.stride_a, element),
      g.residual != nullptr ? AlignmentOf(g.residual, g.ldr, 0, c_element) : c_alignment, c_alignment};
  int64_t options = static_cast<int64_t>(g.type) << 8 | static_cast<int64_t>(g.c_type) << 16 |
                    static_cast<int64_t>(g.activation) << 24;
  options |= (g.transpose_a ? 1 : 0) | (g.transpose_b ? 2 : 0) | (g.allow_tf32 ? 4 : 0) | (g.bias != nullptr ? 8 : 0) |
             (g.residual != nullptr ? 16 : 0) | (g.residual_first ? 32 : 0);
  // Each is at most 256, a power of two.
  int64_t aligned = 0;
  for (const uint32_t alignment : alignments) aligned = aligned << 9 | alignment;
  const Key key{g.m,
                g.n,
                g.k,
                g.lda,
                g.ldb,
                g.ldc,
                g.residual != nullptr ? g.ldr : 0,
                g.batch,
                g.stride_a,
                g.stride_b,
                g.stride_c,
                options ^ aligned << 27};
  Epilogue rest;
  {
    const std::lock_guard lock(mutex_);
    THRESHER_DEVICE_TRY(Open());
    auto known = known_.find(key);
    if (known == known_.end()) {
      auto made = std::make_unique<Known>(*library_);
      THRESHER_DEVICE_TRY(Choose(stream, workspace, workspace_bytes, g, alignments, *made));
      if (known_.size() == kMostKnown) known_.clear();
      known = known_.emplace(key, std::move(made)).first;
    }
    if (known->second->tiles) return RunTileProduct(stream, g);
    int status = known->second->SetBias(g.bias);
    if (status == 0) {
      status = Multiply(stream, workspace, workspace_bytes, g, *known->second, known->second->algorithm, g.c);
    }
    if (status != 0) {
      return Fail(THRESHER_DEVICE_FAILED,
                  std::string("cuBLASLt: computing the ") + Describe(g) + ": " + library_->status_string(status));
    }
    rest = known->second->epilogue;
  }
  return rest.complete() ? THRESHER_DEVICE_OK : RunEpilogue(stream, g, rest);
}

}  // namespace thresher::cuda
