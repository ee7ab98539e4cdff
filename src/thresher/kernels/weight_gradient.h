// The gradient of a convolution as to its weight: for each tap, the products of what windows show there and of the
// result's gradient, summed over all output positions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/kernels/windows.h"

namespace thresher::kernels {

struct WeightGradientArgs {
  Windows windows;      // of x, not spread; their channels are those of a group
  int64_t groups = 1;   // that follow one another in x and in the gradient
  int64_t outputs = 0;  // channels of the gradient, a multiple of groups
  int64_t batch = 0;    // at least 1
  const float* x = nullptr;
  int64_t x_channel = 1;  // elements from one channel to the next, as are those below
  const float* gradient = nullptr;
  int64_t gradient_batch = 0;
  int64_t gradient_strides[3] = {};
  int64_t gradient_channel = 1;
  float* out = nullptr;  // [slabs, outputs, taps, channels of a group], overwritten; a slab sums some positions only
  int slabs = 1;
  int cuts = 1;  // of the outputs: each slab is computed in so many pieces
};

// How many slabs, whose sum is the gradient, and cuts keep `threads` threads busy: slabs cost a sum at the end, cuts
// read x again. Needs no data.
struct WeightGradientSplit {
  int slabs, cuts;
};
WeightGradientSplit SplitWeightGradient(const WeightGradientArgs& args, int threads);

// Bytes of scratch memory that a part wants.
size_t WeightGradientScratchBytes();

// Part `part` of `num_parts`: some of the slabs' pieces. `scratch` is 64-byte aligned and the part's own.
void WeightGradient(const WeightGradientArgs& args, void* scratch, int part = 0, int num_parts = 1);

// The same in scalar code with float64 accumulation, all positions in one slab.
void WeightGradientReference(const WeightGradientArgs& args);

}  // namespace thresher::kernels
