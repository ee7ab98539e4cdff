#include "thresher/kernels/resample.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/iterate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/resample.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

using Tag = hn::ScalableTag<float>;
using V = hn::Vec<Tag>;

// Four vectors of channels at one output position, or with kFew `count` channels, up to one vector.
template <bool kGreatest, bool kFew>
HWY_INLINE void RunPosition(const ResampleArgs& args, const float* image, const int64_t* at, size_t count, float* y) {
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  const V begin = kGreatest ? hn::Neg(hn::Inf(d)) : hn::Zero(d);
  V s0 = begin, s1 = begin, s2 = begin, s3 = begin;
  const auto [depth, height, width] = args.axes;
  for (int32_t i = depth.starts[at[0]]; i < depth.starts[at[0] + 1]; ++i) {
    for (int32_t j = height.starts[at[1]]; j < height.starts[at[1] + 1]; ++j) {
      const float* const line = image + depth.index[i] * args.x_strides[0] + height.index[j] * args.x_strides[1];
      const float line_weight = depth.weight[i] * height.weight[j];
      for (int32_t k = width.starts[at[2]]; k < width.starts[at[2] + 1]; ++k) {
        const float* HWY_RESTRICT x = line + width.index[k] * args.x_strides[2];
        const V w = hn::Set(d, line_weight * width.weight[k]);
        const auto join = [&](V sum, V value)
                              HWY_ATTR { return kGreatest ? MaxNan(d, sum, value) : hn::MulAdd(value, w, sum); };
        if constexpr (kFew) {
          s0 = join(s0, hn::LoadN(d, x, count));
        } else {
          s0 = join(s0, hn::LoadU(d, x));
          s1 = join(s1, hn::LoadU(d, x + lanes));
          s2 = join(s2, hn::LoadU(d, x + 2 * lanes));
          s3 = join(s3, hn::LoadU(d, x + 3 * lanes));
        }
      }
    }
  }
  if constexpr (kFew) {
    hn::StoreN(s0, d, y, count);
  } else {
    hn::StoreU(s0, d, y);
    hn::StoreU(s1, d, y + lanes);
    hn::StoreU(s2, d, y + 2 * lanes);
    hn::StoreU(s3, d, y + 3 * lanes);
  }
}

// kBlocks times kHalfChannels channels of bf16 at one output position. Such a number in the upper half of a lane is the
// float, but for what lies below it, so that channels with even and those with odd numbers are two vectors.
template <bool kStoresHalves, size_t kBlocks>
HWY_INLINE void GreatestOfHalves(const ResampleArgs& args, const uint16_t* image, const int64_t* at, void* y) {
  const hn::CappedTag<float, kHalfChannels / 2> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d), apart = static_cast<size_t>(kHalfChannels);
  const auto upper = hn::Set(du, 0xFFFF0000u);
  const auto [depth, height, width] = args.axes;
  for (size_t c = 0; c < apart; c += 2 * lanes) {
    // Each waits for itself at every tap.
    auto even0 = hn::Neg(hn::Inf(d)), odd0 = even0, even1 = even0, odd1 = even0;
    const auto join = [&](const uint16_t* x, auto& even, auto& odd) HWY_ATTR {
      const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(x));
      even = MaxNan(d, even, hn::BitCast(d, hn::ShiftLeft<16>(bits)));
      odd = MaxNan(d, odd, hn::BitCast(d, hn::And(bits, upper)));
    };
    for (int32_t i = depth.starts[at[0]]; i < depth.starts[at[0] + 1]; ++i) {
      for (int32_t j = height.starts[at[1]]; j < height.starts[at[1] + 1]; ++j) {
        const uint16_t* const line = image + depth.index[i] * args.x_strides[0] + height.index[j] * args.x_strides[1];
        for (int32_t k = width.starts[at[2]]; k < width.starts[at[2] + 1]; ++k) {
          const uint16_t* const x = line + width.index[k] * args.x_strides[2] + c;
          join(x, even0, odd0);
          if constexpr (kBlocks == 2) join(x + apart, even1, odd1);
        }
      }
    }
    const auto store = [&](size_t channel, auto even, auto odd) HWY_ATTR {
      if constexpr (kStoresHalves) {
        auto* const to = reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(y) + channel);
        hn::StoreU(hn::Or(hn::ShiftRight<16>(hn::BitCast(du, even)), hn::BitCast(du, odd)), du, to);
      } else {
        float* const to = static_cast<float*>(y) + channel;
        hn::StoreU(hn::InterleaveWholeLower(d, even, odd), d, to);
        hn::StoreU(hn::InterleaveWholeUpper(d, even, odd), d, to + lanes);
      }
    };
    store(c, even0, odd0);
    if constexpr (kBlocks == 2) store(c + apart, even1, odd1);
  }
}

