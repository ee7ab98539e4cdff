// Lines of planes of x, copied with zeros around them: what a tap meets at neighbouring output positions of a line lies
// side by side, whatever the stride.

#if defined(THRESHER_KERNELS_PLANE_BAND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PLANE_BAND_INL_H_
#undef THRESHER_KERNELS_PLANE_BAND_INL_H_
#else
#define THRESHER_KERNELS_PLANE_BAND_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "thresher/kernels/iterate.h"
#include "thresher/kernels/planes.h"
#include "thresher/kernels/tile-inl.h"
#include "thresher/kernels/windows.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// out[i] = from[i], for `count` elements: lines are too short for a call.
HWY_INLINE void CopyLine(const float* HWY_RESTRICT from, size_t count, float* HWY_RESTRICT out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  if (count >= lanes) {
    for (size_t i = 0; i < count - lanes; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, out + i);
    hn::StoreU(hn::LoadU(d, from + count - lanes), d, out + count - lanes);
    return;
  }
  for (size_t i = 0; i < count; ++i) out[i] = from[i];
}

// Every second element of `from`, `count` of them.
HWY_INLINE void CopyEverySecond(const float* HWY_RESTRICT from, size_t count, float* HWY_RESTRICT out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  // The element behind the last one need not be there.
  for (; i + lanes < count; i += lanes) {
    hn::Vec<TileTag> own, other;
    hn::LoadInterleaved2(d, from + 2 * i, own, other);
    hn::StoreU(own, d, out + i);
  }
  for (; i < count; ++i) out[i] = from[2 * i];
}

