// Rows of the binary operators.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/pointwise_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/pointwise_binary.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thresher/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;

// f32 to f32.
struct AddF {
  HWY_INLINE V operator()(D, V a, V b) const { return hn::Add(a, b); }
};
struct SubF {
  HWY_INLINE V operator()(D, V a, V b) const { return hn::Sub(a, b); }
};
struct MulF {
  HWY_INLINE V operator()(D, V a, V b) const { return hn::Mul(a, b); }
};
struct DivF {
  HWY_INLINE V operator()(D, V a, V b) const { return hn::Div(a, b); }
};
struct MaximumF {
  HWY_INLINE V operator()(D d, V a, V b) const { return MaxNan(d, a, b); }
};
struct MinimumF {
  HWY_INLINE V operator()(D d, V a, V b) const { return hn::IfThenElse(hn::IsNaN(a), a, AtMost(d, a, b)); }
};
// What is computed one element after the other.
template <class F>
struct Lanes {
  HWY_INLINE V operator()(D d, V a, V b) const {
    HWY_ALIGN float left[hn::MaxLanes(d)];
    HWY_ALIGN float right[hn::MaxLanes(d)];
    hn::Store(a, d, left);
    hn::Store(b, d, right);
    for (size_t i = 0; i < hn::Lanes(d); ++i) left[i] = F()(left[i], right[i]);
    return hn::Load(d, left);
  }
};
struct PowF {
  HWY_INLINE float operator()(float a, float b) const { return std::pow(a, b); }
};
struct FmodF {
  HWY_INLINE float operator()(float a, float b) const { return std::fmod(a, b); }
};
struct RemainderF {
  HWY_INLINE float operator()(float a, float b) const {
    const float rest = std::fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
  }
};
// The quotient of what the remainder leaves is near an integer, which rounding may have missed on either side.
struct FloorDivideF {
  HWY_INLINE float operator()(float a, float b) const {
    if (b == 0) return a / b;
    const float rest = std::fmod(a, b);
    float quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
    if (quotient == 0) return std::copysign(0.0f, a / b);
    const float below = std::floor(quotient);
    return quotient - below > 0.5f ? below + 1 : below;
  }
};
// pow with a known exponent; b is not read.
struct SquareF {
  HWY_INLINE V operator()(D, V a, V) const { return hn::Mul(a, a); }
};
struct CubeF {
  HWY_INLINE V operator()(D, V a, V) const { return hn::Mul(hn::Mul(a, a), a); }
};
struct InverseF {
  HWY_INLINE V operator()(D d, V a, V) const { return hn::Div(hn::Set(d, 1.0f), a); }
};
struct RootF {
  HWY_INLINE V operator()(D, V a, V) const { return hn::Sqrt(a); }
};
struct InverseRootF {
  HWY_INLINE V operator()(D d, V a, V) const { return hn::Div(hn::Set(d, 1.0f), hn::Sqrt(a)); }
};

template <class F>
void RowF(const void* a, const void* b, void* out, int64_t n, Broadcast broadcast) {
  const D d;
  const F f;
  const auto* pa = static_cast<const float*>(a);
  const auto* pb = static_cast<const float*>(b);
  auto* to = static_cast<float*>(out);
  const size_t count = static_cast<size_t>(n);
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  switch (broadcast) {
    case Broadcast::kNone: {
      for (; i + lanes <= count; i += lanes) {
        hn::StoreU(f(d, hn::LoadU(d, pa + i), hn::LoadU(d, pb + i)), d, to + i);
      }
      const size_t rest = count - i;
      if (rest != 0) hn::StoreN(f(d, hn::LoadN(d, pa + i, rest), hn::LoadN(d, pb + i, rest)), d, to + i, rest);
      return;
    }
    case Broadcast::kA: {
      const V one = hn::Set(d, *pa);
      for (; i + lanes <= count; i += lanes) hn::StoreU(f(d, one, hn::LoadU(d, pb + i)), d, to + i);
      if (i < count) hn::StoreN(f(d, one, hn::LoadN(d, pb + i, count - i)), d, to + i, count - i);
      return;
    }
    case Broadcast::kB: {
      const V one = hn::Set(d, *pb);
      for (; i + lanes <= count; i += lanes) hn::StoreU(f(d, hn::LoadU(d, pa + i), one), d, to + i);
      if (i < count) hn::StoreN(f(d, hn::LoadN(d, pa + i, count - i), one), d, to + i, count - i);
      return;
    }
  }
}