template <bool kStoresHalves>
void RunHalves(const ResampleArgs& args, Range lines) {
  const int64_t position = kStoresHalves ? args.y_position : args.channels;
  constexpr size_t kBytes = kStoresHalves ? sizeof(uint16_t) : sizeof(float);
  for (int64_t line = lines.begin; line < lines.end; ++line) {
    const int64_t plane = line / args.out[1];
    const auto* const image = reinterpret_cast<const uint16_t*>(args.x) + plane / args.out[0] * args.x_batch;
    for (int64_t o = 0; o < args.out[2]; ++o) {
      const int64_t at[3] = {plane % args.out[0], line % args.out[1], o};
      auto* const y =
          reinterpret_cast<uint8_t*>(args.y) + static_cast<size_t>((line * args.out[2] + o) * position) * kBytes;
      int64_t c = 0;
      for (; c + 2 * kHalfChannels <= args.channels; c += 2 * kHalfChannels) {
        GreatestOfHalves<kStoresHalves, 2>(args, image + c, at, y + static_cast<size_t>(c) * kBytes);
      }
      if (c < args.channels) {
        GreatestOfHalves<kStoresHalves, 1>(args, image + c, at, y + static_cast<size_t>(c) * kBytes);
      }
    }
  }
}

template <bool kGreatest>
void RunLines(const ResampleArgs& args, Range lines) {
  const size_t lanes = hn::Lanes(Tag());
  const size_t channels = static_cast<size_t>(args.channels);
  for (int64_t line = lines.begin; line < lines.end; ++line) {
    const int64_t plane = line / args.out[1];
    const float* const image = args.x + plane / args.out[0] * args.x_batch;
    float* y = args.y + line * args.out[2] * args.channels;
    for (int64_t o = 0; o < args.out[2]; ++o, y += args.channels) {
      const int64_t at[3] = {plane % args.out[0], line % args.out[1], o};
      size_t c = 0;
      for (; c + 4 * lanes <= channels; c += 4 * lanes) RunPosition<kGreatest, false>(args, image + c, at, 0, y + c);
      for (; c < channels; c += lanes) {
        RunPosition<kGreatest, true>(args, image + c, at, std::min(lanes, channels - c), y + c);
      }
    }
  }
}

void ResampleRange(const ResampleArgs& args, Range lines) {
  (args.y_bf16     ? RunHalves<true>
   : args.x_bf16   ? RunHalves<false>
   : args.greatest ? RunLines<true>
                   : RunLines<false>)(args, lines);
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(ResampleRange);

}  // namespace

void Resample(const ResampleArgs& args, int part, int num_parts) {
  const Range lines = PartRange(args.batch * args.out[0] * args.out[1], part, num_parts);
  if (lines.size() > 0) HWY_DYNAMIC_DISPATCH(ResampleRange)(args, lines);
}

void ResampleReference(const ResampleArgs& args) {
  const auto [depth, height, width] = args.axes;
  int64_t row = 0;
  for (int64_t n = 0; n < args.batch; ++n) {
    for (int64_t od = 0; od < args.out[0]; ++od) {
      for (int64_t oh = 0; oh < args.out[1]; ++oh) {
        for (int64_t ow = 0; ow < args.out[2]; ++ow, ++row) {
          for (int64_t c = 0; c < args.channels; ++c) {
            double sum = args.greatest ? -std::numeric_limits<double>::infinity() : 0.0;
            for (int32_t i = depth.starts[od]; i < depth.starts[od + 1]; ++i) {
              for (int32_t j = height.starts[oh]; j < height.starts[oh + 1]; ++j) {
                for (int32_t k = width.starts[ow]; k < width.starts[ow + 1]; ++k) {
                  const double value =
                      args.x[n * args.x_batch + depth.index[i] * args.x_strides[0] +
                             height.index[j] * args.x_strides[1] + width.index[k] * args.x_strides[2] + c];
                  if (!args.greatest) {
                    sum += value * depth.weight[i] * height.weight[j] * width.weight[k];
                  } else if (value > sum || std::isnan(value)) {
                    sum = value;
                  }
                }
              }
            }
            args.y[row * args.channels + c] = static_cast<float>(sum);
          }
        }
      }
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
