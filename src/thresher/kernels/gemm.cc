#include "thresher/kernels/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "thresher/base/isa.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/gemm_block.h"
#include "thresher/kernels/gemm_dot.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "thresher/kernels/epilogue-inl.h"
#include "thresher/kernels/pack-inl.h"
#include "thresher/kernels/panel_formats-inl.h"
#include "thresher/kernels/tile-inl.h"
#include "thresher/kernels/wide_tile-inl.h"
#include "thresher/kernels/window_product-inl.h"
#include "thresher/kernels/winograd_transforms-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

// Up to so many rows, a compressed panel is by default widened in registers, in tiles of up to kDirectTileRows rows,
// which is free while memory sets the pace. More rows share a panel that is widened once, as do 4-bit ones always (for
// few rows see gemm_dot.h). What is loaded behind other rows as fast as floats are is never widened otherwise.
constexpr size_t kDirectRows = 8;
template <class Panel>
constexpr int kDirectTileRows = kHasLoadBehind<Panel> ? kTileRows : 4;

// Rows are gathered where they would not stay in L2, or where those of a tile would push each other out of L1. Then one
// block of k after the other is multiplied by every panel, from a copy of the rows of this block alone, and what is not
// finished waits in C (which must not be the residual).
constexpr size_t kGatheredFloats = size_t{64} * 1024;
constexpr size_t kLeastGatherPanels = 4;  // that share the price of the copy

// From one gathered row to the next, for rows of `count` elements: at most count + 31, and no large power of two.
HWY_INLINE size_t GatheredStride(size_t count) { return (count + 15) / 16 * 16 + 16; }

template <class Panel>
constexpr bool kHasColumnScale = std::is_same_v<Panel, Int8Panel>;

// Bytes from one panel to the next. Scales of the columns follow the panel they belong to.
template <class Panel>
size_t PanelStride(size_t k) {
  return StoredBytes<Panel>(k) + (kHasColumnScale<Panel> ? PanelWidth() * sizeof(float) : 0);
}

template <class Panel>
constexpr size_t kStepUnit = Panel::kGroup == 0 ? 4 : Panel::kGroup;

// Rows of a panel in one block. What is widened must fit its buffer even where a group of rows that share scales is
// larger than the block asked for.
template <class Panel>
size_t PanelRows(const Blocking& blocking) {
  const size_t row_bytes = sizeof(float) * PanelWidth();
  return std::max<size_t>(PanelBlockBytes(blocking, kTileRows) / row_bytes / kStepUnit<Panel>, 1) * kStepUnit<Panel>;
}

// Whether the first tile widens a panel while it multiplies, for those after it; else a loop does before all of them.
template <class Panel>
constexpr bool kWidenedByTile = std::is_same_v<Panel, Bf16Panel> || std::is_same_v<Panel, HalfPanel>;

// Whether all of k stays in registers and rows are read where they lie: where L2 delivers a panel as fast as it is
// used, next to rows that push each other out of L1. Zen 4 was faster with blocks of k. What is widened takes the place
// of gathered rows; it was measured on Intel's cores alone.
template <class Panel>
bool FitsWhole(const GemmArgs& args) {
  constexpr bool kStoredAsFloats = std::is_same_v<Panel, FloatPanel>;
  if (!(kStoredAsFloats || kWidenedByTile<Panel>) || kTileRows < 14) return false;
  if (kStoredAsFloats ? IsZen4() : !IsIntel()) return false;
  if (args.blocking.panel_kib != 0 || args.windows != nullptr) return false;
  const size_t bytes = FloatPanel::Bytes(static_cast<size_t>(args.k));
  return bytes <= static_cast<size_t>(Caches().l2) / 4 && (kStoredAsFloats || bytes <= kGatheredFloats * sizeof(float));
}

// So many tiles of two panels end together where a tile cannot end its sums: these stay in L1.
constexpr size_t kWideTilesTogether = 4;

// Of a strip that holds the sums of `rows` rows and two panels, and of the tiles that end together.
constexpr size_t StripRowsOfTwoPanels(size_t rows) { return 2 * (rows + kWideTilesTogether * kWideTileRows); }

// In how many blocks of k two panels at once are multiplied, where FitsWhole(). What the tiles of one block fetch of
// the next must still be in L2 when it is used: many rows need that less often, and blocks cost them sums that wait.
// Measured with weights that come from memory (Xeon of 2 MiB, docs/performance.md): 49 rows of 2048 numbers took 0.80
// of the time in blocks of 64 KiB, 128 rows of 3072 0.92 in blocks of 128 KiB; 128 rows of 768 were none the faster.
HWY_INLINE size_t BlocksOfTwoPanels(size_t k, size_t rows) {
  constexpr size_t kFewRows = 64;
  const size_t bytes = 2 * FloatPanel::Bytes(k);
  if (rows > kFewRows && 4 * bytes <= static_cast<size_t>(Caches().l2)) return 1;
  const size_t most = (rows > kFewRows ? size_t{128} : size_t{64}) * 1024;
  return std::max<size_t>((bytes + most - 1) / most, 1);
}

// How `rows` rows pass `panels` panels.
struct RowBlocks {
  bool gathers;
  size_t most_rows;
};

