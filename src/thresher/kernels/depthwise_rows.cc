#include "thresher/kernels/depthwise_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#define THRESHER_BF16_TARGETS
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/iterate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/depthwise_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/epilogue-inl.h"

// The target that matrix units of bf16 come with: others never get rows of bf16.
#undef THRESHER_ROWS_TARGET
#if defined(__x86_64__) && HWY_TARGET == HWY_AVX3_ZEN4
#define THRESHER_ROWS_TARGET 1
#else
#define THRESHER_ROWS_TARGET 0
#endif

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

#if THRESHER_ROWS_TARGET

using V = hn::Vec<TileTag>;

constexpr size_t kLanes = hn::MaxLanes(TileTag());
// Channels that are computed together: a vector of bf16. A bf16 number in the upper half of a lane is the float, but
// for what lies below it, so that channels with even and those with odd numbers are two vectors of floats.
constexpr size_t kChannels = 2 * kLanes;
constexpr int kMostSums = 8;
constexpr int64_t kMostColumns = 7, kMostLines = 7;
// Lines of the result that all channels pass by while what they read of x is in L2.
constexpr int64_t kBandLines = 8;

// A line of taps that lies in x.
struct TapLine {
  const uint16_t* x;     // of the first sum's first tap, which may lie before the line
  const float* weights;  // of each tap the even channels', then the odd ones'
};

// Sums of neighbouring positions.
struct TileArgs {
  TapLine lines[kMostLines];
  size_t num_lines;
  ptrdiff_t position;    // elements from one position of x to the next
  ptrdiff_t begin, end;  // of the positions that the sums read, counted from the first tap, those that are there
  const float* bias;     // even channels', odd ones'
  Bounds bounds;
  uint16_t* out;           // bf16, or null
  ptrdiff_t out_position;  // elements
  float* sums;             // else these, kChannels apart
};

template <int kSums, int kColumns, int kStride, int kPosition, int... i>
HWY_INLINE void AddToSums(V even, V odd, const V* w_even, const V* w_odd, V* sums_even, V* sums_odd,
                          std::integer_sequence<int, i...>) {
  const auto add = [&](auto sum) HWY_ATTR __attribute__((always_inline)) {
    constexpr int kTap = kPosition - decltype(sum)::value * kStride;
    if constexpr (kTap >= 0 && kTap < kColumns) {
      V& e = sums_even[decltype(sum)::value];
      V& o = sums_odd[decltype(sum)::value];
      e = hn::MulAdd(even, w_even[kTap], e);
      o = hn::MulAdd(odd, w_odd[kTap], o);
    }
  };
  (add(std::integral_constant<int, i>()), ...);
}

template <int kSums, int kColumns, int kStride, bool kWhole, int... p>
HWY_INLINE void AddLine(const TileArgs& args, const TapLine& line, V* even, V* odd, std::integer_sequence<int, p...>) {
  const TileTag d;
  const hn::RebindToUnsigned<TileTag> du;
  const auto upper = hn::Set(du, 0xFFFF0000u);
  V w_even[kColumns], w_odd[kColumns];
  for (int k = 0; k < kColumns; ++k) {
    w_even[k] = hn::LoadU(d, line.weights + static_cast<size_t>(k) * kChannels);
    w_odd[k] = hn::LoadU(d, line.weights + static_cast<size_t>(k) * kChannels + kLanes);
  }
  const auto add = [&](auto position) HWY_ATTR __attribute__((always_inline)) {
    constexpr int kPosition = decltype(position)::value;
    if (!kWhole && (kPosition < args.begin || kPosition >= args.end)) return;
    const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(line.x + kPosition * args.position));
    AddToSums<kSums, kColumns, kStride, kPosition>(hn::BitCast(d, hn::ShiftLeft<16>(bits)),
                                                   hn::BitCast(d, hn::And(bits, upper)), w_even, w_odd, even, odd,
                                                   std::make_integer_sequence<int, kSums>());
  };
  (add(std::integral_constant<int, p>()), ...);
}

