// Rows of where and cast: loops plain enough for the compiler to vectorise, once for each instruction set.
#include <cstdint>
#include <limits>
#include <type_traits>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/iterate.h"
#include "thresher/kernels/pointwise_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/pointwise_select.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thresher/kernels/half-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

// The 0 or -1 masks keep the loops free of branches, and of loads under a condition.
template <class T>
void RowOfWhere(const void* cond, const void* a, const void* b, void* out, int64_t n, Broadcast broadcast) {
  const auto* condition = static_cast<const uint8_t*>(cond);
  const auto* pa = static_cast<const T*>(a);
  const auto* pb = static_cast<const T*>(b);
  auto* to = static_cast<T*>(out);
  const auto choose = [](uint8_t c, T yes, T no) HWY_ATTR {
    const T mask = static_cast<T>(T{0} - static_cast<T>(c != 0));
    return static_cast<T>((yes & mask) | (no & static_cast<T>(~mask)));
  };
  switch (broadcast) {
    case Broadcast::kNone:
      for (int64_t i = 0; i < n; ++i) to[i] = choose(condition[i], pa[i], pb[i]);
      return;
    case Broadcast::kA: {
      const T one = *pa;
      for (int64_t i = 0; i < n; ++i) to[i] = choose(condition[i], one, pb[i]);
      return;
    }
    case Broadcast::kB: {
      const T one = *pb;
      for (int64_t i = 0; i < n; ++i) to[i] = choose(condition[i], pa[i], one);
      return;
    }
  }
}

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, BF16> || std::is_same_v<T, F16>;

// bool is stored as uint8_t here; it is no number type of its own.
template <class From, class To>
HWY_INLINE To Convert(From x) {
  if constexpr (kIsHalf<From>) {
    return Convert<float, To>(ToFloat(x));
  } else if constexpr (std::is_same_v<To, BF16>) {
    return ToBF16(Convert<From, float>(x));
  } else if constexpr (std::is_same_v<To, F16>) {
    return ToF16(Convert<From, float>(x));
  } else if constexpr (std::is_same_v<To, uint8_t>) {
    return static_cast<uint8_t>(x != 0);
  } else if constexpr (std::is_same_v<From, uint8_t>) {
    return static_cast<To>(x != 0);
  } else if constexpr (std::is_same_v<From, float> && std::is_integral_v<To>) {
    // The limits are powers of two, hence exact; NaN fails both comparisons.
    constexpr float kLeast = static_cast<float>(std::numeric_limits<To>::min());
    return static_cast<To>(x >= kLeast && x < -kLeast ? x : kLeast);
  } else {
    return static_cast<To>(x);
  }
}

template <class From, class To>
void RowOfCast(const void* x, void* out, int64_t n) {
  const auto* from = static_cast<const From*>(x);
  auto* to = static_cast<To*>(out);
  int64_t i = 0;
  const hn::ScalableTag<float> d;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if constexpr (kIsHalf<From> && std::is_same_v<To, float>) {
    for (; i + lanes <= n; i += lanes) hn::StoreU(Widen<From>(d, hn::LoadU(d16, &from[i].bits)), d, to + i);
  } else if constexpr (std::is_same_v<From, float> && kIsHalf<To>) {
    for (; i + lanes <= n; i += lanes) hn::StoreU(Narrow<To>(d, hn::LoadU(d, from + i)), d16, &to[i].bits);
  }
  for (; i < n; ++i) to[i] = Convert<From, To>(from[i]);
}

template <class From>
UnaryRow FindTo(DType to) {
  switch (to) {
    case DType::kF32:
      return RowOfCast<From, float>;
    case DType::kI64:
      return RowOfCast<From, int64_t>;
    case DType::kI32:
      return RowOfCast<From, int32_t>;
    case DType::kBool:
      return RowOfCast<From, uint8_t>;
    case DType::kBF16:
      return RowOfCast<From, BF16>;
    case DType::kF16:
      return RowOfCast<From, F16>;
  }
  return nullptr;
}

}  // namespace

// Not in the unnamed namespace: the dispatch tables name them.
UnaryRow FindCast(DType from, DType to) {
  switch (from) {
    case DType::kF32:
      return FindTo<float>(to);
    case DType::kI64:
      return FindTo<int64_t>(to);
    case DType::kI32:
      return FindTo<int32_t>(to);
    case DType::kBool:
      return FindTo<uint8_t>(to);
    case DType::kBF16:
      return FindTo<BF16>(to);
    case DType::kF16:
      return FindTo<F16>(to);
  }
  return nullptr;
}

WhereRow FindWhere(DType dtype) {
  switch (SizeOf(dtype)) {
    case 1:
      return RowOfWhere<uint8_t>;
    case 2:
      return RowOfWhere<uint16_t>;
    case 4:
      return RowOfWhere<uint32_t>;
    case 8:
      return RowOfWhere<uint64_t>;
    default:
      return nullptr;
  }
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thresher::kernels {

HWY_EXPORT(FindCast);
HWY_EXPORT(FindWhere);
UnaryRow FindCastRow(DType from, DType to) { return HWY_DYNAMIC_DISPATCH(FindCast)(from, to); }
WhereRow FindWhereRow(DType dtype) { return HWY_DYNAMIC_DISPATCH(FindWhere)(dtype); }

}  // namespace thresher::kernels
#endif  // HWY_ONCE
