// The arithmetic of element-wise operators on floats; bool is 0 or 1. What each operator does is told by
// kernels/pointwise.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "thresher/cuda/thread.h"
#include "thresher/kernels/pointwise.h"

namespace thresher::cuda {

// Elements that a thread works on at the same time: what it costs to find out which operator comes next is shared.
inline constexpr int kItems = 4;

template <class F>
THRESHER_DEVICE void Map(F f, const float* a, float* out) {
  THRESHER_UNROLL
  for (int i = 0; i < kItems; ++i) out[i] = f(a[i]);
}

template <class F>
THRESHER_DEVICE void Map(F f, const float* a, const float* b, float* out) {
  THRESHER_UNROLL
  for (int i = 0; i < kItems; ++i) out[i] = f(a[i], b[i]);
}

THRESHER_DEVICE uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

THRESHER_DEVICE float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

THRESHER_DEVICE float Truth(bool truth) { return truth ? 1.0f : 0.0f; }

// out may be x.
THRESHER_DEVICE void ApplyUnary(kernels::UnaryOp op, const float* x, float* out) {
  using Op = kernels::UnaryOp;
  switch (op) {
    case Op::kNeg:
      return Map([](float v) { return -v; }, x, out);
    case Op::kAbs:
      return Map([](float v) { return fabsf(v); }, x, out);
    case Op::kSign:
      return Map([](float v) { return Truth(v > 0) - Truth(v < 0); }, x, out);
    case Op::kFloor:
      return Map([](float v) { return floorf(v); }, x, out);
    case Op::kCeil:
      return Map([](float v) { return ceilf(v); }, x, out);
    case Op::kRound:
      return Map([](float v) { return rintf(v); }, x, out);
    case Op::kTrunc:
      return Map([](float v) { return truncf(v); }, x, out);
    case Op::kExp:
      return Map([](float v) { return expf(v); }, x, out);
    case Op::kLog:
      return Map([](float v) { return logf(v); }, x, out);
    case Op::kSqrt:
      return Map([](float v) { return sqrtf(v); }, x, out);
    case Op::kRsqrt:
      return Map([](float v) { return 1.0f / sqrtf(v); }, x, out);
    case Op::kReciprocal:
      return Map([](float v) { return 1.0f / v; }, x, out);
    case Op::kErf:
      return Map([](float v) { return erff(v); }, x, out);
    case Op::kTanh:
      return Map([](float v) { return tanhf(v); }, x, out);
    case Op::kSigmoid:
      return Map([](float v) { return 1.0f / (1.0f + expf(-v)); }, x, out);
    case Op::kRelu:
      return Map([](float v) { return v < 0 ? 0.0f : v; }, x, out);
    case Op::kGelu:
      return Map(
          [](float v) {
            const float half = 0.5f * v;
            return half * erff(v * 0.70710678118654752f) + half;
          },
          x, out);
    case Op::kGeluTanh:
      // x/2 * (1 + tanh(u)) written as x / (1 + exp(-2u)), which keeps the digits of the left tail.
      return Map(
          [](float v) {
            const float minus_2u = v * (v * v * -0.07135481627f - 1.59576912161f);
            return v / (1.0f + expf(minus_2u));
          },
          x, out);
    case Op::kSilu:
      return Map([](float v) { return v / (1.0f + expf(-v)); }, x, out);
    case Op::kSin:
      return Map([](float v) { return sinf(v); }, x, out);
    case Op::kCos:
      return Map([](float v) { return cosf(v); }, x, out);
    case Op::kIsNan:
      return Map([](float v) { return Truth(v != v); }, x, out);
    case Op::kIsInf:
      return Map([](float v) { return Truth(fabsf(v) == __builtin_huge_valf()); }, x, out);
    case Op::kLogicalNot:
    case Op::kBitwiseNot:  // between f32 steps only bool has bits
      return Map([](float v) { return Truth(v == 0); }, x, out);
    case Op::kRoundBF16:
      return Map(
          [](float v) {
            const uint32_t bits = BitsOf(v);
            const uint32_t rounded = v != v ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u);
            return FloatOf(rounded & 0xffff0000u);
          },
          x, out);
    case Op::kRoundF16:
      // Adding and taking away 2^13 times a power of two leaves eleven digits: of its own exponent, or of the smallest.
      return Map(
          [](float v) {
            const float magnitude = fabsf(v);
            if (!(magnitude < 65520.0f)) return v != v ? v : copysignf(__builtin_huge_valf(), v);
            const uint32_t exponent = BitsOf(magnitude) & 0x7f800000u;
            const float magic = FloatOf((exponent < 0x38800000u ? 0x38800000u : exponent) + (13u << 23)) * 1.5f;
            return copysignf(magnitude + magic - magic, v);
          },
          x, out);
  }
}

