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

// Floats of shared memory that ReduceRow takes for rows that a block shares.
inline constexpr int kReduceFloats = kMaxThreads / kWarp;

// Over the threads of equal y(): one warp of them where kOneWarp, else the whole block, whose height is 1. Every thread
// gets the result.
template <bool kOneWarp, class Op, class T>
THRESHER_DEVICE float ReduceRow(T& t, float v) {
  v = ReduceWarp<Op>(t, v);
  if constexpr (kOneWarp) {
    return v;
  } else {
    const int lane = t.x() % kWarp;
    const int warps = t.width() / kWarp;
    auto parts = t.shared();
    t.Sync();  // who still reads the last reduction's parts
    if (lane == 0) parts[t.x() / kWarp] = v;
    t.Sync();
    const float part = lane < warps ? static_cast<float>(parts[lane]) : Op::kIdentity;
    return ReduceWarp<Op>(t, part);
  }
}

}  // namespace thresher::cuda
