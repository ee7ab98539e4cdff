// Reductions over a row that a warp or a block shares. The order of the additions is fixed: equal inputs give equal
// bits.
#pragma once

#include <cmath>

#include "thresher/cuda/thread.h"

namespace thresher::cuda {

struct Sum {
  static constexpr float kIdentity = 0.0f;
  THRESHER_DEVICE static float Of(float a, float b) { return a + b; }
};

// Of a NaN and a number the number, as fmaxf has it.
struct Max {
  static constexpr float kIdentity = -__builtin_huge_valf();
  THRESHER_DEVICE static float Of(float a, float b) { return fmaxf(a, b); }
};

template <class Op, class T>
THRESHER_DEVICE float ReduceWarp(T& t, float v) {
  THRESHER_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) v = Op::Of(v, t.ShuffleXor(v, mask));
  return v;
}

// Sums that are made together.
inline constexpr int kMostTogether = 3;
// Floats of shared memory that ReduceRow takes for rows that a block shares.
inline constexpr int kReduceFloats = kMostTogether * kMaxThreads / kWarp;

// Each of v[0 .. kCount) over the threads of equal y(): one warp of them where kOneWarp, else the whole block, whose
// height is 1. Every thread gets the results. `at`: where kReduceFloats of shared memory are free for it.
template <bool kOneWarp, class Op, int kCount, class T>
THRESHER_DEVICE void ReduceRow(T& t, float (&v)[kCount], int at = 0) {
  static_assert(kCount <= kMostTogether);
  THRESHER_UNROLL
  for (int i = 0; i < kCount; ++i) v[i] = ReduceWarp<Op>(t, v[i]);
  if constexpr (!kOneWarp) {
    const int lane = t.x() % kWarp;
    const int warps = t.width() / kWarp;
    auto parts = t.shared();
    t.Sync();  // who still reads the last reduction's parts
    if (lane == 0) {
      THRESHER_UNROLL
      for (int i = 0; i < kCount; ++i) parts[at + i * warps + t.x() / kWarp] = v[i];
    }
    t.Sync();
    THRESHER_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const float part = lane < warps ? static_cast<float>(parts[at + i * warps + lane]) : Op::kIdentity;
      v[i] = ReduceWarp<Op>(t, part);
    }
  }
}

template <bool kOneWarp, class Op, class T>
THRESHER_DEVICE float ReduceRow(T& t, float v) {
  float values[] = {v};
  ReduceRow<kOneWarp, Op>(t, values);
  return values[0];
}

}  // namespace thresher::cuda
