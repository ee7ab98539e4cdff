// Convolutions of each channel, or of each small group of channels, by itself: sums of windows.
#pragma once

#include <cstdint>

#include "thresher/cuda/convolution_result.h"
#include "thresher/cuda/convolution_windows.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

inline constexpr int kDepthwisePositions = 4;

// A thread has kLanes neighbouring outputs at several positions of a line, so that it reads their weights once. More
// than one lane: each output has one channel, the one of its number, and x is read 4 or 8 channels at a time.
template <int kLanes>
struct DepthwiseKernel {
  static constexpr int kMostThreads = 128;
  static constexpr int kLeastBlocks = 4;
  ConvolutionWindows windows;  // `channels` is not looked at
  ConvolutionResult result;
  const void* x;
  const void* weight;  // [taps, group_inputs, outputs]
  DType x_dtype, weight_dtype;
  int32_t taps, group_inputs;
  Divisor group_outputs;
  int64_t lane_groups, line_runs;
  int64_t work;  // lines * runs * groups of lanes

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    for (int64_t i = t.block() * t.width() + t.x(); i < work; i += t.num_blocks() * t.width()) {
      const int64_t at = i / lane_groups;
      const int32_t lanes = static_cast<int32_t>(i - at * lane_groups) * kLanes;
      const int64_t line = at / line_runs;
      const auto first = static_cast<int32_t>(at - line * line_runs) * kDepthwisePositions;
      SumUp(static_cast<int32_t>(line * windows.out[2].divisor) + first,
            static_cast<int32_t>(windows.out[2].divisor) - first, lanes);
    }
  }

 private:
  // `left`: positions of the line from `row` on.
  THRESHER_DEVICE void SumUp(int32_t row, int32_t left, int32_t output) const {
    const int count = left < kDepthwisePositions ? left : kDepthwisePositions;
    float sums[kDepthwisePositions][kLanes];
    THRESHER_UNROLL
    for (int p = 0; p < kDepthwisePositions; ++p) {
      THRESHER_UNROLL
      for (int l = 0; l < kLanes; ++l) sums[p][l] = 0.0f;
    }
    WindowStart start = windows.Start(row);
    const int32_t begin = start.at[2];
    const int32_t channel =
        kLanes > 1 ? output
                   : static_cast<int32_t>(group_outputs.Quotient(static_cast<uint32_t>(output))) * group_inputs;
    const int64_t outputs = result.cols;
    for (int32_t number = 0; number < taps; ++number) {
      int32_t tap[3];
      windows.SplitTap(static_cast<uint32_t>(number), tap);
      for (int32_t in = 0; in < group_inputs; ++in) {
        float w[kLanes];
        const int64_t of_weight = (int64_t{number} * group_inputs + in) * outputs + output;
        THRESHER_UNROLL
        for (int l = 0; l < kLanes; ++l) w[l] = LoadElement(weight, weight_dtype, of_weight + l);
        THRESHER_UNROLL
        for (int p = 0; p < kDepthwisePositions; ++p) {
          start.at[2] = begin + p * windows.stride[2];
          const int64_t at = p < count ? windows.At(start, tap) : -1;
          if (at < 0) continue;
          float lanes[kLanes];
          LoadLanes(at + channel + in, lanes);
          THRESHER_UNROLL
          for (int l = 0; l < kLanes; ++l) sums[p][l] = fmaf(lanes[l], w[l], sums[p][l]);
        }
      }
    }
    THRESHER_ROLLED
    for (int p = 0; p < count; ++p) {
      float own[kLanes];
      THRESHER_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        own[l] = sums[0][l];
        THRESHER_UNROLL
        for (int other = 1; other < kDepthwisePositions; ++other) own[l] = p == other ? sums[other][l] : own[l];
      }
      result.Store(row + p, output, kLanes, own);
    }
  }

  THRESHER_DEVICE void LoadLanes(int64_t at, float (&lanes)[kLanes]) const {
    if constexpr (kLanes == 1) {
      lanes[0] = LoadElement(x, x_dtype, at);
    } else {
      constexpr int kWords = kLanes == 8 ? 4 : kLanes;  // eight halves or four floats
      uint32_t words[kWords];
      LoadWords<kWords>(x, at / kLanes, words);
      THRESHER_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        if constexpr (kLanes == 4) {
          lanes[l] = FloatOf(words[l]);
        } else {
          const uint32_t bits = words[l / 2] >> (l % 2 * 16) & 0xffffu;
          lanes[l] = x_dtype == DType::kBF16 ? FloatOfBF16(bits) : FloatOfF16(bits);
        }
      }
    }
  }
};

}  // namespace thresher::cuda
