// Elementary functions on SIMD vectors of float, for every compiled instruction set.
//
// Each function takes (tag, vector) and treats NaN, infinities, overflow and signed zero as its std:: namesake does.
// The error bounds are the ones tests/cpp/kernels/math_test.cc enforces against float64, with FMA and without it:
//   Exp             1.2 ulp, gradual underflow included
//   ExpNonPositive  3 ulp for -1 <= x <= 0, 1.3e-7 absolute below
//   Exp2ForBf16     8e-5 * 2^x for x <= 0
//   Log             1.5 ulp
//   Erf, Tanh       7 ulp, 4e-7 absolute
//   Sigmoid         3 ulp
//   Silu            4 ulp
//   Gelu, GeluTanh  4e-7 absolute for |x| <= 1, 3e-7 * |x| beyond
//   GeluForBf16     4e-5 absolute for x <= 4, 1e-5 * x beyond; -infinity gives next to nothing
// The polynomials and quotients were fitted for this file: minimax in relative error by reweighted least squares in
// float64.

#if defined(THRESHER_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_MATH_INL_H_
#undef THRESHER_KERNELS_MATH_INL_H_
#else
#define THRESHER_KERNELS_MATH_INL_H_
#endif

#include <cstdint>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// max(limit, x) and min(limit, x) that return a NaN in x unchanged. x86 does so by operand order; Arm's instructions
// prefer the number.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtLeast(D /*d*/, V limit, V x) {
#if HWY_ARCH_X86
  return hn::Max(limit, x);
#else
  return hn::IfThenElse(hn::Lt(x, limit), limit, x);
#endif
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V AtMost(D /*d*/, V limit, V x) {
#if HWY_ARCH_X86
  return hn::Min(limit, x);
#else
  return hn::IfThenElse(hn::Gt(x, limit), limit, x);
#endif
}

// Maximum of both in which a NaN on either side wins, as in torch.maximum.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V MaxNan(D d, V a, V b) {
  return hn::IfThenElse(hn::IsNaN(a), a, AtLeast(d, a, b));
}

// c[0] + c[1] x + c[2] x^2 ...
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Polynomial(D d, V /*x*/, float c0) {
  return hn::Set(d, c0);
}
template <class D, class V = hn::Vec<D>, class... Rest>
HWY_INLINE V Polynomial(D d, V x, float c0, Rest... rest) {
  return hn::MulAdd(Polynomial(d, x, rest...), x, hn::Set(d, c0));
}

// Adding it rounds a float of magnitude < 2^22 to an integer, which then stands in the low bits of the representation.
inline constexpr float kRoundingMagic = 12582912.0f;  // 1.5 * 2^23
inline constexpr int32_t kRoundingMagicBits = 0x4B400000;

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Beyond these limits the result is 0 or infinity anyway.
  x = AtLeast(d, hn::Set(d, -104.0f), AtMost(d, hn::Set(d, 89.0f), x));
  const V magic = hn::Set(d, kRoundingMagic);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V nf = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(nf, hn::Set(d, 0.693359375f), x);  // ln 2 in two parts; the product with the first is exact
  r = hn::NegMulAdd(nf, hn::Set(d, -2.12194440e-4f), r);
  const V tail = Polynomial(d, r, 0.4999999403953552f, 0.1666652113199234f, 0.04166838899254799f, 0.008368715643882751f,
                            0.0013814599951729178f);
  const V p = hn::Add(hn::MulAdd(hn::Mul(r, r), tail, r), hn::Set(d, 1.0f));
  // 2^n in two factors, so that n from -150 to 128 neither overflows nor skips the subnormals.
  const auto n = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, kRoundingMagicBits));
  const auto n1 = hn::ShiftRight<1>(n);
  const auto n2 = hn::Sub(n, n1);
  const auto bias = hn::Set(di, 127);
  const V s1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n1, bias)));
  const V s2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n2, bias)));
  return hn::Mul(hn::Mul(p, s1), s2);
}

