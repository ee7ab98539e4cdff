#include "thresher/kernels/depthwise.h"

#include <algorithm>
#include <cstddef>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/iterate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/depthwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/epilogue-inl.h"

#undef THRESHER_DEPTHWISE_SUMS
#define THRESHER_DEPTHWISE_SUMS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

using V = hn::Vec<TileTag>;

// Lines of output positions that pass by the same channels, so that what they share of x is in L1.
constexpr size_t kMostLines = 8;
constexpr size_t kTableTaps = 256;

// A tap that lies in x, by elements.
struct Tap {
  ptrdiff_t x;  // from the image's beginning, at position 0 of the line
  size_t weight;
};

// kSums sums of one vector each, of neighbouring positions (x_step and out_step apart, the same channels) or, kAcross,
// of neighbouring vectors of channels.
struct SumsArgs {
  const Tap* taps;
  size_t num_taps;
  const float* x;
  const float* weight;
  const float* bias;
  const float* residual;
  float* out;
  size_t x_step, out_step, residual_step;
  size_t count;  // of channels, up to a vector; kAcross: whole vectors
  bool residual_first;
};

template <int kSums, bool kAcross, Activation kActivation>
HWY_INLINE void RunSums(const SumsArgs& args) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const bool whole = kAcross || args.count == lanes;
  const auto load = [&](const float* from)
                        HWY_ATTR { return whole ? hn::LoadU(d, from) : hn::LoadN(d, from, args.count); };
#define THRESHER_DECLARE(i) \
  V s##i = i < kSums && args.bias != nullptr ? load(args.bias + (kAcross ? i * lanes : 0)) : hn::Zero(d);
  THRESHER_DEPTHWISE_SUMS(THRESHER_DECLARE)
#undef THRESHER_DECLARE
  for (size_t t = 0; t < args.num_taps; ++t) {
    const float* HWY_RESTRICT x = args.x + args.taps[t].x;
    const float* HWY_RESTRICT weight = args.weight + args.taps[t].weight;
    const V w = load(weight);
#define THRESHER_ADD(i)                                                                         \
  if constexpr (i < kSums) {                                                                    \
    s##i = hn::MulAdd(load(x + i * args.x_step), kAcross ? load(weight + i * lanes) : w, s##i); \
  }
    THRESHER_DEPTHWISE_SUMS(THRESHER_ADD)
#undef THRESHER_ADD
  }
  const auto finish = [&](V sum, size_t i) HWY_ATTR {
    if (args.residual == nullptr) {
      sum = Activate<kActivation>(d, sum);
    } else {
      const V added = load(args.residual + i * args.residual_step);
      sum = args.residual_first ? Activate<kActivation>(d, hn::Add(sum, added))
                                : hn::Add(Activate<kActivation>(d, sum), added);
    }
    float* const out = args.out + i * args.out_step;
    if (whole) {
      hn::StoreU(sum, d, out);
    } else {
      hn::StoreN(sum, d, out, args.count);
    }
  };
#define THRESHER_FINISH(i) \
  if constexpr (i < kSums) finish(s##i, i);
  THRESHER_DEPTHWISE_SUMS(THRESHER_FINISH)
#undef THRESHER_FINISH
}

// The taps of one position that lie in x; or, with `whole_width`, of all positions of its line, as if all did.
size_t FindTaps(const Windows& w, const WindowPosition& position, bool whole_width, Tap* taps) {
  size_t count = 0;
  for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
    const int64_t at_d = w.At(0, position.at[0], kd);
    if (at_d < 0) continue;
    for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
      const int64_t at_h = w.At(1, position.at[1], kh);
      if (at_h < 0) continue;
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
        const int64_t at_w = whole_width ? kw * w.dilation[2] - w.padding[2] : w.At(2, position.at[2], kw);
        if (!whole_width && at_w < 0) continue;
        taps[count].x = at_d * w.x_strides[0] + at_h * w.x_strides[1] + at_w * w.x_strides[2];
        taps[count].weight = static_cast<size_t>(((kd * w.kernel[1] + kh) * w.kernel[2] + kw) * w.channels);
        ++count;
      }
    }
  }
  return count;
}

// The positions of a line all of whose taps lie within its width.
Range Inner(const Windows& w) {
  if (w.spread[2] != 1) return {};
  const int64_t begin = std::max<int64_t>(w.padding[2] + w.stride[2] - 1, 0) / w.stride[2];
  const int64_t room = w.in[2] - 1 - (w.kernel[2] - 1) * w.dilation[2] + w.padding[2];
  const int64_t end = room < 0 ? 0 : std::min(w.out[2], room / w.stride[2] + 1);
  return begin < end ? Range{begin, end} : Range{};
}

