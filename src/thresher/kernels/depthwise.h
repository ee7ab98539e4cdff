// Convolutions of each channel by itself.
#pragma once

#include <cstdint>

#include "thresher/kernels/gemm.h"
#include "thresher/kernels/windows.h"

namespace thresher::kernels {

inline constexpr int64_t kMostDepthwiseTaps = 128;

struct DepthwiseArgs {
  Windows windows;  // of at most so many taps
  int64_t batch = 0;
  const float* x = nullptr;
  const float* weight = nullptr;    // [taps, channels]
  const float* bias = nullptr;      // [channels], or null
  const float* residual = nullptr;  // as out, rows ldr apart, or null; not out itself
  int64_t ldr = 0;
  Activation activation = Activation::kNone;
  bool residual_first = false;  // the residual is added before the activation
  float* out = nullptr;         // [batch * positions, channels], rows ldc apart; must not overlap x
  int64_t ldc = 0;
};

// Part `part` of `num_parts`: a range of lines of output positions.
void Depthwise(const DepthwiseArgs& args, int part = 0, int num_parts = 1);

// The same in scalar code with float64 accumulation.
void DepthwiseReference(const DepthwiseArgs& args);

}  // namespace thresher::kernels
