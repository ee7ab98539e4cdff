// Results that are stored as rows of bf16 (StoresRows(), gemm_dot.h), and residuals that were.

#if defined(THRESHER_KERNELS_BF16_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_BF16_ROWS_INL_H_
#undef THRESHER_KERNELS_BF16_ROWS_INL_H_
#else
#define THRESHER_KERNELS_BF16_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/math-inl.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// `count` elements of a row's residual from `column` on, a vector of them at most, and zeros behind them.
HWY_INLINE hn::Vec<TileTag> LoadResidual(bool bf16, const float* row, size_t column, size_t count) {
  const TileTag d;
  if (!bf16) return hn::LoadN(d, row + column, count);
  const hn::Rebind<hwy::bfloat16_t, TileTag> d16;
  return hn::PromoteTo(d, hn::LoadN(d16, reinterpret_cast<const hwy::bfloat16_t*>(row) + column, count));
}

// Stores the first `count` columns of a panel, of which there are two vectors, as a row of bf16; zeros in the place of
// those that it lacks where rows begin whole lines apart, which are `ld` pairs.
HWY_INLINE void StoreAsBf16(hn::Vec<TileTag> a, hn::Vec<TileTag> b, size_t count, size_t ld, float* row) {
  const TileTag d;
  const hn::Repartition<hwy::bfloat16_t, TileTag> d16;
  const size_t lanes = hn::Lanes(d);
  auto* const out = reinterpret_cast<hwy::bfloat16_t*>(row);
  if (count < 2 * lanes) {
    if (ld % (kStoredColumns / 2) != 0) return hn::StoreN(hn::OrderedDemote2To(d16, a, b), d16, out, count);
    a = hn::IfThenElseZero(hn::FirstN(d, count), a);
    b = hn::IfThenElseZero(hn::FirstN(d, count - std::min(lanes, count)), b);
  }
  hn::StoreU(hn::OrderedDemote2To(d16, a, b), d16, out);
}

// What a tile's end does with the sums of row i.
HWY_INLINE void EndRowAsBf16(const TileEnd& end, size_t i, hn::Vec<TileTag> a, hn::Vec<TileTag> b) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const auto bound = [&]() HWY_ATTR {
    const auto least = hn::Set(d, end.bounds.least), greatest = hn::Set(d, end.bounds.greatest);
    a = AtMost(d, greatest, AtLeast(d, least, a));
    b = AtMost(d, greatest, AtLeast(d, least, b));
  };
  if (end.bounds.any && !end.residual_first) bound();
  if (end.residual != nullptr) {
    const float* const row = end.residual + i * end.residual_ld;
    const size_t count = std::min(lanes, end.columns);
    a = hn::Add(a, LoadResidual(end.residual_bf16, row, 0, count));
    b = hn::Add(b, LoadResidual(end.residual_bf16, row, lanes, std::min(lanes, end.columns - count)));
  }
  if (end.bounds.any && end.residual_first) bound();
  StoreAsBf16(a, b, end.columns, end.out_ld, static_cast<float*>(end.out) + i * end.out_ld);
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
