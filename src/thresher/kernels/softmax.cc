#include "thresher/kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

using Tag = hn::ScalableTag<float>;
using V = hn::Vec<Tag>;

// A NaN anywhere, a maximum of +infinity (inf - inf) and a slice of -infinity only all turn the sum into NaN, and the
// sum the whole slice; so the maximum itself need not propagate NaN.

// One contiguous slice.
void SoftmaxRow(const float* x, float* out, size_t count, bool log) {
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = count / lanes * lanes;
  const size_t rest = count - whole;
  const V lowest = hn::Neg(hn::Inf(d));
  V max = lowest;
  for (size_t j = 0; j < whole; j += lanes) max = hn::Max(max, hn::LoadU(d, x + j));
  if (rest != 0) {
    max = hn::Max(max, hn::IfThenElse(hn::FirstN(d, rest), hn::LoadN(d, x + whole, rest), lowest));
  }
  const V vmax = hn::Set(d, hn::ReduceMax(d, max));
  V sum = hn::Zero(d);
  for (size_t j = 0; j < whole; j += lanes) {
    const V e = ExpNonPositive(d, hn::Sub(hn::LoadU(d, x + j), vmax));
    if (!log) hn::StoreU(e, d, out + j);
    sum = hn::Add(sum, e);
  }
  if (rest != 0) {
    V e = ExpNonPositive(d, hn::Sub(hn::LoadN(d, x + whole, rest), vmax));
    if (!log) hn::StoreN(e, d, out + whole, rest);
    sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, rest), e));
  }
  const float total = hn::ReduceSum(d, sum);
  if (log) {
    const V vlog = hn::Set(d, std::log(total));
    const auto finish = [&](V v) HWY_ATTR { return hn::Sub(hn::Sub(v, vmax), vlog); };
    for (size_t j = 0; j < whole; j += lanes) hn::StoreU(finish(hn::LoadU(d, x + j)), d, out + j);
    if (rest != 0) hn::StoreN(finish(hn::LoadN(d, x + whole, rest)), d, out + whole, rest);
  } else {
    const V factor = hn::Set(d, 1.0f / total);
    for (size_t j = 0; j < whole; j += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, out + j), factor), d, out + j);
    if (rest != 0) hn::StoreN(hn::Mul(hn::LoadN(d, out + whole, rest), factor), d, out + whole, rest);
  }
}

// Up to one vector of neighbouring slices, whose elements lie `inner` apart.
void SoftmaxColumns(const float* x, float* out, size_t dim, size_t inner, size_t count, bool log) {
  const Tag d;
  V max = hn::Neg(hn::Inf(d));
  for (size_t i = 0; i < dim; ++i) max = hn::Max(max, hn::LoadN(d, x + i * inner, count));
  V sum = hn::Zero(d);
  for (size_t i = 0; i < dim; ++i) {
    const V e = ExpNonPositive(d, hn::Sub(hn::LoadN(d, x + i * inner, count), max));
    if (!log) hn::StoreN(e, d, out + i * inner, count);
    sum = hn::Add(sum, e);
  }
  const V term = log ? Log(d, sum) : hn::Div(hn::Set(d, 1.0f), sum);
  for (size_t i = 0; i < dim; ++i) {
    const V v = log ? hn::Sub(hn::Sub(hn::LoadN(d, x + i * inner, count), max), term)
                    : hn::Mul(hn::LoadN(d, out + i * inner, count), term);
    hn::StoreN(v, d, out + i * inner, count);
  }
}

void SoftmaxPart(const float* x, float* out, size_t outer, size_t dim, size_t inner, bool log, size_t part,
                 size_t num_parts) {
  if (inner == 1) {
    const size_t end = outer * (part + 1) / num_parts;
    for (size_t i = outer * part / num_parts; i < end; ++i) SoftmaxRow(x + i * dim, out + i * dim, dim, log);
    return;
  }
  const size_t lanes = hn::Lanes(Tag());
  const size_t groups = (inner + lanes - 1) / lanes;
  const size_t end = outer * groups * (part + 1) / num_parts;
  for (size_t unit = outer * groups * part / num_parts; unit < end; ++unit) {
    const size_t column = unit % groups * lanes;
    const size_t offset = unit / groups * dim * inner + column;
    SoftmaxColumns(x + offset, out + offset, dim, inner, std::min(lanes, inner - column), log);
  }
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(SoftmaxPart);

}  // namespace

void Softmax(const float* x, float* out, int64_t outer, int64_t dim, int64_t inner, bool log, int part, int num_parts) {
  if (outer <= 0 || dim <= 0 || inner <= 0) return;
  HWY_DYNAMIC_DISPATCH(SoftmaxPart)
  (x, out, static_cast<size_t>(outer), static_cast<size_t>(dim), static_cast<size_t>(inner), log,
   static_cast<size_t>(part), static_cast<size_t>(num_parts));
}

void SoftmaxReference(const float* x, float* out, int64_t outer, int64_t dim, int64_t inner, bool log) {
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t c = 0; c < inner; ++c) {
      const int64_t begin = o * dim * inner + c;
      double max = -std::numeric_limits<double>::infinity();
      for (int64_t i = 0; i < dim; ++i) max = std::max<double>(max, x[begin + i * inner]);
      double sum = 0.0;
      for (int64_t i = 0; i < dim; ++i) sum += std::exp(x[begin + i * inner] - max);
      for (int64_t i = 0; i < dim; ++i) {
        const double shifted = x[begin + i * inner] - max;
        out[begin + i * inner] = static_cast<float>(log ? shifted - std::log(sum) : std::exp(shifted) / sum);
      }
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
