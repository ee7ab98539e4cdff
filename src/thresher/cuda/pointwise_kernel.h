// The arithmetic of element-wise operators, on floats (bool is 0 or 1) and on integers. What each operator does is told
// by kernels/pointwise.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "thresher/cuda/stored.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/pointwise.h"

namespace thresher::cuda {

// Elements that a thread works on at the same time: what it costs to find out which operator comes next is shared.
inline constexpr int kItems = 8;

template <class F, class V>
THRESHER_DEVICE void Map(F f, const V* a, V* out) {
  THRESHER_UNROLL
  for (int i = 0; i < kItems; ++i) out[i] = f(a[i]);
}

template <class F, class V>
THRESHER_DEVICE void Map(F f, const V* a, const V* b, V* out) {
  THRESHER_UNROLL
  for (int i = 0; i < kItems; ++i) out[i] = f(a[i], b[i]);
}

THRESHER_DEVICE float Truth(bool truth) { return truth ? 1.0f : 0.0f; }

// out may be x.
THRESHER_DEVICE void ApplyUnary(kernels::UnaryOp op, bool, const float* x, float* out) {
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

// a + factor * b, wrapping around.
THRESHER_DEVICE int64_t Wrapped(int64_t a, int64_t factor, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(factor) * static_cast<uint64_t>(b));
}

// Integers wrap around. `boolean`: x is bool.
THRESHER_DEVICE void ApplyUnary(kernels::UnaryOp op, bool boolean, const int64_t* x, int64_t* out) {
  using Op = kernels::UnaryOp;
  switch (op) {
    case Op::kNeg:
      return Map([](int64_t v) { return Wrapped(0, -1, v); }, x, out);
    case Op::kAbs:
      return Map([](int64_t v) { return v < 0 ? Wrapped(0, -1, v) : v; }, x, out);
    case Op::kSign:
      return Map([](int64_t v) { return static_cast<int64_t>((v > 0) - (v < 0)); }, x, out);
    case Op::kRelu:
      return Map([](int64_t v) { return v < 0 ? 0 : v; }, x, out);
    case Op::kIsNan:
    case Op::kIsInf:
      return Map([](int64_t) { return int64_t{0}; }, x, out);
    case Op::kLogicalNot:
      return Map([](int64_t v) { return static_cast<int64_t>(v == 0); }, x, out);
    case Op::kBitwiseNot:
      return Map([boolean](int64_t v) { return boolean ? static_cast<int64_t>(v == 0) : ~v; }, x, out);
    default:  // floor, ceil, round, trunc
      return Map([](int64_t v) { return v; }, x, out);
  }
}

THRESHER_DEVICE int64_t IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0;
  int64_t result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = Wrapped(0, result, base);
    base = Wrapped(0, base, base);
  }
  return result;
}

// The quotient's remainder with the sign of the dividend; 0 of the divisors whose quotient may not fit, or is none.
THRESHER_DEVICE int64_t IntegerRest(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

THRESHER_DEVICE int64_t IntegerFloorDivide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return Wrapped(0, -1, a);
  return a / b - static_cast<int64_t>(a % b != 0 && (a < 0) != (b < 0));
}

// i32 is computed in 64 bits, of which the lower ones are kept: the same as if it had wrapped around in 32.
THRESHER_DEVICE void ApplyBinary(kernels::BinaryOp op, bool, const int64_t* a, const int64_t* b, int64_t* out) {
  using Op = kernels::BinaryOp;
  switch (op) {
    case Op::kAdd:
      return Map([](int64_t x, int64_t y) { return Wrapped(x, 1, y); }, a, b, out);
    case Op::kSub:
      return Map([](int64_t x, int64_t y) { return Wrapped(x, -1, y); }, a, b, out);
    case Op::kMul:
      return Map([](int64_t x, int64_t y) { return Wrapped(0, x, y); }, a, b, out);
    case Op::kDiv:  // floats alone have it
      return;
    case Op::kMaximum:
      return Map([](int64_t x, int64_t y) { return x > y ? x : y; }, a, b, out);
    case Op::kMinimum:
      return Map([](int64_t x, int64_t y) { return x < y ? x : y; }, a, b, out);
    case Op::kPow:
      return Map([](int64_t x, int64_t y) { return IntegerPower(x, y); }, a, b, out);
    case Op::kEq:
      return Map([](int64_t x, int64_t y) { return static_cast<int64_t>(x == y); }, a, b, out);
    case Op::kNe:
      return Map([](int64_t x, int64_t y) { return static_cast<int64_t>(x != y); }, a, b, out);
    case Op::kLt:
      return Map([](int64_t x, int64_t y) { return static_cast<int64_t>(x < y); }, a, b, out);
    case Op::kLe:
      return Map([](int64_t x, int64_t y) { return static_cast<int64_t>(x <= y); }, a, b, out);
    case Op::kGt:
      return Map([](int64_t x, int64_t y) { return static_cast<int64_t>(x > y); }, a, b, out);
    case Op::kGe:
      return Map([](int64_t x, int64_t y) { return static_cast<int64_t>(x >= y); }, a, b, out);
    case Op::kBitwiseAnd:
      return Map([](int64_t x, int64_t y) { return x & y; }, a, b, out);
    case Op::kBitwiseOr:
      return Map([](int64_t x, int64_t y) { return x | y; }, a, b, out);
    case Op::kBitwiseXor:
      return Map([](int64_t x, int64_t y) { return x ^ y; }, a, b, out);
    case Op::kLogicalAnd:
      return Map([](int64_t x, int64_t y) { return static_cast<int64_t>(x != 0 && y != 0); }, a, b, out);
    case Op::kLogicalOr:
      return Map([](int64_t x, int64_t y) { return static_cast<int64_t>(x != 0 || y != 0); }, a, b, out);
    case Op::kLogicalXor:
      return Map([](int64_t x, int64_t y) { return static_cast<int64_t>((x != 0) != (y != 0)); }, a, b, out);
    case Op::kFloorDivide:
      return Map([](int64_t x, int64_t y) { return IntegerFloorDivide(x, y); }, a, b, out);
    case Op::kRemainder:
      return Map(
          [](int64_t x, int64_t y) {
            const int64_t rest = IntegerRest(x, y);
            return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
          },
          a, b, out);
    case Op::kFmod:
      return Map([](int64_t x, int64_t y) { return IntegerRest(x, y); }, a, b, out);
  }
}

template <class V>
THRESHER_DEVICE void ApplyWhere(const V* condition, const V* a, const V* b, V* out) {
  THRESHER_UNROLL
  for (int i = 0; i < kItems; ++i) out[i] = condition[i] != 0 ? a[i] : b[i];
}

}  // namespace thresher::cuda