// f32 to bool. Inequality is the complement of equality, since Highway's own leaves NaN out on x86.
struct EqF {
  HWY_INLINE M operator()(D, V a, V b) const { return hn::Eq(a, b); }
};
struct NeF {
  HWY_INLINE M operator()(D, V a, V b) const { return hn::Not(hn::Eq(a, b)); }
};
struct LtF {
  HWY_INLINE M operator()(D, V a, V b) const { return hn::Lt(a, b); }
};
struct LeF {
  HWY_INLINE M operator()(D, V a, V b) const { return hn::Le(a, b); }
};
struct GtF {
  HWY_INLINE M operator()(D, V a, V b) const { return hn::Lt(b, a); }
};
struct GeF {
  HWY_INLINE M operator()(D, V a, V b) const { return hn::Le(b, a); }
};
struct LogicalAndF {
  HWY_INLINE M operator()(D d, V a, V b) const {
    return hn::Not(hn::Or(hn::Eq(a, hn::Zero(d)), hn::Eq(b, hn::Zero(d))));
  }
};
struct LogicalOrF {
  HWY_INLINE M operator()(D d, V a, V b) const {
    return hn::Not(hn::And(hn::Eq(a, hn::Zero(d)), hn::Eq(b, hn::Zero(d))));
  }
};
struct LogicalXorF {
  HWY_INLINE M operator()(D d, V a, V b) const { return hn::Xor(hn::Eq(a, hn::Zero(d)), hn::Eq(b, hn::Zero(d))); }
};

template <class F>
void TestF(const void* a, const void* b, void* out, int64_t n, Broadcast broadcast) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> d8;
  const F f;
  const auto* pa = static_cast<const float*>(a);
  const auto* pb = static_cast<const float*>(b);
  auto* to = static_cast<uint8_t*>(out);
  const V one_a = hn::Set(d, *pa);
  const V one_b = hn::Set(d, *pb);
  const size_t count = static_cast<size_t>(n);
  const size_t lanes = hn::Lanes(d);
  const auto bytes = [&](V va, V vb) HWY_ATTR {
    return hn::DemoteTo(d8, hn::IfThenElseZero(hn::RebindMask(di, f(d, va, vb)), hn::Set(di, 1)));
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const V va = broadcast == Broadcast::kA ? one_a : hn::LoadU(d, pa + i);
    const V vb = broadcast == Broadcast::kB ? one_b : hn::LoadU(d, pb + i);
    hn::StoreU(bytes(va, vb), d8, to + i);
  }
  const size_t rest = count - i;
  if (rest != 0) {
    const V va = broadcast == Broadcast::kA ? one_a : hn::LoadN(d, pa + i, rest);
    const V vb = broadcast == Broadcast::kB ? one_b : hn::LoadN(d, pb + i, rest);
    hn::StoreN(bytes(va, vb), d8, to + i, rest);
  }
}