template <int kSums, int kColumns, int kStride, bool kWhole>
HWY_NOINLINE void RunTile(const TileArgs& args) {
  const TileTag d;
  const hn::Repartition<hwy::bfloat16_t, TileTag> d16;
  constexpr int kPositions = (kSums - 1) * kStride + kColumns;
  V even[kSums], odd[kSums];
  const V bias_even = hn::LoadU(d, args.bias), bias_odd = hn::LoadU(d, args.bias + kLanes);
  for (int i = 0; i < kSums; ++i) even[i] = bias_even, odd[i] = bias_odd;
  for (size_t line = 0; line < args.num_lines; ++line) {
    AddLine<kSums, kColumns, kStride, kWhole>(args, args.lines[line], even, odd,
                                              std::make_integer_sequence<int, kPositions>());
  }
  if (args.out == nullptr) {
    float* to = args.sums;
    for (int i = 0; i < kSums; ++i, to += kChannels) {
      hn::StoreU(hn::InterleaveWholeLower(d, even[i], odd[i]), d, to);
      hn::StoreU(hn::InterleaveWholeUpper(d, even[i], odd[i]), d, to + kLanes);
    }
    return;
  }
  const V least = hn::Set(d, args.bounds.least), greatest = hn::Set(d, args.bounds.greatest);
  const bool bounded = args.bounds.any;
  uint16_t* to = args.out;
  for (int i = 0; i < kSums; ++i, to += args.out_position) {
    V a = even[i], b = odd[i];
    if (bounded) a = AtMost(d, greatest, AtLeast(d, least, a)), b = AtMost(d, greatest, AtLeast(d, least, b));
    const hn::Repartition<uint16_t, TileTag> dh;
    const auto halves = hn::BitCast(dh, hn::OrderedDemote2To(d16, a, b));
    const auto index = hn::Iota(dh, 0);
    // 0, 16, 1, 17, ...
    const auto from = hn::Add(hn::ShiftRight<1>(index), hn::ShiftLeft<4>(hn::And(index, hn::Set(dh, 1))));
    hn::StoreU(hn::TableLookupLanes(halves, hn::IndicesFromVec(dh, from)), dh, to);
  }
}

using TileFunction = void (*)(const TileArgs&);

template <int kColumns, int kStride>
TileFunction TileOf(int64_t sums, bool whole) {
  if (sums == 8) return whole ? &RunTile<8, kColumns, kStride, true> : &RunTile<8, kColumns, kStride, false>;
  if (sums == 7) return whole ? &RunTile<7, kColumns, kStride, true> : &RunTile<7, kColumns, kStride, false>;
  return whole ? &RunTile<1, kColumns, kStride, true> : &RunTile<1, kColumns, kStride, false>;
}

TileFunction TileFor(int64_t sums, const Windows& w, bool whole) {
  if (w.kernel[2] == 3) return w.stride[2] == 1 ? TileOf<3, 1>(sums, whole) : TileOf<3, 2>(sums, whole);
  if (w.kernel[2] == 5) return w.stride[2] == 1 ? TileOf<5, 1>(sums, whole) : TileOf<5, 2>(sums, whole);
  return TileOf<7, 1>(sums, whole);
}

// `count` channels of `numbers`, which may be null for zeros: even ones first, then odd ones, zeros behind them.
HWY_INLINE void Part(const float* numbers, size_t count, float* out) {
  const TileTag d;
  const bool any = numbers != nullptr;
  const V a = any ? hn::LoadN(d, numbers, std::min(count, kLanes)) : hn::Zero(d);
  const V b = any && count > kLanes ? hn::LoadN(d, numbers + kLanes, count - kLanes) : hn::Zero(d);
  hn::StoreU(hn::ConcatEven(d, b, a), d, out);
  hn::StoreU(hn::ConcatOdd(d, b, a), d, out + kLanes);
}

