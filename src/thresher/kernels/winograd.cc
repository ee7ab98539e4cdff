#include "thresher/kernels/winograd.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "thresher/base/cpu.h"
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/winograd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/epilogue-inl.h"
#include "thresher/kernels/tile-inl.h"
#include "thresher/kernels/wide_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

using V = hn::Vec<TileTag>;

constexpr size_t kElements = size_t{kWinogradMatrices};
constexpr size_t kPatch = 4;        // positions of a patch in each dimension
constexpr size_t kStripTiles = 8;   // of one line, whose results are finished together
constexpr size_t kMostTiles = 112;  // in a block
constexpr size_t kManyTiles = 64;   // enough to make up for reading the weights

// Room for so many floats in whole lines of 64 bytes and in whole vectors.
HWY_INLINE size_t Room(size_t floats) {
  const size_t unit = std::max<size_t>(16, hn::Lanes(TileTag()));
  return (floats + unit - 1) / unit * unit;
}

// Neighbours so far apart push each other out of L1: a cache of 8 or 12 ways repeats its sets every 4 KiB.
constexpr size_t Apart(size_t floats) { return floats % 512 == 0 ? floats + 16 : floats; }

// How the results of all images are cut into tiles and these into blocks, and where things lie in scratch memory, in
// floats. Depth has windows of one position, so each of its positions is an image.
struct Tiling {
  explicit Tiling(const GemmArgs& args) {
    const Windows& w = *args.windows;
    channels = static_cast<size_t>(w.channels);
    height = static_cast<size_t>(w.out[1]);
    width = static_cast<size_t>(w.out[2]);
    lines = (height + 1) / 2;
    in_line = (width + 1) / 2;
    tiles = static_cast<size_t>(args.m) / (height * width) * lines * in_line;
    // Transformed patches stay in L2 while panels pass. Where few fit, each block of them would read all weights again
    // for little work: then those of one element stay there while some panels pass, whose sums stay there, too.
    const size_t half = static_cast<size_t>(Caches().l2) / 2 / sizeof(float);
    const size_t fitting = half / (kElements * channels);
    const bool in_turns = fitting < kManyTiles;
    block = std::min({tiles, in_turns ? kManyTiles : fitting, kMostTiles});
    row = Apart(Room(channels));
    element = Apart(block * row);
    const size_t panel_sums = kElements * SumElement(in_turns ? kManyTiles : block);
    const size_t at_once = TakesTwoPanels() ? 2 : 1;
    most_sums = in_turns ? std::max(half / panel_sums, at_once) * panel_sums : at_once * panel_sums;
    sums = kElements * element;
    strip = sums + most_sums;
    zeros = strip + 4 * kStripTiles * PanelWidth();
    end = zeros + Room(channels);
  }

  size_t channels, height, width;
  size_t lines, in_line, tiles;  // of tiles: in an image, in a line, of all images
  size_t block;                  // tiles at a time, at most
  size_t row, element;           // from one transformed patch to the next, from one of its elements to the next
  size_t most_sums;              // of some panels
  size_t sums, strip, zeros, end;

  // From one element of the sums of a panel to the next: no less for more tiles.
  static size_t SumElement(size_t tiles) { return Apart((tiles * PanelWidth() + 15) / 16 * 16); }
};

// A tile's place.
struct TilePlace {
  TilePlace(const Tiling& t, size_t tile)
      : image(tile / (t.lines * t.in_line)), y(tile / t.in_line % t.lines * 2), x(tile % t.in_line * 2) {}
  size_t image, y, x;
};

class WinogradProduct {
 public:
  WinogradProduct(const GemmArgs& args, float* scratch)
      : args_(args), w_(*args.windows), t_(args), scratch_(scratch), ending_(args, true) {
    std::fill(scratch + t_.zeros, scratch + t_.end, 0.0f);
  }

  void Run(const PanelRange& range) {
    const size_t count = range.row_end - range.row_begin;
    const size_t blocks = (count + t_.block - 1) / t_.block;
    for (size_t i = 0; i < blocks; ++i) {
      begin_ = range.row_begin + count * i / blocks;
      tiles_ = range.row_begin + count * (i + 1) / blocks - begin_;
      for (size_t tile = 0; tile < tiles_; ++tile) Transform(tile);
      sum_element_ = Tiling::SumElement(tiles_);
      const size_t most = t_.most_sums / (kElements * sum_element_);
      for (size_t panel = range.panel_begin; panel < range.panel_end; panel += most) {
        const size_t end = std::min(panel + most, range.panel_end);
        Multiply(panel, end);
        for (size_t done = panel; done < end; ++done) Finish(done, SumsAt(done - panel));
      }
    }
  }