// Integers, in unsigned arithmetic where they may wrap; the compiler vectorises the loops for each instruction set.
struct AddI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  }
};
struct SubI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) - static_cast<U>(b));
  }
};
struct MulI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  }
};
struct MaximumI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct MinimumI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};
struct PowI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    using U = std::make_unsigned_t<T>;
    if (b < 0) {
      if (a == 1) return 1;
      if (a == -1) return b % 2 == 0 ? 1 : -1;
      return 0;
    }
    U result = 1;
    U square = static_cast<U>(a);
    for (U rest = static_cast<U>(b); rest != 0; rest >>= 1) {
      if (rest & 1) result *= square;
      square *= square;
    }
    return static_cast<T>(result);
  }
};
// The processor traps on a divisor of 0, and on -1 where the quotient does not fit.
struct FmodI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    return b == 0 || b == -1 ? T{0} : static_cast<T>(a % b);
  }
};
struct RemainderI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    const T rest = FmodI()(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
  }
};
struct FloorDivideI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    if (b == 0) return 0;
    if (b == -1) return SubI()(T{0}, a);
    return static_cast<T>(a / b - (a % b != 0 && (a < 0) != (b < 0)));
  }
};
struct AndI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct OrI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct XorI {
  template <class T>
  HWY_INLINE T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
struct EqI {
  template <class T>
  HWY_INLINE uint8_t operator()(T a, T b) const {
    return a == b;
  }
};
struct NeI {
  template <class T>
  HWY_INLINE uint8_t operator()(T a, T b) const {
    return a != b;
  }
};
struct LtI {
  template <class T>
  HWY_INLINE uint8_t operator()(T a, T b) const {
    return a < b;
  }
};
struct LeI {
  template <class T>
  HWY_INLINE uint8_t operator()(T a, T b) const {
    return a <= b;
  }
};
struct GtI {
  template <class T>
  HWY_INLINE uint8_t operator()(T a, T b) const {
    return a > b;
  }
};
struct GeI {
  template <class T>
  HWY_INLINE uint8_t operator()(T a, T b) const {
    return a >= b;
  }
};
struct LogicalAndI {
  template <class T>
  HWY_INLINE uint8_t operator()(T a, T b) const {
    return static_cast<uint8_t>((a != 0) & (b != 0));
  }
};
struct LogicalOrI {
  template <class T>
  HWY_INLINE uint8_t operator()(T a, T b) const {
    return static_cast<uint8_t>((a != 0) | (b != 0));
  }
};
struct LogicalXorI {
  template <class T>
  HWY_INLINE uint8_t operator()(T a, T b) const {
    return static_cast<uint8_t>((a != 0) ^ (b != 0));
  }
};
// An operator on bytes that may hold any truth.
template <class F>
struct Truths {
  HWY_INLINE uint8_t operator()(uint8_t a, uint8_t b) const {
    return F()(static_cast<uint8_t>(a != 0), static_cast<uint8_t>(b != 0));
  }
};

template <class T, class F>
void RowI(const void* a, const void* b, void* out, int64_t n, Broadcast broadcast) {
  using R = decltype(F()(T{}, T{}));
  const F f;
  const auto* pa = static_cast<const T*>(a);
  const auto* pb = static_cast<const T*>(b);
  auto* to = static_cast<R*>(out);
  switch (broadcast) {
    case Broadcast::kNone:
      for (int64_t i = 0; i < n; ++i) to[i] = f(pa[i], pb[i]);
      return;
    case Broadcast::kA: {
      const T one = *pa;
      for (int64_t i = 0; i < n; ++i) to[i] = f(one, pb[i]);
      return;
    }
    case Broadcast::kB: {
      const T one = *pb;
      for (int64_t i = 0; i < n; ++i) to[i] = f(pa[i], one);
      return;
    }
  }
}

BinaryRow FindF(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return RowF<AddF>;
    case BinaryOp::kSub:
      return RowF<SubF>;
    case BinaryOp::kMul:
      return RowF<MulF>;
    case BinaryOp::kDiv:
      return RowF<DivF>;
    case BinaryOp::kMaximum:
      return RowF<MaximumF>;
    case BinaryOp::kMinimum:
      return RowF<MinimumF>;
    case BinaryOp::kPow:
      return RowF<Lanes<PowF>>;
    case BinaryOp::kEq:
      return TestF<EqF>;
    case BinaryOp::kNe:
      return TestF<NeF>;
    case BinaryOp::kLt:
      return TestF<LtF>;
    case BinaryOp::kLe:
      return TestF<LeF>;
    case BinaryOp::kGt:
      return TestF<GtF>;
    case BinaryOp::kGe:
      return TestF<GeF>;
    case BinaryOp::kBitwiseAnd:
    case BinaryOp::kBitwiseOr:
    case BinaryOp::kBitwiseXor:
      return nullptr;
    case BinaryOp::kLogicalAnd:
      return TestF<LogicalAndF>;
    case BinaryOp::kLogicalOr:
      return TestF<LogicalOrF>;
    case BinaryOp::kLogicalXor:
      return TestF<LogicalXorF>;
    case BinaryOp::kFloorDivide:
      return RowF<Lanes<FloorDivideF>>;
    case BinaryOp::kRemainder:
      return RowF<Lanes<RemainderF>>;
    case BinaryOp::kFmod:
      return RowF<Lanes<FmodF>>;
  }
  return nullptr;
}