// The lines of x that some lines of output positions meet, `columns` positions of each, of the planes of a group. In a
// line, positions of x that are a stride apart lie side by side: a phase of it.
class PlaneBand {
 public:
  // Of `planes` planes, so few lines and positions that their copies take no more than kBandFloats, if that can be.
  // `copies` has room for kMostBandFloats and a vector.
  PlaneBand(const Windows& w, int64_t planes, float* copies) : w_(w), planes_(planes), copies_(copies) {
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(TileTag()));
    const int64_t reach = (w.kernel[2] - 1) * w.dilation[2] / w.stride[2] + 1;
    // A vector of positions is met even where a line has fewer.
    const auto floats = [&](int64_t rows, int64_t columns) {
      return planes * w.kernel[0] * Lines(rows) * w.stride[2] * (std::max(columns, lanes) + reach);
    };
    // Pieces of nearly equal size.
    const auto evenly = [](int64_t size, int64_t most) {
      const int64_t pieces = (size + most - 1) / most;
      return (size + pieces - 1) / pieces;
    };
    int64_t most = w.out[2];
    while (most > kLeastBandColumns && floats(1, most) > kBandFloats) most = std::max(kLeastBandColumns, most / 2);
    columns_ = evenly(w.out[2], most);
    phase_ = std::max(columns_, lanes) + reach;
    int64_t rows = 1;
    while (rows < w.out[1] && floats(rows + 1, columns_) <= kBandFloats) ++rows;
    rows_ = evenly(w.out[1], rows);
  }

  // Lines of output positions that are copied for at a time, and positions of each.
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  // Floats from what one line meets to what the next one does, and from one plane to the next.
  size_t Row() const { return static_cast<size_t>(w_.stride[1] * Line()); }
  size_t Plane() const { return static_cast<size_t>(w_.kernel[0] * lines_ * Line()); }
  // What each tap meets of the first position lies so far from the first copy, after Copy().
  void FindTaps(size_t* to) const {
    for (int64_t kd = 0; kd < w_.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < w_.kernel[1]; ++kh) {
        for (int64_t kw = 0; kw < w_.kernel[2]; ++kw) *to++ = At(kd, kh, kw);
      }
    }
  }

  // Copies what lines [h, h + rows) at depth d meet from a column on; x is the first plane of the group. Whether
  // copies lie elsewhere than those before.
  bool Copy(const float* x, int64_t x_channel, int64_t d, int64_t h, int64_t rows, int64_t column) {
    const bool moved = d != d_ || h != h_ || lines_ != Lines(rows) || column != column_;
    if (moved) {
      d_ = d, h_ = h, lines_ = Lines(rows), column_ = column;
      // Zeros stay where they are from one group to the next.
      std::fill_n(copies_, planes_ * static_cast<int64_t>(Plane()), 0.0f);
    }
    for (int64_t phase = 0; phase < w_.stride[2]; ++phase) {
      const Span span = SpanOf(phase);
      float* out = copies_ + phase * phase_ + span.out;
      for (int64_t plane = 0; plane < planes_; ++plane) {
        const float* const from = x + plane * x_channel + span.x;
        for (int64_t kd = 0; kd < w_.kernel[0]; ++kd) {
          const int64_t depth = w_.At(0, d, kd);
          int64_t at = h * w_.stride[1] - w_.padding[1];
          for (int64_t line = 0; line < lines_; ++line, ++at, out += Line()) {
            const int64_t inside = w_.spread[1] == 1 ? at : at % w_.spread[1] == 0 ? at / w_.spread[1] : -1;
            if (depth < 0 || inside < 0 || inside >= w_.in[1]) continue;
            CopySpan(span, from + depth * w_.x_strides[0] + inside * w_.x_strides[1], out);
          }
        }
      }
    }
    return moved;
  }

 private:
  // The positions of a line of x that a phase has, and where the first one lies in it.
  struct Span {
    int64_t x, x_step;
    int64_t out, out_step;
    size_t count;
  };

  size_t At(int64_t kd, int64_t kh, int64_t kw) const {
    const int64_t position = kw * w_.dilation[2];
    return static_cast<size_t>((kd * lines_ + kh * w_.dilation[1]) * Line() + position % w_.stride[2] * phase_ +
                               position / w_.stride[2]);
  }
  int64_t Lines(int64_t rows) const { return (rows - 1) * w_.stride[1] + (w_.kernel[1] - 1) * w_.dilation[1] + 1; }
  int64_t Line() const { return w_.stride[2] * phase_; }

  Span SpanOf(int64_t phase) const {
    const int64_t stride = w_.stride[2], spread = w_.spread[2];  // one of them is 1
    const int64_t first = column_ * stride - w_.padding[2] + phase;
    // Elements of the phase before position `at` of what windows see.
    const auto before = [&](int64_t at) {
      return at <= first ? 0 : std::min((at - first + stride - 1) / stride, phase_);
    };
    if (spread == 1) {
      const int64_t low = before(0), high = std::max(before(w_.in[2]), low);
      return {first + low * stride, stride, low, 1, static_cast<size_t>(high - low)};
    }
    const int64_t low = first <= 0 ? 0 : (first + spread - 1) / spread;
    const int64_t end = first + phase_;  // behind the last position
    const int64_t high = std::min(end <= 0 ? 0 : (end + spread - 1) / spread, w_.in[2]);
    return {low, 1, low * spread - first, spread, static_cast<size_t>(std::max<int64_t>(high - low, 0))};
  }

  static HWY_INLINE void CopySpan(const Span& span, const float* HWY_RESTRICT x, float* HWY_RESTRICT out) {
    if (span.x_step == 1 && span.out_step == 1) {
      const TileTag d;
      if (span.count >= hn::Lanes(d)) return CopyLine(x, span.count, out);
      // The zeros behind it are those that lie there, or the next line's, which follows.
      hn::StoreU(hn::LoadN(d, x, span.count), d, out);
    } else if (span.x_step == 2 && span.out_step == 1) {
      CopyEverySecond(x, span.count, out);
    } else {
      for (size_t i = 0; i < span.count; ++i) {
        const auto n = static_cast<int64_t>(i);
        out[n * span.out_step] = x[n * span.x_step];
      }
    }
  }

  const Windows& w_;
  const int64_t planes_;
  float* const copies_;
  int64_t rows_, columns_, phase_;
  // Of the copies: for these output positions, so many lines of a plane at each depth.
  int64_t d_ = -1, h_ = -1, column_ = -1, lines_ = 0;
};

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