template <class Panel>
RowBlocks RowBlocksFor(const GemmArgs& args, size_t rows, size_t panels) {
  const size_t k = static_cast<size_t>(args.k);
  const size_t panel_rows = PanelRows<Panel>(args.blocking);
  const size_t most_rows = BlockRows(args.blocking, sizeof(float) * k);
  const bool in_place = args.residual != nullptr && args.residual == args.c;
  const bool gathers = args.windows != nullptr || (k > panel_rows && !FitsWhole<Panel>(args) &&
                                                   (rows > most_rows || RowsShareSets(static_cast<size_t>(args.lda))) &&
                                                   panels >= kLeastGatherPanels && !in_place);
  if (!gathers) return {false, most_rows};
  const size_t fitting = kGatheredFloats / GatheredStride(panel_rows);
  const size_t wanted = args.blocking.most_rows > 0 ? most_rows : size_t{kMostBlockRows};
  return {true, std::min(wanted, fitting)};
}

// Where the buffers of a part lie in its scratch memory, in floats.
struct Buffers {
  size_t strip = 0;     // sums that wait, of a tile or of a block of rows
  size_t widened = 0;   // a block of a panel
  size_t gathered = 0;  // a block of rows, as far as a block of k goes
  size_t end = 0;
};

constexpr size_t WholeLines(size_t floats) { return (floats + 15) / 16 * 16; }

// The same for all parts, so that a part with fewer rows than another has room as well.
template <class Panel>
Buffers BuffersFor(const GemmArgs& args) {
  const size_t m = static_cast<size_t>(args.m);
  const size_t k = static_cast<size_t>(args.k);
  const size_t width = PanelWidth();
  const size_t panel_rows = PanelRows<Panel>(args.blocking);
  const auto [gathers, most_rows] = RowBlocksFor<Panel>(args, m, (static_cast<size_t>(args.n) + width - 1) / width);
  Buffers buffers;
  size_t strip_rows = std::min(m, size_t{kMostBlockRows});
  // A part with few rows may have several blocks where one with all of them has none.
  if (kHasWideTiles && FitsWhole<Panel>(args) && BlocksOfTwoPanels(k, 1) > 1) {
    strip_rows = std::max(strip_rows, StripRowsOfTwoPanels(std::min(m, most_rows)));
  }
  buffers.widened = buffers.strip + WholeLines(strip_rows * width);
  const size_t all_rows = (k + kStepUnit<Panel> - 1) / kStepUnit<Panel> * kStepUnit<Panel>;
  const size_t widened_rows = FitsWhole<Panel>(args) ? all_rows : std::min(panel_rows, all_rows);
  buffers.gathered = buffers.widened + (std::is_same_v<Panel, FloatPanel> ? 0 : WholeLines(widened_rows * width));
  buffers.end = buffers.gathered + (gathers ? std::min(m, most_rows) * GatheredStride(panel_rows) : 0);
  static_assert((StripRowsOfTwoPanels(kMostBlockRows) * kMaxPanelWidth +
                 std::max(size_t{kMostPanelKib} * 1024 / sizeof(float), kStepUnit<Panel> * kMaxPanelWidth) +
                 kGatheredFloats + 48) *
                    sizeof(float) <=
                kMostGemmScratchBytes);
  return buffers;
}

// Elements [begin, begin + count) of rows of A, copied so that one lies right behind the other; returns their distance.
inline size_t GatherRows(const GemmArgs& args, size_t row, size_t rows, size_t begin, size_t count,
                         float* HWY_RESTRICT out) {
  const size_t ld = GatheredStride(count);
  if (args.windows != nullptr) {
    GatherWindows(*args.windows, args.a, static_cast<int64_t>(row), static_cast<int64_t>(rows),
                  static_cast<int64_t>(begin), static_cast<int64_t>(count), out, static_cast<int64_t>(ld));
    return ld;
  }
  const size_t lda = static_cast<size_t>(args.lda);
  const float* const a = args.a + row * lda + begin;
  for (size_t i = 0; i < rows; ++i) std::copy_n(a + i * lda, count, out + i * ld);
  return ld;
}

// The rows of a part times two whole panels of floats, with k in so many blocks. `strip` has room for PanelWidth() sums
// of half as many rows each, of StripRowsOfTwoPanels() where there are several.
void MultiplyTwoPanels(const GemmArgs& args, const Ending<float>& ending, size_t row_begin, size_t row_end,
                       size_t panel, size_t blocks, float* strip) {
  const size_t k = static_cast<size_t>(args.k);
  const size_t width = PanelWidth();
  const size_t column = panel * width;
  const size_t rows = row_end - row_begin;
  const RowTiles tiles(rows, kWideTileRows);
  const float* const bias = args.bias == nullptr ? nullptr : args.bias + column;
  const size_t panel_bytes = FloatPanel::Bytes(k);
  const uint8_t* b = static_cast<const uint8_t*>(args.packed_b) + panel * panel_bytes;
  const uint8_t* const next_panels = b + 2 * panel_bytes;
  const bool cut = blocks > 1;
  float* const ended = cut ? strip + 2 * rows * width : strip;
  WideTileArgs tile;
  tile.lda = static_cast<size_t>(args.lda);
  tile.second.b = panel_bytes;
  tile.second.fetched = cut ? panel_bytes : 0;
  for (size_t k_begin = 0, block = 0; block < blocks; ++block) {
    const bool last = block + 1 == blocks;
    const size_t k_end = last ? k : k / 4 * (block + 1) / blocks * 4;
    tile.k = k_end - k_begin;
    tile.b = b;
    const size_t bytes = FloatPanel::Bytes(tile.k) * (cut ? 1 : 2);
    const uint8_t* const next = last ? next_panels : b + bytes;
    size_t row = row_begin;
    for (size_t t = 0; t < tiles.count; t += tile.tiles) {
      const size_t height = tiles.Height(t);
      tile.tiles = tiles.Alike(t);
      if (last && !ending.in_tile()) {
        tile.tiles = std::min({tile.tiles, kWideTilesTogether, std::max<size_t>(rows / 2 / height, 1)});
      }
      const TileResult to = ResultAt(args, row, column, tile.tiles * height, width);
      float* const wait = strip + 2 * (row - row_begin) * width;
      tile.a = args.a + row * tile.lda + k_begin;
      tile.init = block == 0 ? bias : wait;
      tile.init_ld = block == 0 ? 0 : 2 * width;
      tile.fetch = FetchShare(tiles, t, b, bytes, tile.k / 4, next);
      if (last) {
        ending.Of(to, ended, tile);
        tile.second.out = ending.in_tile() ? width : to.rows * width;
      } else {
        tile.KeepSums(wait, 2 * width);
        tile.second.out = width;
      }
      tile.fetched.out = to.c;
      tile.fetched.out_ld = to.ldc;
      tile.fetched.residual = to.residual;
      tile.fetched.residual_ld = to.ldr;
      tile.fetched.fetches = last;
      WideTileForRows(height)(tile);
      row += to.rows;
      if (!last || ending.in_tile()) continue;
      ending.finish()(ending.Rest(to, ended, bias, nullptr));
      ending.finish()(
          ending.Rest(to.Second(), ended + tile.second.out, bias == nullptr ? nullptr : bias + width, nullptr));
    }
    b += bytes;
    k_begin = k_end;
  }
}