// A power whose exponent is one value for the whole call.
THRESHER_DEVICE void ApplyPower(const float* x, float exponent, float* out) {
  if (exponent == 2.0f) return Map([](float v) { return v * v; }, x, out);
  if (exponent == 3.0f) return Map([](float v) { return v * v * v; }, x, out);
  if (exponent == -1.0f) return Map([](float v) { return 1.0f / v; }, x, out);
  if (exponent == 0.5f) return Map([](float v) { return sqrtf(v); }, x, out);
  if (exponent == -0.5f) return Map([](float v) { return 1.0f / sqrtf(v); }, x, out);
  return Map([exponent](float v) { return powf(v, exponent); }, x, out);
}

THRESHER_DEVICE float FloorRemainder(float a, float b) {
  const float rest = fmodf(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

// As on the CPU: the quotient of what the remainder leaves is near an integer.
THRESHER_DEVICE float FloorDivide(float a, float b) {
  if (b == 0) return a / b;
  const float rest = fmodf(a, b);
  float quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return copysignf(0.0f, a / b);
  const float below = floorf(quotient);
  return quotient - below > 0.5f ? below + 1 : below;
}

// out may be a or b. `boolean`: a and b are bool.
THRESHER_DEVICE void ApplyBinary(kernels::BinaryOp op, bool boolean, const float* a, const float* b, float* out) {
  using Op = kernels::BinaryOp;
  switch (op) {
    case Op::kAdd:
      if (boolean) return Map([](float x, float y) { return Truth(x != 0 || y != 0); }, a, b, out);
      return Map([](float x, float y) { return x + y; }, a, b, out);
    case Op::kSub:
      return Map([](float x, float y) { return x - y; }, a, b, out);
    case Op::kMul:
      return Map([](float x, float y) { return x * y; }, a, b, out);
    case Op::kDiv:
      return Map([](float x, float y) { return x / y; }, a, b, out);
    case Op::kMaximum:
      return Map([](float x, float y) { return x != x || x > y ? x : y; }, a, b, out);
    case Op::kMinimum:
      return Map([](float x, float y) { return x != x || x < y ? x : y; }, a, b, out);
    case Op::kPow:
      return Map([](float x, float y) { return powf(x, y); }, a, b, out);
    case Op::kEq:
      return Map([](float x, float y) { return Truth(x == y); }, a, b, out);
    case Op::kNe:
      return Map([](float x, float y) { return Truth(x != y); }, a, b, out);
    case Op::kLt:
      return Map([](float x, float y) { return Truth(x < y); }, a, b, out);
    case Op::kLe:
      return Map([](float x, float y) { return Truth(x <= y); }, a, b, out);
    case Op::kGt:
      return Map([](float x, float y) { return Truth(x > y); }, a, b, out);
    case Op::kGe:
      return Map([](float x, float y) { return Truth(x >= y); }, a, b, out);
    case Op::kBitwiseAnd:
    case Op::kLogicalAnd:
      return Map([](float x, float y) { return Truth(x != 0 && y != 0); }, a, b, out);
    case Op::kBitwiseOr:
    case Op::kLogicalOr:
      return Map([](float x, float y) { return Truth(x != 0 || y != 0); }, a, b, out);
    case Op::kBitwiseXor:
    case Op::kLogicalXor:
      return Map([](float x, float y) { return Truth((x != 0) != (y != 0)); }, a, b, out);
    case Op::kFloorDivide:
      return Map([](float x, float y) { return FloorDivide(x, y); }, a, b, out);
    case Op::kRemainder:
      return Map([](float x, float y) { return FloorRemainder(x, y); }, a, b, out);
    case Op::kFmod:
      return Map([](float x, float y) { return fmodf(x, y); }, a, b, out);
  }
}

THRESHER_DEVICE void ApplyWhere(const float* condition, const float* a, const float* b, float* out) {
  THRESHER_UNROLL
  for (int i = 0; i < kItems; ++i) out[i] = condition[i] != 0 ? a[i] : b[i];
}

}  // namespace thresher::cuda
