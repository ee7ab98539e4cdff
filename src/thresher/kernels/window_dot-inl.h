// Products whose rows are windows of an image (window_image.h), by dot products. Rows of a tile are two groups of
// neighbouring positions, as in window_tile-inl.h; here every window has the same runs, for the image holds the zeros.
// On a matrix unit the groups are its tiles of rows: one load takes rows at one distance from each other.

#if defined(THRESHER_KERNELS_WINDOW_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_WINDOW_DOT_INL_H_
#undef THRESHER_KERNELS_WINDOW_DOT_INL_H_
#else
#define THRESHER_KERNELS_WINDOW_DOT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "thresher/base/cpu.h"
#include "thresher/kernels/amx_tile-inl.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/epilogue-inl.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/tile-inl.h"
#include "thresher/kernels/window_image.h"
#include "thresher/kernels/window_tile-inl.h"

#undef THRESHER_WINDOW_DOT_DECLARE
#undef THRESHER_WINDOW_DOT_ROW
#undef THRESHER_WINDOW_DOT_STEP
#undef THRESHER_WINDOW_DOT_TWO_STEPS
#undef THRESHER_WINDOW_DOT_TURN

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// How far ahead of its use a panel is fetched into L1.
inline constexpr size_t kDotFetchBytes = 4096;

// out = init + a * b, on the rows of both groups, one group behind the other, ended as TileEnd says.
struct WindowDotTileArgs : TileEnd {
  const uint8_t* a;  // of the first group's first row
  ptrdiff_t second;  // bytes from there to the second group's first row
  size_t lda;        // from one row of a group to the next
  const uint8_t* b;  // packed panel
  const StepRun* runs;
  size_t num_runs;
  size_t steps;           // of each run, an even number
  const void* init;       // Sum: one row for all, or null for zeros
  const TileEnd* result;  // where the results go in the end, which is fetched meanwhile
  Fetch fetch;            // beside the panel itself, with every two steps; into L2
};

template <class Dot>
inline constexpr int kDotGroupRows = std::min(Dot::kMostRows, kTileRows) / 2;

