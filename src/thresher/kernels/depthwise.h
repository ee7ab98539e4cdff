// Convolutions of each channel, or of each small group of channels, by itself.
#pragma once

#include <cstdint>

#include "thresher/kernels/gemm.h"
#include "thresher/kernels/windows.h"

namespace thresher::kernels {

inline constexpr int64_t kMostDepthwiseTaps = 128;

struct DepthwiseArgs {
  Windows windows;            // of at most so many taps; their channels are not looked at
  int64_t outputs = 0;        // channels of the result
  int64_t group_inputs = 1;   // channels of x that an output channel meets
  int64_t group_outputs = 1;  // output channels that meet the same ones
  int64_t batch = 0;
  const float* x = nullptr;
  const float* weight = nullptr;    // [taps, group_inputs, outputs]
  const float* bias = nullptr;      // [outputs], or null
  const float* residual = nullptr;  // as out, rows ldr apart, or null; not out itself
  int64_t ldr = 0;
  Activation activation = Activation::kNone;
  bool residual_first = false;  // the residual is added before the activation
  float* out = nullptr;         // [batch * positions, outputs], rows ldc apart; must not overlap x
  int64_t ldc = 0;
};

// Whether groups of so many channels are best computed in vectors, rather than as products: those that fill no panel,
// and those of a vector's outputs with so few inputs that a product would be shallow.
constexpr bool SuitsDepthwise(int64_t group_inputs, int64_t group_outputs) {
  constexpr int64_t kWidest = 16, kDeepInputs = 8;
  if (group_outputs == kWidest) return group_inputs < kDeepInputs;
  return kWidest % group_outputs == 0 && group_inputs <= group_outputs;
}

// Part `part` of `num_parts`: a range of lines of output positions.
void Depthwise(const DepthwiseArgs& args, int part = 0, int num_parts = 1);

// The same in scalar code with float64 accumulation.
void DepthwiseReference(const DepthwiseArgs& args);

}  // namespace thresher::kernels