// The rows and panels of a part.
template <class Panel>
void GemmRange(const GemmArgs& args, float* scratch, const PanelRange& range) {
  constexpr bool kStoredAsFloats = std::is_same_v<Panel, FloatPanel>;
  if constexpr (kWindowsOfLines<Panel>) {
    const size_t depth = static_cast<size_t>(args.k);
    if (args.windows != nullptr && LineReading(*args.windows).Suits<Panel>(depth)) {
      WindowProduct<Panel>(args, PanelStride<Panel>(depth), kHasColumnScale<Panel>, scratch).Run(range);
      return;
    }
  }
  const size_t n = static_cast<size_t>(args.n);
  const size_t k = static_cast<size_t>(args.k);
  const size_t lda = static_cast<size_t>(args.lda);
  const size_t ldc = static_cast<size_t>(args.ldc);
  const size_t width = PanelWidth();
  const size_t panel_stride = PanelStride<Panel>(k);
  const size_t rows = range.row_end - range.row_begin;
  const Ending<float> ending(args, kHasColumnScale<Panel>);
  const bool windowed = args.windows != nullptr;

  const size_t panel_rows = PanelRows<Panel>(args.blocking);
  const auto [gathers, most_rows] = RowBlocksFor<Panel>(args, rows, range.panel_end - range.panel_begin);
  const size_t row_blocks = (rows + most_rows - 1) / most_rows;

  const Buffers buffers = BuffersFor<Panel>(args);
  float* const strip = scratch + buffers.strip;
  float* const widened = scratch + buffers.widened;
  float* const gathered = scratch + buffers.gathered;
  alignas(64) float padded_bias[kMaxPanelWidth];

  for (size_t block = 0; block < row_blocks; ++block) {
    const size_t block_begin = range.row_begin + rows * block / row_blocks;
    const size_t block_end = range.row_begin + rows * (block + 1) / row_blocks;
    const size_t block_rows = block_end - block_begin;
    const bool in_registers = args.blocking.variant == Variant::kAuto
                                  ? block_rows <= kDirectRows || kHasLoadBehind<Panel>
                                  : args.blocking.variant == Variant::kDirect;
    const bool direct_panel = kStoredAsFloats || (Panel::kGroup == 0 && in_registers);
    const RowTiles tiles(block_rows,
                         static_cast<size_t>(direct_panel && !kStoredAsFloats ? kDirectTileRows<Panel> : kTileRows));
    // With a single tile nothing is reused, and cutting k would only add stores.
    const bool whole_k = (direct_panel && !windowed && tiles.count == 1) || FitsWhole<Panel>(args);
    const size_t most_k = whole_k ? std::max<size_t>(k, 1) : panel_rows;
    const size_t k_blocks = std::max<size_t>(1, (k + most_k - 1) / most_k);
    const size_t k_step = ((k + k_blocks - 1) / k_blocks + kStepUnit<Panel> - 1) / kStepUnit<Panel> * kStepUnit<Panel>;

    // Rows [block_begin, block_end), at a, times a block of a panel. What is not finished waits in C if `in_c`, else in
    // the strip.
    const auto multiply = [&](size_t panel, size_t k_block, const float* a, size_t a_stride, bool in_c) HWY_ATTR {
      const uint8_t* panel_b = static_cast<const uint8_t*>(args.packed_b) + panel * panel_stride;
      const size_t column = panel * width;
      const size_t columns = std::min(width, n - column);
      const float* bias = PanelBias(args.bias, column, columns, padded_bias);
      const bool one_vector = columns <= hn::Lanes(TileTag());
      const size_t k_begin = std::min(k, k_block * k_step);
      const size_t k_end = std::min(k, k_begin + k_step);
      const bool first = k_block == 0;
      const bool last = k_block + 1 == k_blocks;
      const uint8_t* block_b = panel_b + StoredBytes<Panel>(k_begin);
      const size_t block_bytes = StoredBytes<Panel>(k_end - k_begin);
      const uint8_t* next_b = in_c ? block_b + panel_stride : block_b + block_bytes;
      const bool by_tile = kWidenedByTile<Panel> && !direct_panel && !one_vector &&
                           tiles.Height(0) >= static_cast<size_t>(kLeastFirstTile);
      TileArgs tile;
      tile.lda = a_stride;
      tile.k = k_end - k_begin;
      tile.b = block_b;
      tile.floats = widened;
      if (!direct_panel && !by_tile) {
        WidenPanel<Panel>(block_b, tile.k, widened);
        tile.b = widened;
      }
      size_t row = block_begin;
      for (size_t t = 0; t < tiles.count; t += tile.tiles) {
        const size_t height = tiles.Height(t);
        // Tiles take turns in one call, but where the first one's is another function.
        tile.tiles = by_tile && t == 0 ? 1 : tiles.Alike(t);
        const TileResult to = ResultAt(args, row, column, tile.tiles * height, columns);
        // What is finished at once always uses the strip's beginning, to stay in L1.
        float* wait = in_c ? to.c : strip + (k_blocks == 1 ? 0 : (row - block_begin) * width);
        const size_t wait_ld = in_c ? ldc : width;
        tile.a = a + (row - block_begin) * a_stride;
        tile.init = first ? (kHasColumnScale<Panel> ? nullptr : bias) : wait;
        tile.init_ld = first ? 0 : wait_ld;
        const size_t turns = tile.k / 4;
        tile.fetch = kStoredAsFloats && tiles.count == 1
                         ? FetchAlone(height, static_cast<size_t>(RunsFor(height)), block_b, block_bytes, turns, next_b)
                         : FetchShare(tiles, t, block_b, block_bytes, turns, next_b);
        float* const sums = in_c ? strip : wait;
        if (last) {
          ending.Of(to, sums, tile);
        } else {
          tile.KeepSums(wait, wait_ld);
        }
        tile.fetched.out = to.c;
        tile.fetched.out_ld = ldc;
        tile.fetched.residual = last ? to.residual : nullptr;
        tile.fetched.residual_ld = to.ldr;
        tile.fetched.fetches = in_c || last;
        if (in_c) {
          // A tile begins with what waits in C, so it is the tile after it that is fetched.
          tile.fetched.out = to.c + height * ldc;
          if (t + tile.tiles == tiles.count) {
            TileResult next = ResultAt(args, block_begin, column + width, tiles.Height(0), width);
            next.residual = nullptr;
            FetchResult(next);
          }
        }
        TileFunction run = one_vector ? TileForRows<FloatPanel, kTileRows, 1>(height) : TileForRows(height);
        if constexpr (!kStoredAsFloats && Panel::kGroup == 0) {
          if (direct_panel) {
            run = TileForRows<Panel, kDirectTileRows<Panel>>(height);
            if constexpr (kHasLoadBehind<Panel>) {
              if (one_vector) run = TileForRows<Panel, kDirectTileRows<Panel>, 1>(height);
            }
          }
        }
        if constexpr (kWidenedByTile<Panel>) {
          if (by_tile && t == 0) run = WritingTileForRows<Panel>(height);
        }
        run(tile);
        if (by_tile) tile.b = widened;
        if (last && !ending.in_tile()) {
          ending.finish()(
              ending.Rest(to, sums, bias, kHasColumnScale<Panel> ? panel_b + StoredBytes<Panel>(k) : nullptr));
        }
        row += to.rows;
      }
    };

    size_t panel = range.panel_begin;
    if (gathers && (tiles.count > 1 || windowed)) {
      // Panels with columns beyond n are left to the strip.
      const size_t whole_end = std::min(range.panel_end, std::max(n / width, range.panel_begin));
      for (size_t k_block = 0; k_block < k_blocks; ++k_block) {
        const size_t k_begin = std::min(k, k_block * k_step);
        const size_t count = std::min(k, k_begin + k_step) - k_begin;
        const size_t ld = GatherRows(args, block_begin, block_rows, k_begin, count, gathered);
        // What waits in the strip is taken before another panel is finished there.
        if (windowed && whole_end < range.panel_end) multiply(whole_end, k_block, gathered, ld, false);
        for (panel = range.panel_begin; panel < whole_end; ++panel) multiply(panel, k_block, gathered, ld, true);
      }
      if (windowed) continue;
    }
    const float* a = args.a + block_begin * lda;
    if constexpr (kStoredAsFloats && kHasWideTiles) {
      if (TakesTwoPanels() && FitsWhole<Panel>(args) && block_rows > static_cast<size_t>(kTileRows)) {
        const size_t blocks = BlocksOfTwoPanels(k, block_rows);
        for (; panel + 2 <= std::min(range.panel_end, n / width); panel += 2) {
          MultiplyTwoPanels(args, ending, block_begin, block_end, panel, blocks, strip);
        }
      }
    }
    for (; panel < range.panel_end; ++panel) {
      for (size_t k_block = 0; k_block < k_blocks; ++k_block) {
        multiply(panel, k_block, a + std::min(k, k_block * k_step), lda, false);
      }
    }
  }
}