// kMultiplied: as RunDotTile's.
template <class Dot, int G1, int G2, int kMultiplied>
HWY_NOINLINE void RunWindowDotTile(const WindowDotTileArgs& args) {
  static_assert(G1 <= kDotGroupRows<Dot> && G2 <= G1);
  constexpr int kRows = G1 + G2;
  constexpr int kVectors = kPanelVectors;
  const typename Dot::Tag d;
  using V = hn::Vec<typename Dot::Tag>;
  using Sum = typename Dot::Sum;
  const size_t lanes = hn::Lanes(d);
  const size_t half = lanes * Dot::kLaneBytes;
  size_t lda = args.lda;
  size_t lda2 = 2 * lda;
  const Sum* init = static_cast<const Sum*>(args.init);
#define THRESHER_WINDOW_DOT_DECLARE(i)      \
  V c##i##a = hn::Zero(d);                  \
  V c##i##b = hn::Zero(d);                  \
  if constexpr (i < kRows) {                \
    if (init != nullptr) {                  \
      c##i##a = hn::LoadU(d, init);         \
      c##i##b = hn::LoadU(d, init + lanes); \
    }                                       \
  }
  THRESHER_TILE_ROWS(THRESHER_WINDOW_DOT_DECLARE)

  // Three rows a pointer, as in RunTile.
#define THRESHER_WINDOW_DOT_ROW(i)  \
  ((i < G1 ? (i < 3   ? p0          \
              : i < 6 ? p1          \
                      : p2)         \
           : (i - G1 < 3   ? q0     \
              : i - G1 < 6 ? q1     \
                           : q2)) + \
   THRESHER_TILE_DISTANCE(i < G1 ? i : i - G1))
#define THRESHER_WINDOW_DOT_STEP(i)                                                    \
  if constexpr (i < kRows) {                                                           \
    const auto av = BroadcastGroup(THRESHER_WINDOW_DOT_ROW(i) + u * sizeof(uint32_t)); \
    c##i##a = Dot::Add(av, b + 2 * u * half, c##i##a);                                 \
    if constexpr (kMultiplied > 1) {                                                   \
      c##i##b = Dot::Add(av, b + (2 * u + 1) * half, c##i##b);                         \
    }                                                                                  \
  }
#define THRESHER_WINDOW_DOT_TWO_STEPS(i)                                \
  if constexpr (i < kRows) {                                            \
    const auto first = BroadcastGroup(THRESHER_WINDOW_DOT_ROW(i));      \
    const auto second = BroadcastGroup(THRESHER_WINDOW_DOT_ROW(i) + 4); \
    c##i##a = Dot::AddTwo(first, second, b0a, b1a, ones, c##i##a);      \
    if constexpr (kMultiplied > 1) {                                    \
      c##i##b = Dot::AddTwo(first, second, b0b, b1b, ones, c##i##b);    \
    }                                                                   \
  }
#define THRESHER_WINDOW_DOT_TURN()                                                   \
  {                                                                                  \
    THRESHER_DOT_PANEL_TURN(THRESHER_WINDOW_DOT_STEP, THRESHER_WINDOW_DOT_TWO_STEPS) \
    p0 += 8, p1 += 8, p2 += 8;                                                       \
    q0 += 8, q1 += 8, q2 += 8;                                                       \
  }
  ResultLines result(*args.result, kRows, args.num_runs * (args.steps / 2));
  const uint8_t* fetched = args.fetch.from;
  const size_t fetched_lines = args.fetch.lines;
  for (const StepRun* run = args.runs; run != args.runs + args.num_runs; ++run) {
    const uint8_t* HWY_RESTRICT b = args.b + run->b;
    const uint8_t* HWY_RESTRICT p0 = args.a + run->a;
    const uint8_t* HWY_RESTRICT p1 = p0 + 3 * lda;
    const uint8_t* HWY_RESTRICT p2 = p1 + 3 * lda;
    const uint8_t* HWY_RESTRICT q0 = p0 + args.second;
    const uint8_t* HWY_RESTRICT q1 = q0 + 3 * lda;
    const uint8_t* HWY_RESTRICT q2 = q1 + 3 * lda;
    const auto fetch_lines = [&]() HWY_ATTR {
      for (size_t line = 0; line < 4 * half; line += 64) __builtin_prefetch(b + kDotFetchBytes + line, 0, 3);
      for (size_t line = 0; line < fetched_lines; ++line, fetched += 64) __builtin_prefetch(fetched, 0, 2);
    };
    size_t steps = args.steps;
    if constexpr (kTwoTurns<kRows, 1>) {
      for (; steps >= 4; steps -= 4) {
        THRESHER_TILE_KEEP_DISTANCES(lda, lda2)
        if (result.rows() != 0) {
          result.Turn();
          result.Turn();
        }
        fetch_lines();
        THRESHER_WINDOW_DOT_TURN()
        fetch_lines();
        THRESHER_WINDOW_DOT_TURN()
      }
      HWY_ASSUME(steps < 4);
    }
    for (; steps >= 2; steps -= 2) {
      result.Turn();
      fetch_lines();
      THRESHER_WINDOW_DOT_TURN()
    }
  }

  if constexpr (std::is_same_v<Sum, float>) {
    THRESHER_DOT_END(args)
  } else {
    const TileEnd& end = args;
    Sum* const out = static_cast<Sum*>(end.out);
    THRESHER_TILE_ROWS(THRESHER_TILE_STORE)
  }
}

using WindowDotTileFunction = void (*)(const WindowDotTileArgs&);

// Entries of the table: see WindowTileAt.
template <class Dot, int kMultiplied, size_t... I>
WindowDotTileFunction WindowDotTileAt(size_t entry, std::index_sequence<I...>) {
  static constexpr WindowDotTileFunction table[] = {
      &RunWindowDotTile<Dot, FirstRows(I), SecondRows(I), kMultiplied>...};
  return table[entry];
}

// 1 <= first <= kDotGroupRows<Dot>; second is 0, first - 1 or first.
template <class Dot, int kMultiplied>
HWY_INLINE WindowDotTileFunction WindowDotTileFor(size_t first, size_t second) {
  const size_t kind = second == 0 ? 0 : second == first ? 2 : 1;
  return WindowDotTileAt<Dot, kMultiplied>((first - 1) * 3 + kind,
                                           std::make_index_sequence<size_t{3} * kDotGroupRows<Dot>>());
}

