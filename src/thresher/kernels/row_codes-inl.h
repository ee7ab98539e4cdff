// Quantising rows of floats to the 8 bits that Int8Dot multiplies.

#if defined(THRESHER_KERNELS_ROW_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_ROW_CODES_INL_H_
#undef THRESHER_KERNELS_ROW_CODES_INL_H_
#else
#define THRESHER_KERNELS_ROW_CODES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// Stores `count` codes, saturating.
HWY_INLINE void StoreCodes(hn::Vec<IntTag> q, uint8_t* row, size_t j, size_t count) {
  const auto store = [&](auto d, auto* out) HWY_ATTR {
    const auto codes = hn::DemoteTo(d, q);
    if (count == hn::Lanes(d)) {
      hn::StoreU(codes, d, out + j);
    } else {
      hn::StoreN(codes, d, out + j, count);
    }
  };
  if constexpr (Int8Dot::kRowBytes == 2) {
    store(hn::Rebind<int16_t, IntTag>(), reinterpret_cast<int16_t*>(row));
  } else if constexpr (Int8Dot::kRowOffset == 0) {
    store(hn::Rebind<uint8_t, IntTag>(), row);
  } else {
    store(hn::Rebind<int8_t, IntTag>(), reinterpret_cast<int8_t*>(row));
  }
}

// The range of 0, so that it has a code of its own, and some numbers; NaN where one of these is not finite.
struct CodeRange {
  float low = 0.0f, high = 0.0f;

  void Include(const CodeRange& other) {
    if (!finite()) return;
    *this = other.finite() ? CodeRange{std::min(low, other.low), std::max(high, other.high)} : other;
  }
  bool finite() const { return high - low <= std::numeric_limits<float>::max(); }
};

HWY_INLINE CodeRange RangeOf(const float* HWY_RESTRICT x, size_t k) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  auto min = hn::Zero(d), min2 = hn::Zero(d);
  auto max = hn::Zero(d), max2 = hn::Zero(d);
  auto odd = hn::Zero(d);  // becomes NaN with a NaN or an infinity
  size_t j = 0;
  for (; j + 2 * lanes <= k; j += 2 * lanes) {
    const auto v = hn::LoadU(d, x + j);
    const auto w = hn::LoadU(d, x + j + lanes);
    min = hn::Min(min, v);
    max = hn::Max(max, v);
    min2 = hn::Min(min2, w);
    max2 = hn::Max(max2, w);
    odd = hn::MulAdd(hn::Sub(v, w), hn::Zero(d), odd);
  }
  for (; j < k; j += lanes) {
    const auto v = hn::LoadN(d, x + j, std::min(lanes, k - j));
    min = hn::Min(min, v);
    max = hn::Max(max, v);
    odd = hn::MulAdd(v, hn::Zero(d), odd);
  }
  if (hn::ReduceSum(d, odd) != 0.0f) {  // NaN is not 0 either
    return {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};
  }
  return {hn::ReduceMin(d, hn::Min(min, min2)), hn::ReduceMax(d, hn::Max(max, max2))};
}

// How numbers are quantised: code = x / scale + zero, and whether all of them are finite.
struct RowCodes {
  float scale = 0.0f;
  float inverse = 0.0f;
  int32_t zero = 0;
  bool finite = true;

  RowCodes() = default;
  explicit RowCodes(const CodeRange& range)
      : scale((range.high - range.low) / 255.0f),
        inverse(scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f),
        finite(range.finite()) {
    if (finite) zero = static_cast<int32_t>(std::nearbyint(-range.low * inverse));
  }

  // What is stored of it: what the stored numbers are relative to.
  int32_t StoredZero() const { return Int8Dot::kCentred ? 0 : zero - Int8Dot::kRowOffset; }
};

HWY_INLINE void StoreRow(const float* HWY_RESTRICT x, size_t k, const RowCodes& codes, uint8_t* HWY_RESTRICT row) {
  const TileTag d;
  const IntTag di;
  const size_t lanes = hn::Lanes(d);
  const int32_t shift = Int8Dot::kCentred ? 0 : codes.zero - Int8Dot::kRowOffset;
  const auto vmagic = hn::Set(d, kRoundingMagic + static_cast<float>(shift));
  const auto vinverse = hn::Set(d, codes.inverse);
  const auto code = [&](hn::Vec<TileTag> v) HWY_ATTR {
    const auto q = hn::Sub(hn::BitCast(di, hn::MulAdd(v, vinverse, vmagic)), hn::Set(di, kRoundingMagicBits));
    if constexpr (Int8Dot::kRowBytes == 1) return q;  // storing bytes saturates
    return hn::Min(hn::Max(q, hn::Set(di, shift - codes.zero)), hn::Set(di, shift - codes.zero + 255));
  };
  size_t j = 0;
  for (; j + lanes <= k; j += lanes) StoreCodes(code(hn::LoadU(d, x + j)), row, j, lanes);
  if (j < k) StoreCodes(code(hn::LoadN(d, x + j, k - j)), row, j, k - j);
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
