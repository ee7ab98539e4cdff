// Dense fp32 matrix multiplication: C = act(A * B + bias) + residual, with B packed beforehand.
//
// B is stored as panels of two SIMD vectors of columns, each panel k rows high, the last one padded with zeros; a
// register tile then walks a panel with aligned loads only. A is read where it lies. The panel width follows the
// instruction set in use, so pack and multiply under the same one (isa::Force in between invalidates packed matrices).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace thresher::kernels {

enum class Activation : uint8_t {
  kNone,
  kRelu,
  kGelu,      // x * Phi(x), by erf
  kGeluTanh,  // the tanh approximation of it
  kSilu,
  kTanh,
  kSigmoid,
};

// "none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid".
std::string_view Name(Activation activation);
std::optional<Activation> ParseActivation(std::string_view name);

// Floats that a packed k x n matrix takes, padding included.
int64_t PackedSize(int64_t k, int64_t n);

// Packs b[i * stride_k + j * stride_n] (0 <= i < k, 0 <= j < n); a torch Linear weight [n, k] has stride_k 1, stride_n
// k. `packed` is 64-byte aligned. Part `part` of `num_parts` packs its share of the panels.
void PackB(const float* b, int64_t k, int64_t n, int64_t stride_k, int64_t stride_n, float* packed, int part = 0,
           int num_parts = 1);

struct GemmArgs {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const float* a = nullptr;  // [m, k], rows lda apart
  int64_t lda = 0;
  const float* packed_b = nullptr;  // from PackB(k, n)
  float* c = nullptr;               // [m, n], rows ldc apart; must not overlap a or packed_b
  int64_t ldc = 0;
  const float* bias = nullptr;      // [n], or null
  const float* residual = nullptr;  // [m, n], rows ldr apart, or null; may be c itself (same rows, ldr == ldc)
  int64_t ldr = 0;
  Activation activation = Activation::kNone;
};

// Computes part `part` of `num_parts`: a range of rows or of panels, whichever balances better. k == 0 is a product of
// 0.
void Gemm(const GemmArgs& args, int part = 0, int num_parts = 1);

// The same with plain strided b, in scalar code with float64 accumulation.
void GemmReference(const GemmArgs& args, const float* b, int64_t stride_k, int64_t stride_n);

}  // namespace thresher::kernels