void RowsRange(const DepthwiseArgs& args, bool out_bf16, Range lines) {
  const Windows& w = args.windows;
  const size_t channels = static_cast<size_t>(args.outputs);
  const int64_t width = w.out[2];
  // As few sizes of tiles as there can be: the last one of a line begins where it just fits.
  const int64_t sums = width < 7 ? 1 : width % 8 != 0 && width % 7 == 0 ? 7 : 8;
  const auto* const x = reinterpret_cast<const uint16_t*>(args.x);
  const FinishFunction finish =
      out_bf16 ? FunctionFor<FinishesAsBf16<float>>(args.activation) : FinishFor<float>(args.activation);
  alignas(64) float weights[kMostLines * kMostColumns * kChannels];
  alignas(64) float bias[kChannels];
  alignas(64) float strip[kMostSums * kChannels];
  TileArgs tile{};
  const bool direct = IsBounds(args.activation, &tile.bounds) && out_bf16;
  tile.position = static_cast<ptrdiff_t>(w.x_strides[2]);
  tile.bias = bias;
  tile.sums = strip;
  tile.out_position = static_cast<ptrdiff_t>(args.ldc);
  const TileFunction whole = TileFor(sums, w, true), cut = TileFor(sums, w, false);
  const int64_t positions = (sums - 1) * w.stride[2] + w.kernel[2];
  // Dense rows have nothing behind them that could be read or stored: then the last channels are those that just fit.
  const auto dense = [&](int64_t stride) { return static_cast<size_t>(stride) % kChannels != 0; };
  const bool fitting = channels > kChannels && (dense(w.x_strides[2]) || (out_bf16 && dense(args.ldc)));
  for (int64_t first = lines.begin; first < lines.end; first += kBandLines) {
    const int64_t last = std::min(first + kBandLines, lines.end);
    for (size_t block = 0; block < channels; block += kChannels) {
      const size_t channel = fitting ? std::min(block, channels - kChannels) : block;
      const size_t count = std::min(kChannels, channels - channel);
      for (size_t tap = 0; tap < static_cast<size_t>(w.taps()); ++tap) {
        Part(args.weight + tap * channels + channel, count, weights + tap * kChannels);
      }
      Part(args.bias == nullptr ? nullptr : args.bias + channel, count, bias);
      for (int64_t line = first; line < last; ++line) {
        const int64_t picture = line / w.out[1], y = line % w.out[1];
        const auto* const from = x + picture * w.x_batch + static_cast<ptrdiff_t>(channel);
        const uint16_t* starts[kMostLines];
        tile.num_lines = 0;
        for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
          const int64_t at = w.At(1, y, kh);
          if (at < 0) continue;
          starts[tile.num_lines] = from + at * w.x_strides[1];
          tile.lines[tile.num_lines++].weights = weights + static_cast<size_t>(kh * w.kernel[2]) * kChannels;
        }
        for (int64_t position = 0; position < width;) {
          const int64_t begin = std::min(position, width - sums);
          const int64_t at = begin * w.stride[2] - w.padding[2];
          for (size_t i = 0; i < tile.num_lines; ++i) tile.lines[i].x = starts[i] + at * w.x_strides[2];
          tile.begin = -at;
          tile.end = w.in[2] - at;
          const bool all = at >= 0 && at + positions <= w.in[2];
          const int64_t row = line * width + begin;
          tile.out = direct ? reinterpret_cast<uint16_t*>(args.out) + row * args.ldc + static_cast<ptrdiff_t>(channel)
                            : nullptr;
          (all ? whole : cut)(tile);
          if (!direct) {
            FinishArgs to{};
            to.sums = strip;
            const int64_t ldc = out_bf16 ? args.ldc / 2 : args.ldc;
            float* const c = args.out + row * ldc + static_cast<ptrdiff_t>(out_bf16 ? channel / 2 : channel);
            to.to = {c, static_cast<size_t>(ldc), nullptr, 0, static_cast<size_t>(sums), count, out_bf16};
            finish(to);
          }
          position = begin + sums;
        }
      }
    }
    if (!fitting || !out_bf16 || dense(args.ldc)) continue;
    for (int64_t row = first * width; row < last * width; ++row) {
      auto* const end = reinterpret_cast<uint16_t*>(args.out) + row * args.ldc + args.outputs;
      std::fill(end, end + (kChannels - channels % kChannels) % kChannels, uint16_t{0});
    }
  }
}

#else

void RowsRange(const DepthwiseArgs&, bool, Range) {}

#endif  // THRESHER_ROWS_TARGET

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(RowsRange);

}  // namespace

bool SuitsDepthwiseRows(const Windows& w, Activation activation) {
  const bool columns = w.kernel[2] == 3 || w.kernel[2] == 5 || (w.kernel[2] == 7 && w.stride[2] == 1);
  // Zeros stay zeros behind the channels.
  return StoresRows(RowForm::kBF16) && columns && w.kernel[1] <= 7 && w.kernel[0] == 1 && w.in[0] == 1 &&
         w.out[0] == 1 && w.stride[2] <= 2 && w.dilation[2] == 1 && w.spread[1] == 1 && w.spread[2] == 1 &&
         activation != Activation::kSigmoid;
}

void DepthwiseRows(const DepthwiseArgs& args, bool out_bf16, int part, int num_parts) {
  const Range lines = PartRange(args.batch * args.windows.out[1], part, num_parts);
  if (lines.size() > 0 && args.outputs > 0) HWY_DYNAMIC_DISPATCH(RowsRange)(args, out_bf16, lines);
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
