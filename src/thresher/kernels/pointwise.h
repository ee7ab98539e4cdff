// Element-wise kernels with torch's semantics.
//
// `out` is row-major without holes; every operand has out's shape, any strides, and stride 0 where it is broadcast.
// `out` may be the very memory of an operand of the same element size and the same strides; any other overlap is wrong.
// Part `part` of `num_parts` writes its own range of out; the parts together write all of it, in any order, on any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "thresher/base/dtype.h"
#include "thresher/base/view.h"

namespace thresher::kernels {

enum class UnaryOp : uint8_t {
  kNeg,
  kAbs,
  kSign,
  kFloor,
  kCeil,
  kRound,  // halves to even
  kTrunc,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kErf,
  kTanh,
  kSigmoid,
  kRelu,
  kGelu,      // the erf form
  kGeluTanh,  // the tanh approximation
  kSilu,
  kSin,
  kCos,
  kIsNan,
  kIsInf,
  kLogicalNot,
  kBitwiseNot,  // on bool: logical not
  kRoundBF16,   // what is left of an f32 that was stored as bf16
  kRoundF16,
};

enum class BinaryOp : uint8_t {
  kAdd,  // on bool: or
  kSub,
  kMul,  // on bool: and
  kDiv,
  kMaximum,  // NaN wins
  kMinimum,  // NaN wins
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kBitwiseAnd,
  kBitwiseOr,
  kBitwiseXor,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kFloorDivide,
  kRemainder,
  kFmod,
};

std::span<const UnaryOp> AllUnaryOps();
std::span<const BinaryOp> AllBinaryOps();

// The operator's name in the graph: "gelu_tanh", "bitwise_and".
std::string_view Name(UnaryOp op);
std::string_view Name(BinaryOp op);
std::optional<UnaryOp> ParseUnary(std::string_view name);
std::optional<BinaryOp> ParseBinary(std::string_view name);

// One sentence for the operator table.
std::string_view Doc(UnaryOp op);
std::string_view Doc(BinaryOp op);

// Floating-point operations of one element, as the cost model counts them: 1 for arithmetic, more for transcendentals,
// 0 where nothing is computed in floating point terms.
int FlopsPerElement(UnaryOp op);
int FlopsPerElement(BinaryOp op);

// Whether the operator takes operands of this type (both operands of a binary one have it).
bool Supports(UnaryOp op, DType dtype);
bool Supports(BinaryOp op, DType dtype);

// The type of the result: bool for comparisons, logical_* and is*, else the operands' type.
DType ResultType(UnaryOp op, DType dtype);
DType ResultType(BinaryOp op, DType dtype);

// out = op(x). Supports(op, x.dtype) holds and out.dtype is ResultType(op, x.dtype).
// Integers wrap around. The f32 transcendentals come from math-inl.h, which states their errors.
void Unary(UnaryOp op, const View& x, const View& out, int part = 0, int num_parts = 1);

// out = op(a, b). a and b have one dtype that Supports accepts; out.dtype is ResultType.
// Integers wrap around; division by an integer 0 gives 0. floor_divide, remainder and fmod of f32 round as torch's do,
// whose quotient comes from the remainder. pow: where b is one value for the whole call and is 2, 3, -1, 0.5 or -0.5,
// products, reciprocals and square roots are used (as torch does for a number as exponent: pow(-0, 0.5) is -0); an
// integer to a negative exponent is 1 or -1 for the bases 1 and -1, else 0.
void Binary(BinaryOp op, const View& a, const View& b, const View& out, int part = 0, int num_parts = 1);

// out = cond ? a : b. cond is bool; a, b and out have one dtype, any.
void Where(const View& cond, const View& a, const View& b, const View& out, int part = 0, int num_parts = 1);

// out = x as out.dtype, any pair of types. A float to an integer truncates towards zero, and NaN or a value outside the
// integer's range gives its minimum, on every machine (what torch gives on x86). i64 to i32 wraps. To bool: x != 0 (so
// NaN is true). To bf16 and f16: the nearest, ties to even; an integer by way of f32.
void Cast(const View& x, const View& out, int part = 0, int num_parts = 1);

// The same, element by element in float64 where the type is f32, in one thread.
void UnaryReference(UnaryOp op, const View& x, const View& out);
void BinaryReference(BinaryOp op, const View& a, const View& b, const View& out);
void WhereReference(const View& cond, const View& a, const View& b, const View& out);
void CastReference(const View& x, const View& out);

}  // namespace thresher::kernels
