// Tiles of two factors of 16 bits in shared memory, and their product on the matrix units: what kernels that load them
// in their own ways have in common.
#pragma once

#include <cstdint>

#include "thresher/cuda/halves.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

// The sums of a warp: of 16 kRowTiles rows and 8 kColTiles columns, four a thread of each 16 by 8.
template <int kRowTiles, int kColTiles>
struct HalfSums {
  float sum[kRowTiles][kColTiles][4];

  THRESHER_DEVICE void Clear() {
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int n = 0; n < kColTiles; ++n) {
        THRESHER_UNROLL
        for (int i = 0; i < 4; ++i) sum[r][n][i] = 0.0f;
      }
    }
  }

  // Adds kStep numbers along k of rows from `row` on and columns from `col` on, both tiles laid out as Lines has it.
  template <class Half, class Lines, int kStep, class T>
  THRESHER_DEVICE void Add(T& t, int rows_at, int row, int cols_at, int col) {
    static_assert(kColTiles % 2 == 0);
    const int matrix = t.x() % kWarp / 8, i = t.x() % 8;
    THRESHER_UNROLL
    for (int step = 0; step < kStep / 16; ++step) {
      uint32_t a[kRowTiles][4];
      THRESHER_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        t.template LoadMatrices<false>(rows_at + Lines::At(row + 16 * r + matrix % 2 * 8 + i, step * 2 + matrix / 2),
                                       a[r]);
      }
      THRESHER_UNROLL
      for (int n = 0; n < kColTiles; n += 2) {
        uint32_t b[4];
        t.template LoadMatrices<false>(cols_at + Lines::At(col + 8 * n + matrix / 2 * 8 + i, step * 2 + matrix % 2), b);
        THRESHER_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          t.template MultiplyAdd<Half>(a[r], b[0], b[1], sum[r][n]);
          t.template MultiplyAdd<Half>(a[r], b[2], b[3], sum[r][n + 1]);
        }
      }
    }
  }
};

// Eight numbers from `number` on to shared memory, one by one: those before `end`, zeros behind. place(k) is null where
// there is none.
template <class T, class Number, class Place>
THRESHER_DEVICE void LoadHalvesSingly(T& t, int to, Number number, Number end, Place place) {
  THRESHER_ROLLED
  for (int w = 0; w < 4; ++w) {
    uint32_t word = 0;
    THRESHER_UNROLL
    for (int e = 0; e < 2; ++e) {
      const Number k = number + 2 * w + e;
      const uint16_t* const from = k < end ? place(k) : nullptr;
      if (from != nullptr) word |= static_cast<uint32_t>(*from) << (16 * e);
    }
    t.shared_words()[to + w] = word;
  }
}

}  // namespace thresher::cuda
