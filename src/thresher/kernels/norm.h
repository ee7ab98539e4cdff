// Normalisation over rows.
#pragma once

#include <cstdint>

#include "thresher/base/half.h"

namespace thresher::kernels {

struct NormArgs {
  const float* x = nullptr;  // [rows, cols], rows row_stride apart
  int64_t row_stride = 0;
  const float* residual = nullptr;  // [rows, cols], or null: x + residual is what is normalised
  int64_t residual_row_stride = 0;
  const float* weight = nullptr;  // [cols], or null for 1
  const float* bias = nullptr;    // [cols], or null for 0; rms_norm has none
  float eps = 1e-5f;
  float* out = nullptr;      // may be x itself (same stride)
  BF16* out_bf16 = nullptr;  // in place of `out`, which is null then: rounded; a residual needs a `sum` beside it
  int64_t out_row_stride = 0;
  float* sum = nullptr;  // where x + residual goes, or null; must not overlap out
  int64_t sum_row_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
};

// out = (x - mean) / sqrt(var + eps) * weight + bias, var being the biased variance. Mean and variance take two passes,
// the second one over differences from the mean, so that a large common offset costs no digits.
void LayerNorm(const NormArgs& args, int part = 0, int num_parts = 1);

// out = x / sqrt(mean(x^2) + eps) * weight.
void RmsNorm(const NormArgs& args, int part = 0, int num_parts = 1);

// The same in scalar code with float64 accumulation.
void LayerNormReference(const NormArgs& args);
void RmsNormReference(const NormArgs& args);

}  // namespace thresher::kernels
