// Rotary positions: pairs of elements of a head turned by an angle.
#pragma once

#include <cstdint>

#include "thresher/base/view.h"

namespace thresher::kernels {

struct RotaryArgs {
  View x;    // f32 [tokens, heads, head size], innermost stride 1
  View cos;  // f32 [tokens, pairs], innermost stride 1; 2 * pairs <= head size
  View sin;  // as cos
  View out;  // f32 of x's shape, innermost stride 1; x itself or no part of it
  // A pair is elements 2i and 2i + 1; else i and i + pairs. Elements behind the pairs stay as they are.
  bool interleaved = false;
};

// (a, b) becomes (a cos - b sin, b cos + a sin).
void Rotary(const RotaryArgs& args, int part = 0, int num_parts = 1);

// The same in scalar code and float64.
void RotaryReference(const RotaryArgs& args);

}  // namespace thresher::kernels
