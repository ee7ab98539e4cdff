// Floats of 16 bits on a device: one at a time, and two in a word, the first in its lower half.
#pragma once

#include <cmath>
#include <cstdint>

#include "thresher/base/dtype.h"
#include "thresher/base/half.h"
#include "thresher/cuda/macros.h"

namespace thresher::cuda {

struct Bf16 {
  static constexpr DType kDType = DType::kBF16;
#if defined(__CUDACC__)
  THRESHER_DEVICE static float Widen(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
  THRESHER_DEVICE static uint16_t Round(float x) {
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
  }
  THRESHER_DEVICE static uint32_t RoundTwo(float first, float second) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
  }
#else
  static float Widen(uint16_t bits) { return ToFloat(BF16{bits}); }
  static uint16_t Round(float x) { return ToBF16(x).bits; }
  static uint32_t RoundTwo(float first, float second) { return Round(first) | uint32_t{Round(second)} << 16; }
#endif
};

struct Fp16 {
  static constexpr DType kDType = DType::kF16;
#if defined(__CUDACC__)
  THRESHER_DEVICE static float Widen(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
  THRESHER_DEVICE static uint16_t Round(float x) {
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
  }
  THRESHER_DEVICE static uint32_t RoundTwo(float first, float second) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
  }
#else
  static float Widen(uint16_t bits) { return ToFloat(F16{bits}); }
  static uint16_t Round(float x) { return ToF16(x).bits; }
  static uint32_t RoundTwo(float first, float second) { return Round(first) | uint32_t{Round(second)} << 16; }
#endif
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

}  // namespace thresher::cuda
