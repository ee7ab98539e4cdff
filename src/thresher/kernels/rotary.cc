#include "thresher/kernels/rotary.h"

#include <algorithm>

#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/rotary.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE void Halves(const float* x, const float* cos, const float* sin, int64_t pairs, float* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + pairs + i);
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, out + i);
    hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, out + pairs + i);
  }
  for (; i < pairs; ++i) {
    const float a = x[i], b = x[pairs + i];
    out[i] = a * cos[i] - b * sin[i];
    out[pairs + i] = b * cos[i] + a * sin[i];
  }
}

HWY_INLINE void Neighbours(const float* x, const float* cos, const float* sin, int64_t pairs, float* out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    hn::Vec<decltype(d)> a, b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const auto c = hn::LoadU(d, cos + i), s = hn::LoadU(d, sin + i);
    hn::StoreInterleaved2(hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(a, s, hn::Mul(b, c)), d, out + 2 * i);
  }
  for (; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    out[2 * i] = a * cos[i] - b * sin[i];
    out[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

void RotaryRows(const RotaryArgs& args, int64_t begin, int64_t end) {
  const int64_t heads = args.x.shape[1], depth = args.x.shape[2], pairs = args.cos.shape[1];
  for (int64_t row = begin; row < end; ++row) {
    const int64_t token = row / heads, head = row % heads;
    const float* const x = args.x.as<const float>() + token * args.x.strides[0] + head * args.x.strides[1];
    const float* const cos = args.cos.as<const float>() + token * args.cos.strides[0];
    const float* const sin = args.sin.as<const float>() + token * args.sin.strides[0];
    float* const out = args.out.as<float>() + token * args.out.strides[0] + head * args.out.strides[1];
    if (args.interleaved) {
      Neighbours(x, cos, sin, pairs, out);
    } else {
      Halves(x, cos, sin, pairs, out);
    }
    if (out != x) std::copy(x + 2 * pairs, x + depth, out + 2 * pairs);
  }
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {

HWY_EXPORT(RotaryRows);

void Rotary(const RotaryArgs& args, int part, int num_parts) {
  const int64_t rows = args.x.shape[0] * args.x.shape[1];
  HWY_DYNAMIC_DISPATCH(RotaryRows)(args, rows * part / num_parts, rows * (part + 1) / num_parts);
}

void RotaryReference(const RotaryArgs& args) {
  const int64_t pairs = args.cos.shape[1];
  for (int64_t token = 0; token < args.x.shape[0]; ++token) {
    for (int64_t head = 0; head < args.x.shape[1]; ++head) {
      const float* const x = args.x.as<const float>() + token * args.x.strides[0] + head * args.x.strides[1];
      float* const out = args.out.as<float>() + token * args.out.strides[0] + head * args.out.strides[1];
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t first = args.interleaved ? 2 * i : i, second = args.interleaved ? 2 * i + 1 : i + pairs;
        const double a = x[first], b = x[second];
        const double c = args.cos.as<const float>()[token * args.cos.strides[0] + i];
        const double s = args.sin.as<const float>()[token * args.sin.strides[0] + i];
        out[first] = static_cast<float>(a * c - b * s);
        out[second] = static_cast<float>(b * c + a * s);
      }
      for (int64_t i = 2 * pairs; i < args.x.shape[2]; ++i) out[i] = x[i];
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