// The result of `function` for the form of panels that a precision has, which it takes as an example.
template <class Function>
auto ForPanel(Precision precision, const Function& function) {
  switch (precision) {
    case Precision::kBf16:
      return function(Bf16Panel());
    case Precision::kFp16:
#if THRESHER_HALF_PAIRS
      if (isa::HasF16Tiles()) return function(HalfPairsPanel());
#endif
      return function(HalfPanel());
    case Precision::kInt8Weight:
      return function(Int8Panel());
    case Precision::kInt4Weight:
      return function(Int4Panel());
    default:
      return function(FloatPanel());
  }
}

size_t GemmPanelWidth() { return PanelWidth(); }
int GemmTileRows() { return kTileRows; }

void RunProduct(const GemmArgs& args, float* scratch, const PanelRange& range) {
  ForPanel(args.precision, [&](auto panel) HWY_ATTR { GemmRange<decltype(panel)>(args, scratch, range); });
}

size_t ScratchFloats(const GemmArgs& args) {
  const size_t floats =
      ForPanel(args.precision, [&](auto panel) HWY_ATTR { return BuffersFor<decltype(panel)>(args).end; });
  // Which way is taken depends on sizes that may be others when the product runs.
  return args.windows != nullptr ? std::max(floats, kWindowScratchFloats) : floats;
}

