// Floats of 16 bits in vectors of f32; the bits are those of base/half.h.

#if defined(THRESHER_KERNELS_HALF_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_HALF_INL_H_
#undef THRESHER_KERNELS_HALF_INL_H_
#else
#define THRESHER_KERNELS_HALF_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "thresher/base/half.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Nearest bf16, ties to even, in the upper half of each lane. Not by the processor's instruction, which takes subnormal
// numbers for zero.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundToBf16(D, V x) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, even), hn::Set(du, 0x7FFF));
  // Rounding could carry a NaN over into an infinity: a NaN is cut off and made quiet instead.
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000));
  const auto kept = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
  return hn::And(kept, hn::Set(du, 0xFFFF0000u));
}

// Half is BF16 or F16; the lanes hold its bits.
template <class Half, class D, class V = hn::Vec<D>, class D16 = hn::Rebind<uint16_t, D>>
HWY_INLINE hn::Vec<D16> Narrow(D, V x) {
  const D16 d16;
  if constexpr (std::is_same_v<Half, BF16>) {
    return hn::TruncateTo(d16, hn::ShiftRight<16>(RoundToBf16(D(), x)));
  } else {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
    // Without an instruction for it; as in base/half.h.
    const D d;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, x);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFF));
    const auto even = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
    const auto carried = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, even), hn::Set(du, 0xFFF)));
    auto half = hn::Sub(carried, hn::Set(du, 112u << 10));
    const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
    const auto small = hn::Sub(hn::BitCast(du, shifted), hn::Set(du, 0x3F000000));
    half = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000)), small, half);
    half = hn::IfThenElse(hn::Ge(magnitude, hn::Set(du, 0x47800000)), hn::Set(du, 0x7C00), half);
    const auto quiet = hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FF)), hn::Set(du, 0x7E00));
    half = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7F800000)), quiet, half);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 0x8000));
    return hn::TruncateTo(d16, hn::Or(half, sign));
#else
    return hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), x));
#endif
  }
}

template <class Half, class D, class V16>
HWY_INLINE hn::Vec<D> Widen(D d, V16 bits) {
  if constexpr (std::is_same_v<Half, BF16>) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  } else {
    const auto floats = hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
    // Without an instruction for it, Highway takes infinities and NaN for large numbers.
    const hn::RebindToUnsigned<D> du;
    const auto wide = hn::PromoteTo(du, bits);
    const auto top = hn::Set(du, 0x7C00);
    const auto moved = hn::Or(hn::ShiftLeft<16>(hn::And(wide, hn::Set(du, 0x8000))),
                              hn::ShiftLeft<13>(hn::And(wide, hn::Set(du, 0x3FF))));
    const auto odd = hn::BitCast(d, hn::Or(moved, hn::Set(du, 0x7F800000)));
    return hn::IfThenElse(hn::RebindMask(d, hn::Eq(hn::And(wide, top), top)), odd, floats);
#else
    return floats;
#endif
  }
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