// Some of the runs of a window.
struct RunRange {
  size_t begin, end;
  friend bool operator==(const RunRange&, const RunRange&) = default;
};

// Neighbouring output positions of a line.
struct WindowGroup {
  size_t row;
  size_t count;
  ptrdiff_t a;  // bytes
  int64_t picture;
  RunRange runs;
  size_t skip = 0;  // positions before `row` that a tile of the unit begins with

  WindowGroup Nothing() const { return {row, 0, a, picture, runs}; }
};

constexpr size_t kWindowStripRows = std::max(size_t{kTileRows}, kUnitBlockRows);
constexpr size_t kWindowDotScratchBytes =
    kWindowStripRows * kMaxPanelWidth * sizeof(float) + static_cast<size_t>(kMostImageTaps) * sizeof(StepRun);

// panel_stride: bytes from one panel to the next; number_bytes: those of its numbers.
template <class Dot>
class WindowDotProduct {
 public:
  WindowDotProduct(const GemmDotArgs& args, size_t panel_stride, size_t number_bytes, void* scratch)
      : args_(args),
        w_(*args.windows),
        image_(args.form, w_, args.channels),
        panel_stride_(panel_stride),
        number_bytes_(number_bytes),
        strip_(static_cast<Sum*>(scratch)),
        runs_(reinterpret_cast<StepRun*>(strip_ + kWindowStripRows * kMaxPanelWidth)) {
    FindRuns();
  }

  void Run(const PanelRange& range) {
    ForBlocks(range, [&](size_t panel, size_t begin, size_t end)
                         HWY_ATTR { Multiply(panel, begin, end, panel + 1 == range.panel_end); });
  }

#if THRESHER_UNIT_TARGET
  // Whether lines are long enough to fill tiles of the unit with.
  bool SuitsUnit() const { return UnitRows() >= kLeastUnitRows<Dot>; }

  template <class Unit>
  void RunOnUnit(const PanelRange& range) {
    const BiasOnLines bias(args_.bias, range, static_cast<size_t>(args_.n));  // outlasts what is pending
    UnitTiles<Unit, Dot> unit(UnitRows(), UnitDepth(steps_));
    ForBlocks(range, [&](size_t panel, size_t begin, size_t end)
                         HWY_ATTR { MultiplyOnUnit(unit, bias, panel, begin, end, range); });
  }
#endif

 private:
  using Sum = typename Dot::Sum;
  static constexpr bool kInt8 = std::is_same_v<Sum, int32_t>;

  template <class Function>
  HWY_INLINE void ForBlocks(const PanelRange& range, const Function& multiply) {
    const size_t most = BlockRows();
    for (size_t begin = range.row_begin; begin < range.row_end; begin += most) {
      const size_t end = std::min(begin + most, range.row_end);
      for (size_t panel = range.panel_begin; panel < range.panel_end; ++panel) multiply(panel, begin, end);
    }
  }

