// The two floats of 16 bits as types that kernels are made for.
#pragma once

#include <cmath>
#include <cstdint>

#include "thresher/base/dtype.h"
#include "thresher/cuda/stored.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

struct Bf16 {
  static constexpr DType kDType = DType::kBF16;
  THRESHER_DEVICE static float Widen(uint16_t bits) { return FloatOfBF16(bits); }
  THRESHER_DEVICE static uint32_t RoundTwo(float first, float second) { return BF16Pair(first, second); }
  THRESHER_DEVICE static uint16_t Round(float x) { return static_cast<uint16_t>(BF16Pair(x, x)); }
};

struct Fp16 {
  static constexpr DType kDType = DType::kF16;
  THRESHER_DEVICE static float Widen(uint16_t bits) { return FloatOfF16(bits); }
  THRESHER_DEVICE static uint32_t RoundTwo(float first, float second) { return F16Pair(first, second); }
  THRESHER_DEVICE static uint16_t Round(float x) { return static_cast<uint16_t>(F16Pair(x, x)); }
};

// 2^x to within two units in the last place; of -infinity 0.
THRESHER_DEVICE float Exp2(float x) {
#if defined(__CUDACC__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// Rounded by itself: no part of a fused multiply-add.
THRESHER_DEVICE float RoundedProduct(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// 1 / x to within a unit in the last place.
THRESHER_DEVICE float Reciprocal(float x) {
#if defined(__CUDACC__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

}  // namespace thresher::cuda
