// Products of runs of rows, each with a weight of its own: the experts of a mixture. Where the runs end is data, so a
// block looks for the run that its tile is in.
#pragma once

#include <cstdint>

#include "thresher/base/encoding.h"
#include "thresher/cuda/attention_kernel.h"
#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/blocks.h"
#include "thresher/cuda/fault.h"
#include "thresher/cuda/half_tile.h"
#include "thresher/cuda/halves.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

inline constexpr int kMostGroups = 384;  // whose weights have room among a kernel's parameters
inline constexpr int kGroupStep = 32;    // of k: a block of numbers

// A block's work: rows of one run, and columns.
struct GroupTile {
  int64_t row, end, col;
  const void* weight;  // null: the rows belong to no run
};

struct GroupedWork {
  const void* x;     // [rows, k], rows lda apart
  const void* ends;  // i64 or i32, ends_stride apart
  void* c;           // [rows, n]
  Fault* fault;
  int64_t rows, n, k, lda, ends_stride;
  int32_t groups;
  DType ends_dtype, x_dtype, dtype;  // dtype: of c
  Encoding encoding;                 // of the weights
  int32_t block_bytes;               // where these are in blocks
  bool x_pieces, weight_pieces;      // 16 bytes of a row can be copied at once
  const void* weights[kMostGroups];  // [n, k] each, without gaps

  // Tiles of a run begin at a number that its first row tells, whatever is before it; there is room for each run's last
  // one, which may not be full, and for the rows behind the last run.
  int64_t RowTiles(int tile_rows) const { return rows / tile_rows + groups + 1; }
  int64_t Tiles(int tile_rows, int tile_cols) const { return RowTiles(tile_rows) * DivideUp(n, tile_cols); }

  THRESHER_DEVICE int64_t EndAt(int32_t group) const {
    const int64_t at = group * ends_stride;
    return ends_dtype == DType::kI64 ? static_cast<const int64_t*>(ends)[at] : static_cast<const int32_t*>(ends)[at];
  }
  // Within the rows, whatever the data says. Those of no run count as the last one.
  THRESHER_DEVICE int64_t BeginOf(int32_t group) const {
    const int64_t begin = group == 0 ? 0 : EndAt(group - 1);
    return begin < 0 ? 0 : begin < rows ? begin : rows;
  }

  // body(tile) for each of the block's tiles.
  template <class T, class Body>
  THRESHER_DEVICE void ForEachTile(T& t, int tile_rows, int tile_cols, Body body) const {
    if (t.block() == 0) CheckEnds(t);
    const int64_t col_tiles = (n + tile_cols - 1) / tile_cols;
    const int64_t tiles = (rows / tile_rows + groups + 1) * col_tiles;
    for (int64_t number = t.block(); number < tiles; number += t.num_blocks()) {
      const int64_t row_tile = number / col_tiles;
      int32_t low = 0, high = groups;  // the last run that begins at this tile or before
      while (low < high) {
        const int32_t middle = (low + high + 1) / 2;
        if (BeginOf(middle) / tile_rows + middle <= row_tile) {
          low = middle;
        } else {
          high = middle - 1;
        }
      }
      const int64_t begin = BeginOf(low);
      GroupTile tile;
      tile.row = begin + (row_tile - begin / tile_rows - low) * tile_rows;
      tile.end = low == groups ? rows : BeginOf(low + 1);
      tile.col = (number - row_tile * col_tiles) * tile_cols;
      tile.weight = low == groups ? nullptr : weights[low];
      if (tile.row >= tile.end) continue;
      t.Sync();  // who still reads the last tile's shared memory
      body(tile);
    }
  }

  THRESHER_DEVICE void Store(int64_t row, int64_t col, float sum) const { StoreElement(c, dtype, row * n + col, sum); }

 private:
  template <class T>
  THRESHER_DEVICE void CheckEnds(T& t) const {
    for (int32_t group = t.x(); group < groups; group += t.width()) {
      const int64_t begin = group == 0 ? 0 : EndAt(group - 1), end = EndAt(group);
      if (end < begin || end > rows) Raise(t, fault, KernelId::kGroupedProduct, -1, group, end, begin, rows);
    }
  }
};

// body(numbers, chunk) for the four pieces of eight numbers of the block at `from`.
template <class Block, class Body>
THRESHER_DEVICE void UnpackBlock(const uint8_t* from, Body body) {
  Block block;
  block.Load(from);
  const float scale = BlockScale(block), offset = block.Offset();
  THRESHER_UNROLL
  for (int p = 0; p < kBlockNumbers / kPieceNumbers; ++p) {
    float numbers[kPieceNumbers];
    block.Piece(p, numbers);
    THRESHER_UNROLL
    for (int i = 0; i < kPieceNumbers; ++i) numbers[i] = scale * numbers[i] + offset;
    body(numbers, p);
  }
}