  void FindRuns() {
    const size_t step_bytes = PanelWidth() * Dot::kLaneBytes;
    const size_t tap_steps = static_cast<size_t>(w_.channels) / Dot::kStep;
    const bool joined = w_.dilation[2] == 1 && w_.channels == args_.channels;
    const int64_t together = joined ? w_.kernel[2] : 1;
    size_t tap = 0;
    for (int64_t kd = 0; kd < w_.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < w_.kernel[1]; ++kh) {
        for (int64_t kw = 0; kw < w_.kernel[2]; kw += together) {
          const int64_t a = kd * w_.dilation[0] * image_.strides[0] + kh * w_.dilation[1] * image_.strides[1] +
                            kw * w_.dilation[2] * image_.strides[2];
          runs_[num_runs_++] = {static_cast<ptrdiff_t>(a), tap * tap_steps * step_bytes};
          tap += static_cast<size_t>(together);
        }
      }
    }
    steps_ = static_cast<size_t>(together) * tap_steps;
  }

  // Rows that a panel passes before the next one comes: their part of the image stays in L2 beside it.
  size_t BlockRows() const {
    const int64_t row_bytes = image_.strides[2] * image_.stride[2] * (w_.out[1] > 1 ? image_.stride[1] : 1);
    return static_cast<size_t>(
        std::max<int64_t>(Caches().l2 / 4 / std::max<int64_t>(row_bytes, 1), int64_t{8} * kTileRows));
  }

  // last: no other panel follows.
  void Multiply(size_t panel, size_t begin, size_t end, bool last) {
    const size_t width = PanelWidth();
    const size_t column = panel * width;
    const size_t columns = std::min(width, static_cast<size_t>(args_.n) - column);
    const bool one_vector = columns <= hn::Lanes(typename Dot::Tag());
    const Ending<Sum> ending(args_, kInt8);
    alignas(64) float padded_bias[kMaxPanelWidth];
    const uint8_t* const b = static_cast<const uint8_t*>(args_.packed_b) + panel * panel_stride_;
    const float* const bias = PanelBias(args_.bias, column, columns, padded_bias);
    const uint8_t* const scales = kInt8 ? b + number_bytes_ : nullptr;
    WindowDotTileArgs tile{};
    tile.lda = static_cast<size_t>(image_.stride[2] * image_.strides[2]);
    tile.b = b;
    tile.steps = steps_;
    tile.init = kInt8 ? nullptr : bias;
    PanelAhead ahead(b + panel_stride_, last ? 0 : number_bytes_, 2 * width * Dot::kLaneBytes,
                     (end - begin) / (2 * static_cast<size_t>(kDotGroupRows<Dot>)) + 1);
    ForTiles(begin, end, [&](const WindowGroup& first, const WindowGroup& second) HWY_ATTR {
      const TileResult to = ResultAt(args_, first.row, column, first.count + second.count, columns);
      const TileEnd result{to.c, to.ldc, to.residual, to.ldr, args_.residual_first, {}, true, to.columns};
      ending.Of(to, strip_, tile);
      tile.result = &result;
      tile.a = static_cast<const uint8_t*>(args_.rows) + first.a;
      tile.second = second.a - first.a;
      tile.runs = runs_ + first.runs.begin;
      tile.num_runs = first.runs.end - first.runs.begin;
      tile.fetch = ahead.Next(tile.num_runs * (steps_ / 2));
      (one_vector ? WindowDotTileFor<Dot, 1>(first.count, second.count)
                  : WindowDotTileFor<Dot, kPanelVectors>(first.count, second.count))(tile);
      if (ending.in_tile()) return;
      FinishArgs rest = ending.Rest(to, strip_, bias, scales);
      float row_scale[kTileRows];
      int32_t row_zero[kTileRows];
      if constexpr (kInt8) {
        std::fill_n(row_scale, first.count, args_.scale[first.picture]);
        std::fill_n(row_scale + first.count, second.count, args_.scale[second.picture]);
        rest.row_scale = row_scale;
        if constexpr (!Int8Dot::kCentred) {
          std::fill_n(row_zero, first.count, args_.zero[first.picture]);
          std::fill_n(row_zero + first.count, second.count, args_.zero[second.picture]);
          rest.column_sum = reinterpret_cast<const int32_t*>(scales + width * sizeof(float));
          rest.row_zero = row_zero;
        }
      }
      ending.finish()(rest);
    });
  }

