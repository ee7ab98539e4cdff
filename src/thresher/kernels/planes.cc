#include "thresher/kernels/planes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/iterate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/planes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/epilogue-inl.h"
#include "thresher/kernels/plane_band-inl.h"

#undef THRESHER_PLANES_SUMS
#define THRESHER_PLANES_SUMS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

using V = hn::Vec<TileTag>;

// Sums that stay in registers, beside what they meet; of one output, and of one line.
constexpr int kMostSums = 12;
constexpr int kMostVectors = 8;
// Outputs of a group that share what is loaded of x, at most.
constexpr int kMostOutputs = 4;
constexpr size_t kMostGroup = 16;  // channels of a group, on either side
constexpr size_t kWeightFloats = static_cast<size_t>(kMostDepthwiseTaps) * kMostGroup * kMostGroup;
// Of a band, for so many outputs.
constexpr size_t kResultFloats =
    static_cast<size_t>(kMostOutputs) * (static_cast<size_t>(kBandFloats) + 2 * kMaxPanelWidth);

// Sums of neighbouring vectors of positions of some lines, for the same few outputs of a group.
struct SumsArgs {
  const float* x;      // what the first tap of the first plane meets
  size_t x_line;       // floats from what one line meets to what the next one does
  size_t plane;        // and from one plane to the next
  const size_t* taps;  // what each meets lies so far behind
  size_t num_taps, planes;
  const float* weights;  // [planes, taps, outputs]
  const float* bias;     // of the outputs, or null
  float* sums;
  size_t line, output;  // floats to the next line, and the next output
  size_t lines;
  size_t last;  // the first position of the last vector, which may cover some of the one before
  Bounds bounds;
};

// kLines lines at a time; the last ones may be among those before.
template <int kOutputs, int kLines, int kVectors>
HWY_NOINLINE void RunSums(const SumsArgs& args) {
  constexpr int kInLines = kLines * kVectors, kSums = kOutputs * kInLines;
  static_assert(kSums <= kMostSums && kInLines <= kMostVectors);
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  for (size_t done = 0; done < args.lines;) {
    const size_t from = std::min(done, args.lines - kLines);
    done = from + kLines;
    const float* HWY_RESTRICT const x = args.x + from * args.x_line;
    float* HWY_RESTRICT const sums = args.sums + from * args.line;
    const float* HWY_RESTRICT weights = args.weights;
#define THRESHER_DECLARE(i) \
  V s##i = i < kSums && args.bias != nullptr ? hn::Set(d, args.bias[i / kInLines]) : hn::Zero(d);
    THRESHER_PLANES_SUMS(THRESHER_DECLARE)
#undef THRESHER_DECLARE
    const auto column = [&](int vector) HWY_ATTR {
      return vector + 1 == kVectors ? args.last : static_cast<size_t>(vector) * lanes;
    };
    for (size_t plane = 0; plane < args.planes; ++plane) {
      for (size_t t = 0; t < args.num_taps; ++t, weights += kOutputs) {
        const float* HWY_RESTRICT const met = x + plane * args.plane + args.taps[t];
        // The compiler loads each vector and each weight once; one output after the other, so that all are in
        // registers.
#define THRESHER_ADD(i)                                                                         \
  if constexpr (i < kSums) {                                                                    \
    const float* const at = met + i % kInLines / kVectors * args.x_line + column(i % kVectors); \
    s##i = hn::MulAdd(hn::LoadU(d, at), hn::Set(d, weights[i / kInLines]), s##i);               \
  }
        THRESHER_PLANES_SUMS(THRESHER_ADD)
#undef THRESHER_ADD
      }
    }
    if (args.bounds.any) {
      const V least = hn::Set(d, args.bounds.least), greatest = hn::Set(d, args.bounds.greatest);
#define THRESHER_BOUND(i) s##i = AtMost(d, greatest, AtLeast(d, least, s##i));
      THRESHER_PLANES_SUMS(THRESHER_BOUND)
#undef THRESHER_BOUND
    }
#define THRESHER_STORE(i)                                                                                       \
  if constexpr (i < kSums) {                                                                                    \
    hn::StoreU(s##i, d,                                                                                         \
               sums + i / kInLines * args.output + i % kInLines / kVectors * args.line + column(i % kVectors)); \
  }
    THRESHER_PLANES_SUMS(THRESHER_STORE)
#undef THRESHER_STORE
  }
}

using SumsFunction = void (*)(const SumsArgs&);

// Vectors of a line that are summed at a time.
constexpr int VectorsFor(int outputs) { return std::min(kMostSums / outputs, kMostVectors); }

template <int kOutputs, int kLines, size_t... I>
SumsFunction SumsAt(size_t vectors, std::index_sequence<I...>) {
  static constexpr SumsFunction table[] = {&RunSums<kOutputs, kLines, static_cast<int>(I) + 1>...};
  return table[vectors - 1];
}