template <class Body>
THRESHER_DEVICE void UnpackBlock(Encoding encoding, const uint8_t* from, Body body) {
  if (encoding == Encoding::kQ4_0) return UnpackBlock<BlockQ4_0>(from, body);
  if (encoding == Encoding::kQ4_1) return UnpackBlock<BlockQ4_1>(from, body);
  UnpackBlock<BlockQ8_0>(from, body);
}

// Of halves, on the matrix units. A block has kRows rows and kCols columns, each warp 16 kRowTiles and 8 kColTiles of
// them. kBlocked: weights are in blocks, else of the type of x.
template <class Half, int kRowTiles, int kColTiles, int kRowWarps, int kColWarps, bool kBlocked>
struct GroupedKernel {
  static constexpr int kMostThreads = kRowWarps * kColWarps * kWarp;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps;
  static constexpr int kCols = 8 * kColTiles * kColWarps;
  static constexpr int kLeastBlocks = 512 / kMostThreads;
  static constexpr int kStages = 3;
  using Lines = HalfRows<kGroupStep>;
  static constexpr int kRowWords = Lines::Words(kRows);
  static constexpr int kStageWords = kRowWords + Lines::Words(kCols);
  static constexpr int kSharedWords = kStages * kStageWords;
  static_assert(kSharedWords * 4 <= kFreeSharedBytes);
  GroupedWork work;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    work.ForEachTile(t, kRows, kCols, [&](const GroupTile& tile) { Multiply(t, tile); });
  }

 private:
  template <class T>
  THRESHER_DEVICE void Multiply(T& t, const GroupTile& tile) const {
    const int warp = t.x() / kWarp, lane = t.x() % kWarp;
    const int warp_row = warp / kColWarps * 16 * kRowTiles, warp_col = warp % kColWarps * 8 * kColTiles;
    HalfSums<kRowTiles, kColTiles> sums;
    sums.Clear();
    const auto steps = tile.weight == nullptr ? 0 : static_cast<int32_t>((work.k + kGroupStep - 1) / kGroupStep);
    // The first turns only load.
    int stage = 0;  // to load; the next one is that to multiply
    THRESHER_ROLLED
    for (int32_t step = 1 - kStages; step < steps; ++step) {
      if (step >= 0) {
        t.template WaitCopies<kStages - 2>();
        t.Sync();
      }
      if (step + kStages - 1 < steps) Load(t, tile, stage * kStageWords, step + kStages - 1);
      t.CommitCopies();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if (step >= 0) {
        const int at = stage * kStageWords;
        sums.template Add<Half, Lines, kGroupStep>(t, at, warp_row, at + kRowWords, warp_col);
      }
    }
    t.template WaitCopies<>();
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int n = 0; n < kColTiles; ++n) {
        THRESHER_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int64_t row = tile.row + warp_row + 16 * r + lane / 4 + i / 2 * 8;
          const int64_t col = tile.col + warp_col + 8 * n + lane % 4 * 2 + i % 2;
          if (row < tile.end && col < work.n) work.Store(row, col, sums.sum[r][n][i]);
        }
      }
    }
  }

  template <class T>
  THRESHER_DEVICE void Load(T& t, const GroupTile& tile, int at, int32_t step) const {
    const int64_t number = int64_t{step} * kGroupStep;
    const auto* const x = static_cast<const uint16_t*>(work.x);
    LoadLines(t, at, kRows, number, work.x_pieces, [&](int line) -> const uint16_t* {
      return tile.row + line < tile.end ? x + (tile.row + line) * work.lda : nullptr;
    });
    if constexpr (kBlocked) {
      THRESHER_ROLLED
      for (int line = t.x(); line < kCols; line += kMostThreads) {
        const int64_t col = tile.col + line < work.n ? tile.col + line : work.n - 1;
        const int64_t block = col * (work.k / kGroupStep) + step;
        const auto* const from = static_cast<const uint8_t*>(tile.weight);
        const auto put = [&](const float (&numbers)[kPieceNumbers], int chunk) {
          const auto two = [&](int i) { return FloatOf(Half::RoundTwo(numbers[i], numbers[i + 1])); };
          t.StoreFour(at + kRowWords + Lines::At(line, chunk), {two(0), two(2), two(4), two(6)});
        };
        UnpackBlock(work.encoding, from + block * work.block_bytes, put);
      }
    } else {
      const auto* const weight = static_cast<const uint16_t*>(tile.weight);
      LoadLines(t, at + kRowWords, kCols, number, work.weight_pieces, [&](int line) -> const uint16_t* {
        return tile.col + line < work.n ? weight + (tile.col + line) * work.k : nullptr;
      });
    }
  }

  // kGroupStep numbers from `number` on of `count` lines; row(line) is null where there is none.
  template <class T, class Row>
  THRESHER_DEVICE void LoadLines(T& t, int at, int count, int64_t number, bool pieces, Row row) const {
    THRESHER_UNROLL
    for (int i = t.x(); i < count * Lines::kChunks; i += kMostThreads) {
      const int line = i / Lines::kChunks, chunk = i % Lines::kChunks;
      const uint16_t* const from = row(line);
      const int64_t first = number + chunk * 8;
      const int to = at + Lines::At(line, chunk);
      if (pieces) {
        const bool has = from != nullptr && first < work.k;
        t.CopyFour(to, has ? from + first : work.x, has ? 16 : 0);
        continue;
      }
      LoadHalvesSingly(t, to, first, work.k, [&](int64_t k) { return from == nullptr ? nullptr : from + k; });
    }
  }
};

