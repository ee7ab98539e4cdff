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
#include "thresher/kernels/winograd_transforms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

using V = hn::Vec<TileTag>;

constexpr size_t kStripTiles = 8;  // of one line, whose results are finished together

// Room for so many floats in whole lines of 64 bytes and in whole vectors.
HWY_INLINE size_t Room(size_t floats) {
  const size_t unit = std::max<size_t>(16, hn::Lanes(TileTag()));
  return (floats + unit - 1) / unit * unit;
}

// Neighbours so far apart push each other out of L1: a cache of 8 or 12 ways repeats its sets every 4 KiB.
constexpr size_t Apart(size_t floats) { return floats % 512 == 0 ? floats + 16 : floats; }

// k counts the rows of all matrices.
WinogradTile TileOf(const GemmArgs& args) {
  return static_cast<WinogradTile>(args.k / (args.windows->channels * args.windows->kernel[0]));
}

// How the results of all images are cut into tiles and these into blocks, and where things lie in scratch memory, in
// floats. Each position of depth is an image by itself, whose patches lie one behind the other for every tap in depth.
template <class Sizes>
struct Tiling {
  explicit Tiling(const GemmArgs& args) {
    const Windows& w = *args.windows;
    depth = static_cast<size_t>(w.kernel[0]);
    channels = static_cast<size_t>(w.channels);
    k = depth * channels;
    height = static_cast<size_t>(w.out[1]);
    width = static_cast<size_t>(w.out[2]);
    lines = (height + Sizes::kHeight - 1) / Sizes::kHeight;
    in_line = (width + Sizes::kWidth - 1) / Sizes::kWidth;
    tiles = static_cast<size_t>(args.m) / (height * width) * lines * in_line;
    // Transformed patches stay in L2 while panels pass, and so do the sums of large tiles, which are many. Where few
    // fit, each block of them would read all weights again for little work: then those of one element stay there while
    // some panels pass, whose sums stay there, too.
    constexpr bool large = Sizes::kWidth > 2;
    const size_t many = 64;  // enough to make up for reading the weights
    const size_t at_once = TakesTwoPanels() ? 2 : 1;
    const size_t half = static_cast<size_t>(Caches().l2) / 2 / sizeof(float);
    const size_t fitting = half / (Sizes::kElements * (k + (large ? at_once * PanelWidth() : 0)));
    constexpr size_t most = Sizes::kElements > 16 ? 56 : 112;
    const bool in_turns = fitting < (large ? many / 2 : many);
    block = std::min(tiles, in_turns ? many : std::min(fitting, most));
    // The last vector of the last tap's channels is stored whole.
    const size_t lanes = hn::Lanes(TileTag());
    row = Apart(Room(k - channels + (channels + lanes - 1) / lanes * lanes));
    element = Apart(block * row);
    const size_t panel_sums = Sizes::kElements * SumElement(in_turns ? many : block);
    most_sums = in_turns ? std::max(half / panel_sums, at_once) * panel_sums : at_once * panel_sums;
    sums = Sizes::kElements * element;
    strip = sums + most_sums;
    zeros = strip + Sizes::kHeight * Sizes::kWidth * kStripTiles * PanelWidth();
    end = zeros + Room(channels);
  }

  size_t depth;  // taps there
  size_t channels, k, height, width;
  size_t lines, in_line, tiles;  // of tiles: in an image, in a line, of all images
  size_t block;                  // tiles at a time, at most
  size_t row, element;           // from one transformed patch to the next, from one of its elements to the next
  size_t most_sums;              // of some panels
  size_t sums, strip, zeros, end;

  // From one element of the sums of a panel to the next: no less for more tiles.
  static size_t SumElement(size_t tiles) { return Apart((tiles * PanelWidth() + 15) / 16 * 16); }
};

// A tile's place.
template <class Sizes>
struct TilePlace {
  TilePlace(const Tiling<Sizes>& t, size_t tile)
      : image(tile / (t.lines * t.in_line)),
        y(tile / t.in_line % t.lines * Sizes::kHeight),
        x(tile % t.in_line * Sizes::kWidth) {}
  size_t image, y, x;
};

template <class Sizes>
class WinogradProduct {
  using Transforms = typename Sizes::Transform;
  using Place = TilePlace<Sizes>;