#if THRESHER_UNIT_TARGET

  // Of a tile: lines are cut into as few pieces as there can be, of nearly equal length.
  size_t UnitRows() const { return RowTiles(static_cast<size_t>(w_.out[2]), kUnitRows).Height(0); }

  template <class Unit>
  void MultiplyOnUnit(UnitTiles<Unit, Dot>& unit, const BiasOnLines& all_bias, size_t panel, size_t begin, size_t end,
                      const PanelRange& range) {
    const size_t width = PanelWidth();
    const size_t column = panel * width;
    const size_t columns = std::min(width, static_cast<size_t>(args_.n) - column);
    const Ending<Sum> ending(args_, kInt8);
    const uint8_t* const b = static_cast<const uint8_t*>(args_.packed_b) + panel * panel_stride_;
    // What is pending may be of the panel before.
    float* const padded_bias = padded_bias_[panel % 2];
    const float* const bias = all_bias.OfPanel(column, columns, padded_bias);
    const uint8_t* const scales = kInt8 ? b + number_bytes_ : nullptr;
    constexpr bool kF16 = std::is_same_v<Dot, F16Dot>;
    const bool direct = !kInt8 && columns == width && !args_.stores_bf16 && args_.activation == Activation::kNone &&
                        args_.residual == nullptr;
    UnitTileArgs tile{};
    tile.lda = static_cast<size_t>(image_.stride[2] * image_.strides[2]);
    tile.rows = UnitRows();
    tile.b = b;
    tile.steps = steps_;
    tile.depth = UnitDepth(steps_);
    // The tiles share what they fetch of the next panel.
    const size_t tiles = (end - begin + 2 * tile.rows - 1) / (2 * tile.rows);
    const size_t lines = (kUnitTurnLines + tiles - 1) / tiles;
    const size_t share = num_runs_ * (steps_ / tile.depth) * lines * 64;
    const bool last = panel + 1 == range.panel_end;
    size_t fetched = last ? number_bytes_ : 0;
    LinesAhead ahead(last && end == range.row_end ? args_.ahead : std::span<const std::byte>(),
                     tiles * num_runs_ * (steps_ / tile.depth));
    ForUnitTiles(begin, end, [&](const WindowGroup& first, const WindowGroup& second) HWY_ATTR {
      const TileResult to = ResultAt(args_, first.row, column, first.count + second.count, columns);
      const bool two = second.count > 0;
      tile.a = static_cast<const uint8_t*>(args_.rows) + first.a;
      tile.second = second.a - first.a;
      tile.runs = runs_ + first.runs.begin;
      tile.num_runs = first.runs.end - first.runs.begin;
      tile.second_row = first.skip + first.count - second.skip;
      const bool scaled = kF16 && (args_.scale[first.picture] != 1.0f || args_.scale[second.picture] != 1.0f);
      tile.init = kInt8 || scaled ? nullptr : bias;
      const bool in_place = direct && !scaled && first.skip == 0 && first.count == tile.rows &&
                            (!two || second.skip + second.count == tile.rows);
      tile.out = in_place ? static_cast<void*>(to.c) : strip_;
      tile.out_ld = in_place ? to.ldc : width;
      if (last) {
        const Fetch own = ahead.Next(tile.num_runs * (steps_ / tile.depth));
        tile.fetch = own.from;
        tile.fetch_lines = own.lines;
      } else {
        tile.fetch = b + panel_stride_ + fetched;
        tile.fetch_lines = fetched < number_bytes_ ? lines : 0;
        fetched += share;
      }
      unit.Run(tile, two, columns <= width / 2);
      if (in_place) return;
      FinishArgs& rest = unit.Finish(ending.finish());
      ending.Rest(to, strip_ + first.skip * width, bias, scales, rest);
      if (kInt8 || scaled) {
        turn_ ^= 1;
        std::fill_n(row_scale_[turn_], first.count, args_.scale[first.picture]);
        std::fill_n(row_scale_[turn_] + first.count, second.count, args_.scale[second.picture]);
        rest.row_scale = row_scale_[turn_];
        rest.bias = bias;
      }
      if constexpr (kInt8) {
        std::fill_n(row_zero_[turn_], first.count, args_.zero[first.picture]);
        std::fill_n(row_zero_[turn_] + first.count, second.count, args_.zero[second.picture]);
        rest.row_zero = row_zero_[turn_];
        rest.column_sum = reinterpret_cast<const int32_t*>(scales + width * sizeof(float));
      }
    });
  }

  // Calls tile(first, second) for all rows. Every group stands for UnitRows() positions of one line: one that has fewer
  // of its own begins before them, or ends behind them. What the groups of a tile share is computed twice.
  template <class Function>
  HWY_INLINE void ForUnitTiles(size_t begin, size_t end, const Function& tile) const {
    const size_t rows = UnitRows();
    WindowGroup first{};
    for (size_t row = begin; row < end;) {
      WindowPosition at(w_, static_cast<int64_t>(row));
      const size_t x = static_cast<size_t>(at.at[2]);
      const size_t start = std::min(x, static_cast<size_t>(w_.out[2]) - rows);
      at.at[2] = static_cast<int64_t>(start);
      const WindowGroup group{row, std::min(rows - (x - start), end - row), At(at), at.batch, RunsOf(at), x - start};
      row += group.count;
      if (first.count > 0 && first.runs == group.runs) {
        tile(first, group);
        first.count = 0;
        continue;
      }
      if (first.count > 0) tile(first, first.Nothing());
      first = group;
    }
    if (first.count > 0) tile(first, first.Nothing());
  }