size_t GemmBlockRows(const GemmArgs& args, size_t rows, size_t panels) {
  return ForPanel(args.precision,
                  [&](auto panel) HWY_ATTR { return RowBlocksFor<decltype(panel)>(args, rows, panels).most_rows; });
}

size_t GemmPanelStride(Precision precision, size_t k) {
  return ForPanel(precision, [&](auto panel) HWY_ATTR { return PanelStride<decltype(panel)>(k); });
}

// Rounds `count` floats, whole vectors of them, to bf16 or fp16.
void RoundFloats(Encoding to, float* HWY_RESTRICT x, size_t count) {
  const TileTag d;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const auto number = hn::LoadU(d, x + i);
    hn::StoreU(to == Encoding::kBf16 ? hn::BitCast(d, RoundToBf16(d, number)) : Widen<F16>(d, Narrow<F16>(d, number)),
               d, x + i);
  }
}

// out[0], out[step], ...: the transformed form of three numbers. Where that is not finite, the number in the middle and
// NaN, so that what is multiplied by it is not finite either, and the three numbers can be told (winograd.cc).
template <class Transforms>
HWY_INLINE void TransformTaps(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, const float* HWY_RESTRICT c,
                              float* HWY_RESTRICT out, size_t step) {
  const TileTag d;
  const auto first = hn::LoadU(d, a), middle = hn::LoadU(d, b), last = hn::LoadU(d, c);
  auto finite = hn::IsFinite(hn::Zero(d));
  Transforms::Taps(first, middle, last, [&](size_t i, hn::Vec<TileTag> x) HWY_ATTR {
    hn::StoreU(x, d, out + i * step);
    if (i == 1 || i == 2) finite = hn::And(finite, hn::IsFinite(x));
  });
  if (HWY_LIKELY(hn::AllTrue(d, finite))) return;
  hn::StoreU(hn::IfThenElse(finite, hn::LoadU(d, out + step), middle), d, out + step);
  hn::StoreU(hn::IfThenElse(finite, hn::LoadU(d, out + 2 * step), hn::NaN(d)), d, out + 2 * step);
}

// Panel `index` of the matrices that nine taps, or three, become (winograd.h) at each depth.
template <class Sizes>
void PackWinograd(const Weight& weight, size_t index, float* HWY_RESTRICT panel) {
  using Transforms = typename Sizes::Transform;
  constexpr size_t kLines = Sizes::kTapLines, kTaps = 3 * kLines;
  constexpr size_t kFloats = 512;  // of each tap at a time, to stay in L1
  const size_t channels = static_cast<size_t>(weight.k / weight.taps), most = kFloats / PanelWidth();
  const size_t depth = static_cast<size_t>(weight.taps) / Sizes::kElements;
  const size_t step = depth * channels * PanelWidth();
  alignas(64) float taps[kTaps * kFloats];
  alignas(64) float lines[Sizes::kPatchHeight * 3 * hn::MaxLanes(TileTag())];
  const size_t lanes = hn::Lanes(TileTag());
  for (size_t row = 0; row < depth * channels;) {
    const size_t channel = row % channels, first = row / channels * kTaps;
    const size_t count = std::min(most, channels - channel), size = count * PanelWidth();
    for (size_t tap = 0; tap < kTaps; ++tap) {
      const Weight rows = weight.Tap(static_cast<int64_t>(first + tap))
                              .Rows(static_cast<int64_t>(channel), static_cast<int64_t>(count));
      PackPanel(rows, index, taps + tap * size);
    }
    if (weight.rounding != Encoding::kF32) RoundFloats(weight.rounding, taps, kTaps * size);
    for (size_t i = 0; i < size; i += lanes) {
      const float* const from = taps + i;
      float* const to = panel + row * PanelWidth() + i;
      if constexpr (kLines == 1) {
        TransformTaps<Transforms>(from, from + size, from + 2 * size, to, step);
      } else {
        for (size_t j = 0; j < 3; ++j) {
          TransformTaps<Transforms>(from + j * size, from + (3 + j) * size, from + (6 + j) * size, lines + j * lanes,
                                    3 * lanes);
        }
        for (size_t j = 0; j < Sizes::kPatchHeight; ++j) {
          const float* const line = lines + 3 * j * lanes;
          TransformTaps<Transforms>(line, line + lanes, line + 2 * lanes, to + Sizes::kPatchWidth * j * step, step);
        }
      }
    }
    row += count;
  }
}