// Of as many lines at a time as there is room for, but no more than `lines`.
template <int kOutputs, int kLines>
SumsFunction SumsOf(size_t vectors, size_t lines) {
  constexpr int kMost = VectorsFor(kOutputs) / kLines;
  if constexpr (kLines > 1) {
    if (vectors > static_cast<size_t>(kMost) || lines < kLines) return SumsOf<kOutputs, kLines / 2>(vectors, lines);
  }
  if constexpr (kMost > 0) {
    return SumsAt<kOutputs, kLines>(vectors, std::make_index_sequence<static_cast<size_t>(kMost)>());
  }
  return nullptr;
}

SumsFunction SumsFor(size_t outputs, size_t vectors, size_t lines) {
  return outputs == 4   ? SumsOf<4, 3>(vectors, lines)
         : outputs == 2 ? SumsOf<2, 3>(vectors, lines)
                        : SumsOf<1, 4>(vectors, lines);
}

// Lines of output positions, one group after the other.
class PlaneSums {
 public:
  PlaneSums(const PlanesArgs& args, float* scratch)
      : args_(args.depthwise),
        w_(args_.windows),
        x_channel_(args.x_channel),
        inputs_(static_cast<size_t>(args_.group_inputs)),
        group_outputs_(static_cast<size_t>(args_.group_outputs)),
        num_taps_(static_cast<size_t>(w_.taps())),
        outputs_(std::min<size_t>(group_outputs_, kMostOutputs)),
        weights_(scratch),
        results_(weights_ + kWeightFloats),
        copies_(results_ + kResultFloats),
        band_(w_, args_.group_inputs, copies_),
        finish_(FinishFor<float>(args_.activation)) {
    direct_ = IsBounds(args_.activation, &bounds_);
    if (!direct_) bounds_.any = false;
  }

  void Run(Range lines) {
    const int64_t of_group = w_.out[0] * w_.out[1], groups = args_.outputs / args_.group_outputs;
    int64_t group = lines.begin / of_group % groups, batch = lines.begin / of_group / groups;
    int64_t d = lines.begin % of_group / w_.out[1], h = lines.begin % w_.out[1];
    PackWeights(static_cast<size_t>(group));
    for (int64_t left = lines.size(); left > 0;) {
      const int64_t rows = std::min({band_.rows(), w_.out[1] - h, left});
      const float* const x = args_.x + batch * w_.x_batch + group * args_.group_inputs * x_channel_;
      for (int64_t column = 0; column < w_.out[2]; column += band_.columns()) {
        if (band_.Copy(x, x_channel_, d, h, rows, column)) band_.FindTaps(taps_);
        const int64_t columns = std::min(band_.columns(), w_.out[2] - column);
        float* const out = args_.out + (batch * args_.outputs + group * args_.group_outputs) * w_.positions() +
                           (d * w_.out[1] + h) * w_.out[2] + column;
        RunBand(static_cast<size_t>(group), static_cast<size_t>(rows), static_cast<size_t>(columns), out);
      }
      left -= rows;
      h += rows;
      if (h < w_.out[1]) continue;
      h = 0;
      if (++d < w_.out[0]) continue;
      d = 0;
      if (++group == groups) group = 0, ++batch;
      if (left > 0) PackWeights(static_cast<size_t>(group));
    }
  }

 private:
  // Of a group: [blocks of outputs_, planes, taps, outputs_].
  void PackWeights(size_t group) {
    const size_t channels = static_cast<size_t>(args_.outputs);
    float* HWY_RESTRICT to = weights_;
    for (size_t o = 0; o < group_outputs_; o += outputs_) {
      for (size_t i = 0; i < inputs_; ++i) {
        for (size_t tap = 0; tap < num_taps_; ++tap, to += outputs_) {
          const float* const from = args_.weight + (tap * inputs_ + i) * channels + group * group_outputs_ + o;
          for (size_t j = 0; j < outputs_; ++j) to[j] = from[j];
        }
      }
    }
  }

  // out: of the band's first position and the group's first output.
  void RunBand(size_t group, size_t rows, size_t columns, float* out) {
    const size_t lanes = hn::Lanes(TileTag()), width = static_cast<size_t>(w_.out[2]);
    const size_t positions = static_cast<size_t>(w_.positions());
    // Lines of fewer positions than a vector has are stored as whole vectors, each over the end of the one before.
    const bool direct = direct_ && columns >= lanes;
    const bool joined = columns == width;
    SumsArgs sums{};
    sums.x_line = band_.Row();
    sums.plane = band_.Plane();
    sums.taps = taps_;
    sums.num_taps = num_taps_;
    sums.planes = inputs_;
    sums.line = direct || joined ? width : (columns + lanes - 1) / lanes * lanes;
    sums.output = direct ? positions : WholePanels(rows * sums.line + lanes);
    sums.lines = rows;
    sums.bounds = bounds_;
    const size_t count = (columns + lanes - 1) / lanes;
    const size_t most = static_cast<size_t>(VectorsFor(static_cast<int>(outputs_)));
    for (size_t o = 0; o < group_outputs_; o += outputs_, out += outputs_ * positions) {
      sums.weights = weights_ + o * inputs_ * num_taps_;
      sums.bias = args_.bias == nullptr ? nullptr : args_.bias + group * group_outputs_ + o;
      for (size_t vector = 0; vector < count;) {
        const size_t vectors = std::min(most, count - vector), column = vector * lanes;
        sums.x = copies_ + column;
        sums.sums = (direct ? out : results_) + column;
        vector += vectors;
        sums.last = vector < count || columns < lanes ? (vectors - 1) * lanes : columns - lanes - column;
        SumsFor(outputs_, vectors, rows)(sums);
      }
      for (size_t i = 0; i < outputs_ && !direct; ++i) {
        const float* const from = results_ + i * sums.output;
        float* const to = out + i * positions;
        if (joined) {
          FinishLine(from, rows * width, to);
        } else {
          for (size_t row = 0; row < rows; ++row) FinishLine(from + row * sums.line, columns, to + row * width);
        }
      }
    }
  }