#endif  // THRESHER_UNIT_TARGET

  // Bytes from the image's begin to where the window there begins.
  ptrdiff_t At(const WindowPosition& at) const {
    return static_cast<ptrdiff_t>(at.batch * image_.picture + at.at[0] * image_.stride[0] * image_.strides[0] +
                                  at.at[1] * image_.stride[1] * image_.strides[1] +
                                  at.at[2] * image_.stride[2] * image_.strides[2]);
  }

  // Those of the lines of a window that lie within x: what is multiplied by nothing but zeros is left out. Codes of
  // int8 that stand for zeros are no zeros, unless they are centred. All, where no line does.
  RunRange RunsOf(const WindowPosition& at) const {
    const RunRange all = {0, num_runs_};
    if constexpr (kInt8 && !Int8Dot::kCentred) return all;
    if (w_.kernel[0] > 1 || w_.spread[1] > 1) return all;
    const int64_t first = at.at[1] * w_.stride[1] - w_.padding[1];  // the line of x that the window's first one meets
    const int64_t dilation = w_.dilation[1];
    const int64_t begin = first < 0 ? (dilation - 1 - first) / dilation : 0;
    const int64_t end = first < w_.in[1] ? std::min((w_.in[1] - 1 - first) / dilation + 1, w_.kernel[1]) : 0;
    if (begin >= end) return all;
    const size_t of_line = num_runs_ / static_cast<size_t>(w_.kernel[1]);
    return {static_cast<size_t>(begin) * of_line, static_cast<size_t>(end) * of_line};
  }

  // Calls tile(first, second) for all rows; a tile of one group has an empty second one.
  template <class Function>
  HWY_INLINE void ForTiles(size_t begin, size_t end, const Function& tile) const {
    WindowGroup first{};
    for (size_t row = begin; row < end;) {
      const WindowPosition at(w_, static_cast<int64_t>(row));
      const size_t count = std::min(static_cast<size_t>(w_.out[2] - at.at[2]), end - row);
      const ptrdiff_t a = At(at);
      const RunRange runs = RunsOf(at);
      const ptrdiff_t lda = static_cast<ptrdiff_t>(image_.stride[2] * image_.strides[2]);
      const RowTiles groups(count, static_cast<size_t>(kDotGroupRows<Dot>));
      size_t done = 0;
      for (size_t g = 0; g < groups.count; ++g) {
        const WindowGroup group{row + done, groups.Height(g), a + static_cast<ptrdiff_t>(done) * lda, at.batch, runs};
        done += group.count;
        if ((first.count == group.count || first.count == group.count + 1) && first.runs == runs) {
          tile(first, group);
          first.count = 0;
          continue;
        }
        if (first.count > 0) tile(first, first.Nothing());
        first = group;
      }
      row += count;
    }
    if (first.count > 0) tile(first, first.Nothing());
  }

  const GemmDotArgs& args_;
  const Windows& w_;
  const ImageLayout image_;
  const size_t panel_stride_, number_bytes_;
  Sum* const strip_;
  StepRun* const runs_;
  size_t num_runs_ = 0, steps_ = 0;
#if THRESHER_UNIT_TARGET
  // In turns: what is done with one tile's sums while the next is multiplied.
  float row_scale_[2][kUnitBlockRows];
  int32_t row_zero_[2][kUnitBlockRows];
  size_t turn_ = 0;
  alignas(64) float padded_bias_[2][kMaxPanelWidth];
#endif
};

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
