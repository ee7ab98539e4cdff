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

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
