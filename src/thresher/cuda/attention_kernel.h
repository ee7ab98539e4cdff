// Attention on halves: softmax(q k^T) v by tiles of keys, the scores in registers, by the warp's matrix operation.
#pragma once

#include <cstdint>

#include "thresher/cuda/attention_result.h"
#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

// How a block shares its work out: each warp has kRowTiles tiles of 16 rows and, of each kKeys keys, a share.
template <int kRowTilesOf, int kRowWarpsOf, int kKeyWarpsOf, int kKeysOf>
struct Tiling {
  static constexpr int kRowTiles = kRowTilesOf;
  static constexpr int kRowWarps = kRowWarpsOf;
  static constexpr int kKeyWarps = kKeyWarpsOf;
  static constexpr int kKeys = kKeysOf;
  static constexpr int kWarps = kRowWarps * kKeyWarps;
  static constexpr int kRows = 16 * kRowTiles * kRowWarps;
  static constexpr int kWarpKeys = kKeys / kKeyWarps;
  static_assert(kWarpKeys % 16 == 0);
};

// Rows of kDepth halves in shared memory, by chunks of 16 bytes in an order that spreads the chunks of neighbouring
// rows over the banks. In words.
template <int kDepth>
struct HalfRows {
  static constexpr int kChunks = kDepth / 8;
  static constexpr int kSpread = kChunks < 8 ? kChunks : 8;
  static constexpr int kRowsPerLine = 8 / kSpread;  // rows in the 128 bytes that the banks hold side by side
  THRESHER_DEVICE static int At(int row, int chunk) {
    return (row * kChunks + (chunk ^ (row / kRowsPerLine % kSpread))) * 4;
  }
  static constexpr int Words(int rows) { return rows * kDepth / 2; }
};

// Panels of 16 keys in shared memory: [panel][kDepth][16], likewise spread.
template <int kDepth>
struct HalfPanels {
  THRESHER_DEVICE static int At(int panel, int row, int chunk) {
    return ((panel * kDepth + row) * 2 + (chunk ^ (row / 4 % 2))) * 4;
  }
};

// kDepth: of the tiles; heads may be smaller, with zeros behind.
template <class Source, class Half, int kDepth, class Tiles>
struct AttentionKernel {
  static constexpr int kMostThreads = Tiles::kWarps * kWarp;
  static constexpr int kLeastBlocks = kDepth <= 32 ? 4 : kDepth <= 64 ? 3 : kDepth <= 128 ? 2 : 1;
  static constexpr int kRows = Tiles::kRows;
  Source source;
  int64_t places;

  static constexpr int kTileWords = HalfRows<kDepth>::Words(Tiles::kKeys);
  static constexpr int kKeysAt = HalfRows<kDepth>::Words(kRows);
  static constexpr int kValuesAt = kKeysAt + kTileWords;
  // The warps of different keys leave rows of sums there, each with its maximum and weight.
  static constexpr int kMergeLine = kDepth + 4;
  static constexpr int kMergeWords = Tiles::kKeyWarps == 1 ? 0 : Tiles::kKeyWarps * kRows * kMergeLine;
  static constexpr int kSharedWords = kValuesAt + kTileWords > kMergeWords ? kValuesAt + kTileWords : kMergeWords;
  static_assert(kSharedWords * 4 <= kMostSharedBytes);

