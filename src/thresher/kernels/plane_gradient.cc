#include "thresher/kernels/plane_gradient.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/iterate.h"
#include "thresher/kernels/planes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/plane_gradient.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/plane_band-inl.h"
#include "thresher/kernels/tile-inl.h"

#undef THRESHER_PLANE_SUMS
#define THRESHER_PLANE_SUMS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

using V = hn::Vec<TileTag>;

// Sums that stay in registers, beside what they meet.
constexpr int kMostSums = 12;
// Outputs of a group that share what is loaded of x, at most, and taps that share what is loaded of the gradient.
constexpr int kMostOutputs = 4;
constexpr int kMostTaps = 9;

// The sums of some taps of one plane of x and some outputs, over the positions of a band.
struct SumsArgs {
  const float* x[kMostTaps];  // what each tap meets of the first position
  size_t x_line;              // floats from what one line meets to what the next one does
  const float* gradient;
  ptrdiff_t line, output;  // floats to the gradient's next line, and the next output
  size_t lines, columns;
  float* sums;    // vectors: of one tap the outputs, then of the next tap
  size_t by_tap;  // floats from the sums of one tap to those of the next
};

constexpr int TapsFor(int outputs) { return std::min(kMostSums / outputs, kMostTaps); }

template <int kOutputs, int kTaps>
HWY_NOINLINE void RunSums(const SumsArgs& args) {
  static_assert(kTaps <= TapsFor(kOutputs));
  constexpr int kSums = kOutputs * kTaps;
  // What there are fewer of stays in registers: one output after the other, or one tap.
  constexpr bool kTapsStay = kTaps <= kOutputs;
  const auto output = [](int sum) { return kTapsStay ? sum / kTaps : sum % kOutputs; };
  const auto tap = [](int sum) { return kTapsStay ? sum % kTaps : sum / kOutputs; };
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const auto sum_at = [&](int sum) HWY_ATTR {
    return args.sums + static_cast<size_t>(tap(sum)) * args.by_tap + static_cast<size_t>(output(sum)) * lanes;
  };
#define THRESHER_DECLARE(i) V s##i = i < kSums ? hn::LoadU(d, sum_at(i)) : hn::Zero(d);
  THRESHER_PLANE_SUMS(THRESHER_DECLARE)
#undef THRESHER_DECLARE
  const size_t whole = args.columns / lanes * lanes, rest = args.columns - whole;
  const float* HWY_RESTRICT gradient = args.gradient;
  size_t x_line = 0;
  for (size_t line = 0; line < args.lines; ++line, gradient += args.line, x_line += args.x_line) {
    for (size_t column = 0; column < whole; column += lanes) {
      const size_t at = x_line + column;
      // The compiler loads each vector once.
#define THRESHER_ADD(i)                                                                                             \
  if constexpr (i < kSums) {                                                                                        \
    s##i = hn::MulAdd(hn::LoadU(d, args.x[tap(i)] + at), hn::LoadU(d, gradient + output(i) * args.output + column), \
                      s##i);                                                                                        \
  }
      THRESHER_PLANE_SUMS(THRESHER_ADD)
#undef THRESHER_ADD
    }
    if (rest == 0) continue;
    const size_t at = x_line + whole;
#define THRESHER_ADD(i)                                                                      \
  if constexpr (i < kSums) {                                                                 \
    s##i = hn::MulAdd(hn::LoadN(d, args.x[tap(i)] + at, rest),                               \
                      hn::LoadN(d, gradient + output(i) * args.output + whole, rest), s##i); \
  }
    THRESHER_PLANE_SUMS(THRESHER_ADD)
#undef THRESHER_ADD
  }
#define THRESHER_STORE(i) \
  if constexpr (i < kSums) hn::StoreU(s##i, d, sum_at(i));
  THRESHER_PLANE_SUMS(THRESHER_STORE)
#undef THRESHER_STORE
}

using SumsFunction = void (*)(const SumsArgs&);

template <int kOutputs, size_t... I>
SumsFunction SumsAt(size_t taps, std::index_sequence<I...>) {
  static constexpr SumsFunction table[] = {&RunSums<kOutputs, static_cast<int>(I) + 1>...};
  return table[taps - 1];
}

template <int kOutputs>
SumsFunction SumsOf(size_t taps) {
  return SumsAt<kOutputs>(taps, std::make_index_sequence<static_cast<size_t>(TapsFor(kOutputs))>());
}

SumsFunction SumsFor(size_t outputs, size_t taps) {
  switch (outputs) {
    case 1:
      return SumsOf<1>(taps);
    case 2:
      return SumsOf<2>(taps);
    case 3:
      return SumsOf<3>(taps);
    default:
      return SumsOf<kMostOutputs>(taps);
  }
}

// The sums of one group after the other.
class GroupSums {
 public:
  GroupSums(const WeightGradientArgs& args, float* scratch)
      : args_(args),
        w_(args_.windows),
        lanes_(hn::Lanes(TileTag())),
        inputs_(static_cast<size_t>(w_.channels)),
        outputs_(static_cast<size_t>(args_.outputs / args_.groups)),
        num_taps_(static_cast<size_t>(w_.taps())),
        sums_(scratch),
        copies_(sums_ + static_cast<size_t>(kMostPlaneSums) * hn::MaxLanes(TileTag())),
        band_(w_, w_.channels, copies_) {}

  // out: [outputs of the group, taps, inputs].
  void Run(Range images, int64_t group, float* out) {
    std::fill_n(sums_, inputs_ * num_taps_ * outputs_ * lanes_, 0.0f);
    const float* const x = args_.x + group * w_.channels * args_.x_channel;
    const float* const gradient = args_.gradient + group * args_.outputs / args_.groups * args_.gradient_channel;
    for (int64_t image = images.begin; image < images.end; ++image) {
      for (int64_t d = 0; d < w_.out[0]; ++d) {
        for (int64_t h = 0; h < w_.out[1]; h += band_.rows()) {
          const int64_t rows = std::min(band_.rows(), w_.out[1] - h);
          for (int64_t column = 0; column < w_.out[2]; column += band_.columns()) {
            if (band_.Copy(x + image * w_.x_batch, args_.x_channel, d, h, rows, column)) band_.FindTaps(taps_);
            SumBand(gradient + image * args_.gradient_batch + d * args_.gradient_strides[0] +
                        h * args_.gradient_strides[1] + column,
                    static_cast<size_t>(rows), static_cast<size_t>(std::min(band_.columns(), w_.out[2] - column)));
          }
        }
      }
    }
    for (size_t i = 0; i < inputs_; ++i) {
      for (size_t tap = 0; tap < num_taps_; ++tap) {
        for (size_t o = 0; o < outputs_; ++o) {
          out[(o * num_taps_ + tap) * inputs_ + i] =
              hn::ReduceSum(TileTag(), hn::LoadU(TileTag(), SumsOfTap(i, tap, o)));
        }
      }
    }
  }

 private:
  float* SumsOfTap(size_t input, size_t tap, size_t output) {
    return sums_ + ((input * num_taps_ + tap) * outputs_ + output) * lanes_;
  }

  void SumBand(const float* gradient, size_t lines, size_t columns) {
    SumsArgs sums{};
    sums.x_line = band_.Row();
    sums.line = args_.gradient_strides[1];
    sums.output = args_.gradient_channel;
    sums.lines = lines;
    sums.columns = columns;
    sums.by_tap = outputs_ * lanes_;
    const RowTiles blocks(outputs_, static_cast<size_t>(kMostOutputs));
    for (size_t i = 0; i < inputs_; ++i) {
      const float* const x = copies_ + i * band_.Plane();
      size_t output = 0;
      for (size_t block = 0; block < blocks.count; ++block) {
        const size_t count = blocks.Height(block);
        const RowTiles tap_groups(num_taps_, static_cast<size_t>(TapsFor(static_cast<int>(count))));
        sums.gradient = gradient + static_cast<ptrdiff_t>(output) * args_.gradient_channel;
        size_t tap = 0;
        for (size_t group = 0; group < tap_groups.count; ++group) {
          const size_t some = tap_groups.Height(group);
          for (size_t t = 0; t < some; ++t) sums.x[t] = x + taps_[tap + t];
          sums.sums = SumsOfTap(i, tap, output);
          SumsFor(count, some)(sums);
          tap += some;
        }
        output += count;
      }
    }
  }

  const WeightGradientArgs& args_;
  const Windows& w_;
  const size_t lanes_;
  const size_t inputs_, outputs_, num_taps_;  // of a group
  float* const sums_;
  float* const copies_;
  PlaneBand band_;
  size_t taps_[kMostDepthwiseTaps];  // where each lies in the copies
};

void SumGroups(const WeightGradientArgs& args, Range images, Range groups, float* slab, float* scratch) {
  GroupSums sums(args, scratch);
  const int64_t size = args.outputs / args.groups * args.windows.taps() * args.windows.channels;
  for (int64_t group = groups.begin; group < groups.end; ++group) sums.Run(images, group, slab + group * size);
}

size_t ScratchFloats() {
  return static_cast<size_t>(kMostPlaneSums) * hn::MaxLanes(TileTag()) + static_cast<size_t>(kMostBandFloats) +
         kMaxPanelWidth;
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(SumGroups);
HWY_EXPORT(ScratchFloats);

// Fewer would leave threads without work.
constexpr int64_t kLeastGroups = 8;
// More channels of a group on either side fill tiles of products.
constexpr int64_t kMostChannels = 8;

}  // namespace

bool SuitsPlaneGradient(const WeightGradientArgs& args) {
  const Windows& w = args.windows;
  const int64_t outputs = args.outputs / std::max<int64_t>(args.groups, 1);
  const bool planes =
      args.x_channel != 1 && w.x_strides[2] == 1 && args.gradient_channel != 1 && args.gradient_strides[2] == 1;
  return planes && args.groups >= kLeastGroups && w.channels <= kMostChannels && outputs <= kMostChannels &&
         w.taps() <= kMostDepthwiseTaps && w.taps() * w.channels * outputs <= kMostPlaneSums &&
         w.out[2] >= kLeastPlaneColumns && FitsBand(w, w.channels);
}

size_t PlaneGradientScratchBytes() { return HWY_DYNAMIC_DISPATCH(ScratchFloats)() * sizeof(float); }

void PlaneGradient(const WeightGradientArgs& args, Range images, Range groups, float* slab, void* scratch) {
  HWY_DYNAMIC_DISPATCH(SumGroups)(args, images, groups, slab, static_cast<float*>(scratch));
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
