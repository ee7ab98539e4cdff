#include "thresher/kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#define THRESHER_BF16_TARGETS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/norm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;

struct Sums {
  float first;   // of x - shift
  float second;  // of (x - shift)^2
};

// Over one row, in several chains. The second sum is left out (0) unless kSquares.
template <bool kSquares>
HWY_INLINE Sums Accumulate(const float* HWY_RESTRICT x, size_t cols, float shift) {
  const Tag d;
  using V = hn::Vec<Tag>;
  const size_t lanes = hn::Lanes(d);
  const V vshift = hn::Set(d, shift);
  V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  V q0 = s0, q1 = s0, q2 = s0, q3 = s0;
  const auto add = [&vshift](V v, V& sum, V& squares) HWY_ATTR {
    const V difference = hn::Sub(v, vshift);
    sum = hn::Add(sum, difference);
    if constexpr (kSquares) squares = hn::MulAdd(difference, difference, squares);
  };
  size_t j = 0;
  for (; j + 4 * lanes <= cols; j += 4 * lanes) {
    add(hn::LoadU(d, x + j), s0, q0);
    add(hn::LoadU(d, x + j + lanes), s1, q1);
    add(hn::LoadU(d, x + j + 2 * lanes), s2, q2);
    add(hn::LoadU(d, x + j + 3 * lanes), s3, q3);
  }
  for (; j + lanes <= cols; j += lanes) add(hn::LoadU(d, x + j), s0, q0);
  if (j < cols) {
    // Lanes past the end read as the shift itself and so add nothing.
    add(hn::IfThenElse(hn::FirstN(d, cols - j), hn::LoadN(d, x + j, cols - j), vshift), s1, q1);
  }
  const float second = kSquares ? hn::ReduceSum(d, hn::Add(hn::Add(q0, q1), hn::Add(q2, q3))) : 0.0f;
  return {hn::ReduceSum(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))), second};
}

// What is to be normalised in one row: x itself, or x + residual, which then waits where the sum or the result goes.
HWY_INLINE const float* RowOf(const NormArgs& args, size_t row) {
  const float* x = args.x + static_cast<ptrdiff_t>(row) * args.row_stride;
  if (args.residual == nullptr) return x;
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  const size_t cols = static_cast<size_t>(args.cols);
  const float* residual = args.residual + static_cast<ptrdiff_t>(row) * args.residual_row_stride;
  float* const sum = args.sum == nullptr ? args.out + static_cast<ptrdiff_t>(row) * args.out_row_stride
                                         : args.sum + static_cast<ptrdiff_t>(row) * args.sum_row_stride;
  size_t j = 0;
  for (; j + lanes <= cols; j += lanes)
    hn::StoreU(hn::Add(hn::LoadU(d, x + j), hn::LoadU(d, residual + j)), d, sum + j);
  if (j < cols) {
    const size_t rest = cols - j;
    hn::StoreN(hn::Add(hn::LoadN(d, x + j, rest), hn::LoadN(d, residual + j, rest)), d, sum + j, rest);
  }
  return sum;
}

// Row `row` of the result: finish(x, weight, bias), element by element.
template <class Finish>
HWY_INLINE void Apply(const NormArgs& args, const float* x, size_t row, Finish finish) {
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  const size_t cols = static_cast<size_t>(args.cols);
  const ptrdiff_t begin = static_cast<ptrdiff_t>(row) * args.out_row_stride;
  const auto one = hn::Set(d, 1.0f);
  const auto zero = hn::Zero(d);
  const auto whole = [&](size_t j) HWY_ATTR {
    const auto weight = args.weight == nullptr ? one : hn::LoadU(d, args.weight + j);
    const auto bias = args.bias == nullptr ? zero : hn::LoadU(d, args.bias + j);
    return finish(hn::LoadU(d, x + j), weight, bias);
  };
  const auto some = [&](size_t j, size_t count) HWY_ATTR {
    const auto weight = args.weight == nullptr ? one : hn::LoadN(d, args.weight + j, count);
    const auto bias = args.bias == nullptr ? zero : hn::LoadN(d, args.bias + j, count);
    return finish(hn::LoadN(d, x + j, count), weight, bias);
  };
  size_t j = 0;
  if (args.out_bf16 != nullptr) {
    const hn::Repartition<hwy::bfloat16_t, Tag> d16;
    auto* const out = reinterpret_cast<hwy::bfloat16_t*>(args.out_bf16 + begin);
    for (; j + 2 * lanes <= cols; j += 2 * lanes) {
      hn::StoreU(hn::OrderedDemote2To(d16, whole(j), whole(j + lanes)), d16, out + j);
    }
    if (j < cols) {
      const size_t first = std::min(lanes, cols - j), second = cols - j - first;
      const auto behind = second == 0 ? zero : some(j + lanes, second);
      hn::StoreN(hn::OrderedDemote2To(d16, some(j, first), behind), d16, out + j, cols - j);
    }
    return;
  }
  float* const out = args.out + begin;
  for (; j + lanes <= cols; j += lanes) hn::StoreU(whole(j), d, out + j);
  if (j < cols) hn::StoreN(some(j, cols - j), d, out + j, cols - j);
}

