// Rows of the unary operators.
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/pointwise_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/pointwise_unary.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;

// sin(x) (Quadrants = 0) or cos(x) (Quadrants = 1): both are the sine or cosine of what is left of x after whole
// quarter turns. The reduction works in float64, where the product of a turn count below 2^20 with the 33-bit head of
// pi/2 is exact.
template <int Quadrants>
HWY_INLINE V SinCos(D d, V x) {
  const hn::RebindToSigned<D> di;
  const hn::Repartition<double, D> dd;
  const hn::Rebind<float, decltype(dd)> dh;
  const hn::Rebind<int32_t, decltype(dd)> dhi;
  const V limit = hn::Set(d, 1e6f);
  // Rare: beyond the limit (infinities and NaN too) the C library knows more digits of pi.
  if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Lt(hn::Abs(x), limit)))) {
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    hn::Store(x, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = Quadrants ? std::cos(lanes[i]) : std::sin(lanes[i]);
    return hn::Load(d, lanes);
  }
  const auto two_over_pi = hn::Set(dd, 0.63661977236758134);
  const auto head = hn::Set(dd, 1.57079632673412561417);
  const auto tail = hn::Set(dd, 6.07710050650619224932e-11);
  const auto low = hn::PromoteLowerTo(dd, x);
  const auto high = hn::PromoteUpperTo(dd, x);
  const auto turns_low = hn::Round(hn::Mul(low, two_over_pi));
  const auto turns_high = hn::Round(hn::Mul(high, two_over_pi));
  const auto rest_low = hn::NegMulAdd(turns_low, tail, hn::NegMulAdd(turns_low, head, low));
  const auto rest_high = hn::NegMulAdd(turns_high, tail, hn::NegMulAdd(turns_high, head, high));
  const V r = hn::Combine(d, hn::DemoteTo(dh, rest_high), hn::DemoteTo(dh, rest_low));
  const auto turns = hn::Combine(di, hn::DemoteTo(dhi, turns_high), hn::DemoteTo(dhi, turns_low));
  const auto quarter = hn::Add(turns, hn::Set(di, Quadrants));
  const V z = hn::Mul(r, r);
  // Taylor series: on |r| <= pi/4 their first omitted terms are below 2e-9 and 1e-10.
  const V sine = hn::MulAdd(hn::Mul(r, z), Polynomial(d, z, -1.0f / 6, 1.0f / 120, -1.0f / 5040, 1.0f / 362880), r);
  const V cosine = Polynomial(d, z, 1.0f, -0.5f, 1.0f / 24, -1.0f / 720, 1.0f / 40320, -1.0f / 3628800);
  const auto odd = hn::Eq(hn::And(quarter, hn::Set(di, 1)), hn::Set(di, 1));
  const V chosen = hn::IfThenElse(hn::RebindMask(d, odd), cosine, sine);
  const auto sign = hn::ShiftLeft<30>(hn::And(quarter, hn::Set(di, 2)));
  return hn::Xor(chosen, hn::BitCast(d, sign));
}

// f32 to f32.
struct NegF {
  HWY_INLINE V operator()(D, V x) const { return hn::Neg(x); }
};
struct AbsF {
  HWY_INLINE V operator()(D, V x) const { return hn::Abs(x); }
};
struct SignF {
  HWY_INLINE V operator()(D d, V x) const {
    const V zero = hn::Zero(d);
    const V one = hn::Set(d, 1.0f);
    return hn::IfThenElse(hn::Gt(x, zero), one, hn::IfThenElseZero(hn::Lt(x, zero), hn::Neg(one)));
  }
};
struct FloorF {
  HWY_INLINE V operator()(D, V x) const { return hn::Floor(x); }
};
struct CeilF {
  HWY_INLINE V operator()(D, V x) const { return hn::Ceil(x); }
};
struct RoundIntF {
  HWY_INLINE V operator()(D, V x) const { return hn::Round(x); }
};
struct TruncF {
  HWY_INLINE V operator()(D, V x) const { return hn::Trunc(x); }
};
struct ExpF {
  HWY_INLINE V operator()(D d, V x) const { return Exp(d, x); }
};
struct LogF {
  HWY_INLINE V operator()(D d, V x) const { return Log(d, x); }
};
struct SqrtF {
  HWY_INLINE V operator()(D, V x) const { return hn::Sqrt(x); }
};
struct RsqrtF {
  HWY_INLINE V operator()(D d, V x) const { return hn::Div(hn::Set(d, 1.0f), hn::Sqrt(x)); }
};
struct ReciprocalF {
  HWY_INLINE V operator()(D d, V x) const { return hn::Div(hn::Set(d, 1.0f), x); }
};
struct ErfF {
  HWY_INLINE V operator()(D d, V x) const { return Erf(d, x); }
};
struct TanhF {
  HWY_INLINE V operator()(D d, V x) const { return Tanh(d, x); }
};
struct SigmoidF {
  HWY_INLINE V operator()(D d, V x) const { return Sigmoid(d, x); }
};
struct ReluF {
  HWY_INLINE V operator()(D d, V x) const { return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x); }
};
struct GeluF {
  HWY_INLINE V operator()(D d, V x) const { return Gelu(d, x); }
};
struct GeluTanhF {
  HWY_INLINE V operator()(D d, V x) const { return GeluTanh(d, x); }
};
struct SiluF {
  HWY_INLINE V operator()(D d, V x) const { return Silu(d, x); }
};
struct SinF {
  HWY_INLINE V operator()(D d, V x) const { return SinCos<0>(d, x); }
};
struct CosF {
  HWY_INLINE V operator()(D d, V x) const { return SinCos<1>(d, x); }
};

