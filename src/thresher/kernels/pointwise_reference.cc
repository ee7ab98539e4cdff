// The plain forms of pointwise.h: one element after the other, floats computed in float64.
#include <cmath>
#include <cstdint>
#include <limits>

#include "thresher/base/half.h"
#include "thresher/kernels/iterate.h"
#include "thresher/kernels/pointwise.h"

namespace thresher::kernels {
namespace {

// An element of any type, held so that no value of any type is lost.
struct Value {
  double real = 0;      // floats
  int64_t integer = 0;  // the other types; bool is 0 or 1
};

Value Load(const View& view, int64_t index) {
  const int64_t offset = OffsetOf(view, index);
  switch (view.dtype) {
    case DType::kF32:
      return {.real = view.as<float>()[offset]};
    case DType::kI64:
      return {.integer = view.as<int64_t>()[offset]};
    case DType::kI32:
      return {.integer = view.as<int32_t>()[offset]};
    case DType::kBool:
      return {.integer = view.as<uint8_t>()[offset] != 0};
    case DType::kBF16:
      return {.real = ToFloat(view.as<BF16>()[offset])};
    case DType::kF16:
      return {.real = ToFloat(view.as<F16>()[offset])};
  }
  return {};
}

void Store(const View& out, int64_t index, Value value) {
  switch (out.dtype) {
    case DType::kF32:
      out.as<float>()[index] = static_cast<float>(value.real);
      return;
    case DType::kI64:
      out.as<int64_t>()[index] = value.integer;
      return;
    case DType::kI32:
      out.as<int32_t>()[index] = static_cast<int32_t>(value.integer);
      return;
    case DType::kBool:
      out.as<uint8_t>()[index] = value.integer != 0;
      return;
    case DType::kBF16:
      out.as<BF16>()[index] = ToBF16(static_cast<float>(value.real));
      return;
    case DType::kF16:
      out.as<F16>()[index] = ToF16(static_cast<float>(value.real));
      return;
  }
}

// Wrapping arithmetic of i64; that of i32 is its low half.
int64_t WrapAdd(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t WrapMul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

int64_t WrapPow(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    return 0;
  }
  int64_t result = 1;
  for (; exponent != 0; exponent /= 2) {
    if (exponent % 2 == 1) result = WrapMul(result, base);
    base = WrapMul(base, base);
  }
  return result;
}

Value Of(bool truth) { return {.integer = truth}; }

Value ApplyReal(UnaryOp op, double x) {
  constexpr double kSqrtHalf = 0.70710678118654752;
  constexpr double kSqrtTwoOverPi = 0.79788456080286536;
  switch (op) {
    case UnaryOp::kNeg:
      return {.real = -x};
    case UnaryOp::kAbs:
      return {.real = std::fabs(x)};
    case UnaryOp::kSign:
      return {.real = static_cast<double>((x > 0) - (x < 0))};
    case UnaryOp::kFloor:
      return {.real = std::floor(x)};
    case UnaryOp::kCeil:
      return {.real = std::ceil(x)};
    case UnaryOp::kRound:
      return {.real = std::nearbyint(x)};
    case UnaryOp::kTrunc:
      return {.real = std::trunc(x)};
    case UnaryOp::kExp:
      return {.real = std::exp(x)};
    case UnaryOp::kLog:
      return {.real = std::log(x)};
    case UnaryOp::kSqrt:
      return {.real = std::sqrt(x)};
    case UnaryOp::kRsqrt:
      return {.real = 1 / std::sqrt(x)};
    case UnaryOp::kReciprocal:
      return {.real = 1 / x};
    case UnaryOp::kErf:
      return {.real = std::erf(x)};
    case UnaryOp::kTanh:
      return {.real = std::tanh(x)};
    case UnaryOp::kSigmoid:
      return {.real = 1 / (1 + std::exp(-x))};
    case UnaryOp::kRelu:
      return {.real = x < 0 ? 0 : x};
    case UnaryOp::kGelu:
      return {.real = 0.5 * x * (1 + std::erf(x * kSqrtHalf))};
    case UnaryOp::kGeluTanh:
      return {.real = 0.5 * x * (1 + std::tanh(kSqrtTwoOverPi * (x + 0.044715 * x * x * x)))};
    case UnaryOp::kSilu:
      return {.real = x / (1 + std::exp(-x))};
    case UnaryOp::kSin:
      return {.real = std::sin(x)};
    case UnaryOp::kCos:
      return {.real = std::cos(x)};
    case UnaryOp::kIsNan:
      return Of(std::isnan(x));
    case UnaryOp::kIsInf:
      return Of(std::isinf(x));
    case UnaryOp::kLogicalNot:
      return Of(x == 0);
    case UnaryOp::kRoundBF16:
      return {.real = Rounded(static_cast<float>(x), DType::kBF16)};
    case UnaryOp::kRoundF16:
      return {.real = Rounded(static_cast<float>(x), DType::kF16)};
    case UnaryOp::kBitwiseNot:
      return {};
  }
  return {};
}

Value ApplyInteger(UnaryOp op, int64_t x, DType dtype) {
  switch (op) {
    case UnaryOp::kNeg:
      return {.integer = WrapMul(x, -1)};
    case UnaryOp::kAbs:
      return {.integer = x < 0 ? WrapMul(x, -1) : x};
    case UnaryOp::kSign:
      return {.integer = (x > 0) - (x < 0)};
    case UnaryOp::kRelu:
      return {.integer = x < 0 ? 0 : x};
    case UnaryOp::kIsNan:
    case UnaryOp::kIsInf:
      return Of(false);
    case UnaryOp::kLogicalNot:
      return Of(x == 0);
    case UnaryOp::kBitwiseNot:
      return {.integer = dtype == DType::kBool ? (x == 0) : ~x};
    default:
      return {.integer = x};  // floor, ceil, round, trunc
  }
}

double FloorRemainder(double a, double b) {
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double FloorDivide(double a, double b) {
  if (b == 0) return a / b;
  const double rest = std::fmod(a, b);
  const double quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0) ? 1 : 0);
  return quotient == 0 ? std::copysign(0.0, a / b) : std::round(quotient);
}

int64_t FloorRemainder(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value ApplyReal(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return {.real = a + b};
    case BinaryOp::kSub:
      return {.real = a - b};
    case BinaryOp::kMul:
      return {.real = a * b};
    case BinaryOp::kDiv:
      return {.real = a / b};
    case BinaryOp::kMaximum:
      return {.real = std::isnan(a) || a > b ? a : b};
    case BinaryOp::kMinimum:
      return {.real = std::isnan(a) || a < b ? a : b};
    case BinaryOp::kPow:
      return {.real = std::pow(a, b)};
    case BinaryOp::kEq:
      return Of(a == b);
    case BinaryOp::kNe:
      return Of(a != b);
    case BinaryOp::kLt:
      return Of(a < b);
    case BinaryOp::kLe:
      return Of(a <= b);
    case BinaryOp::kGt:
      return Of(a > b);
    case BinaryOp::kGe:
      return Of(a >= b);
    case BinaryOp::kLogicalAnd:
      return Of(a != 0 && b != 0);
    case BinaryOp::kLogicalOr:
      return Of(a != 0 || b != 0);
    case BinaryOp::kLogicalXor:
      return Of((a != 0) != (b != 0));
    case BinaryOp::kFloorDivide:
      return {.real = FloorDivide(a, b)};
    case BinaryOp::kRemainder:
      return {.real = FloorRemainder(a, b)};
    case BinaryOp::kFmod:
      return {.real = std::fmod(a, b)};
    case BinaryOp::kBitwiseAnd:
    case BinaryOp::kBitwiseOr:
    case BinaryOp::kBitwiseXor:
      return {};
  }
  return {};
}

Value ApplyInteger(BinaryOp op, int64_t a, int64_t b) {
  switch (op) {
    case BinaryOp::kAdd:
      return {.integer = WrapAdd(a, b)};
    case BinaryOp::kSub:
      return {.integer = WrapAdd(a, WrapMul(b, -1))};
    case BinaryOp::kMul:
      return {.integer = WrapMul(a, b)};
    case BinaryOp::kMaximum:
      return {.integer = a > b ? a : b};
    case BinaryOp::kMinimum:
      return {.integer = a < b ? a : b};
    case BinaryOp::kPow:
      return {.integer = WrapPow(a, b)};
    case BinaryOp::kEq:
      return Of(a == b);
    case BinaryOp::kNe:
      return Of(a != b);
    case BinaryOp::kLt:
      return Of(a < b);
    case BinaryOp::kLe:
      return Of(a <= b);
    case BinaryOp::kGt:
      return Of(a > b);
    case BinaryOp::kGe:
      return Of(a >= b);
    case BinaryOp::kBitwiseAnd:
      return {.integer = a & b};
    case BinaryOp::kBitwiseOr:
      return {.integer = a | b};
    case BinaryOp::kBitwiseXor:
      return {.integer = a ^ b};
    case BinaryOp::kLogicalAnd:
      return Of(a != 0 && b != 0);
    case BinaryOp::kLogicalOr:
      return Of(a != 0 || b != 0);
    case BinaryOp::kLogicalXor:
      return Of((a != 0) != (b != 0));
    case BinaryOp::kFloorDivide:
      return {.integer = b == 0 ? 0 : b == -1 ? WrapMul(a, -1) : a / b - (FloorRemainder(a, b) != a % b)};
    case BinaryOp::kRemainder:
      return {.integer = FloorRemainder(a, b)};
    case BinaryOp::kFmod:
      return {.integer = b == 0 || b == -1 ? 0 : a % b};
    case BinaryOp::kDiv:
      return {};
  }
  return {};
}

// Truncates; what does not fit, and NaN, gives the least value.
template <class T>
int64_t Truncate(double x) {
  constexpr double kLeast = static_cast<double>(std::numeric_limits<T>::min());
  return x >= kLeast && x < -kLeast ? static_cast<int64_t>(x) : static_cast<int64_t>(kLeast);
}

}  // namespace