  static size_t WholePanels(size_t floats) { return (floats + PanelWidth() - 1) / PanelWidth() * PanelWidth(); }

  // Sums become results.
  void FinishLine(const float* sums, size_t count, float* out) {
    if (direct_) return CopyLine(sums, count, out);
    const size_t width = PanelWidth(), whole = count / width;
    FinishArgs rest{};
    rest.sums = sums;
    rest.to = {out, width, nullptr, 0, whole, width};
    if (whole > 0) finish_(rest);
    rest.sums = sums + whole * width;
    rest.to = {out + whole * width, width, nullptr, 0, 1, count % width};
    if (rest.to.columns > 0) finish_(rest);
  }

  const DepthwiseArgs& args_;
  const Windows& w_;
  const int64_t x_channel_;
  const size_t inputs_, group_outputs_, num_taps_;
  const size_t outputs_;  // of a block
  float* const weights_;
  float* const results_;
  float* const copies_;
  PlaneBand band_;
  size_t taps_[kMostDepthwiseTaps];  // where each lies in the copies
  const FinishFunction finish_;
  bool direct_;
  Bounds bounds_;
};

size_t ScratchFloats() { return kWeightFloats + kResultFloats + static_cast<size_t>(kMostBandFloats) + kMaxPanelWidth; }

void PlanesLines(const PlanesArgs& args, float* scratch, Range lines) { PlaneSums(args, scratch).Run(lines); }

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(PlanesLines);
HWY_EXPORT(ScratchFloats);

}  // namespace

bool SuitsPlanes(const Windows& w, int64_t planes) {
  const bool spread = w.spread[0] * w.spread[1] * w.spread[2] > 1;
  return w.out[2] >= (planes == 1 ? kLeastOwnColumns : kLeastPlaneColumns) && !(spread && planes > 1) &&
         FitsBand(w, planes);
}

bool FitsBand(const Windows& w, int64_t planes) {
  if (w.spread[2] > 1 && w.stride[2] > 1) return false;
  // Of one line of the fewest positions; as real numbers, since windows may reach as far as numbers go.
  const auto real = [](int64_t number) { return static_cast<double>(number); };
  const double lines = real(w.kernel[1] - 1) * real(w.dilation[1]) + 1;
  const double reach = real(w.kernel[2] - 1) * real(w.dilation[2]) / real(w.stride[2]) + 1;
  const double positions = real(kLeastBandColumns) + reach;
  return real(planes) * real(w.kernel[0]) * lines * real(w.stride[2]) * positions <= real(kMostBandFloats);
}

size_t PlanesScratchBytes() { return HWY_DYNAMIC_DISPATCH(ScratchFloats)() * sizeof(float); }

void Planes(const PlanesArgs& args, void* scratch, int part, int num_parts) {
  const DepthwiseArgs& a = args.depthwise;
  const Windows& w = a.windows;
  const Range lines = PartRange(a.batch * (a.outputs / a.group_outputs) * w.out[0] * w.out[1], part, num_parts);
  if (lines.size() > 0) HWY_DYNAMIC_DISPATCH(PlanesLines)(args, static_cast<float*>(scratch), lines);
}

void PlanesReference(const PlanesArgs& args) {
  const DepthwiseArgs& a = args.depthwise;
  const Windows& w = a.windows;
  for (int64_t c = 0; c < a.outputs; ++c) {
    for (int64_t row = 0; row < a.batch * w.positions(); ++row) {
      const WindowPosition position(w, row);
      double sum = a.bias == nullptr ? 0.0 : a.bias[c];
      for (int64_t tap = 0; tap < w.taps(); ++tap) {
        int64_t rest = tap;
        int64_t offset = position.batch * w.x_batch + c / a.group_outputs * a.group_inputs * args.x_channel;
        bool inside = true;
        for (int d = 2; d >= 0; --d) {
          const int64_t at = w.At(d, position.at[d], rest % w.kernel[d]);
          inside &= at >= 0;
          offset += at * w.x_strides[d];
          rest /= w.kernel[d];
        }
        for (int64_t i = 0; inside && i < a.group_inputs; ++i) {
          sum += static_cast<double>(a.x[offset + i * args.x_channel]) *
                 static_cast<double>(a.weight[(tap * a.group_inputs + i) * a.outputs + c]);
        }
      }
      a.out[(position.batch * a.outputs + c) * w.positions() + row % w.positions()] =
          static_cast<float>(ActivateReference(a.activation, sum));
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
