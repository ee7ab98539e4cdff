#include "thresher/cuda/cublaslt.h"

#include <dlfcn.h>

#include <string>

#include "thresher/cuda/cublaslt_constants.h"
#include "thresher/cuda/error.h"
#include "thresher/cuda/gemm_layout.h"

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
  int (*preference_create)(void** preference);
  int (*preference_destroy)(void* preference);
  int (*preference_set)(void* preference, int attribute, const void* value, size_t bytes);
  int (*heuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference, int wanted,
                   void* results, int* found);
  int (*matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                const void* algorithm, void* workspace, size_t workspace_bytes, cudaStream_t stream);
  const char* (*status_string)(int status);
};

namespace {

constexpr const char* kLibrary = "libcublasLt.so.13";
constexpr size_t kMostAlgorithms = 1024;

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
    find(functions.preference_create, "cublasLtMatmulPreferenceCreate");
    find(functions.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(functions.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(functions.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(functions.matmul, "cublasLtMatmul");
    find(functions.status_string, "cublasLtGetStatusString");
    return error.empty();
  }();
  problem = error;
  return loaded ? &functions : nullptr;
}

// Descriptors of one product, destroyed at the end of their scope.
class Descriptors {
 public:
  explicit Descriptors(const CublasLt& library) : library_(library) {}
  ~Descriptors() {
    if (operation != nullptr) library_.matmul_desc_destroy(operation);
    for (void* layout : {first, second, result}) {
      if (layout != nullptr) library_.layout_destroy(layout);
    }
    if (preference != nullptr) library_.preference_destroy(preference);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  // The first status that is not success, 0 if all went well.
  int Make(const Gemm& g) {
    const GemmLayout layout = LayoutOf(g);
    const int type = g.bf16 ? kTypeBf16 : kTypeF32;
    const int compute = g.allow_tf32 ? kComputeTf32 : kComputeF32;
    int status = library_.matmul_desc_create(&operation, compute, kTypeF32);
    const auto then = [&](int next) {
      if (status == 0) status = next;
    };
    if (status == 0) then(Set(kDescTransposeA, layout.transpose_first ? kTranspose : kNoTranspose));
    if (status == 0) then(Set(kDescTransposeB, kNoTranspose));
    if (status == 0 && g.bias != nullptr) {
      then(Set(kDescEpilogue, kEpilogueBias));
      then(library_.matmul_desc_set(operation, kDescBiasPointer, &g.bias, sizeof g.bias));
    }
    if (status == 0) then(Layout(&first, type, layout.first));
    if (status == 0) then(Layout(&second, type, layout.second));
    if (status == 0) then(Layout(&result, kTypeF32, layout.result));
    return status;
  }

  int MakePreference(uint64_t workspace_bytes, const uint32_t (&alignments)[3]) {
    int status = library_.preference_create(&preference);
    if (status == 0) {
      status = library_.preference_set(preference, kPreferWorkspace, &workspace_bytes, sizeof workspace_bytes);
    }
    const int attributes[] = {kPreferAlignmentA, kPreferAlignmentB, kPreferAlignmentC, kPreferAlignmentD};
    const uint32_t values[] = {alignments[0], alignments[1], alignments[2], alignments[2]};
    for (int i = 0; i < 4 && status == 0; ++i) {
      status = library_.preference_set(preference, attributes[i], &values[i], sizeof values[i]);
    }
    return status;
  }

  void* operation = nullptr;
  void* first = nullptr;
  void* second = nullptr;
  void* result = nullptr;
  void* preference = nullptr;

 private:
  int Set(int attribute, uint32_t value) {
    return library_.matmul_desc_set(operation, attribute, &value, sizeof value);
  }
  int Layout(void** layout, int type, const ColumnMajor& m) {
    return library_.layout_create(layout, type, static_cast<uint64_t>(m.rows), static_cast<uint64_t>(m.cols), m.ld);
  }

  const CublasLt& library_;
};

std::string Describe(const Gemm& g) {
  return std::string(g.bf16 ? "bf16" : "f32") + " product of " + std::to_string(g.m) + "x" + std::to_string(g.k) +
         " and " + std::to_string(g.k) + "x" + std::to_string(g.n);
}

}  // namespace

Products::~Products() {
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

thresher_device_result Products::Run(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& g) {
  if (const std::string problem = CheckGemm(g); !problem.empty())
    return Fail(THRESHER_DEVICE_INVALID_ARGUMENT, problem);
  const std::lock_guard lock(mutex_);
  THRESHER_DEVICE_TRY(Open());
  const auto failed = [&](const char* what, int status) {
    return Fail(THRESHER_DEVICE_FAILED,
                std::string("cuBLASLt: ") + what + " the " + Describe(g) + ": " + library_->status_string(status));
  };
  Descriptors d(*library_);
  if (const int status = d.Make(g); status != 0) return failed("describing", status);

  const int64_t element = g.bf16 ? 2 : 4;
  const uint32_t alignments[3] = {AlignmentOf(g.b, g.ldb, element), AlignmentOf(g.a, g.lda, element),
                                  AlignmentOf(g.c, g.ldc, 4)};
  const uint32_t options =
      (g.bf16 ? 1u : 0u) | (g.transpose_b ? 2u : 0u) | (g.allow_tf32 ? 4u : 0u) | (g.bias != nullptr ? 8u : 0u);
  const Key key{g.m,   g.n,   g.k,     g.lda,
                g.ldb, g.ldc, options, uint64_t{alignments[0]} << 32 | uint64_t{alignments[1]} << 16 | alignments[2]};
  auto known = algorithms_.find(key);
  if (known == algorithms_.end()) {
    if (const int status = d.MakePreference(workspace_bytes, alignments); status != 0) {
      return failed("stating preferences for", status);
    }
    HeuristicResult best{};
    int found = 0;
    const int status = library_->heuristic(handle_, d.operation, d.first, d.second, d.result, d.result, d.preference, 1,
                                           &best, &found);
    if (status != 0) return failed("choosing a kernel for", status);
    if (found == 0) return Fail(THRESHER_DEVICE_UNSUPPORTED, "cuBLASLt has no kernel for the " + Describe(g));
    if (algorithms_.size() == kMostAlgorithms) algorithms_.clear();
    Algorithm algorithm;
    static_assert(sizeof algorithm.data == sizeof best.algorithm);
    for (int i = 0; i < 8; ++i) algorithm.data[i] = best.algorithm[i];
    known = algorithms_.emplace(key, algorithm).first;
  }
  const float alpha = 1.0f, beta = 0.0f;
  const int status = library_->matmul(handle_, d.operation, &alpha, g.b, d.first, g.a, d.second, &beta, g.c, d.result,
                                      g.c, d.result, known->second.data, workspace, workspace_bytes, stream);
  return status == 0 ? THRESHER_DEVICE_OK : failed("computing", status);
}

}  // namespace thresher::cuda