void LayerNormRange(const NormArgs& args, size_t row_begin, size_t row_end) {
  const Tag d;
  using V = hn::Vec<Tag>;
  const size_t cols = static_cast<size_t>(args.cols);
  const float count = static_cast<float>(cols);
  for (size_t row = row_begin; row < row_end; ++row) {
    const float* x = RowOf(args, row);
    // The mean, rounded to a float, is off by up to half a unit in its last place, which counts where all elements
    // share a large offset. The second pass finds by how much, and both its sums are corrected.
    const float mean = Accumulate<false>(x, cols, 0.0f).first / count;
    const Sums sums = Accumulate<true>(x, cols, mean);
    const float correction = sums.first / count;
    const float variance = sums.second / count - correction * correction;
    const float scale = 1.0f / std::sqrt(variance + args.eps);
    const V vmean = hn::Set(d, mean);
    const V vscale = hn::Set(d, scale);
    const V vcorrection = hn::Set(d, correction * scale);
    Apply(args, x, row, [&](V v, V weight, V bias) HWY_ATTR {
      return hn::MulAdd(hn::MulSub(hn::Sub(v, vmean), vscale, vcorrection), weight, bias);
    });
  }
}

void RmsNormRange(const NormArgs& args, size_t row_begin, size_t row_end) {
  const Tag d;
  using V = hn::Vec<Tag>;
  const size_t cols = static_cast<size_t>(args.cols);
  for (size_t row = row_begin; row < row_end; ++row) {
    const float* x = RowOf(args, row);
    const float mean_square = Accumulate<true>(x, cols, 0.0f).second / static_cast<float>(cols);
    const V vscale = hn::Set(d, 1.0f / std::sqrt(mean_square + args.eps));
    Apply(args, x, row, [&](V v, V weight, V) HWY_ATTR { return hn::Mul(hn::Mul(v, vscale), weight); });
  }
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(LayerNormRange);
HWY_EXPORT(RmsNormRange);

struct Rows {
  size_t begin, end;
};

Rows Share(const NormArgs& args, int part, int num_parts) {
  if (args.cols <= 0 || args.rows <= 0) return {0, 0};
  const size_t rows = static_cast<size_t>(args.rows);
  return {rows * static_cast<size_t>(part) / static_cast<size_t>(num_parts),
          rows * static_cast<size_t>(part + 1) / static_cast<size_t>(num_parts)};
}

template <bool kRms>
void Reference(const NormArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.row_stride;
    float* out = args.out + row * args.out_row_stride;
    if (args.residual != nullptr) {
      float* sum = args.sum == nullptr ? out : args.sum + row * args.sum_row_stride;
      for (int64_t j = 0; j < args.cols; ++j) sum[j] = x[j] + args.residual[row * args.residual_row_stride + j];
      x = sum;
    }
    double mean = 0.0;
    for (int64_t j = 0; j < args.cols && !kRms; ++j) mean += x[j];
    mean /= static_cast<double>(args.cols);
    double variance = 0.0;
    for (int64_t j = 0; j < args.cols; ++j) variance += (x[j] - mean) * (x[j] - mean);
    variance /= static_cast<double>(args.cols);
    const double scale = 1.0 / std::sqrt(variance + static_cast<double>(args.eps));
    for (int64_t j = 0; j < args.cols; ++j) {
      const double weight = args.weight == nullptr ? 1.0 : args.weight[j];
      const double bias = args.bias == nullptr || kRms ? 0.0 : args.bias[j];
      out[j] = static_cast<float>((x[j] - mean) * scale * weight + bias);
    }
  }
}

}  // namespace

void LayerNorm(const NormArgs& args, int part, int num_parts) {
  const Rows rows = Share(args, part, num_parts);
  HWY_DYNAMIC_DISPATCH(LayerNormRange)(args, rows.begin, rows.end);
}

void RmsNorm(const NormArgs& args, int part, int num_parts) {
  const Rows rows = Share(args, part, num_parts);
  HWY_DYNAMIC_DISPATCH(RmsNormRange)(args, rows.begin, rows.end);
}

void LayerNormReference(const NormArgs& args) { Reference<false>(args); }
void RmsNormReference(const NormArgs& args) { Reference<true>(args); }

}  // namespace thresher::kernels

#endif  // HWY_ONCE