template <class Half>
struct RoundF {
  HWY_INLINE V operator()(D d, V x) const { return Widen<Half>(d, Narrow<Half>(d, x)); }
};

template <class F>
void RowF(const void* x, void* out, int64_t n) {
  const D d;
  const F f;
  const auto* from = static_cast<const float*>(x);
  auto* to = static_cast<float*>(out);
  const size_t count = static_cast<size_t>(n);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(f(d, hn::LoadU(d, from + i)), d, to + i);
  if (i < count) hn::StoreN(f(d, hn::LoadN(d, from + i, count - i)), d, to + i, count - i);
}

// f32 to bool.
struct IsNanF {
  HWY_INLINE M operator()(D, V x) const { return hn::IsNaN(x); }
};
struct IsInfF {
  HWY_INLINE M operator()(D d, V x) const { return hn::Eq(hn::Abs(x), hn::Inf(d)); }
};
struct LogicalNotF {
  HWY_INLINE M operator()(D d, V x) const { return hn::Eq(x, hn::Zero(d)); }
};

template <class F>
void TestF(const void* x, void* out, int64_t n) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> d8;
  const F f;
  const auto* from = static_cast<const float*>(x);
  auto* to = static_cast<uint8_t*>(out);
  const auto bytes = [&](V v) HWY_ATTR {
    return hn::DemoteTo(d8, hn::IfThenElseZero(hn::RebindMask(di, f(d, v)), hn::Set(di, 1)));
  };
  const size_t count = static_cast<size_t>(n);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(bytes(hn::LoadU(d, from + i)), d8, to + i);
  if (i < count) hn::StoreN(bytes(hn::LoadN(d, from + i, count - i)), d8, to + i, count - i);
}

// Integers, in unsigned arithmetic where they may wrap; the compiler vectorises the loop for each instruction set.
struct NegI {
  template <class T>
  HWY_INLINE T operator()(T x) const {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(U{0} - static_cast<U>(x));
  }
};
struct AbsI {
  template <class T>
  HWY_INLINE T operator()(T x) const {
    return x < 0 ? NegI()(x) : x;
  }
};
struct SignI {
  template <class T>
  HWY_INLINE T operator()(T x) const {
    return static_cast<T>((x > 0) - (x < 0));
  }
};
struct SameI {
  template <class T>
  HWY_INLINE T operator()(T x) const {
    return x;
  }
};
struct ReluI {
  template <class T>
  HWY_INLINE T operator()(T x) const {
    return x < 0 ? T{0} : x;
  }
};
struct BitwiseNotI {
  template <class T>
  HWY_INLINE T operator()(T x) const {
    return static_cast<T>(~x);
  }
};
struct FalseI {
  template <class T>
  HWY_INLINE uint8_t operator()(T) const {
    return 0;
  }
};
struct LogicalNotI {
  template <class T>
  HWY_INLINE uint8_t operator()(T x) const {
    return x == 0;
  }
};
struct TruthI {
  template <class T>
  HWY_INLINE uint8_t operator()(T x) const {
    return x != 0;
  }
};