// exp(x) for x <= 0 (or NaN): the inner loop of softmax. Results below 2^-126 become 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  const hn::RebindToSigned<D> di;
  x = AtLeast(d, hn::Set(d, -88.0f), x);
  // With the exponent's bias in the magic number the low bits are the exponent field; -127, reached at -88, gives 0.0f.
  const V magic = hn::Set(d, kRoundingMagic + 127.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V r = hn::NegMulAdd(hn::Sub(shifted, magic), hn::Set(d, 0.69314718055994531f), x);
  const V p = Polynomial(d, r, 1.0f, 1.0f, 0.499992311000824f, 0.16667114198207855f, 0.04189014807343483f,
                         0.008312523365020752f);
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

// 2^x for x <= 0 (or NaN): the inner loop of a softmax whose weights are rounded to bf16.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2ForBf16(D d, V x) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (hn::MaxLanes(d) == 16) {
    // Instructions for what is above the next lower integer, and for 2^that integer, -infinity and NaN included.
    const V r{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
    const V p = Polynomial(d, r, 0.9999252557754517f, 0.6958334445953369f, 0.22606724500656128f, 0.07802451401948929f);
    return V{_mm512_scalef_ps(p.raw, x.raw)};
  }
#endif
  return ExpNonPositive(d, hn::Mul(x, hn::Set(d, 0.69314718055994531f)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Log(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V smallest_normal = hn::Set(d, std::numeric_limits<float>::min());
  const auto tiny = hn::Lt(x, smallest_normal);
  const V scaled = hn::IfThenElse(tiny, hn::Mul(x, hn::Set(d, 8388608.0f)), x);
  // x = 2^e * m with m in [sqrt(1/2), sqrt(2)).
  const auto bits = hn::Sub(hn::BitCast(di, scaled), hn::Set(di, 0x3F3504F3));
  const auto e = hn::ShiftRight<23>(bits);
  const V m = hn::BitCast(d, hn::Sub(hn::BitCast(di, scaled), hn::ShiftLeft<23>(e)));
  const V ef = hn::Sub(hn::ConvertTo(d, e), hn::IfThenElseZero(tiny, hn::Set(d, 23.0f)));
  const V f = hn::Sub(m, hn::Set(d, 1.0f));
  const V tail = Polynomial(d, f, 0.3333390951156616f, -0.2500133812427521f, 0.19963061809539795f, -0.165775865316391f,
                            0.1491478681564331f, -0.1426747590303421f, 0.08700359612703323f);
  const V f2 = hn::Mul(f, f);
  V y = hn::MulAdd(hn::Mul(f2, f), tail, hn::Mul(ef, hn::Set(d, -2.12194440e-4f)));
  y = hn::NegMulAdd(hn::Set(d, 0.5f), f2, y);
  y = hn::MulAdd(ef, hn::Set(d, 0.693359375f), hn::Add(f, y));
  const V inf = hn::Inf(d);
  y = hn::IfThenElse(hn::Lt(x, inf), y, hn::Add(x, inf));  // +infinity stays, NaN stays
  y = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::NaN(d), y);
  return hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(inf), y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Erf(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V limit = hn::Set(d, 3.92f);  // erf rounds to 1 from here on
  x = AtLeast(d, hn::Neg(limit), AtMost(d, limit, x));
  const V t = hn::Mul(x, x);
  const V p = Polynomial(d, t, 1.1283791065216064f, 0.19039687514305115f, 0.052747275680303574f, 0.0037651588208973408f,
                         0.0002848648582585156f, 2.050061993941199e-06f);
  const V q = Polynomial(d, t, 1.0f, 0.5020675659179688f, 0.1141049861907959f, 0.014968302100896835f,
                         0.001162410480901599f, 3.809051850112155e-05f);
  const V y = hn::Div(hn::Mul(x, p), q);
  return AtLeast(d, hn::Neg(one), AtMost(d, one, y));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Tanh(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  const V limit = hn::Set(d, 9.02f);  // tanh rounds to 1 from here on
  x = AtLeast(d, hn::Neg(limit), AtMost(d, limit, x));
  const V t = hn::Mul(x, x);
  const V p = Polynomial(d, t, 1.0f, 0.13379672169685364f, 0.003493980271741748f, 2.0582572879997345e-05f,
                         1.3317809965940341e-08f);
  const V q = Polynomial(d, t, 1.0f, 0.4671298861503601f, 0.02587086893618107f, 0.00032830031705088913f,
                         7.761502160974487e-07f);
  const V y = hn::Div(hn::Mul(x, p), q);
  return AtLeast(d, hn::Neg(one), AtMost(d, one, y));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, Exp(d, hn::Neg(x))));
}

// x * sigmoid(x); -infinity gives NaN, as in torch.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, hn::Neg(x))));
}

// x * Phi(x) = x/2 * (1 + erf(x / sqrt(2))).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Gelu(D d, V x) {
  const V half = hn::Mul(x, hn::Set(d, 0.5f));
  return hn::MulAdd(half, Erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f))), half);
}

// Gelu for results that are rounded to bf16, without a quotient: Phi(x) - 1/2 as an odd polynomial, fitted in absolute
// error of the result. Below the clamp x itself stays there, so that nothing grows.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluForBf16(D d, V x) {
  const V limit = hn::Set(d, 4.3f);
  const V above = AtLeast(d, hn::Neg(limit), x);
  const V inside = AtMost(d, limit, above);
  const V t = hn::Mul(inside, inside);
  const V p = Polynomial(d, t, 0.3988020718097687f, -0.0661555826663971f, 0.009695140644907951f,
                         -0.0010713838273659348f, 8.71172160259448e-05f, -5.006123046769062e-06f,
                         1.902212432014494e-07f, -4.248910556725605e-09f, 4.1973317183030545e-11f);
  return hn::Mul(above, hn::MulAdd(inside, p, hn::Set(d, 0.5f)));
}

// x/2 * (1 + tanh(u)), u = sqrt(2/pi) (x + 0.044715 x^3), written as x / (1 + exp(-2u)), which keeps the digits of the
// left tail.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V GeluTanh(D d, V x) {
  const V minus_2u = hn::Mul(x, hn::MulAdd(hn::Mul(x, x), hn::Set(d, -0.07135481627f), hn::Set(d, -1.59576912161f)));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp(d, minus_2u)));
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