 private:
  using Patch = std::array<const float*, kPatch * kPatch>;

  // Where the positions of a tile's patch lie; those in the padding are zeros.
  Patch PatchAt(const TilePlace& at) const {
    const int64_t image = static_cast<int64_t>(at.image);
    const float* const x = args_.a + image / w_.out[0] * w_.x_batch + image % w_.out[0] * w_.x_strides[0];
    Patch patch;
    for (size_t i = 0; i < kPatch; ++i) {
      const int64_t h = static_cast<int64_t>(at.y + i) - w_.padding[1];
      for (size_t j = 0; j < kPatch; ++j) {
        const int64_t v = static_cast<int64_t>(at.x + j) - w_.padding[2];
        const bool inside = h >= 0 && h < w_.in[1] && v >= 0 && v < w_.in[2];
        patch[i * kPatch + j] = inside ? x + h * w_.x_strides[1] + v * w_.x_strides[2] : scratch_ + t_.zeros;
      }
    }
    return patch;
  }

  // One row of a transformed patch from what is left of its columns.
  HWY_INLINE void StoreRow(V c0, V c1, V c2, V c3, float* HWY_RESTRICT out) const {
    const TileTag d;
    hn::Store(hn::Sub(c0, c2), d, out);
    hn::Store(hn::Add(c1, c2), d, out + t_.element);
    hn::Store(hn::Sub(c2, c1), d, out + 2 * t_.element);
    hn::Store(hn::Sub(c1, c3), d, out + 3 * t_.element);
  }

  template <class Load>
  HWY_INLINE void TransformVector(const Load& load, float* HWY_RESTRICT out) const {
    const V x10 = load(4), x11 = load(5), x12 = load(6), x13 = load(7);
    const V x20 = load(8), x21 = load(9), x22 = load(10), x23 = load(11);
    StoreRow(hn::Sub(load(0), x20), hn::Sub(load(1), x21), hn::Sub(load(2), x22), hn::Sub(load(3), x23), out);
    out += kPatch * t_.element;
    StoreRow(hn::Add(x10, x20), hn::Add(x11, x21), hn::Add(x12, x22), hn::Add(x13, x23), out);
    out += kPatch * t_.element;
    StoreRow(hn::Sub(x20, x10), hn::Sub(x21, x11), hn::Sub(x22, x12), hn::Sub(x23, x13), out);
    out += kPatch * t_.element;
    StoreRow(hn::Sub(x10, load(12)), hn::Sub(x11, load(13)), hn::Sub(x12, load(14)), hn::Sub(x13, load(15)), out);
  }

  void Transform(size_t tile) const {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    const Patch patch = PatchAt(TilePlace(t_, begin_ + tile));
    float* const out = scratch_ + tile * t_.row;
    size_t c = 0;
    for (; c + lanes <= t_.channels; c += lanes) {
      TransformVector([&](size_t i) HWY_ATTR { return hn::LoadU(d, patch[i] + c); }, out + c);
    }
    if (c == t_.channels) return;
    const size_t left = t_.channels - c;
    TransformVector([&](size_t i) HWY_ATTR { return hn::LoadN(d, patch[i] + c, left); }, out + c);
  }

  const uint8_t* PanelAt(size_t panel) const {
    return static_cast<const uint8_t*>(args_.packed_b) + panel * kElements * FloatPanel::Bytes(t_.channels);
  }

  // Of the panel of that number among those that are multiplied in turns.
  float* SumsAt(size_t number) const { return scratch_ + t_.sums + number * kElements * sum_element_; }

  void Multiply(size_t panel_begin, size_t panel_end) const {
    const size_t at_once = TakesTwoPanels() && tiles_ > size_t{2} * kTileRows ? 2 : 1;
    for (size_t e = 0; e < kElements; ++e) {
      for (size_t panel = panel_begin, count; panel < panel_end; panel += count) {
        count = std::min(at_once, panel_end - panel);
        const uint8_t* const next = panel + count < panel_end
                                        ? PanelAt(panel + count) + e * FloatPanel::Bytes(t_.channels)
                                        : PanelAt(panel_begin) + (e + 1) * FloatPanel::Bytes(t_.channels);
        float* const sums = SumsAt(panel - panel_begin) + e * sum_element_;
        if constexpr (kHasWideTiles) {
          if (count == 2) {
            MultiplyElement<WideTileArgs>(e, panel, next, sums);
            continue;
          }
        }
        MultiplyElement<TileArgs>(e, panel, next, sums);
      }
    }
  }

