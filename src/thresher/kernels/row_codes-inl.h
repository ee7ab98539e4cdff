// Quantising rows of floats, or of bf16, to the 8 bits that Int8Dot multiplies, and to fp16 with a scale.

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
#include <type_traits>

#include "hwy/highway.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/half-inl.h"
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

// A vector of the floats at x, or of the first `count`.
HWY_INLINE hn::Vec<TileTag> LoadFloats(const float* x) { return hn::LoadU(TileTag(), x); }
HWY_INLINE hn::Vec<TileTag> LoadFloats(const float* x, size_t count) { return hn::LoadN(TileTag(), x, count); }
HWY_INLINE hn::Vec<TileTag> LoadFloats(const hwy::bfloat16_t* x) {
  return hn::PromoteTo(TileTag(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, TileTag>(), x));
}
HWY_INLINE hn::Vec<TileTag> LoadFloats(const hwy::bfloat16_t* x, size_t count) {
  return hn::PromoteTo(TileTag(), hn::LoadN(hn::Rebind<hwy::bfloat16_t, TileTag>(), x, count));
}

// What the range of some numbers follows from, lane by lane; `odd` is NaN with a NaN or an infinity, else 0. (No struct
// holds vectors of SVE.)
HWY_INLINE void FindLaneRanges(const float* HWY_RESTRICT x, size_t k, hn::Vec<TileTag>& min, hn::Vec<TileTag>& max,
                               hn::Vec<TileTag>& odd) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  auto min2 = hn::Zero(d), max2 = hn::Zero(d);
  min = max = odd = hn::Zero(d);
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
  min = hn::Min(min, min2);
  max = hn::Max(max, max2);
}

// The same of bf16: as integers in the order of the numbers they stand for.
HWY_INLINE void FindLaneRanges(const hwy::bfloat16_t* HWY_RESTRICT x, size_t k, hn::Vec<TileTag>& min,
                               hn::Vec<TileTag>& max, hn::Vec<TileTag>& odd) {
  const TileTag d;
  const IntTag di;
  const hn::Repartition<int16_t, TileTag> d16;
  const size_t lanes = hn::Lanes(d16);
  const int16_t* const bits = reinterpret_cast<const int16_t*>(x);
  const auto key = [&](auto v) HWY_ATTR {
    const auto sign = hn::BroadcastSignBit(v);
    return hn::Xor(v, hn::And(sign, hn::Set(d16, int16_t{0x7fff})));
  };
  auto least = hn::Zero(d16), most = hn::Zero(d16);
  size_t j = 0;
  for (; j + lanes <= k; j += lanes) {
    const auto v = key(hn::LoadU(d16, bits + j));
    least = hn::Min(least, v);
    most = hn::Max(most, v);
  }
  if (j < k) {
    const auto v = key(hn::LoadN(d16, bits + j, k - j));
    least = hn::Min(least, v);
    most = hn::Max(most, v);
  }
  const auto number = [&](auto v) HWY_ATTR {
    const auto sign = hn::And(hn::BroadcastSignBit(v), hn::Set(di, 0x7fff));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::Xor(v, sign)));
  };
  min = number(hn::Min(hn::PromoteLowerTo(di, least), hn::PromoteUpperTo(di, least)));
  max = number(hn::Max(hn::PromoteLowerTo(di, most), hn::PromoteUpperTo(di, most)));
  odd = hn::MulAdd(min, hn::Zero(d), hn::Mul(max, hn::Zero(d)));
}

constexpr CodeRange kNoRange = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};

template <class T>
HWY_INLINE CodeRange RangeOf(const T* HWY_RESTRICT x, size_t k) {
  const TileTag d;
  hn::Vec<TileTag> min, max, odd;
  FindLaneRanges(x, k, min, max, odd);
  if (hn::ReduceSum(d, odd) != 0.0f) return kNoRange;  // NaN is not 0 either
  return {hn::ReduceMin(d, min), hn::ReduceMax(d, max)};
}

// What numbers of this range are divided by for fp16: 1, or a power of two where they reach beyond it.
HWY_INLINE float F16Scale(const CodeRange& range) {
  constexpr float kMost = 65504.0f;
  const float most = std::max(-range.low, range.high);
  const bool fits = !(range.finite() && most > kMost);
  return fits ? 1.0f : std::ldexp(1.0f, std::ilogb(most) - 14);
}

// in[0, count) times `factor`.
HWY_INLINE void RowToF16(const float* HWY_RESTRICT in, size_t count, float factor, uint16_t* HWY_RESTRICT row) {
  const TileTag d;
  const hn::Rebind<uint16_t, TileTag> d16;
  const size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, factor);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes) hn::StoreU(Narrow<F16>(d, hn::Mul(hn::LoadU(d, in + j), by)), d16, row + j);
  if (j < count) hn::StoreN(Narrow<F16>(d, hn::Mul(hn::LoadN(d, in + j, count - j), by)), d16, row + j, count - j);
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

// Rows whose codes are found together.
inline constexpr size_t kCodedRows = 4;