  static constexpr size_t kWidth = Sizes::kWidth, kHeight = Sizes::kHeight, kPatchWidth = Sizes::kPatchWidth,
                          kPatchHeight = Sizes::kPatchHeight, kElements = Sizes::kElements;

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
      sum_element_ = Tiling<Sizes>::SumElement(tiles_);
      const size_t most = t_.most_sums / (kElements * sum_element_);
      for (size_t panel = range.panel_begin; panel < range.panel_end; panel += most) {
        const size_t end = std::min(panel + most, range.panel_end);
        Multiply(panel, end);
        for (size_t done = panel; done < end; ++done) Finish(done, SumsAt(done - panel));
      }
    }
  }

 private:
  using Patch = std::array<const float*, kElements>;

  // Where the positions of a tile's patch for that tap of depth lie; those in the padding are zeros.
  Patch PatchAt(const Place& at, size_t tap) const {
    const int64_t image = static_cast<int64_t>(at.image);
    const int64_t depth = w_.At(0, image % w_.out[0], static_cast<int64_t>(tap));
    const float* const x = args_.a + image / w_.out[0] * w_.x_batch + std::max<int64_t>(depth, 0) * w_.x_strides[0];
    Patch patch;
    for (size_t i = 0; i < kPatchHeight; ++i) {
      const int64_t h = static_cast<int64_t>(at.y + i) - w_.padding[1];
      for (size_t j = 0; j < kPatchWidth; ++j) {
        const int64_t v = static_cast<int64_t>(at.x + j) - w_.padding[2];
        const bool inside = depth >= 0 && h >= 0 && h < w_.in[1] && v >= 0 && v < w_.in[2];
        patch[i * kPatchWidth + j] = inside ? x + h * w_.x_strides[1] + v * w_.x_strides[2] : scratch_ + t_.zeros;
      }
    }
    return patch;
  }

  template <class Load>
  HWY_INLINE void TransformVector(const Load& load, float* HWY_RESTRICT out) const {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    const auto store = [&](size_t i, V x) HWY_ATTR { hn::StoreU(x, d, out + i * t_.element); };
    if constexpr (kPatchHeight == 1) {
      Transforms::Patch(load, store);
    } else {
      alignas(64) float lines[kElements * hn::MaxLanes(d)];
      for (size_t j = 0; j < kPatchWidth; ++j) {
        Transforms::Patch([&](size_t i) HWY_ATTR { return load(i * kPatchWidth + j); },
                          [&](size_t i, V x) HWY_ATTR { hn::Store(x, d, lines + (i * kPatchWidth + j) * lanes); });
      }
      for (size_t i = 0; i < kPatchHeight; ++i) {
        Transforms::Patch([&](size_t j) HWY_ATTR { return hn::Load(d, lines + (i * kPatchWidth + j) * lanes); },
                          [&](size_t j, V x) HWY_ATTR { store(i * kPatchWidth + j, x); });
      }
    }
  }

  void Transform(size_t tile) const {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    const Place place(t_, begin_ + tile);
    for (size_t tap = 0; tap < t_.depth; ++tap) {
      const Patch patch = PatchAt(place, tap);
      float* const out = scratch_ + tile * t_.row + tap * t_.channels;
      size_t c = 0;
      for (; c + lanes <= t_.channels; c += lanes) {
        TransformVector([&](size_t i) HWY_ATTR { return hn::LoadU(d, patch[i] + c); }, out + c);
      }
      if (c == t_.channels) continue;
      // What is written behind the channels is the next tap's, or nobody's: the row has room for it.
      const size_t left = t_.channels - c;
      TransformVector([&](size_t i) HWY_ATTR { return hn::LoadN(d, patch[i] + c, left); }, out + c);
    }
  }

  const uint8_t* PanelAt(size_t panel) const {
    return static_cast<const uint8_t*>(args_.packed_b) + panel * kElements * FloatPanel::Bytes(t_.k);
  }

  // Of the panel of that number among those that are multiplied in turns.
  float* SumsAt(size_t number) const { return scratch_ + t_.sums + number * kElements * sum_element_; }

  void Multiply(size_t panel_begin, size_t panel_end) const {
    const size_t at_once = TakesTwoPanels() && tiles_ > size_t{2} * kTileRows ? 2 : 1;
    for (size_t e = 0; e < kElements; ++e) {
      for (size_t panel = panel_begin, count; panel < panel_end; panel += count) {
        count = std::min(at_once, panel_end - panel);
        const uint8_t* const next = panel + count < panel_end
                                        ? PanelAt(panel + count) + e * FloatPanel::Bytes(t_.k)
                                        : PanelAt(panel_begin) + (e + 1) * FloatPanel::Bytes(t_.k);
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
    const size_t bytes = FloatPanel::Bytes(t_.k);
    const uint8_t* const b = PanelAt(panel) + e * bytes;
    Args tile;
    tile.lda = t_.row;
    tile.k = t_.k;
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
    const size_t strip_line = kWidth * kStripTiles * PanelWidth();
    for (size_t tile = 0; tile < tiles_;) {
      const Place at(t_, begin_ + tile);
      const size_t count = std::min({kStripTiles, tiles_ - tile, t_.in_line - at.x / kWidth});
      for (size_t i = 0; i < count; ++i) {
        if (Back(sums + (tile + i) * PanelWidth(), strip + kWidth * i * PanelWidth(), strip_line)) continue;
        Sum({t_, begin_ + tile + i}, panel, strip + kWidth * i * PanelWidth(), strip_line);
      }
      for (size_t line = 0; line < std::min(kHeight, t_.height - at.y); ++line) {
        FinishArgs rest{};
        rest.sums = strip + line * strip_line;
        rest.to = ResultAt(args_, (at.image * t_.height + at.y + line) * t_.width + at.x, column,
                           std::min(kWidth * count, t_.width - at.x), columns);
        rest.bias = bias;
        rest.residual_first = args_.residual_first;
        ending_.finish()(rest);
      }
      tile += count;
    }
  }

  // The results of a tile from its sums, in lines; false if one of them is not finite.
  bool Back(const float* HWY_RESTRICT sums, float* HWY_RESTRICT out, size_t line) const {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    alignas(64) float columns[kHeight * kPatchWidth * hn::MaxLanes(d)];
    V odd = hn::Zero(d);
    for (size_t at = 0; at < PanelWidth(); at += lanes) {
      const auto sum = [&](size_t e) HWY_ATTR { return hn::Load(d, sums + e * sum_element_ + at); };
      if constexpr (kHeight > 1) {
        for (size_t j = 0; j < kPatchWidth; ++j) {
          Transforms::Results([&](size_t i) HWY_ATTR { return sum(i * kPatchWidth + j); },
                              [&](size_t i, V y)
                                  HWY_ATTR { hn::Store(y, d, columns + (i * kPatchWidth + j) * lanes); });
        }
      }
      V all = hn::Zero(d);
      for (size_t i = 0; i < kHeight; ++i) {
        const auto column = [&](size_t j) HWY_ATTR {
          if constexpr (kHeight == 1) return sum(j);
          return hn::Load(d, columns + (i * kPatchWidth + j) * lanes);
        };
        Transforms::Results(column, [&](size_t j, V y) HWY_ATTR {
          hn::Store(y, d, out + i * line + j * PanelWidth() + at);
          all = hn::Add(all, y);
        });
      }
      // Zero times what is not finite is NaN.
      odd = hn::MulAdd(all, hn::Zero(d), odd);
    }
    return hn::AllTrue(d, hn::Eq(odd, hn::Zero(d)));
  }

  // The same as plain sums, with the taps that the transformed ones stand for.
  void Sum(const Place& at, size_t panel, float* HWY_RESTRICT out, size_t line) const {
    const TileTag d;
    for (size_t depth = 0; depth < t_.depth; ++depth) {
      const Patch patch = PatchAt(at, depth);
      const float* const b = reinterpret_cast<const float*>(PanelAt(panel)) + depth * t_.channels * PanelWidth();
      for (size_t position = 0; position < kHeight * kWidth; ++position) {
        for (size_t j = 0; j < PanelWidth(); j += hn::Lanes(d)) {
          float* const to = out + position / kWidth * line + position % kWidth * PanelWidth() + j;
          V sum = depth == 0 ? hn::Zero(d) : hn::Load(d, to);
          for (size_t tap = 0; tap < 3 * Sizes::kTapLines; ++tap) {
            const float* const x = patch[(position / kWidth + tap / 3) * kPatchWidth + position % kWidth + tap % 3];
            for (size_t c = 0; c < t_.channels; ++c) {
              sum = hn::MulAdd(hn::Set(d, x[c]), Tap(d, b + c * PanelWidth() + j, tap / 3, tap % 3), sum);
            }
          }
          hn::Store(sum, d, to);
        }
      }
    }
  }

  // Tap (i, j) of a channel's transformed ones: the first and the last element of a line are taps, the second and the
  // third tell the one in the middle. Where they would not be finite, it is the second, and the third is NaN.
  HWY_INLINE V Tap(TileTag d, const float* b, size_t i, size_t j) const {
    const size_t matrix = t_.k * PanelWidth();
    const auto middle = [](V second, V third) HWY_ATTR {
      return hn::IfThenElse(hn::IsNaN(third), second, Transforms::Middle(second, third));
    };
    const auto in_line = [&](size_t e) HWY_ATTR {
      const float* const from = b + e * kPatchWidth * matrix;
      if (j != 1) return hn::Load(d, from + (j == 0 ? 0 : kPatchWidth - 1) * matrix);
      return middle(hn::Load(d, from + matrix), hn::Load(d, from + 2 * matrix));
    };
    if constexpr (kPatchHeight == 1) return in_line(0);
    return i != 1 ? in_line(i == 0 ? 0 : kPatchHeight - 1) : middle(in_line(1), in_line(2));
  }

  const GemmArgs& args_;
  const Windows& w_;
  const Tiling<Sizes> t_;
  float* const scratch_;
  const Ending<float> ending_;
  size_t begin_ = 0, tiles_ = 0;  // of the block
  size_t sum_element_ = 0;        // from one element of a panel's sums to the next
};

size_t WinogradFloats(const GemmArgs& args) {
  size_t floats = 0;
  ForWinogradTile(TileOf(args), [&](auto sizes) { floats = Tiling<decltype(sizes)>(args).end; });
  return floats;
}

size_t WinogradTiles(const GemmArgs& args) {
  size_t tiles = 0;
  ForWinogradTile(TileOf(args), [&](auto sizes) { tiles = Tiling<decltype(sizes)>(args).tiles; });
  return tiles;
}

void RunWinograd(const GemmArgs& args, float* scratch, const PanelRange& range) {
  ForWinogradTile(TileOf(args),
                  [&](auto sizes) HWY_ATTR { WinogradProduct<decltype(sizes)>(args, scratch).Run(range); });
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

bool FitsWinograd(const Windows& w, WinogradTile tile) {
  bool fits = w.spread[0] == 1;
  for (int d = 1; d < 3; ++d) {
    const bool alone = d == 1 && tile == WinogradTile::k1x4;
    fits &= w.kernel[d] == (alone ? 1 : 3) && w.stride[d] == 1 && w.spread[d] == 1 && (alone || w.dilation[d] == 1);
  }
  return fits;
}

namespace {

// Weights that are in no cache, which are larger in tiles, are waited for where the multiplications of a few tiles end
// sooner: on Intel's cores with the widest vectors 16 tiles of 512 to 512 channels take 1.25 times as long as the plain
// product, where they take 0.85 of that with weights that are in L3.
constexpr int64_t kLeastTilesThere = 20;
bool ReadsLong(WinogradTile tile, const Windows& w, int64_t outputs) {
  if (!IsIntel() || PackedColumns() < 32) return false;
  const int64_t weights = w.kernel[0] * w.channels * outputs;
  return WinogradMatrices(tile) * weights * static_cast<int64_t>(sizeof(float)) > 2 * Caches().l2;
}

}  // namespace

WinogradTile SuitableWinogradTile(const Windows& w, int64_t outputs, bool packed_once) {
  // Fewer channels make transforms dear beside products, fewer tiles the weights, which are 2, 16 / 9 or 4 times as
  // large, and even more if they are transformed in each call.
  struct Least {
    WinogradTile tile;
    int64_t height, width, tiles, tiles_for_packing;
  };
  constexpr Least kLeast[] = {
      {WinogradTile::k1x4, 1, 4, 16, 48}, {WinogradTile::k4x4, 4, 4, 24, 48}, {WinogradTile::k2x2, 2, 2, 9, 32}};
  constexpr int64_t kLeastChannels = 32;
  if (w.channels < kLeastChannels || outputs < kLeastChannels) return WinogradTile::kNone;
  for (const Least& least : kLeast) {
    const int64_t lines = (w.out[1] + least.height - 1) / least.height;
    const int64_t tiles = w.out[0] * lines * ((w.out[2] + least.width - 1) / least.width);
    int64_t wanted = packed_once ? least.tiles : least.tiles_for_packing;
    if (ReadsLong(least.tile, w, outputs)) wanted = std::max(wanted, kLeastTilesThere);
    if (FitsWinograd(w, least.tile) && tiles >= wanted) return least.tile;
  }
  return WinogradTile::kNone;
}

double WinogradShare(WinogradTile tile, int64_t channels, int64_t depth, int64_t outputs) {
  // Transforms: as measured by AVX2 with 64 to 512 channels (docs/performance/convolutions.md).
  constexpr double kTransforms = 9;
  const double taps = tile == WinogradTile::k1x4 ? 3 : 9, results = tile == WinogradTile::k4x4 ? 16 : 4;
  if (tile == WinogradTile::kNone) return 1;
  return static_cast<double>(WinogradMatrices(tile)) / (taps * results) +
         kTransforms / static_cast<double>(channels * depth) + kTransforms / static_cast<double>(outputs);
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