  // One element of all patches times a panel, or two. `next`: of the panels after them.
  template <class Args>
  void MultiplyElement(size_t e, size_t panel, const uint8_t* next, float* sums) const {
    constexpr bool kTwo = std::is_same_v<Args, WideTileArgs>;
    const RowTiles rows(tiles_, static_cast<size_t>(kTwo ? kWideTileRows : kTileRows));
    const size_t bytes = FloatPanel::Bytes(t_.channels);
    const uint8_t* const b = PanelAt(panel) + e * bytes;
    Args tile;
    tile.lda = t_.row;
    tile.k = t_.channels;
    tile.b = b;
    tile.init = nullptr;
    tile.init_ld = 0;
    if constexpr (kTwo) {
      const size_t apart = static_cast<size_t>(PanelAt(1) - PanelAt(0));
      tile.second = {apart, kElements * sum_element_, apart};
    }
    const size_t turns = tile.k / 4;
    size_t done = 0;
    for (size_t i = 0; i < rows.count; i += tile.tiles) {
      tile.a = scratch_ + e * t_.element + done * t_.row;
      static_cast<TileEnd&>(tile) = {sums + done * PanelWidth(), PanelWidth(), nullptr, 0};
      tile.fetch = FetchShare(rows, i, b, bytes, turns, next);
      tile.tiles = rows.Alike(i);
      if constexpr (kTwo) {
        WideTileForRows(rows.Height(i))(tile);
      } else {
        TileForRows(rows.Height(i))(tile);
      }
      done += tile.tiles * rows.Height(i);
    }
  }

  // Transforms sums back and stores results.
  void Finish(size_t panel, const float* sums) const {
    const size_t column = panel * PanelWidth();
    const size_t columns = std::min(PanelWidth(), static_cast<size_t>(args_.n) - column);
    alignas(64) float padded_bias[kMaxPanelWidth];
    const float* const bias = PanelBias(args_.bias, column, columns, padded_bias);
    float* const strip = scratch_ + t_.strip;
    const size_t strip_line = 2 * kStripTiles * PanelWidth();
    for (size_t tile = 0; tile < tiles_;) {
      const TilePlace at(t_, begin_ + tile);
      const size_t count = std::min({kStripTiles, tiles_ - tile, t_.in_line - at.x / 2});
      for (size_t i = 0; i < count; ++i) {
        if (Back(sums + (tile + i) * PanelWidth(), strip + 2 * i * PanelWidth(), strip_line)) continue;
        Sum({t_, begin_ + tile + i}, panel, strip + 2 * i * PanelWidth(), strip_line);
      }
      for (size_t line = 0; line < std::min<size_t>(2, t_.height - at.y); ++line) {
        FinishArgs rest{};
        rest.sums = strip + line * strip_line;
        rest.to = ResultAt(args_, (at.image * t_.height + at.y + line) * t_.width + at.x, column,
                           std::min(2 * count, t_.width - at.x), columns);
        rest.bias = bias;
        rest.residual_first = args_.residual_first;
        ending_.finish()(rest);
      }
      tile += count;
    }
  }

  // The results of a tile from its sums, two lines of two; false if one of them is not finite.
  bool Back(const float* HWY_RESTRICT sums, float* HWY_RESTRICT out, size_t line) const {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    V odd = hn::Zero(d);
    for (size_t j = 0; j < PanelWidth(); j += lanes) {
      // What is left of a column of sums, for both lines.
      const auto upper = [&](size_t column) HWY_ATTR {
        const float* const from = sums + column * sum_element_ + j;
        return hn::Add(hn::Add(hn::Load(d, from), hn::Load(d, from + 4 * sum_element_)),
                       hn::Load(d, from + 8 * sum_element_));
      };
      const auto lower = [&](size_t column) HWY_ATTR {
        const float* const from = sums + column * sum_element_ + j;
        return hn::Sub(hn::Sub(hn::Load(d, from + 4 * sum_element_), hn::Load(d, from + 8 * sum_element_)),
                       hn::Load(d, from + 12 * sum_element_));
      };
      const V u1 = upper(1), u2 = upper(2), l1 = lower(1), l2 = lower(2);
      const V y00 = hn::Add(hn::Add(upper(0), u1), u2), y01 = hn::Sub(hn::Sub(u1, u2), upper(3));
      const V y10 = hn::Add(hn::Add(lower(0), l1), l2), y11 = hn::Sub(hn::Sub(l1, l2), lower(3));
      hn::Store(y00, d, out + j);
      hn::Store(y01, d, out + PanelWidth() + j);
      hn::Store(y10, d, out + line + j);
      hn::Store(y11, d, out + line + PanelWidth() + j);
      // Zero times what is not finite is NaN.
      odd = hn::MulAdd(hn::Add(hn::Add(y00, y01), hn::Add(y10, y11)), hn::Zero(d), odd);
    }
    return hn::AllTrue(d, hn::Eq(odd, hn::Zero(d)));
  }