  static Shape ShapeOf(int64_t places) {
    Shape shape;
    shape.blocks = places;
    shape.width = kMostThreads;
    shape.shared_floats = kSharedWords;
    return shape;
  }

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    for (int64_t number = t.block(); number < places; number += t.num_blocks()) {
      Place place;
      if (!source.Find(number, kRows, Tiles::kKeys, place)) continue;
      t.Sync();  // who still reads the last place's shared memory
      Attend(t, place);
    }
  }

 private:
  static constexpr int kSteps = kDepth / 16;  // of a product along the depth
  static constexpr int kScoreTiles = Tiles::kWarpKeys / 8;
  static constexpr int kOutTiles = kDepth / 8;
  static constexpr int kRowTiles = Tiles::kRowTiles;
  // Queries stay in registers where there is room.
  static constexpr bool kHoldsQueries = kRowTiles * kDepth <= 128;

  // What a warp has of its rows; rows l / 4 and l / 4 + 8 of each tile are lane l's.
  struct State {
    float out[kRowTiles][kOutTiles][4];
    float most[kRowTiles][2];
    float sum[kRowTiles][2];  // of the lane's own keys
  };

  template <class T>
  THRESHER_DEVICE void Attend(T& t, const Place& place) const {
    const int warp = t.x() / kWarp, lane = t.x() % kWarp;
    const int warp_row = warp / Tiles::kKeyWarps * 16 * kRowTiles, warp_key = warp % Tiles::kKeyWarps;
    State state;
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        state.most[r][h] = kNoKey;
        state.sum[r][h] = 0.0f;
      }
      THRESHER_UNROLL
      for (int n = 0; n < kOutTiles; ++n) {
        THRESHER_UNROLL
        for (int i = 0; i < 4; ++i) state.out[r][n][i] = 0.0f;
      }
    }
    if (place.begin < place.end) {
      LoadQueries(t, place);
      LoadKeys(t, place, place.begin);
      t.CommitCopies();
      // Keys that every row sees.
      const int last_row = Least(place.first + kRows, place.rows) - 1;
      const int all_from = source.KeysFrom(place, last_row);
      const int all_to = Least(source.KeysTo(place, place.first), place.end);
      uint32_t queries[kHoldsQueries ? kRowTiles : 1][kHoldsQueries ? kSteps : 1][4];
      for (int tile = place.begin; tile < place.end; tile += Tiles::kKeys) {
        t.template WaitCopies<>();
        t.Sync();
        LoadValues(t, place, tile);
        t.CommitCopies();
        if constexpr (kHoldsQueries) {
          if (tile == place.begin) {
            THRESHER_UNROLL
            for (int r = 0; r < kRowTiles; ++r) {
              THRESHER_UNROLL
              for (int step = 0; step < kSteps; ++step) QueryTile(t, warp_row + 16 * r, step, queries[r][step]);
            }
          }
        }
        float scores[kRowTiles][kScoreTiles][4];
        Score(t, warp_row, warp_key, queries, scores);
        const int first_key = tile + warp_key * Tiles::kWarpKeys;
        const bool limited = first_key < all_from || first_key + Tiles::kWarpKeys > all_to;
        Adjust(place, place.first + warp_row + lane / 4, first_key + lane % 4 * 2, limited, scores);
        Weigh(t, scores, state);
        t.template WaitCopies<>();
        t.Sync();
        if (tile + Tiles::kKeys < place.end) LoadKeys(t, place, tile + Tiles::kKeys);
        t.CommitCopies();
        AddValues(t, warp_key, scores, state);
      }
      t.template WaitCopies<>();
    }
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        state.sum[r][h] += t.ShuffleXor(state.sum[r][h], 1);
        state.sum[r][h] += t.ShuffleXor(state.sum[r][h], 2);
      }
    }
    if constexpr (Tiles::kKeyWarps == 1) {
      Store(place, place.first + warp_row + lane / 4, lane % 4 * 2, state);
    } else {
      MergeWarps(t, place, warp_row, warp_key, state);
    }
  }

  // ---- To shared memory ----

  // Rows of the block's tile at `at`: row(i) is null where there is none.
  template <class T, class Row>
  THRESHER_DEVICE void LoadRows(T& t, int at, int rows, int depth, const RowsOf& from, Row row) const {
    using Rows = HalfRows<kDepth>;
    const bool vectors = from.vectors && from.dtype == Half::kDType;
    for (int i = t.x(); i < rows * Rows::kChunks; i += kMostThreads) {
      const int chunk = i % Rows::kChunks;
      const char* const begin = row(i / Rows::kChunks);
      const int to = at + Rows::At(i / Rows::kChunks, chunk);
      if (vectors) {
        const bool has = begin != nullptr && chunk * 8 < depth;
        t.CopyFour(to, has ? static_cast<const void*>(begin + chunk * 16) : from.data, has ? 16 : 0);
        continue;
      }
      THRESHER_UNROLL
      for (int w = 0; w < 4; ++w) {
        float two[2];
        THRESHER_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int column = chunk * 8 + w * 2 + e;
          two[e] = begin != nullptr && column < depth ? LoadElement(begin, from.dtype, column) : 0.0f;
        }
        t.shared_words()[to + w] = Half::RoundTwo(two[0], two[1]);
      }
    }
  }

  template <class T>
  THRESHER_DEVICE void LoadQueries(T& t, const Place& place) const {
    LoadRows(t, 0, kRows, source.depth, source.q,
             [&](int i) { return place.first + i < place.rows ? source.Query(place, place.first + i) : nullptr; });
  }

  template <class T>
  THRESHER_DEVICE void LoadKeys(T& t, const Place& place, int tile) const {
    if constexpr (Source::kPanels) {
      source.template LoadKeyPanels<HalfPanels<kDepth>, kDepth, Tiles::kKeys, Tiles::kWarps>(t, place, tile, kKeysAt);
    } else {
      LoadRows(t, kKeysAt, Tiles::kKeys, source.depth, source.k,
               [&](int i) { return tile + i < place.end ? source.Key(place, tile + i) : nullptr; });
    }
  }

  template <class T>
  THRESHER_DEVICE void LoadValues(T& t, const Place& place, int tile) const {
    if constexpr (Source::kPanels) {
      source.template LoadValuePanels<HalfRows<kDepth>, kDepth, Tiles::kKeys, Tiles::kWarps>(t, place, tile, kValuesAt);
    } else {
      LoadRows(t, kValuesAt, Tiles::kKeys, source.width, source.v,
               [&](int i) { return tile + i < place.end ? source.Value(place, tile + i) : nullptr; });
    }
  }

  // ---- Products ----

  template <class T>
  THRESHER_DEVICE void QueryTile(T& t, int row, int step, uint32_t (&a)[4]) const {
    const int matrix = t.x() % kWarp / 8, i = t.x() % 8;
    t.template LoadMatrices<false>(HalfRows<kDepth>::At(row + matrix % 2 * 8 + i, step * 2 + matrix / 2), a);
  }

  template <class T, class Queries>
  THRESHER_DEVICE void Score(T& t, int warp_row, int warp_key, const Queries& queries,
                             float (&scores)[kRowTiles][kScoreTiles][4]) const {
    const int matrix = t.x() % kWarp / 8, i = t.x() % 8;
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int n = 0; n < kScoreTiles; ++n) {
        THRESHER_UNROLL
        for (int e = 0; e < 4; ++e) scores[r][n][e] = 0.0f;
      }
    }
    THRESHER_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      uint32_t a[kRowTiles][4];
      THRESHER_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        if constexpr (kHoldsQueries) {
          THRESHER_UNROLL
          for (int e = 0; e < 4; ++e) a[r][e] = queries[r][step][e];
        } else {
          QueryTile(t, warp_row + 16 * r, step, a[r]);
        }
      }
      THRESHER_UNROLL
      for (int n = 0; n < kScoreTiles; n += 2) {
        uint32_t b[4];
        const int key = warp_key * Tiles::kWarpKeys + n * 8;
        if constexpr (Source::kPanels) {
          const int at = HalfPanels<kDepth>::At(key / 16, step * 16 + matrix % 2 * 8 + i, matrix / 2);
          t.template LoadMatrices<true>(kKeysAt + at, b);
        } else {
          const int at = HalfRows<kDepth>::At(key + matrix / 2 * 8 + i, step * 2 + matrix % 2);
          t.template LoadMatrices<false>(kKeysAt + at, b);
        }
        THRESHER_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          t.template MultiplyAdd<Half>(a[r], b[0], b[1], scores[r][n]);
          t.template MultiplyAdd<Half>(a[r], b[2], b[3], scores[r][n + 1]);
        }
      }
    }
  }

  template <class T>
  THRESHER_DEVICE void AddValues(T& t, int warp_key, const float (&weights)[kRowTiles][kScoreTiles][4],
                                 State& state) const {
    const int matrix = t.x() % kWarp / 8, i = t.x() % 8;
    THRESHER_UNROLL
    for (int k = 0; k < kScoreTiles; k += 2) {
      uint32_t a[kRowTiles][4];
      THRESHER_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        THRESHER_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float (&two)[4] = weights[r][k + e / 2];
          a[r][e] = Half::RoundTwo(two[e % 2 * 2], two[e % 2 * 2 + 1]);
        }
      }
      THRESHER_UNROLL
      for (int n = 0; n < kOutTiles; n += 2) {
        uint32_t b[4];
        const int key = warp_key * Tiles::kWarpKeys + k * 8 + matrix % 2 * 8 + i;
        t.template LoadMatrices<true>(kValuesAt + HalfRows<kDepth>::At(key, n + matrix / 2), b);
        THRESHER_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          t.template MultiplyAdd<Half>(a[r], b[0], b[1], state.out[r][n]);
          t.template MultiplyAdd<Half>(a[r], b[2], b[3], state.out[r][n + 1]);
        }
      }
    }
  }

  // ---- Softmax ----

  // `row`, `key`: those of the lane's first score. limited: there are keys that not all rows see.
  THRESHER_DEVICE void Adjust(const Place& place, int row, int key, bool limited,
                              float (&scores)[kRowTiles][kScoreTiles][4]) const {
    const auto each = [&](auto change) {
      THRESHER_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        THRESHER_UNROLL
        for (int h = 0; h < 2; ++h) {
          const auto change_row = change(Least(row + 16 * r + 8 * h, place.rows - 1));  // others have no result
          THRESHER_UNROLL
          for (int n = 0; n < kScoreTiles; ++n) {
            THRESHER_UNROLL
            for (int e = 0; e < 2; ++e) change_row(key + 8 * n + e, scores[r][n][2 * h + e]);
          }
        }
      }
    };
    if (!source.scores.plain) {
      each([&](int) { return [&](int, float& score) { score *= source.scores.scale; }; });
      if (Source::kCaps && source.scores.softcap > 0) {
        each([&](int) { return [&](int, float& score) { score = source.scores.Capped(score); }; });
      }
      if constexpr (Source::kMasks) {
        if (source.mask != nullptr) {
          each([&](int own) {
            return [&source = source, mask = source.MaskOf(place, own), end = place.end](int own_key, float& score) {
              if (own_key < end) score = source.Masked(mask, own_key, score);
              LoadsStayBehind();  // all at once they take too many registers
            };
          });
        }
      }
    }
    if (limited) {
      each([&](int own) {
        const int from = source.KeysFrom(place, own), to = Least(source.KeysTo(place, own), place.end);
        return [from, to](int own_key, float& score) {
          if (own_key < from || own_key >= to) score = kNoKey;
        };
      });
    }
  }

  // Scores become weights, relative to the largest so far; what was summed up before follows it.
  template <class T>
  THRESHER_DEVICE void Weigh(T& t, float (&scores)[kRowTiles][kScoreTiles][4], State& state) const {
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        float most = state.most[r][h];
        THRESHER_UNROLL
        for (int n = 0; n < kScoreTiles; ++n) {
          most = fmaxf(most, fmaxf(scores[r][n][2 * h], scores[r][n][2 * h + 1]));
        }
        most = fmaxf(most, t.ShuffleXor(most, 1));
        most = fmaxf(most, t.ShuffleXor(most, 2));
        const float base = BaseOf(most);
        const float kept = source.scores.Weight(state.most[r][h], base);
        state.most[r][h] = most;
        float sum = 0.0f;
        THRESHER_UNROLL
        for (int n = 0; n < kScoreTiles; ++n) {
          THRESHER_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& score = scores[r][n][2 * h + e];
            score = source.scores.Weight(score, base);
            sum += score;
          }
        }
        state.sum[r][h] = fmaf(state.sum[r][h], kept, sum);
        THRESHER_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          state.out[r][n][2 * h] *= kept;
          state.out[r][n][2 * h + 1] *= kept;
        }
      }
    }
  }

  // ---- Results ----

  THRESHER_DEVICE void Store(const Place& place, int row, int column, const State& state) const {
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int own = row + 16 * r + 8 * h;
        if (own >= place.rows) continue;
        const RowWriter<Source> writer(source, place, own, state.most[r][h], state.sum[r][h]);
        THRESHER_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          writer.Two(n * 8 + column, state.out[r][n][2 * h], state.out[r][n][2 * h + 1]);
        }
      }
    }
  }

  // The sums of the warps that have the same rows become one.
  template <class T>
  THRESHER_DEVICE void MergeWarps(T& t, const Place& place, int warp_row, int warp_key, const State& state) const {
    const int lane = t.x() % kWarp;
    auto shared = t.shared();
    t.Sync();  // who still reads keys and values
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int line = MergeLine(warp_key, warp_row + 16 * r + 8 * h + lane / 4);
        THRESHER_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          shared[line + n * 8 + lane % 4 * 2] = state.out[r][n][2 * h];
          shared[line + n * 8 + lane % 4 * 2 + 1] = state.out[r][n][2 * h + 1];
        }
        if (lane % 4 == 0) {
          shared[line + kDepth] = state.most[r][h];
          shared[line + kDepth + 1] = state.sum[r][h];
        }
      }
    }
    t.Sync();
    for (int i = t.x(); i < kRows * (kDepth / 2); i += kMostThreads) {
      const int row = i / (kDepth / 2), column = i % (kDepth / 2) * 2;
      if (place.first + row >= place.rows) break;
      float most = kNoKey;
      THRESHER_UNROLL
      for (int k = 0; k < Tiles::kKeyWarps; ++k) {
        most = fmaxf(most, static_cast<float>(shared[MergeLine(k, row) + kDepth]));
      }
      const float base = BaseOf(most);
      float sum = 0.0f, first = 0.0f, second = 0.0f;
      THRESHER_UNROLL
      for (int k = 0; k < Tiles::kKeyWarps; ++k) {
        const int line = MergeLine(k, row);
        const float kept = source.scores.Weight(shared[line + kDepth], base);
        sum = fmaf(shared[line + kDepth + 1], kept, sum);
        first = fmaf(shared[line + column], kept, first);
        second = fmaf(shared[line + column + 1], kept, second);
      }
      RowWriter<Source>(source, place, place.first + row, most, sum).Two(column, first, second);
    }
  }

  THRESHER_DEVICE static int MergeLine(int warp_key, int row) { return (warp_key * kRows + row) * kMergeLine; }
};

}  // namespace thresher::cuda