// codes[i] = RowCodes(RangeOf(row i)), of kCodedRows rows that lie ldx apart. What is found of one row after the other
// takes longer than reading it where rows are short.
template <class T>
HWY_INLINE void FindRowCodes(const T* HWY_RESTRICT x, size_t ldx, size_t k, RowCodes* HWY_RESTRICT codes) {
  const TileTag d;
  const hn::FixedTag<float, kCodedRows> d4;
  const hn::RebindToSigned<decltype(d4)> i4;
  const hn::Repartition<uint64_t, decltype(d4)> pairs;
  using V4 = hn::Vec<decltype(d4)>;
  const size_t lanes = hn::Lanes(d);
  static_assert(hn::MaxLanes(TileTag()) >= kCodedRows);
  // Quarters of each row's lanes, joined; then element i of the results is of row i.
  alignas(64) float lane_min[hn::MaxLanes(TileTag())], lane_max[hn::MaxLanes(TileTag())];
  alignas(64) float row_min[kCodedRows * kCodedRows], row_max[kCodedRows * kCodedRows];
  bool odd[kCodedRows];
  for (size_t i = 0; i < kCodedRows; ++i) {
    hn::Vec<TileTag> lanes_least, lanes_most, lanes_odd;
    FindLaneRanges(x + i * ldx, k, lanes_least, lanes_most, lanes_odd);
    odd[i] = !hn::AllTrue(d, hn::Eq(lanes_odd, hn::Zero(d)));
    hn::Store(lanes_least, d, lane_min);
    hn::Store(lanes_most, d, lane_max);
    V4 min = hn::Load(d4, lane_min), max = hn::Load(d4, lane_max);
    for (size_t lane = kCodedRows; lane < lanes; lane += kCodedRows) {
      min = hn::Min(min, hn::Load(d4, lane_min + lane));
      max = hn::Max(max, hn::Load(d4, lane_max + lane));
    }
    hn::Store(min, d4, row_min + i * kCodedRows);
    hn::Store(max, d4, row_max + i * kCodedRows);
  }
  const auto joined = [&](const float* rows, auto join) HWY_ATTR {
    const auto two = [&](const float* first) HWY_ATTR {
      const V4 a = hn::Load(d4, first), b = hn::Load(d4, first + kCodedRows);
      return hn::BitCast(pairs, join(hn::InterleaveLower(d4, a, b), hn::InterleaveUpper(d4, a, b)));
    };
    const auto a = two(rows), b = two(rows + 2 * kCodedRows);
    return join(hn::BitCast(d4, hn::InterleaveLower(pairs, a, b)), hn::BitCast(d4, hn::InterleaveUpper(pairs, a, b)));
  };
  const V4 low = joined(row_min, [](V4 a, V4 b) HWY_ATTR { return hn::Min(a, b); });
  const V4 high = joined(row_max, [](V4 a, V4 b) HWY_ATTR { return hn::Max(a, b); });
  const V4 width = hn::Sub(high, low);
  const V4 scale = hn::Div(width, hn::Set(d4, 255.0f));
  const V4 inverse = hn::IfThenElseZero(hn::Ge(scale, hn::Set(d4, std::numeric_limits<float>::min())),
                                        hn::Div(hn::Set(d4, 1.0f), scale));
  alignas(16) float widths[kCodedRows], scales[kCodedRows], inverses[kCodedRows];
  alignas(16) int32_t zeros[kCodedRows];
  hn::Store(width, d4, widths);
  hn::Store(scale, d4, scales);
  hn::Store(inverse, d4, inverses);
  hn::Store(hn::NearestInt(hn::Mul(hn::Neg(low), inverse)), i4, zeros);
  for (size_t i = 0; i < kCodedRows; ++i) {
    codes[i].finite = !odd[i] && widths[i] <= std::numeric_limits<float>::max();
    codes[i].scale = scales[i];
    codes[i].inverse = inverses[i];
    codes[i].zero = codes[i].finite ? zeros[i] : 0;
  }
}

template <class T>
HWY_INLINE void StoreRow(const T* HWY_RESTRICT x, size_t k, const RowCodes& codes, uint8_t* HWY_RESTRICT row) {
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
  if constexpr (std::is_same_v<T, hwy::bfloat16_t> && Int8Dot::kRowBytes == 1) {
    // Two numbers a lane; the lower half of what has the magic number added is the code.
    const hn::Repartition<hwy::bfloat16_t, TileTag> d16;
    const hn::Repartition<int16_t, TileTag> words;
    const WordTag du;
    using Code = std::conditional_t<Int8Dot::kRowOffset == 0, uint8_t, int8_t>;
    const hn::Rebind<Code, decltype(words)> bytes;
    const auto bits = [&](auto v) HWY_ATTR { return hn::BitCast(du, hn::MulAdd(hn::BitCast(d, v), vinverse, vmagic)); };
    const auto upper = hn::Set(du, 0xffff0000u);
    for (; j + 2 * lanes <= k; j += 2 * lanes) {
      const auto two = hn::BitCast(du, hn::LoadU(d16, x + j));
      const auto even = bits(hn::ShiftLeft<16>(two)), odd = bits(hn::And(two, upper));
      const auto codes = hn::BitCast(words, hn::Or(hn::AndNot(upper, even), hn::ShiftLeft<16>(odd)));
      hn::StoreU(hn::DemoteTo(bytes, codes), bytes, reinterpret_cast<Code*>(row) + j);
    }
  }
  for (; j + lanes <= k; j += lanes) StoreCodes(code(LoadFloats(x + j)), row, j, lanes);
  if (j < k) StoreCodes(code(LoadFloats(x + j, k - j)), row, j, k - j);
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
