// Dense matrix multiplication with fp32 activations: C = act(A * B + bias) + residual, with B packed beforehand, in
// fp32 or in a smaller form that is widened on the way. What multiplies smaller numbers directly is in gemm_dot.h.
//
// B is stored as panels of two SIMD vectors of columns, each panel k rows high, the last one padded with zeros; a
// register tile then walks a panel with aligned loads only. A is read where it lies. The panel width follows the
// instruction set in use, so pack and multiply under the same one (isa::Force in between invalidates packed matrices).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "thresher/base/precision.h"
#include "thresher/kernels/blocking.h"
#include "thresher/kernels/weight.h"
#include "thresher/kernels/windows.h"

namespace thresher::kernels {

// Weights along k that share a scale in kInt4Weight.
inline constexpr int64_t kInt4Group = 32;

enum class Activation : uint8_t {
  kNone,
  kRelu,
  kGelu,      // x * Phi(x), by erf
  kGeluTanh,  // the tanh approximation of it
  kSilu,
  kTanh,
  kSigmoid,
  kRelu6,      // between 0 and 6
  kHardSwish,  // x * relu6(x + 3) / 6
};
inline constexpr Activation kLastActivation = Activation::kHardSwish;

// "none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu6", "hardswish".
std::string_view Name(Activation activation);
std::optional<Activation> ParseActivation(std::string_view name);
// In float64.
double ActivateReference(Activation activation, double x);

// Floats that a packed k x n matrix takes, padding included.
int64_t PackedSize(int64_t k, int64_t n);

// Packs a weight in any precision: part `part` of `num_parts` packs its share of the panels. kInt8 packs for
// gemm_dot.h; the integer forms want finite numbers. `packed` is 64-byte aligned and has PackedBytes(); matrices of the
// same k whose n is a multiple of PackedColumns() may be packed one after the other and used as one. Numbers that are
// stored as the precision has them keep their bits (but for fp16's signalling NaN, which become quiet).
int64_t PackedBytes(Precision precision, int64_t k, int64_t n);
int64_t PackedColumns();
void PackWeight(Precision precision, const Weight& weight, void* packed, int part = 0, int num_parts = 1);
int64_t PackedPanels(int64_t n);
void PackPanels(Precision precision, const Weight& weight, void* packed, int64_t begin, int64_t end);

// Rows of the tile that is multiplied in registers, of fp32 rows.
int TileRows();

// The numbers that a packed matrix stands for, as b[i * n + j].
void UnpackWeight(Precision precision, const void* packed, int64_t k, int64_t n, float* b);

struct GemmArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const float* a = nullptr;  // [m, k], rows lda apart
  int64_t lda = 0;
  const Windows* windows = nullptr;        // or the rows are these of a tensor at `a`, whose k = taps * channels
  Precision precision = Precision::kFp32;  // of b; not kInt8
  const void* packed_b = nullptr;          // from PackWeight(precision, k, n)
  float* c = nullptr;                      // [m, n], rows ldc apart; must not overlap a or packed_b
  int64_t ldc = 0;
  const float* bias = nullptr;  // [n], or null
  const float* residual =
      nullptr;  // [m, n], rows ldr apart, or null; without windows c itself (ldr == ldc), if you like
  int64_t ldr = 0;
  Activation activation = Activation::kNone;
  bool residual_first = false;  // the residual is added before the activation
  Blocking blocking = {};
};

// How many of `rows` rows Gemm takes at a time, where a part has `panels` panels.
size_t BlockRows(const GemmArgs& args, size_t rows, size_t panels);

// Bytes of scratch memory that a part of Gemm or GemmDot (gemm_dot.h) wants at most.
inline constexpr size_t kMostGemmScratchBytes = size_t{896} * 1024;

// Bytes that a part of this product wants, however many parts there are; no less than for the same product with fewer
// rows. Needs no data.
size_t GemmScratchBytes(const GemmArgs& args);

// Computes part `part` of `num_parts`: a range of rows and panels. k == 0 is a product of 0. `scratch` is 64-byte
// aligned and the part's own.
void Gemm(const GemmArgs& args, void* scratch, int part = 0, int num_parts = 1);

// Which rows of a and panels of b a part computes; none, perhaps.
struct PanelRange {
  size_t row_begin, row_end, panel_begin, panel_end;
  bool empty() const { return row_begin == row_end || panel_begin == panel_end; }
};
PanelRange ShareOfProduct(int64_t m, int64_t n, int part, int num_parts, Split split = Split::kAuto);

// The same with plain strided b, in scalar code with float64 accumulation.
void GemmReference(const GemmArgs& args, const float* b, int64_t stride_k, int64_t stride_n);

}  // namespace thresher::kernels
