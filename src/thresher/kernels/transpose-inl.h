// A transpose in registers.

#if defined(THRESHER_KERNELS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_TRANSPOSE_INL_H_
#undef THRESHER_KERNELS_TRANSPOSE_INL_H_
#else
#define THRESHER_KERNELS_TRANSPOSE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Stores a 4 x 4 block of 32-bit elements by columns: out[i * ld + j] = element i of row j.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void StoreTransposed4x4(D d, V r0, V r1, V r2, V r3, hn::TFromD<D>* HWY_RESTRICT out, ptrdiff_t ld) {
  static_assert(sizeof(hn::TFromD<D>) == 4 && hn::MaxLanes(D()) == 4);
  const hn::Repartition<uint64_t, D> pairs;
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, out);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, out + ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, out + 2 * ld);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, out + 3 * ld);
}

// The same of an 8 x 8 block of 16-bit elements.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void StoreTransposed8x8(D d, const V (&row)[8], hn::TFromD<D>* HWY_RESTRICT out, ptrdiff_t ld) {
  static_assert(sizeof(hn::TFromD<D>) == 2 && hn::MaxLanes(D()) == 8);
  const hn::Repartition<uint32_t, D> pairs;
  const hn::Repartition<uint64_t, D> quads;
  // Elements 0 to 3 of rows 2 i and 2 i + 1 in turn, and 4 to 7; then pairs of those of four rows; then of all.
  hn::Vec<decltype(pairs)> two[2][4];
  for (int i = 0; i < 4; ++i) {
    two[0][i] = hn::BitCast(pairs, hn::InterleaveLower(d, row[2 * i], row[2 * i + 1]));
    two[1][i] = hn::BitCast(pairs, hn::InterleaveUpper(d, row[2 * i], row[2 * i + 1]));
  }
  for (int half = 0; half < 2; ++half) {
    const auto& from = two[half];
    const hn::Vec<decltype(quads)> first[2] = {hn::BitCast(quads, hn::InterleaveLower(pairs, from[0], from[1])),
                                               hn::BitCast(quads, hn::InterleaveUpper(pairs, from[0], from[1]))};
    const hn::Vec<decltype(quads)> last[2] = {hn::BitCast(quads, hn::InterleaveLower(pairs, from[2], from[3])),
                                              hn::BitCast(quads, hn::InterleaveUpper(pairs, from[2], from[3]))};
    for (int i = 0; i < 2; ++i) {
      auto* const to = out + (4 * half + 2 * i) * ld;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(quads, first[i], last[i])), d, to);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(quads, first[i], last[i])), d, to + ld);
    }
  }
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