template <class T>
BinaryRow FindI(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return RowI<T, AddI>;
    case BinaryOp::kSub:
      return RowI<T, SubI>;
    case BinaryOp::kMul:
      return RowI<T, MulI>;
    case BinaryOp::kDiv:
      return nullptr;
    case BinaryOp::kMaximum:
      return RowI<T, MaximumI>;
    case BinaryOp::kMinimum:
      return RowI<T, MinimumI>;
    case BinaryOp::kPow:
      return RowI<T, PowI>;
    case BinaryOp::kEq:
      return RowI<T, EqI>;
    case BinaryOp::kNe:
      return RowI<T, NeI>;
    case BinaryOp::kLt:
      return RowI<T, LtI>;
    case BinaryOp::kLe:
      return RowI<T, LeI>;
    case BinaryOp::kGt:
      return RowI<T, GtI>;
    case BinaryOp::kGe:
      return RowI<T, GeI>;
    case BinaryOp::kBitwiseAnd:
      return RowI<T, AndI>;
    case BinaryOp::kBitwiseOr:
      return RowI<T, OrI>;
    case BinaryOp::kBitwiseXor:
      return RowI<T, XorI>;
    case BinaryOp::kLogicalAnd:
      return RowI<T, LogicalAndI>;
    case BinaryOp::kLogicalOr:
      return RowI<T, LogicalOrI>;
    case BinaryOp::kLogicalXor:
      return RowI<T, LogicalXorI>;
    case BinaryOp::kFloorDivide:
      return RowI<T, FloorDivideI>;
    case BinaryOp::kRemainder:
      return RowI<T, RemainderI>;
    case BinaryOp::kFmod:
      return RowI<T, FmodI>;
  }
  return nullptr;
}

BinaryRow FindB(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
    case BinaryOp::kMaximum:
    case BinaryOp::kBitwiseOr:
    case BinaryOp::kLogicalOr:
      return RowI<uint8_t, Truths<OrI>>;
    case BinaryOp::kMul:
    case BinaryOp::kMinimum:
    case BinaryOp::kBitwiseAnd:
    case BinaryOp::kLogicalAnd:
      return RowI<uint8_t, Truths<AndI>>;
    case BinaryOp::kNe:
    case BinaryOp::kBitwiseXor:
    case BinaryOp::kLogicalXor:
      return RowI<uint8_t, Truths<XorI>>;
    case BinaryOp::kEq:
      return RowI<uint8_t, Truths<EqI>>;
    case BinaryOp::kLt:
      return RowI<uint8_t, Truths<LtI>>;
    case BinaryOp::kLe:
      return RowI<uint8_t, Truths<LeI>>;
    case BinaryOp::kGt:
      return RowI<uint8_t, Truths<GtI>>;
    case BinaryOp::kGe:
      return RowI<uint8_t, Truths<GeI>>;
    case BinaryOp::kSub:
    case BinaryOp::kDiv:
    case BinaryOp::kPow:
    case BinaryOp::kFloorDivide:
    case BinaryOp::kRemainder:
    case BinaryOp::kFmod:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

// Not in the unnamed namespace: the dispatch tables name them.
BinaryRow FindBinary(BinaryOp op, DType dtype) {
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

BinaryRow FindPower(float exponent) {
  if (exponent == 2.0f) return RowF<SquareF>;
  if (exponent == 3.0f) return RowF<CubeF>;
  if (exponent == -1.0f) return RowF<InverseF>;
  if (exponent == 0.5f) return RowF<RootF>;
  if (exponent == -0.5f) return RowF<InverseRootF>;
  return nullptr;
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thresher::kernels {

HWY_EXPORT(FindBinary);
HWY_EXPORT(FindPower);
BinaryRow FindBinaryRow(BinaryOp op, DType dtype) { return HWY_DYNAMIC_DISPATCH(FindBinary)(op, dtype); }
BinaryRow FindPowerRow(float exponent) { return HWY_DYNAMIC_DISPATCH(FindPower)(exponent); }

}  // namespace thresher::kernels
#endif  // HWY_ONCE