template <Activation kActivation>
void RunLines(const DepthwiseArgs& args, Range lines) {
  const Windows& w = args.windows;
  const size_t lanes = hn::Lanes(TileTag());
  const size_t channels = static_cast<size_t>(w.channels);
  const int64_t width = w.out[2];
  const Range inner = Inner(w);
  const int64_t x_step = w.stride[2] * w.x_strides[2];
  const size_t num_taps = static_cast<size_t>(w.taps());
  const int64_t most_lines = static_cast<int64_t>(std::clamp<size_t>(kTableTaps / num_taps, 1, kMostLines));
  Tap table[kTableTaps];
  size_t counts[kMostLines];
  SumsArgs sums{};
  sums.x_step = static_cast<size_t>(x_step);
  sums.out_step = static_cast<size_t>(args.ldc);
  sums.residual_step = static_cast<size_t>(args.ldr);
  sums.residual_first = args.residual_first;
  const auto at = [&](int64_t row, size_t channel) {
    sums.weight = args.weight + channel;
    sums.bias = args.bias == nullptr ? nullptr : args.bias + channel;
    sums.residual = args.residual == nullptr ? nullptr : args.residual + row * args.ldr + channel;
    sums.out = args.out + row * args.ldc + channel;
  };
  for (int64_t first = lines.begin; first < lines.end && inner.size() > 0; first += most_lines) {
    const int64_t last = std::min(first + most_lines, lines.end);
    for (int64_t line = first; line < last; ++line) {
      const auto i = static_cast<size_t>(line - first);
      counts[i] = FindTaps(w, WindowPosition(w, line * width), true, table + i * num_taps);
    }
    for (size_t channel = 0; channel < channels; channel += lanes) {
      sums.count = std::min(lanes, channels - channel);
      for (int64_t line = first; line < last; ++line) {
        const auto i = static_cast<size_t>(line - first);
        sums.taps = table + i * num_taps;
        sums.num_taps = counts[i];
        const int64_t image = WindowPosition(w, line * width).batch;
        const auto from = [&](int64_t o) {
          at(line * width + o, channel);
          sums.x = args.x + image * w.x_batch + o * x_step + static_cast<int64_t>(channel);
        };
        // The last tile goes back over positions that are done rather than being a narrow one.
        int64_t o = inner.begin;
        for (; o + 8 <= inner.end; o += 8) {
          from(o);
          RunSums<8, false, kActivation>(sums);
        }
        while (o < inner.end) {
          if (inner.size() < 4) {
            from(o++);
            RunSums<1, false, kActivation>(sums);
            continue;
          }
          o = std::min(o, inner.end - 4);
          from(o);
          RunSums<4, false, kActivation>(sums);
          o += 4;
        }
      }
    }
  }
  // What is left of each line reaches over its ends.
  if (inner.size() == width) return;
  sums.x_step = sums.out_step = sums.residual_step = lanes;
  sums.taps = table;
  for (int64_t line = lines.begin; line < lines.end; ++line) {
    for (int64_t o = 0; o < width; ++o) {
      if (o == inner.begin && inner.size() > 0) o = inner.end;
      if (o == width) break;
      const WindowPosition position(w, line * width + o);
      sums.num_taps = FindTaps(w, position, false, table);
      size_t channel = 0;
      const auto from = [&] {
        at(line * width + o, channel);
        sums.x = args.x + position.batch * w.x_batch + channel;
      };
      sums.count = lanes;
      for (; channel + 4 * lanes <= channels; channel += 4 * lanes) {
        from();
        RunSums<4, true, kActivation>(sums);
      }
      for (; channel < channels; channel += lanes) {
        sums.count = std::min(lanes, channels - channel);
        from();
        RunSums<1, false, kActivation>(sums);
      }
    }
  }
}

void DepthwiseRange(const DepthwiseArgs& args, Range lines) {
  switch (args.activation) {
    case Activation::kNone:
      return RunLines<Activation::kNone>(args, lines);
    case Activation::kRelu:
      return RunLines<Activation::kRelu>(args, lines);
    case Activation::kGelu:
      return RunLines<Activation::kGelu>(args, lines);
    case Activation::kGeluTanh:
      return RunLines<Activation::kGeluTanh>(args, lines);
    case Activation::kSilu:
      return RunLines<Activation::kSilu>(args, lines);
    case Activation::kTanh:
      return RunLines<Activation::kTanh>(args, lines);
    case Activation::kSigmoid:
      return RunLines<Activation::kSigmoid>(args, lines);
    case Activation::kRelu6:
      return RunLines<Activation::kRelu6>(args, lines);
    case Activation::kHardSwish:
      return RunLines<Activation::kHardSwish>(args, lines);
  }
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(DepthwiseRange);

}  // namespace

void Depthwise(const DepthwiseArgs& args, int part, int num_parts) {
  const Windows& w = args.windows;
  const Range lines = PartRange(args.batch * w.out[0] * w.out[1], part, num_parts);
  if (lines.size() > 0 && w.channels > 0) HWY_DYNAMIC_DISPATCH(DepthwiseRange)(args, lines);
}

void DepthwiseReference(const DepthwiseArgs& args) {
  const Windows& w = args.windows;
  for (int64_t row = 0; row < args.batch * w.positions(); ++row) {
    const WindowPosition position(w, row);
    for (int64_t c = 0; c < w.channels; ++c) {
      double sum = args.bias == nullptr ? 0.0 : args.bias[c];
      for (int64_t tap = 0; tap < w.taps(); ++tap) {
        int64_t rest = tap, offset = position.batch * w.x_batch + c;
        bool inside = true;
        for (int d = 2; d >= 0; --d) {
          const int64_t at = w.At(d, position.at[d], rest % w.kernel[d]);
          inside &= at >= 0;
          offset += at * w.x_strides[d];
          rest /= w.kernel[d];
        }
        if (inside) sum += static_cast<double>(args.x[offset]) * static_cast<double>(args.weight[tap * w.channels + c]);
      }
      const double added = args.residual == nullptr ? 0.0 : args.residual[row * args.ldr + c];
      sum = args.residual_first ? ActivateReference(args.activation, sum + added)
                                : ActivateReference(args.activation, sum) + added;
      args.out[row * args.ldc + c] = static_cast<float>(sum);
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