// In fp32: a thread has kEach rows and four columns.
template <int kEach, bool kBlocked>
struct GroupedF32Kernel {
  static constexpr int kRows = 16 * kEach;
  static constexpr int kCols = 64;
  static constexpr int kMostThreads = 256;
  static constexpr int kLeastBlocks = 2;
  static constexpr int kRowLine = kRows + 4;  // numbers of all lines at one place along k lie together
  static constexpr int kColLine = kCols + 4;
  static constexpr int kColsAt = kGroupStep * kRowLine;
  static constexpr int kSharedWords = kColsAt + kGroupStep * kColLine;
  GroupedWork work;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    work.ForEachTile(t, kRows, kCols, [&](const GroupTile& tile) { Multiply(t, tile); });
  }

 private:
  template <class T>
  THRESHER_DEVICE void Multiply(T& t, const GroupTile& tile) const {
    const int row = t.x() / 16 * kEach, col = t.x() % 16 * 4;
    float sums[kEach][4];
    THRESHER_UNROLL
    for (int r = 0; r < kEach; ++r) {
      THRESHER_UNROLL
      for (int c = 0; c < 4; ++c) sums[r][c] = 0.0f;
    }
    const int64_t k = tile.weight == nullptr ? 0 : work.k;
    for (int64_t number = 0; number < k; number += kGroupStep) {
      t.Sync();
      Load(t, tile, number);
      t.Sync();
      auto shared = t.shared();
      THRESHER_UNROLL
      for (int i = 0; i < kGroupStep; ++i) {
        const Four b = t.LoadFour(kColsAt + i * kColLine + col);
        const float w[4] = {b.x, b.y, b.z, b.w};
        THRESHER_UNROLL
        for (int r = 0; r < kEach; ++r) {
          const float x = shared[i * kRowLine + row + r];
          THRESHER_UNROLL
          for (int c = 0; c < 4; ++c) sums[r][c] = fmaf(x, w[c], sums[r][c]);
        }
      }
    }
    THRESHER_UNROLL
    for (int r = 0; r < kEach; ++r) {
      THRESHER_UNROLL
      for (int c = 0; c < 4; ++c) {
        const int64_t own_row = tile.row + row + r, own_col = tile.col + col + c;
        if (own_row < tile.end && own_col < work.n) work.Store(own_row, own_col, sums[r][c]);
      }
    }
  }

  template <class T>
  THRESHER_DEVICE void Load(T& t, const GroupTile& tile, int64_t number) const {
    const auto* const x = static_cast<const float*>(work.x);
    LoadLines(t, 0, kRows, kRowLine, number, [&](int line) -> const float* {
      return tile.row + line < tile.end ? x + (tile.row + line) * work.lda : nullptr;
    });
    if constexpr (kBlocked) {
      if (t.x() >= kCols) return;
      auto shared = t.shared();
      const int64_t col = tile.col + t.x() < work.n ? tile.col + t.x() : work.n - 1;
      const int64_t block = (col * work.k + number) / kGroupStep;
      const auto* const from = static_cast<const uint8_t*>(tile.weight);
      UnpackBlock(work.encoding, from + block * work.block_bytes,
                  [&](const float (&numbers)[kPieceNumbers], int chunk) {
                    THRESHER_UNROLL
                    for (int i = 0; i < kPieceNumbers; ++i) {
                      shared[kColsAt + (chunk * kPieceNumbers + i) * kColLine + t.x()] = numbers[i];
                    }
                  });
    } else {
      const auto* const weight = static_cast<const float*>(tile.weight);
      LoadLines(t, kColsAt, kCols, kColLine, number, [&](int line) -> const float* {
        return tile.col + line < work.n ? weight + (tile.col + line) * work.k : nullptr;
      });
    }
  }

  // Neighbouring threads read neighbours along k.
  template <class T, class Row>
  THRESHER_DEVICE void LoadLines(T& t, int at, int count, int apart, int64_t number, Row row) const {
    auto shared = t.shared();
    const int k = t.x() % kGroupStep;
    THRESHER_UNROLL
    for (int line = t.x() / kGroupStep; line < count; line += kMostThreads / kGroupStep) {
      const float* const from = row(line);
      shared[at + k * apart + line] = from != nullptr && number + k < work.k ? from[number + k] : 0.0f;
    }
  }
};

}  // namespace thresher::cuda