void UnaryReference(UnaryOp op, const View& x, const View& out) {
  for (int64_t i = 0; i < out.size(); ++i) {
    const Value value = Load(x, i);
    Store(out, i, IsFloat(x.dtype) ? ApplyReal(op, value.real) : ApplyInteger(op, value.integer, x.dtype));
  }
}

void BinaryReference(BinaryOp op, const View& a, const View& b, const View& out) {
  for (int64_t i = 0; i < out.size(); ++i) {
    const Value left = Load(a, i);
    const Value right = Load(b, i);
    Store(out, i,
          IsFloat(a.dtype) ? ApplyReal(op, left.real, right.real) : ApplyInteger(op, left.integer, right.integer));
  }
}

void WhereReference(const View& cond, const View& a, const View& b, const View& out) {
  for (int64_t i = 0; i < out.size(); ++i) Store(out, i, Load(Load(cond, i).integer ? a : b, i));
}

void CastReference(const View& x, const View& out) {
  for (int64_t i = 0; i < out.size(); ++i) {
    Value value = Load(x, i);
    if (IsFloat(x.dtype)) {
      if (out.dtype == DType::kI64) value.integer = Truncate<int64_t>(value.real);
      if (out.dtype == DType::kI32) value.integer = Truncate<int32_t>(value.real);
      if (out.dtype == DType::kBool) value.integer = value.real != 0;
    } else if (IsFloat(out.dtype)) {
      value.real = static_cast<float>(value.integer);  // rounded once, straight from the integer
    }
    Store(out, i, value);
  }
}

}  // namespace thresher::kernels
