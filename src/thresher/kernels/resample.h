// Pooling and resizing: each output position is a weighted sum, or the greatest, of some positions of x. Which, is told
// for each dimension by itself: a position of the output stands for the product of its coordinates' taps.
#pragma once

#include <cstdint>

namespace thresher::kernels {

// The taps of each coordinate of an output's dimension: those of coordinate i are [starts[i], starts[i + 1]).
struct ResampleAxis {
  const int32_t* starts = nullptr;
  const int32_t* index = nullptr;  // of x, of each tap
  const float* weight = nullptr;   // of each tap
};

inline constexpr int64_t kHalfChannels = 32;

struct ResampleArgs {
  bool greatest = false;  // weights do not count
  int64_t batch = 0;
  int64_t channels = 0;
  const float* x = nullptr;  // channels lie one behind the other
  int64_t x_batch = 0;       // elements from one image to the next, and from one position to the next:
  int64_t x_strides[3] = {};
  int64_t out[3] = {1, 1, 1};  // depth, height, width
  ResampleAxis axes[3];
  float* y = nullptr;  // [batch, depth, height, width, channels]
  // Of the greatest, with a multiple of kHalfChannels channels: x, or x and y, are bf16 in truth.
  bool x_bf16 = false;
  bool y_bf16 = false;
  int64_t y_position = 0;  // of bf16 in y, elements from one position to the next
};

// Part `part` of `num_parts`: a range of lines of output positions.
void Resample(const ResampleArgs& args, int part = 0, int num_parts = 1);

// The same in scalar code with float64 accumulation.
void ResampleReference(const ResampleArgs& args);

}  // namespace thresher::kernels
