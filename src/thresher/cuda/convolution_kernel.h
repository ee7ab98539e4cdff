// Convolutions as products whose rows are windows of x, which are read where they lie: of halves by the warp's matrix
// operation, of f32 by fused multiply-adds. Of small groups: depthwise_kernel.h. The kernel of halves multiplies plain
// rows, too (tile_product.h).
#pragma once

#include <cstdint>

#include "thresher/cuda/attention_kernel.h"
#include "thresher/cuda/convolution_result.h"
#include "thresher/cuda/convolution_windows.h"
#include "thresher/cuda/half_tile.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

// What both kernels share: tiles of positions and outputs, of which each block takes some.
template <class Rows>
struct TileWork {
  Rows windows;
  ConvolutionResult result;
  const void* x;
  const void* weight;  // [groups * n, k], rows ldb apart
  int64_t ldb;
  int32_t n, groups, splits;
  bool x_pieces, weight_pieces;  // 16 bytes of one tap's channels, or of a row of weights, can be copied at once

  int64_t Tiles(int rows, int cols) const { return DivideUp(windows.m, rows) * DivideUp(n, cols) * groups * splits; }
};

using ConvolutionWork = TileWork<ConvolutionWindows>;

// Of a block.
struct ConvolutionTile {
  int32_t row, col;  // the first, within the group
  int32_t group, split;
  int32_t first, last;  // steps along k: from the first to before the last
};

// body(tile) for each of the block's tiles, whose steps along k have so many numbers.
template <class T, class Work, class Body>
THRESHER_DEVICE void ForEachTile(T& t, const Work& work, int rows, int cols, int step, Body body) {
  const int64_t row_tiles = (work.windows.m + rows - 1) / rows, col_tiles = (work.n + cols - 1) / cols;
  const int64_t tiles = row_tiles * col_tiles * work.groups * work.splits;
  const int32_t steps = (work.windows.k + step - 1) / step;
  const int32_t each = (steps + work.splits - 1) / work.splits;
  for (int64_t number = t.block(); number < tiles; number += t.num_blocks()) {
    ConvolutionTile tile;
    // Those that read the same positions come one after the other.
    tile.col = static_cast<int32_t>(number % col_tiles) * cols;
    int64_t rest = number / col_tiles;
    tile.row = static_cast<int32_t>(rest % row_tiles) * rows;
    rest /= row_tiles;
    tile.group = static_cast<int32_t>(rest % work.groups);
    tile.split = static_cast<int32_t>(rest / work.groups);
    tile.first = tile.split * each;
    tile.last = tile.first + each < steps ? tile.first + each : steps;
    t.Sync();  // who still reads the last tile's shared memory
    body(tile);
  }
}

// The sums of a tile's rows from `first` on, which lie in shared memory from `place` on, kLine floats a row.
template <int kRows, int kCols, int kLine, class T, class Work>
THRESHER_DEVICE void TakeTile(T& t, const Work& work, const ConvolutionTile& tile, int32_t first, int place = 0) {
  auto shared = t.shared();
  THRESHER_ROLLED
  for (int i = t.x(); i < kRows * (kCols / 2); i += t.width()) {
    const int row = i / (kCols / 2), at = i % (kCols / 2) * 2;
    const int32_t col = tile.col + at;
    if (first + row >= work.windows.m || col >= work.n) continue;
    const float two[2] = {shared[place + row * kLine + at], shared[place + row * kLine + at + 1]};
    work.result.Take(tile.split, first + row, int64_t{tile.group} * work.n + col, col + 1 < work.n ? 2 : 1, two);
  }
}

// Numbers along k that a tile of halves has.
inline constexpr int kHalfStep = 32;