void PackRange(const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end) {
  const size_t stride = PanelStride<FloatPanel>(static_cast<size_t>(weight.k));
  for (size_t panel = panel_begin; panel < panel_end; ++panel) {
    float* const floats = reinterpret_cast<float*>(packed + panel * stride);
    if (weight.winograd != WinogradTile::kNone) {
      ForWinogradTile(weight.winograd,
                      [&](auto sizes) HWY_ATTR { PackWinograd<decltype(sizes)>(weight, panel, floats); });
      continue;
    }
    PackPanel(weight, panel, floats);
    if (weight.rounding != Encoding::kF32) RoundFloats(weight.rounding, floats, stride / sizeof(float));
  }
}

// Encode: k rows of a panel of floats into the panel's stored form.

void Encode(Bf16Panel, const float* HWY_RESTRICT in, size_t k, uint8_t* HWY_RESTRICT out) {
  EncodeBf16(in, PanelWidth(), k, out);
}

void Encode(HalfPanel, const float* HWY_RESTRICT in, size_t k, uint8_t* HWY_RESTRICT out) {
  const TileTag d;
  const hn::Rebind<uint16_t, TileTag> d16;
  const size_t count = k * PanelWidth();
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(Narrow<F16>(d, hn::LoadU(d, in + i)), d16, reinterpret_cast<uint16_t*>(out) + i);
  }
}

#if THRESHER_HALF_PAIRS
void Encode(HalfPairsPanel, const float* HWY_RESTRICT in, size_t k, uint8_t* HWY_RESTRICT out) {
  EncodeF16Pairs(in, PanelWidth(), k, out);
}
#endif

// The largest magnitude in a column of `rows` rows.
HWY_INLINE hn::Vec<TileTag> ColumnMax(TileTag d, const float* HWY_RESTRICT in, size_t rows) {
  auto max = hn::Zero(d);
  for (size_t row = 0; row < rows; ++row) max = hn::Max(max, hn::Abs(hn::LoadU(d, in + row * PanelWidth())));
  return max;
}

// 1 / scale, and 0 for 0.
HWY_INLINE hn::Vec<TileTag> Inverse(TileTag d, hn::Vec<TileTag> scale) {
  return hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(d)), hn::Div(hn::Set(d, 1.0f), scale));
}

HWY_INLINE hn::Vec<hn::RebindToSigned<TileTag>> Quantized(TileTag d, const float* in, hn::Vec<TileTag> inverse,
                                                          int32_t limit) {
  const hn::RebindToSigned<TileTag> di;
  const auto q = hn::NearestInt(hn::Mul(hn::LoadU(d, in), inverse));
  return hn::Min(hn::Max(q, hn::Set(di, -limit)), hn::Set(di, limit));
}

void Encode(Int8Panel, const float* HWY_RESTRICT in, size_t k, uint8_t* HWY_RESTRICT out) {
  const TileTag d;
  const hn::Rebind<int8_t, TileTag> d8;
  const size_t width = PanelWidth();
  float* scales = reinterpret_cast<float*>(out + StoredBytes<Int8Panel>(k));
  for (size_t j = 0; j < width; j += hn::Lanes(d)) {
    const auto scale = hn::Mul(ColumnMax(d, in + j, k), hn::Set(d, 1.0f / 127.0f));
    const auto inverse = Inverse(d, scale);
    hn::StoreU(scale, d, scales + j);
    for (size_t row = 0; row < k; ++row) {
      const auto q = Quantized(d, in + row * width + j, inverse, 127);
      hn::StoreU(hn::DemoteTo(d8, q), d8, reinterpret_cast<int8_t*>(out) + row * width + j);
    }
  }
}

void Encode(Int4Panel, const float* HWY_RESTRICT in, size_t k, uint8_t* HWY_RESTRICT out) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const hn::RebindToUnsigned<TileTag> du;
  const hn::Rebind<uint16_t, TileTag> d16;
  const size_t width = PanelWidth();
  for (size_t begin = 0; begin < k; begin += Int4Panel::kGroup) {
    const size_t rows = std::min(k - begin, Int4Panel::kGroup);
    auto* words = reinterpret_cast<uint32_t*>(out + Int4Panel::ScaleBytes());
    for (size_t j = 0; j < width; j += hn::Lanes(d)) {
      const float* column = in + begin * width + j;
      const auto scale = RoundToBf16(d, hn::Mul(ColumnMax(d, column, rows), hn::Set(d, 1.0f / 7.0f)));
      const auto inverse = Inverse(d, hn::BitCast(d, scale));
      hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(scale)), d16, reinterpret_cast<uint16_t*>(out) + j);
      for (size_t row = 0; row < Int4Panel::kGroup; row += Int4Panel::kLaneRows) {
        auto word = hn::Zero(du);
        for (size_t i = 0; i < Int4Panel::kLaneRows; ++i) {
          auto q = hn::Set(di, 8);
          if (row + i < rows) q = hn::Add(q, Quantized(d, column + (row + i) * width, inverse, 7));
          word = hn::Or(word, hn::ShiftLeftSame(hn::BitCast(du, q), static_cast<int>(i / 2 * 4 + i % 2 * 16)));
        }
        hn::StoreU(word, du, words + row / Int4Panel::kLaneRows * width + j);
      }
    }
    out += Int4Panel::GroupBytes();
  }
}

template <class Panel>
void EncodeRange(const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end) {
  const size_t k = static_cast<size_t>(weight.k);
  const size_t stride = PanelStride<Panel>(k);
  const hwy::AlignedFreeUniquePtr<float[]> floats = hwy::AllocateAligned<float>(std::max<size_t>(k, 1) * PanelWidth());
  for (size_t panel = panel_begin; panel < panel_end; ++panel) {
    PackPanel(weight, panel, floats.get());
    Encode(Panel(), floats.get(), k, packed + panel * stride);
  }
}

