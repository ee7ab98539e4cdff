// Winograd's transforms of one dimension (winograd.h), which are applied to columns and then to lines. Each takes
// numbers by load(i) and hands them on by store(i, number).
//
// F(m, 3) gives m results from a patch of m + 2 numbers by as many multiplications: with polynomials of the taps and of
// what is sought at m + 1 points and infinity (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
// 2015). The first element of the taps is the first tap, the last one the last; the tap in the middle follows from two
// others.

#if defined(THRESHER_KERNELS_WINOGRAD_TRANSFORMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_WINOGRAD_TRANSFORMS_INL_H_
#undef THRESHER_KERNELS_WINOGRAD_TRANSFORMS_INL_H_
#else
#define THRESHER_KERNELS_WINOGRAD_TRANSFORMS_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "thresher/kernels/tile-inl.h"
#include "thresher/kernels/weight.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

template <size_t kResults>
struct WinogradTransform;

// Points 0, 1 and -1: every factor is 0, 1 or 1/2.
template <>
struct WinogradTransform<2> {
  using V = hn::Vec<TileTag>;

  template <class Load, class Store>
  static HWY_INLINE void Patch(const Load& load, const Store& store) {
    const V x1 = load(1), x2 = load(2);
    store(0, hn::Sub(load(0), x2));
    store(1, hn::Add(x1, x2));
    store(2, hn::Sub(x2, x1));
    store(3, hn::Sub(x1, load(3)));
  }

  template <class Load, class Store>
  static HWY_INLINE void Results(const Load& load, const Store& store) {
    const V x1 = load(1), x2 = load(2);
    store(0, hn::Add(hn::Add(load(0), x1), x2));
    store(1, hn::Sub(hn::Sub(x1, x2), load(3)));
  }

  template <class Store>
  static HWY_INLINE void Taps(V first, V middle, V last, const Store& store) {
    const V half = hn::Set(TileTag(), 0.5f);
    const V ends = hn::Add(first, last);
    store(0, first);
    store(1, hn::Mul(half, hn::Add(ends, middle)));
    store(2, hn::Mul(half, hn::Sub(ends, middle)));
    store(3, last);
  }

  // The tap in the middle.
  static HWY_INLINE V Middle(V second, V third) { return hn::Sub(second, third); }
};

// Points 0, 2/3, -2/3, 3/2 and -3/2. Those usually taken (0, 1, -1, 2 and -2) give twice the error: factors then reach
// from 1/24 to 8. Of pairs of small fractions this one has the least, and their product is 1, which saves factors.
template <>
struct WinogradTransform<4> {
  using V = hn::Vec<TileTag>;

  static constexpr float kNear = 2.0f / 3, kFar = 3.0f / 2;
  static constexpr float kNearSquare = 4.0f / 9, kFarSquare = 9.0f / 4;

  template <class Load, class Store>
  static HWY_INLINE void Patch(const Load& load, const Store& store) {
    const TileTag d;
    const V near_square = hn::Set(d, kNearSquare), far_square = hn::Set(d, kFarSquare);
    const V squares = hn::Set(d, kNearSquare + kFarSquare);
    const V x1 = load(1), x2 = load(2), x3 = load(3), x4 = load(4);
    store(0, hn::NegMulAdd(squares, x2, hn::Add(load(0), x4)));
    const V even = hn::NegMulAdd(far_square, x2, x4), odd = hn::NegMulAdd(far_square, x1, x3);
    store(1, hn::MulAdd(hn::Set(d, kNear), odd, even));
    store(2, hn::NegMulAdd(hn::Set(d, kNear), odd, even));
    const V far_even = hn::NegMulAdd(near_square, x2, x4), far_odd = hn::NegMulAdd(near_square, x1, x3);
    store(3, hn::MulAdd(hn::Set(d, kFar), far_odd, far_even));
    store(4, hn::NegMulAdd(hn::Set(d, kFar), far_odd, far_even));
    store(5, hn::NegMulAdd(squares, x3, hn::Add(x1, load(5))));
  }

  template <class Load, class Store>
  static HWY_INLINE void Results(const Load& load, const Store& store) {
    const TileTag d;
    const V x1 = load(1), x2 = load(2), x3 = load(3), x4 = load(4);
    const V sum = hn::Add(x1, x2), difference = hn::Sub(x1, x2);
    const V far_sum = hn::Add(x3, x4), far_difference = hn::Sub(x3, x4);
    store(0, hn::Add(load(0), hn::Add(sum, far_sum)));
    store(1, hn::MulAdd(hn::Set(d, kFar), far_difference, hn::Mul(hn::Set(d, kNear), difference)));
    store(2, hn::MulAdd(hn::Set(d, kFarSquare), far_sum, hn::Mul(hn::Set(d, kNearSquare), sum)));
    store(3, hn::MulAdd(hn::Set(d, kNear * kNearSquare), difference,
                        hn::MulAdd(hn::Set(d, kFar * kFarSquare), far_difference, load(5))));
  }

  template <class Store>
  static HWY_INLINE void Taps(V first, V middle, V last, const Store& store) {
    const TileTag d;
    store(0, first);
    const V ends = hn::MulAdd(hn::Set(d, -18.0f / 65), last, hn::Mul(hn::Set(d, -81.0f / 130), first));
    store(1, hn::NegMulAdd(hn::Set(d, 27.0f / 65), middle, ends));
    store(2, hn::MulAdd(hn::Set(d, 27.0f / 65), middle, ends));
    const V far_ends = hn::MulAdd(hn::Set(d, 18.0f / 65), last, hn::Mul(hn::Set(d, 8.0f / 65), first));
    store(3, hn::MulAdd(hn::Set(d, 12.0f / 65), middle, far_ends));
    store(4, hn::NegMulAdd(hn::Set(d, 12.0f / 65), middle, far_ends));
    store(5, last);
  }

  static HWY_INLINE V Middle(V second, V third) {
    return hn::Mul(hn::Set(TileTag(), 65.0f / 54), hn::Sub(third, second));
  }
};

// What a tile measures.
template <WinogradTile kTile>
struct WinogradSizes {
  static constexpr size_t kWidth = kTile == WinogradTile::k2x2 ? 2 : 4;        // results in a line
  static constexpr size_t kHeight = kTile == WinogradTile::k1x4 ? 1 : kWidth;  // lines of them
  static constexpr size_t kTapLines = kHeight == 1 ? 1 : 3;                    // of three taps
  static constexpr size_t kPatchWidth = kWidth + 2;
  static constexpr size_t kPatchHeight = kHeight + kTapLines - 1;
  static constexpr size_t kElements = kPatchHeight * kPatchWidth;
  static_assert(kElements == static_cast<size_t>(WinogradMatrices(kTile)));
  using Transform = WinogradTransform<kWidth>;
};

// Calls f(WinogradSizes<tile>()).
template <class F>
HWY_INLINE void ForWinogradTile(WinogradTile tile, const F& f) {
  if (tile == WinogradTile::k1x4) return f(WinogradSizes<WinogradTile::k1x4>());
  if (tile == WinogradTile::k2x2) return f(WinogradSizes<WinogradTile::k2x2>());
  f(WinogradSizes<WinogradTile::k4x4>());
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // THRESHER_KERNELS_WINOGRAD_TRANSFORMS_INL_H_