  // The same as plain sums, with the taps that the transformed ones stand for.
  void Sum(const TilePlace& at, size_t panel, float* HWY_RESTRICT out, size_t line) const {
    const TileTag d;
    const Patch patch = PatchAt(at);
    const float* const b = reinterpret_cast<const float*>(PanelAt(panel));
    for (size_t position = 0; position < 4; ++position) {
      for (size_t j = 0; j < PanelWidth(); j += hn::Lanes(d)) {
        V sum = hn::Zero(d);
        for (size_t tap = 0; tap < 9; ++tap) {
          const float* const x = patch[(position / 2 + tap / 3) * kPatch + position % 2 + tap % 3];
          for (size_t c = 0; c < t_.channels; ++c) {
            sum = hn::MulAdd(hn::Set(d, x[c]), Tap(d, b + c * PanelWidth() + j, tap / 3, tap % 3), sum);
          }
        }
        hn::Store(sum, d, out + position / 2 * line + position % 2 * PanelWidth() + j);
      }
    }
  }

  // Tap (i, j) of a channel's transformed ones: the first and the last element of a line are taps, the difference of
  // the others is the tap in the middle. Where that is not finite, it is the second, and the third is NaN.
  HWY_INLINE V Tap(TileTag d, const float* b, size_t i, size_t j) const {
    const size_t matrix = t_.channels * PanelWidth();
    const auto middle = [](V second, V third)
                            HWY_ATTR { return hn::IfThenElse(hn::IsNaN(third), second, hn::Sub(second, third)); };
    const auto in_line = [&](size_t e) HWY_ATTR {
      const float* const from = b + e * kPatch * matrix;
      if (j != 1) return hn::Load(d, from + (j == 0 ? 0 : 3) * matrix);
      return middle(hn::Load(d, from + matrix), hn::Load(d, from + 2 * matrix));
    };
    return i != 1 ? in_line(i == 0 ? 0 : 3) : middle(in_line(1), in_line(2));
  }

  const GemmArgs& args_;
  const Windows& w_;
  const Tiling t_;
  float* const scratch_;
  const Ending<float> ending_;
  size_t begin_ = 0, tiles_ = 0;  // of the block
  size_t sum_element_ = 0;        // from one element of a panel's sums to the next
};

size_t WinogradFloats(const GemmArgs& args) { return Tiling(args).end; }
size_t WinogradTiles(const GemmArgs& args) { return Tiling(args).tiles; }

void RunWinograd(const GemmArgs& args, float* scratch, const PanelRange& range) {
  WinogradProduct(args, scratch).Run(range);
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(WinogradFloats);
HWY_EXPORT(WinogradTiles);
HWY_EXPORT(RunWinograd);

}  // namespace

bool FitsWinograd(const Windows& w) {
  bool fits = w.kernel[0] == 1 && w.stride[0] == 1 && w.padding[0] == 0 && w.spread[0] == 1 && w.out[0] == w.in[0];
  for (int d = 1; d < 3; ++d) {
    fits &= w.kernel[d] == 3 && w.stride[d] == 1 && w.dilation[d] == 1 && w.spread[d] == 1;
  }
  return fits;
}

bool SuitsWinograd(const Windows& w, int64_t outputs, bool packed_once) {
  // Fewer channels make transforms dear beside products, fewer tiles the weights, which are 16 / 9 as large, and even
  // more if they are transformed in each call.
  constexpr int64_t kLeastChannels = 32, kLeastTiles = 9, kLeastTilesForPacking = 32;
  const int64_t tiles = (w.out[1] + 1) / 2 * ((w.out[2] + 1) / 2);
  return FitsWinograd(w) && w.channels >= kLeastChannels && outputs >= kLeastChannels &&
         tiles >= (packed_once ? kLeastTiles : kLeastTilesForPacking);
}

size_t WinogradScratchBytes(const GemmArgs& args) {
  if (args.m <= 0 || args.n <= 0) return 0;
  return HWY_DYNAMIC_DISPATCH(WinogradFloats)(args) * sizeof(float);
}

void Winograd(const GemmArgs& args, void* scratch, int part, int num_parts) {
  if (args.m <= 0 || args.n <= 0) return;
  const auto tiles = static_cast<int64_t>(HWY_DYNAMIC_DISPATCH(WinogradTiles)(args));
  const PanelRange range = ShareOfProduct(tiles, args.n, part, num_parts, args.blocking.split);
  if (!range.empty()) HWY_DYNAMIC_DISPATCH(RunWinograd)(args, static_cast<float*>(scratch), range);
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