// A block has kRows positions and kCols outputs, each warp 16 kRowTiles and 8 kColTiles of them.
template <class Rows, class Half, int kRowTiles, int kColTiles, int kRowWarps, int kColWarps>
struct ConvolutionKernel {
  static constexpr int kWarps = kRowWarps * kColWarps;
  static constexpr int kMostThreads = kWarps * kWarp;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps;
  static constexpr int kCols = 8 * kColTiles * kColWarps;
  static constexpr int kStep = kHalfStep;
  // So many threads of a multiprocessor bound the registers of each, who keeps sums and where its windows begin.
  static constexpr int kLeastBlocks = (kRowTiles * kRows * 4 / kMostThreads > 8 ? 384 : 512) / kMostThreads;
  static constexpr int kStages = 3;
  using Lines = HalfRows<kStep>;
  static constexpr int kRowWords = Lines::Words(kRows);
  static constexpr int kStageWords = kRowWords + Lines::Words(kCols);
  static constexpr int kSharedWords = kStages * kStageWords;
  // Sums leave by way of the same memory, so many row tiles of each warp at a time.
  static constexpr int kLine = kCols + 8;
  static constexpr int kPassTiles = kRows * kLine <= kSharedWords ? kRowTiles : kRowTiles / 2;
  static_assert(16 * kRowWarps * kPassTiles * kLine <= kSharedWords);
  static_assert(kSharedWords * 4 <= kFreeSharedBytes);
  TileWork<Rows> work;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachTile(t, work, kRows, kCols, kStep, [&](const ConvolutionTile& tile) { Multiply(t, tile); });
  }

 private:
  using Start = typename Rows::Beginning;
  static constexpr int kAtOnce = kMostThreads / Lines::kChunks;  // lines that the block loads together
  static constexpr int kRowLoads = kRows / kAtOnce;
  static constexpr int kColLoads = (kCols + kAtOnce - 1) / kAtOnce;
  static_assert(kRows % kAtOnce == 0);

  template <class T>
  THRESHER_DEVICE void Multiply(T& t, const ConvolutionTile& tile) const {
    const int warp = t.x() / kWarp;
    const int warp_row = warp / kColWarps * 16 * kRowTiles, warp_col = warp % kColWarps * 8 * kColTiles;
    HalfSums<kRowTiles, kColTiles> sums;
    sums.Clear();
    Start starts[kRowLoads];
    THRESHER_UNROLL
    for (int i = 0; i < kRowLoads; ++i) {
      starts[i] = work.windows.Start(tile.row + t.x() / Lines::kChunks + i * kAtOnce);
    }
    // The first turns only load.
    int stage = 0;  // to load; the next one is that to multiply
    THRESHER_ROLLED
    for (int32_t step = tile.first - (kStages - 1); step < tile.last; ++step) {
      if (step >= tile.first) {
        t.template WaitCopies<kStages - 2>();
        t.Sync();
      }
      if (step + kStages - 1 < tile.last) Load(t, tile, stage, step + kStages - 1, starts);
      t.CommitCopies();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if (step >= tile.first) {
        const int at = stage * kStageWords;
        sums.template Add<Half, Lines, kStep>(t, at, warp_row, at + kRowWords, warp_col);
      }
    }
    t.template WaitCopies<>();
    const int lane = t.x() % kWarp;
    auto shared = t.shared();
    THRESHER_UNROLL
    for (int pass = 0; pass < kRowTiles; pass += kPassTiles) {
      t.Sync();  // who still reads factors, or the last pass
      THRESHER_UNROLL
      for (int r = 0; r < kPassTiles; ++r) {
        THRESHER_UNROLL
        for (int h = 0; h < 2; ++h) {
          const int row = (warp / kColWarps * kPassTiles + r) * 16 + 8 * h + lane / 4;
          THRESHER_UNROLL
          for (int n = 0; n < kColTiles; ++n) {
            THRESHER_UNROLL
            for (int e = 0; e < 2; ++e) {
              shared[row * kLine + warp_col + 8 * n + lane % 4 * 2 + e] = sums.sum[pass + r][n][2 * h + e];
            }
          }
        }
      }
      t.Sync();
      THRESHER_ROLLED
      for (int w = 0; w < kRowWarps; ++w) TakeRows(t, tile, w, pass);
    }
  }

  // What the warps of row number `w` left of a pass.
  template <class T>
  THRESHER_DEVICE void TakeRows(T& t, const ConvolutionTile& tile, int w, int pass) const {
    TakeTile<16 * kPassTiles, kCols, kLine>(t, work, tile, tile.row + (w * kRowTiles + pass) * 16,
                                            w * kPassTiles * 16 * kLine);
  }

  // A step of both factors; each thread has one chunk of eight numbers of several lines.
  template <class T>
  THRESHER_DEVICE void Load(T& t, const ConvolutionTile& tile, int stage, int32_t step,
                            const Start (&starts)[kRowLoads]) const {
    const int chunk = t.x() % Lines::kChunks, line = t.x() / Lines::kChunks;
    const int32_t number = step * kStep + chunk * 8, end = work.windows.k;
    const int at = stage * kStageWords;
    const auto* const x = static_cast<const uint16_t*>(work.x) + work.windows.OfGroup(tile.group);
    if (Rows::kPieces || work.x_pieces) {
      int32_t tap[3], channel;
      work.windows.TapOf(number, tap, channel);
      THRESHER_UNROLL
      for (int i = 0; i < kRowLoads; ++i) {
        const int64_t from = number < work.windows.k ? work.windows.At(starts[i], tap) : -1;
        t.CopyFour(at + Lines::At(line + i * kAtOnce, chunk), from < 0 ? work.x : x + from + channel,
                   from < 0 ? 0 : 16);
      }
    } else {
      THRESHER_UNROLL
      for (int i = 0; i < kRowLoads; ++i) {
        const int to = at + Lines::At(line + i * kAtOnce, chunk);
        LoadHalvesSingly(t, to, number, end, [&](int32_t k) -> const uint16_t* {
          int32_t tap[3], channel;
          work.windows.TapOf(k, tap, channel);
          const int64_t from = work.windows.At(starts[i], tap);
          return from < 0 ? nullptr : x + from + channel;
        });
      }
    }
    THRESHER_UNROLL
    for (int i = 0; i < kColLoads; ++i) {
      const int own = line + i * kAtOnce;
      if (kCols % kAtOnce != 0 && own >= kCols) break;
      const int32_t col = tile.col + own;
      const bool inside = col < work.n;
      const auto* const row =
          static_cast<const uint16_t*>(work.weight) + (int64_t{tile.group} * work.n + (inside ? col : 0)) * work.ldb;
      const int to = at + kRowWords + Lines::At(own, chunk);
      if (Rows::kPieces || work.weight_pieces) {
        const bool has = inside && number < work.windows.k;
        t.CopyFour(to, has ? row + number : work.weight, has ? 16 : 0);
      } else {
        LoadHalvesSingly(t, to, number, end, [&](int32_t k) { return inside ? row + k : nullptr; });
      }
    }
  }
};

