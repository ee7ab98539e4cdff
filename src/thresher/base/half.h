// Floats of 16 bits, one at a time: bf16 (8 bits of exponent, 7 of fraction) and IEEE 754 binary16 (5 and 10).
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "thresher/base/dtype.h"

namespace thresher {

struct BF16 {
  uint16_t bits = 0;
};

struct F16 {
  uint16_t bits = 0;
};

constexpr float ToFloat(BF16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Nearest, ties to even; a NaN stays one, with its upper bits, made quiet.
constexpr BF16 ToBF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

constexpr float ToFloat(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t fraction = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24, which f32 holds exactly
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

// Nearest, ties to even; beyond 65504 infinity; a NaN stays one, with its upper bits, made quiet.
constexpr F16 ToF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  }
  if (magnitude >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65536 and more
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves multiples of 2^-24 in the fraction, rounded
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  // What carries out of the fraction raises the exponent, up to infinity.
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)))};
}

// x as it is after being stored in `dtype`, a float.
constexpr float Rounded(float x, DType dtype) {
  if (dtype == DType::kBF16) return ToFloat(ToBF16(x));
  return dtype == DType::kF16 ? ToFloat(ToF16(x)) : x;
}

}  // namespace thresher