template <class T, class F>
void RowI(const void* x, void* out, int64_t n) {
  using R = decltype(F()(T{}));
  const F f;
  const auto* from = static_cast<const T*>(x);
  auto* to = static_cast<R*>(out);
  for (int64_t i = 0; i < n; ++i) to[i] = f(from[i]);
}

UnaryRow FindF(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg:
      return RowF<NegF>;
    case UnaryOp::kAbs:
      return RowF<AbsF>;
    case UnaryOp::kSign:
      return RowF<SignF>;
    case UnaryOp::kFloor:
      return RowF<FloorF>;
    case UnaryOp::kCeil:
      return RowF<CeilF>;
    case UnaryOp::kRound:
      return RowF<RoundIntF>;
    case UnaryOp::kTrunc:
      return RowF<TruncF>;
    case UnaryOp::kExp:
      return RowF<ExpF>;
    case UnaryOp::kLog:
      return RowF<LogF>;
    case UnaryOp::kSqrt:
      return RowF<SqrtF>;
    case UnaryOp::kRsqrt:
      return RowF<RsqrtF>;
    case UnaryOp::kReciprocal:
      return RowF<ReciprocalF>;
    case UnaryOp::kErf:
      return RowF<ErfF>;
    case UnaryOp::kTanh:
      return RowF<TanhF>;
    case UnaryOp::kSigmoid:
      return RowF<SigmoidF>;
    case UnaryOp::kRelu:
      return RowF<ReluF>;
    case UnaryOp::kGelu:
      return RowF<GeluF>;
    case UnaryOp::kGeluTanh:
      return RowF<GeluTanhF>;
    case UnaryOp::kSilu:
      return RowF<SiluF>;
    case UnaryOp::kSin:
      return RowF<SinF>;
    case UnaryOp::kCos:
      return RowF<CosF>;
    case UnaryOp::kIsNan:
      return TestF<IsNanF>;
    case UnaryOp::kIsInf:
      return TestF<IsInfF>;
    case UnaryOp::kLogicalNot:
      return TestF<LogicalNotF>;
    case UnaryOp::kRoundBF16:
      return RowF<RoundF<BF16>>;
    case UnaryOp::kRoundF16:
      return RowF<RoundF<F16>>;
    case UnaryOp::kBitwiseNot:
      return nullptr;
  }
  return nullptr;
}

template <class T>
UnaryRow FindI(UnaryOp op) {
  switch (op) {
    case UnaryOp::kNeg:
      return RowI<T, NegI>;
    case UnaryOp::kAbs:
      return RowI<T, AbsI>;
    case UnaryOp::kSign:
      return RowI<T, SignI>;
    case UnaryOp::kFloor:
    case UnaryOp::kCeil:
    case UnaryOp::kRound:
    case UnaryOp::kTrunc:
      return RowI<T, SameI>;
    case UnaryOp::kRelu:
      return RowI<T, ReluI>;
    case UnaryOp::kIsNan:
    case UnaryOp::kIsInf:
      return RowI<T, FalseI>;
    case UnaryOp::kLogicalNot:
      return RowI<T, LogicalNotI>;
    case UnaryOp::kBitwiseNot:
      return RowI<T, BitwiseNotI>;
    default:
      return nullptr;
  }
}

UnaryRow FindB(UnaryOp op) {
  switch (op) {
    case UnaryOp::kSign:
      return RowI<uint8_t, TruthI>;
    case UnaryOp::kIsNan:
    case UnaryOp::kIsInf:
      return RowI<uint8_t, FalseI>;
    case UnaryOp::kLogicalNot:
    case UnaryOp::kBitwiseNot:
      return RowI<uint8_t, LogicalNotI>;
    default:
      return nullptr;
  }
}

}  // namespace

// Not in the unnamed namespace: the dispatch table names it.
UnaryRow FindUnary(UnaryOp op, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return FindF(op);
    case DType::kI64:
      return FindI<int64_t>(op);
    case DType::kI32:
      return FindI<int32_t>(op);
    case DType::kBool:
      return FindB(op);
    case DType::kBF16:
    case DType::kF16:
      return nullptr;  // computed with as f32
  }
  return nullptr;
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thresher::kernels {

HWY_EXPORT(FindUnary);
UnaryRow FindUnaryRow(UnaryOp op, DType dtype) { return HWY_DYNAMIC_DISPATCH(FindUnary)(op, dtype); }

}  // namespace thresher::kernels
#endif  // HWY_ONCE