// In fp32: a thread has four positions and four outputs of 64 each.
struct ConvolutionF32Kernel {
  static constexpr int kRows = 64;
  static constexpr int kCols = 64;
  static constexpr int kMostThreads = 256;
  static constexpr int kLeastBlocks = 2;
  static constexpr int kStep = 16;
  static constexpr int kLine = kRows + 4;  // numbers of all lines at one place along k lie together
  static constexpr int kColsAt = kStep * kLine;
  static constexpr int kSharedWords = kRows * kLine;
  static_assert(kSharedWords >= 2 * kColsAt);
  ConvolutionWork work;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachTile(t, work, kRows, kCols, kStep, [&](const ConvolutionTile& tile) { Multiply(t, tile); });
  }

 private:
  // Four numbers along k of a line of either factor.
  struct Loaded {
    float x[4], weight[4];
  };

  template <class T>
  THRESHER_DEVICE void Multiply(T& t, const ConvolutionTile& tile) const {
    const WindowStart start = work.windows.Start(tile.row + t.x() / 4);
    const int rows = t.x() / 16 * 4, cols = t.x() % 16 * 4;
    float sums[4][4];
    THRESHER_UNROLL
    for (int r = 0; r < 4; ++r) {
      THRESHER_UNROLL
      for (int c = 0; c < 4; ++c) sums[r][c] = 0.0f;
    }
    Loaded loaded;
    if (tile.first < tile.last) Load(t, tile, start, tile.first, loaded);
    for (int32_t step = tile.first; step < tile.last; ++step) {
      t.Sync();
      auto shared = t.shared();
      THRESHER_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = (t.x() % 4 * 4 + i) * kLine + t.x() / 4;
        shared[at] = loaded.x[i];
        shared[kColsAt + at] = loaded.weight[i];
      }
      t.Sync();
      if (step + 1 < tile.last) Load(t, tile, start, step + 1, loaded);  // is on its way meanwhile
      THRESHER_UNROLL
      for (int k = 0; k < kStep; ++k) {
        const Four a = t.LoadFour(k * kLine + rows), b = t.LoadFour(kColsAt + k * kLine + cols);
        const float x[4] = {a.x, a.y, a.z, a.w}, w[4] = {b.x, b.y, b.z, b.w};
        THRESHER_UNROLL
        for (int r = 0; r < 4; ++r) {
          THRESHER_UNROLL
          for (int c = 0; c < 4; ++c) sums[r][c] = fmaf(x[r], w[c], sums[r][c]);
        }
      }
    }
    t.Sync();  // who still reads factors
    THRESHER_UNROLL
    for (int r = 0; r < 4; ++r) {
      t.StoreFour((rows + r) * kLine + cols, {sums[r][0], sums[r][1], sums[r][2], sums[r][3]});
    }
    t.Sync();
    TakeTile<kRows, kCols, kLine>(t, work, tile, tile.row);
  }

  template <class T>
  THRESHER_DEVICE void Load(T& t, const ConvolutionTile& tile, const WindowStart& start, int32_t step,
                            Loaded& to) const {
    const int32_t number = step * kStep + t.x() % 4 * 4;
    const auto* const x = static_cast<const float*>(work.x) + work.windows.OfGroup(tile.group);
    int32_t tap[3], channel;
    if (work.x_pieces) {
      work.windows.TapOf(number, tap, channel);
      const int64_t from = number < work.windows.k ? work.windows.At(start, tap) : -1;
      LoadFour(from < 0 ? nullptr : x + from + channel, to.x);
    } else {
      THRESHER_UNROLL
      for (int i = 0; i < 4; ++i) {
        work.windows.TapOf(number + i, tap, channel);
        const int64_t from = number + i < work.windows.k ? work.windows.At(start, tap) : -1;
        to.x[i] = from < 0 ? 0.0f : x[from + channel];
      }
    }
    const int32_t col = tile.col + t.x() / 4;
    const auto* const row =
        static_cast<const float*>(work.weight) + (int64_t{tile.group} * work.n + (col < work.n ? col : 0)) * work.ldb;
    if (work.weight_pieces)
      return LoadFour(col < work.n && number < work.windows.k ? row + number : nullptr, to.weight);
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) {
      to.weight[i] = col < work.n && number + i < work.windows.k ? row[number + i] : 0.0f;
    }
  }

  THRESHER_DEVICE static void LoadFour(const float* from, float (&to)[4]) {
    Words<4> words = {};
    if (from != nullptr) words = *reinterpret_cast<const Words<4>*>(from);
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) to[i] = FloatOf(words.word[i]);
  }
};

}  // namespace thresher::cuda