void EncodeBf16Range(const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end) {
  if (weight.encoding != Encoding::kBf16 || weight.taps > 1)
    return EncodeRange<Bf16Panel>(weight, packed, panel_begin, panel_end);
  const size_t stride = PanelStride<Bf16Panel>(static_cast<size_t>(weight.k));
  for (size_t panel = panel_begin; panel < panel_end; ++panel) {
    PackBf16Pairs(weight, panel, reinterpret_cast<uint32_t*>(packed + panel * stride));
  }
}

void EncodeWeight(Precision precision, const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end) {
  ForPanel(precision, [&](auto panel) HWY_ATTR {
    using Panel = decltype(panel);
    if constexpr (std::is_same_v<Panel, FloatPanel>) {
      PackRange(weight, packed, panel_begin, panel_end);
    } else if constexpr (std::is_same_v<Panel, Bf16Panel>) {
      EncodeBf16Range(weight, packed, panel_begin, panel_end);
    } else {
      EncodeRange<Panel>(weight, packed, panel_begin, panel_end);
    }
  });
}

template <class Panel>
void DecodePanels(const uint8_t* packed, size_t k, size_t n, float* b) {
  const size_t width = PanelWidth();
  const hwy::AlignedFreeUniquePtr<float[]> floats = hwy::AllocateAligned<float>(std::max<size_t>(k, 1) * width);
  for (size_t column = 0; column < n; column += width) {
    const uint8_t* panel = packed + column / width * PanelStride<Panel>(k);
    WidenPanel<Panel>(panel, k, floats.get());
    const float* scales = reinterpret_cast<const float*>(panel + StoredBytes<Panel>(k));
    for (size_t row = 0; row < k; ++row) {
      for (size_t j = 0; j < std::min(width, n - column); ++j) {
        b[row * n + column + j] = floats[row * width + j] * (kHasColumnScale<Panel> ? scales[j] : 1.0f);
      }
    }
  }
}

void DecodeWeight(Precision precision, const uint8_t* packed, size_t k, size_t n, float* b) {
  ForPanel(precision, [&](auto panel) HWY_ATTR { DecodePanels<decltype(panel)>(packed, k, n, b); });
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(RunProduct);
HWY_EXPORT(ScratchFloats);
HWY_EXPORT(GemmPanelWidth);
HWY_EXPORT(GemmTileRows);
HWY_EXPORT(GemmBlockRows);
HWY_EXPORT(GemmPanelStride);
HWY_EXPORT(EncodeWeight);
HWY_EXPORT(DecodeWeight);

constexpr std::string_view kActivationNames[] = {"none", "relu",    "gelu",  "gelu_tanh", "silu",
                                                 "tanh", "sigmoid", "relu6", "hardswish"};
static_assert(std::size(kActivationNames) == static_cast<size_t>(kLastActivation) + 1);

size_t CurrentPanelWidth() { return HWY_DYNAMIC_DISPATCH(GemmPanelWidth)(); }

size_t Share(size_t total, int part, int num_parts) {
  return total * static_cast<size_t>(part) / static_cast<size_t>(num_parts);
}

}  // namespace

std::string_view Name(Activation activation) { return kActivationNames[static_cast<size_t>(activation)]; }

std::optional<Activation> ParseActivation(std::string_view name) {
  for (size_t i = 0; i < std::size(kActivationNames); ++i) {
    if (kActivationNames[i] == name) return static_cast<Activation>(i);
  }
  return std::nullopt;
}

double ActivateReference(Activation activation, double x) {
  const auto at_most_6 = [](double y) { return y < 0.0 ? 0.0 : y > 6.0 ? 6.0 : y; };
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0.0 ? 0.0 : x;
    case Activation::kGelu:
      return 0.5 * x * (1.0 + std::erf(x * 0.70710678118654752440));
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kRelu6:
      return at_most_6(x);
    case Activation::kHardSwish:
      return x * at_most_6(x + 3.0) / 6.0;
  }
  return x;
}

size_t BlockRows(const GemmArgs& args, size_t rows, size_t panels) {
  return HWY_DYNAMIC_DISPATCH(GemmBlockRows)(args, rows, panels);
}

int TileRows() { return HWY_DYNAMIC_DISPATCH(GemmTileRows)(); }

int64_t PackedColumns() { return static_cast<int64_t>(CurrentPanelWidth()); }

int64_t PackedSize(int64_t k, int64_t n) {
  const int64_t width = static_cast<int64_t>(CurrentPanelWidth());
  return (n + width - 1) / width * width * k;
}

int64_t PackedBytes(Precision precision, int64_t k, int64_t n) {
  const size_t width = CurrentPanelWidth();
  const size_t panels = (static_cast<size_t>(n) + width - 1) / width;
  const size_t stride = IsBlocked(precision) ? BlockPanelStride(precision, static_cast<size_t>(k))
                        : precision == Precision::kInt8
                            ? Int8PanelStride(static_cast<size_t>(k))
                            : HWY_DYNAMIC_DISPATCH(GemmPanelStride)(precision, static_cast<size_t>(k));
  return static_cast<int64_t>(panels * stride);
}

int64_t PackedPanels(int64_t n) { return (n + PackedColumns() - 1) / PackedColumns(); }

void PackPanels(Precision precision, const Weight& weight, void* packed, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const auto encode = IsBlocked(precision)            ? &PackBlocks
                      : precision == Precision::kInt8 ? &EncodeInt8
                                                      : HWY_DYNAMIC_POINTER(EncodeWeight);
  encode(precision, weight, static_cast<uint8_t*>(packed), static_cast<size_t>(begin), static_cast<size_t>(end));
}

void PackWeight(Precision precision, const Weight& weight, void* packed, int part, int num_parts) {
  const size_t panels = static_cast<size_t>(PackedPanels(weight.n));
  PackPanels(precision, weight, packed, static_cast<int64_t>(Share(panels, part, num_parts)),
             static_cast<int64_t>(Share(panels, part + 1, num_parts)));
}

void UnpackWeight(Precision precision, const void* packed, int64_t k, int64_t n, float* b) {
  const auto unpack = IsBlocked(precision)            ? &UnpackBlocks
                      : precision == Precision::kInt8 ? &DecodeInt8
                                                      : HWY_DYNAMIC_POINTER(DecodeWeight);
  unpack(precision, static_cast<const uint8_t*>(packed), static_cast<size_t>(k), static_cast<size_t>(n), b);
}

PanelRange ShareOfProduct(int64_t m, int64_t n, int part, int num_parts, Split split) {
  const size_t rows = static_cast<size_t>(m);
  const size_t width = CurrentPanelWidth();
  const size_t panels = (static_cast<size_t>(n) + width - 1) / width;
  const size_t parts = static_cast<size_t>(num_parts);
  // A grid of row_cuts x panel_cuts parts; the last few of num_parts may be left without any work.
  size_t row_cuts = split == Split::kRows ? parts : 1;
  size_t panel_cuts = split == Split::kRows ? 1 : parts;
  if (split == Split::kAuto) {
    size_t least = std::numeric_limits<size_t>::max();
    const auto consider = [&](size_t r, size_t p) {
      const size_t part_rows = (rows + r - 1) / r;
      const size_t part_columns = (panels + p - 1) / p * width;
      // What the largest part costs. Fewer than four rows take as long as four: reading the panel sets the pace. What a
      // part reads counts little beside what it multiplies, but makes compact parts win.
      const size_t cost = std::max<size_t>(part_rows, 4) * part_columns + 2 * (part_rows + part_columns);
      if (cost >= least) return;
      least = cost;
      row_cuts = r;
      panel_cuts = p;
    };
    for (size_t cuts = 1; cuts * cuts <= parts; ++cuts) {
      consider(cuts, parts / cuts);
      consider(parts / cuts, cuts);
    }
  }
  // Parts that follow one another, which one thread owns, share what is larger: panels or rows.
  const size_t number = static_cast<size_t>(part);
  const bool by_panels = panels * width >= rows;
  const size_t row = by_panels ? number % row_cuts : number / panel_cuts;
  const size_t column = by_panels ? number / row_cuts : number % panel_cuts;
  if (row >= row_cuts || column >= panel_cuts) return {rows, rows, panels, panels};
  const auto cut = [](size_t total, size_t i, size_t count) { return total * i / count; };
  return {cut(rows, row, row_cuts), cut(rows, row + 1, row_cuts), cut(panels, column, panel_cuts),
          cut(panels, column + 1, panel_cuts)};
}

size_t GemmScratchBytes(const GemmArgs& args) {
  if (args.m <= 0 || args.n <= 0) return 0;
  return HWY_DYNAMIC_DISPATCH(ScratchFloats)(args) * sizeof(float);
}

void Gemm(const GemmArgs& args, void* scratch, int part, int num_parts) {
  if (args.m <= 0 || args.n <= 0) return;
  const PanelRange range = ShareOfProduct(args.m, args.n, part, num_parts, args.blocking.split);
  if (!range.empty()) HWY_DYNAMIC_DISPATCH(RunProduct)(args, static_cast<float*>(scratch), range);
}

namespace {

float ElementOfRow(const GemmArgs& args, int64_t i, int64_t l) {
  if (args.windows == nullptr) return args.a[i * args.lda + l];
  const Windows& w = *args.windows;
  int64_t row = i, tap = l / w.channels, offset = l % w.channels;
  for (int d = 2; d >= 0; --d) {
    const int64_t at = w.At(d, row % w.out[d], tap % w.kernel[d]);
    if (at < 0) return 0.0f;
    offset += at * w.x_strides[d];
    row /= w.out[d];
    tap /= w.kernel[d];
  }
  return args.a[row * w.x_batch + offset];
}

}  // namespace

void GemmReference(const GemmArgs& args, const float* b, int64_t stride_k, int64_t stride_n) {
  std::vector<double> row(static_cast<size_t>(args.k));
  for (int64_t i = 0; i < args.m; ++i) {
    for (int64_t l = 0; l < args.k; ++l) row[static_cast<size_t>(l)] = ElementOfRow(args, i, l);
    for (int64_t j = 0; j < args.n; ++j) {
      double sum = args.bias == nullptr ? 0.0 : args.bias[j];
      for (int64_t l = 0; l < args.k; ++l) {
        sum += row[static_cast<size_t>(l)] * static_cast<double>(b[l * stride_k + j * stride_n]);
      }
      const double added = args.residual == nullptr ? 0.0 : args.residual[i * args.ldr + j];
      sum = args.residual_first ? ActivateReference(args.activation, sum + added)
                                : ActivateReference(args.activation, sum) + added;
      args.c[i * args.ldc + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
