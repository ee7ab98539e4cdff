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
  // From a chunk to that of the row so many rows behind, where they are a multiple of 8: these have one order. Said
  // so, places that differ in nothing else take one register, not one each.
  THRESHER_DEVICE static int Behind(int rows) { return rows * kDepth / 2; }
};

// Panels of 16 keys in shared memory: [panel][kDepth][16], likewise spread.
template <int kDepth>
struct HalfPanels {
  THRESHER_DEVICE static int At(int panel, int row, int chunk) {
    return ((panel * kDepth + row) * 2 + (chunk ^ (row / 4 % 2))) * 4;
  }
  THRESHER_DEVICE static int Behind(int rows) { return rows * 8; }  // likewise
};

// kDepth: of the tiles; heads may be smaller, with zeros behind.
template <class Source, class Half, int kDepth, class Tiles>
struct AttentionKernel {
  static constexpr int kMostThreads = Tiles::kWarps * kWarp;
  // So many threads of a multiprocessor bound the registers of each.
  static constexpr int kMost = Tiles::kRowTiles == 2 || kDepth > 64 ? 256 : 384;
  static constexpr int kLeastBlocks = kDepth > 128 ? 1 : kMost / kMostThreads;
  static constexpr int kRows = Tiles::kRows;
  Source source;
  int64_t places;

  static constexpr int kTileWords = HalfRows<kDepth>::Words(Tiles::kKeys);
  static constexpr int kPairWords = 2 * kTileWords;  // keys and the values behind them
  static constexpr int kKeysAt = HalfRows<kDepth>::Words(kRows);
  // With room for two pairs one is on its way while the other is computed with; else keys are while values are, and the
  // other way round.
  static constexpr int kPairs = (kKeysAt + 2 * kPairWords) * 4 <= kMostSharedBytes ? 2 : 1;
  static constexpr int kTilesEnd = kKeysAt + kPairs * kPairWords;
  // The warps of different keys leave rows of sums there, each with its maximum and weight.
  static constexpr int kMergeLine = kDepth + 4;
  static constexpr int kMergeWords = Tiles::kKeyWarps == 1 ? 0 : Tiles::kKeyWarps * kRows * kMergeLine;
  static constexpr int kSharedWords = kTilesEnd > kMergeWords ? kTilesEnd : kMergeWords;
  static_assert(kSharedWords * 4 <= kMostSharedBytes);
  // Of the last values, or the last pair, which nothing is loaded to before the first tile is there.
  static constexpr int kTrimAt = kTilesEnd - kReduceFloats;
  static_assert(kReduceFloats <= kTileWords);

  static Shape ShapeOf(int64_t places) { return ShapeOfPlaces(places, kMostThreads, kSharedWords); }

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachPlace(t, source, places, kRows, Tiles::kKeys, [&](Place& place) { Attend(t, place); });
  }

 private:
  static constexpr int kSteps = kDepth / 16;  // of a product along the depth
  static constexpr int kScoreTiles = Tiles::kWarpKeys / 8;
  static constexpr int kOutTiles = kDepth / 8;
  static constexpr int kRowTiles = Tiles::kRowTiles;
  // Queries stay in registers where there is room.
  static constexpr bool kHoldsQueries = kRowTiles * kDepth <= (kRowTiles == 1 ? 128 : 64);

  // What a warp has of its rows; rows l / 4 and l / 4 + 8 of each tile are lane l's.
  struct State {
    float out[kRowTiles][kOutTiles][4];
    float most[kRowTiles][2];  // what weights are relative to
    float sum[kRowTiles][2];   // of the lane's own keys
  };

  template <class T>
  THRESHER_DEVICE void Attend(T& t, Place& place) const {
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
    int at = kKeysAt;  // where the tile's keys lie
    Begin(t, place, at);
    if (place.begin < place.end) {
      // Keys that every row sees.
      const int last_row = Least(place.first + kRows, place.rows) - 1;
      const int all_from = source.KeysFrom(place, last_row);
      const int all_to = Least(source.KeysTo(place, place.first), place.end);
      uint32_t queries[kHoldsQueries ? kRowTiles : 1][kHoldsQueries ? kSteps : 1][4];
      for (int tile = place.begin; tile < place.end; tile += Tiles::kKeys) {
        t.template WaitCopies<>();
        t.Sync();
        const int next = tile + Tiles::kKeys;
        if constexpr (kPairs == 1) {
          LoadValues(t, place, tile, at + kTileWords);
        } else if (next < place.end) {
          LoadKeys(t, place, next, Other(at));
          LoadValues(t, place, next, Other(at) + kTileWords);
        }
        t.CommitCopies();
        if constexpr (kHoldsQueries) {
          if (tile == place.begin) {
            THRESHER_UNROLL
            for (int r = 0; r < kRowTiles; ++r) {
              THRESHER_UNROLL
              for (int step = 0; step < kSteps; ++step) QueryTile(t, warp_row, r, step, queries[r][step]);
            }
          }
        }
        float scores[kRowTiles][kScoreTiles][4];
        Score(t, at, warp_row, warp_key, queries, scores);
        const int first_key = tile + warp_key * Tiles::kWarpKeys;
        const bool limited = first_key < all_from || first_key + Tiles::kWarpKeys > all_to;
        Adjust(place, place.first + warp_row + lane / 4, first_key + lane % 4 * 2, limited, scores);
        Weigh(t, scores, state);
        if constexpr (kPairs == 1) {
          t.template WaitCopies<>();
          t.Sync();
          if (next < place.end) LoadKeys(t, place, next, at);
          t.CommitCopies();
        }
        AddValues(t, at + kTileWords, warp_key, scores, state);
        if constexpr (kPairs == 2) at = Other(at);
      }
    }
    t.template WaitCopies<>();
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        state.sum[r][h] += t.ShuffleXor(state.sum[r][h], 1);
        state.sum[r][h] += t.ShuffleXor(state.sum[r][h], 2);
      }
    }
    if constexpr (Tiles::kKeyWarps == 1) {
      Store(t, place, place.first + warp_row + lane / 4, state);
    } else {
      MergeWarps(t, place, warp_row, warp_key, state);
    }
  }

  // ---- To shared memory ----

  // Rows of a tile: the one at `first` and those behind it, of which there are `left`, zeros behind.
  template <int kCount, class T>
  THRESHER_DEVICE void LoadTile(T& t, int at, const RowsOf& from, const char* first, int left, int depth) const {
    using Rows = HalfRows<kDepth>;
    if (!from.vectors || from.dtype != Half::kDType) {
      return LoadSingly(t, at, kCount, depth, from,
                        [&](int i) { return i < left ? first + i * from.Step() : nullptr; });
    }
    constexpr int kStep = kMostThreads / Rows::kChunks;  // rows that the block copies at once
    const int chunk = t.x() % Rows::kChunks, row = t.x() / Rows::kChunks;
    const char* const begin = first + row * from.Step() + chunk * 16;
    const bool inside = chunk * 8 < depth;
    THRESHER_UNROLL
    for (int i = 0; i < kCount; i += kStep) {
      if (kCount < kStep && row >= kCount) break;
      const int to = kStep % 8 == 0 ? Rows::At(row, chunk) + Rows::Behind(i) : Rows::At(row + i, chunk);
      t.CopyFour(at + to, begin + i * from.Step(), inside && row + i < left ? 16 : 0);
    }
  }

  // Rows that cannot be copied as they are: row(i) is null where there is none.
  template <class T, class Row>
  THRESHER_DEVICE void LoadSingly(T& t, int at, int rows, int depth, const RowsOf& from, Row row) const {
    using Rows = HalfRows<kDepth>;
    for (int i = t.x(); i < rows * Rows::kChunks; i += kMostThreads) {
      const int chunk = i % Rows::kChunks;
      const char* const begin = row(i / Rows::kChunks);
      const int to = at + Rows::At(i / Rows::kChunks, chunk);
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
    using Rows = HalfRows<kDepth>;
    const RowsOf& q = source.q;
    if (source.group == 1) {
      return LoadTile<kRows>(t, 0, q, source.Query(place, place.first), place.rows - place.first, source.depth);
    }
    const auto row_of = [&](int i) {
      return place.first + i < place.rows ? source.Query(place, place.first + i) : nullptr;
    };
    if (!q.vectors || q.dtype != Half::kDType) return LoadSingly(t, 0, kRows, source.depth, q, row_of);
    for (int i = t.x(); i < kRows * Rows::kChunks; i += kMostThreads) {
      const int chunk = i % Rows::kChunks;
      const char* const row = row_of(i / Rows::kChunks);
      const bool has = row != nullptr && chunk * 8 < source.depth;
      t.CopyFour(Rows::At(i / Rows::kChunks, chunk), has ? row + chunk * 16 : q.data, has ? 16 : 0);
    }
  }

  // Where the other pair's keys lie.
  THRESHER_DEVICE static int Other(int at) { return 2 * kKeysAt + kPairWords - at; }

  // Queries and the first tile are on their way while the mask is looked at; where that leaves less of the tile, or
  // another one, it is loaded anew.
  template <class T>
  THRESHER_DEVICE void Begin(T& t, Place& place, int at) const {
    if (place.begin >= place.end) return;
    const auto load = [&] {
      LoadKeys(t, place, place.begin, at);
      if constexpr (kPairs == 2) LoadValues(t, place, place.begin, at + kTileWords);
      t.CommitCopies();
    };
    LoadQueries(t, place);
    load();
    if constexpr (Source::kMasks) {
      const int begin = place.begin, end = Least(place.end, begin + Tiles::kKeys);
      source.Trim(t, kRows, Tiles::kKeys, kTrimAt, place);
      if (place.begin >= place.end || (place.begin == begin && place.end >= end)) return;
      t.template WaitCopies<>();
      t.Sync();  // who still writes the tile
      load();
    }
  }

  template <class T>
  THRESHER_DEVICE void LoadKeys(T& t, const Place& place, int tile, int at) const {
    if constexpr (Source::kPanels) {
      source.template LoadKeyPanels<HalfPanels<kDepth>, kDepth, Tiles::kKeys, Tiles::kWarps>(t, place, tile, at);
    } else {
      LoadTile<Tiles::kKeys>(t, at, source.k, source.Key(place, tile), place.end - tile, source.depth);
    }
  }

  template <class T>
  THRESHER_DEVICE void LoadValues(T& t, const Place& place, int tile, int at) const {
    if constexpr (Source::kPanels) {
      source.template LoadValuePanels<HalfRows<kDepth>, kDepth, Tiles::kKeys, Tiles::kWarps>(t, place, tile, at);
    } else {
      LoadTile<Tiles::kKeys>(t, at, source.v, source.Value(place, tile), place.end - tile, source.width);
    }
  }

  // ---- Products ----

  // Where matrices lie is found anew for each tile where sums leave few registers.
  template <class T>
  THRESHER_DEVICE static int Lane(T& t) {
    return kDepth > 64 ? Anew(t.x() % kWarp) : t.x() % kWarp;
  }

  template <class T>
  THRESHER_DEVICE void QueryTile(T& t, int warp_row, int tile, int step, uint32_t (&a)[4]) const {
    using Rows = HalfRows<kDepth>;
    const int matrix = t.x() % kWarp / 8, row = warp_row + matrix % 2 * 8 + t.x() % 8;
    t.template LoadMatrices<false>(Rows::At(row, step * 2 + matrix / 2) + Rows::Behind(16 * tile), a);
  }

  template <class T, class Queries>
  THRESHER_DEVICE void Score(T& t, int keys_at, int warp_row, int warp_key, const Queries& queries,
                             float (&scores)[kRowTiles][kScoreTiles][4]) const {
    const int lane = Lane(t), matrix = lane / 8, i = lane % 8;
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
          QueryTile(t, warp_row, r, step, a[r]);
        }
      }
      THRESHER_UNROLL
      for (int n = 0; n < kScoreTiles; n += 2) {
        uint32_t b[4];
        if constexpr (Source::kPanels) {
          using Panels = HalfPanels<kDepth>;
          const int at = Panels::At(warp_key * Tiles::kWarpKeys / 16, matrix % 2 * 8 + i, matrix / 2);
          t.template LoadMatrices<true>(keys_at + Panels::Behind(n / 2 * kDepth + step * 16) + at, b);
        } else {
          using Rows = HalfRows<kDepth>;
          const int at = Rows::At(warp_key * Tiles::kWarpKeys + matrix / 2 * 8 + i, step * 2 + matrix % 2);
          t.template LoadMatrices<false>(keys_at + Rows::Behind(n * 8) + at, b);
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
  THRESHER_DEVICE void AddValues(T& t, int values_at, int warp_key, const float (&weights)[kRowTiles][kScoreTiles][4],
                                 State& state) const {
    const int lane = Lane(t), matrix = lane / 8, i = lane % 8;
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
        using Rows = HalfRows<kDepth>;
        const int at = Rows::At(warp_key * Tiles::kWarpKeys + matrix % 2 * 8 + i, n + matrix / 2);
        t.template LoadMatrices<true>(values_at + Rows::Behind(k * 8) + at, b);
        THRESHER_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          t.template MultiplyAdd<Half>(a[r], b[0], b[1], state.out[r][n]);
          t.template MultiplyAdd<Half>(a[r], b[2], b[3], state.out[r][n + 1]);
        }
      }
    }
  }

  // ---- Softmax ----

  // change_row(key, first, second) of neighbouring keys for all pairs of a row, made by change(row). `row`, `key`:
  // those of the lane's first score.
  template <class Change>
  THRESHER_DEVICE static void ForEachPair(const Place& place, int row, int key,
                                          float (&scores)[kRowTiles][kScoreTiles][4], Change change) {
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        const auto change_row = change(Least(row + 16 * r + 8 * h, place.rows - 1));  // others have no result
        THRESHER_UNROLL
        for (int n = 0; n < kScoreTiles; ++n) {
          change_row(key + 8 * n, scores[r][n][2 * h], scores[r][n][2 * h + 1]);
          if (n % 4 == 3) LoadsStayBehind();  // all at once they take too many registers
        }
      }
    }
  }

  // limited: there are keys that not all rows see.
  THRESHER_DEVICE void Adjust(const Place& place, int row, int key, bool limited,
                              float (&scores)[kRowTiles][kScoreTiles][4]) const {
    if (!source.scores.plain) {
      bool scaled = false;
      if constexpr (Source::kMasks) scaled = source.AddsMask();  // then, on the way
      if (!scaled) {
        ForEachPair(place, row, key, scores, [&](int) {
          return [&](int, float& first, float& second) {
            first *= source.scores.scale;
            second *= source.scores.scale;
          };
        });
      }
      if (Source::kCaps && source.scores.softcap > 0) {
        ForEachPair(place, row, key, scores, [&](int) {
          return [&](int, float& first, float& second) {
            first = source.scores.Capped(first);
            second = source.scores.Capped(second);
          };
        });
      }
    }
    if constexpr (Source::kMasks) {
      if (place.masks) MaskScores(place, row, key, scores);
    }
    if (limited) {
      ForEachPair(place, row, key, scores, [&](int own) {
        const int from = source.KeysFrom(place, own), to = Least(source.KeysTo(place, own), place.end);
        return [from, to](int at, float& first, float& second) {
          if (at < from || at >= to) first = kNoKey;
          if (at + 1 < from || at + 1 >= to) second = kNoKey;
        };
      });
    }
  }

  // Of what the mask is, and how it can be read, is asked once for a tile.
  THRESHER_DEVICE void MaskScores(const Place& place, int row, int key,
                                  float (&scores)[kRowTiles][kScoreTiles][4]) const {
    switch (source.mask_dtype) {
      case DType::kBool:
        return MaskOf<DType::kBool>(place, row, key, scores);
      case DType::kF32:
        return MaskOf<DType::kF32>(place, row, key, scores);
      case DType::kBF16:
        return MaskOf<DType::kBF16>(place, row, key, scores);
      default:
        return MaskOf<DType::kF16>(place, row, key, scores);
    }
  }

  template <DType kOf>
  THRESHER_DEVICE void MaskOf(const Place& place, int row, int key, float (&scores)[kRowTiles][kScoreTiles][4]) const {
    if (!source.mask_pairs) return MaskRows<kOf, false>(place, row, key, scores);
    if (!source.HasOneMaskRow()) return MaskRows<kOf, true>(place, row, key, scores);
    const char* const mask = source.MaskOf(place, place.first);
    THRESHER_UNROLL
    for (int n = 0; n < kScoreTiles; ++n) {
      const MaskPair<kOf> pair = source.template PairOf<kOf, true>(mask, key + 8 * n);
      THRESHER_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        pair.Apply(source.scores.scale, scores[r][n][0], scores[r][n][1]);
        pair.Apply(source.scores.scale, scores[r][n][2], scores[r][n][3]);
      }
      if (n % 4 == 3) LoadsStayBehind();
    }
  }

  template <DType kOf, bool kPairs>
  THRESHER_DEVICE void MaskRows(const Place& place, int row, int key,
                                float (&scores)[kRowTiles][kScoreTiles][4]) const {
    ForEachPair(place, row, key, scores, [&](int own) {
      const char* const mask = source.MaskOf(place, own);
      return [this, mask](int at, float& first, float& second) {
        source.template PairOf<kOf, kPairs>(mask, at).Apply(source.scores.scale, first, second);
      };
    });
  }

  // Scores become weights, relative to a base that follows the largest so far; what was summed up before follows it,
  // too, which is only done where a warp has a row whose scores outgrow their base.
  template <class T>
  THRESHER_DEVICE void Weigh(T& t, float (&scores)[kRowTiles][kScoreTiles][4], State& state) const {
    float most[kRowTiles][2];
    bool outgrown = false;
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        most[r][h] = kNoKey;
        THRESHER_UNROLL
        for (int n = 0; n < kScoreTiles; ++n) {
          most[r][h] = fmaxf(most[r][h], fmaxf(scores[r][n][2 * h], scores[r][n][2 * h + 1]));
        }
        most[r][h] = fmaxf(most[r][h], t.ShuffleXor(most[r][h], 1));
        most[r][h] = fmaxf(most[r][h], t.ShuffleXor(most[r][h], 2));
        outgrown |= most[r][h] > state.most[r][h] + source.scores.slack;
      }
    }
    if (t.Any(outgrown)) Rescale(most, state);
    if (source.scores.plain) {
      TakeWeights<true>(scores, state);
    } else {
      TakeWeights<false>(scores, state);
    }
  }

  template <bool kPlain>
  THRESHER_DEVICE void TakeWeights(float (&scores)[kRowTiles][kScoreTiles][4], State& state) const {
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float level = source.scores.Level(BaseOf(state.most[r][h]));
        float sum = 0.0f;
        THRESHER_UNROLL
        for (int n = 0; n < kScoreTiles; ++n) {
          THRESHER_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& score = scores[r][n][2 * h + e];
            score = source.scores.template Weight<kPlain>(score, level);
            sum += score;
          }
        }
        state.sum[r][h] += sum;
      }
    }
  }

  // Rows whose scores outgrow their base get `most` as one; others, which another row's lane brings here, stay.
  THRESHER_DEVICE void Rescale(const float (&most)[kRowTiles][2], State& state) const {
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float before = state.most[r][h];
        if (most[r][h] > before + source.scores.slack) state.most[r][h] = most[r][h];
        const float kept = source.scores.Kept(before, source.scores.Level(BaseOf(state.most[r][h])));
        state.sum[r][h] *= kept;
        THRESHER_UNROLL
        for (int n = 0; n < kOutTiles; ++n) {
          state.out[r][n][2 * h] *= kept;
          state.out[r][n][2 * h + 1] *= kept;
        }
      }
    }
  }

  // ---- Results ----

  template <class T>
  THRESHER_DEVICE void Store(T& t, const Place& place, int row, const State& state) const {
    const int lane = t.x() % 4, column = lane * 2;
    THRESHER_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      THRESHER_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int own = row + 16 * r + 8 * h;
        const RowWriter<Source> writer(source, place, own, state.most[r][h], state.sum[r][h]);
        THRESHER_UNROLL
        for (int n = 0; n < kOutTiles; n += 2) {
          const float* const low = state.out[r][n];
          const float* const high = state.out[r][n + 1];
          if (!writer.template TakesFour<Half>()) {
            if (own >= place.rows) continue;
            writer.Two(n * 8 + column, low[2 * h], low[2 * h + 1]);
            writer.Two(n * 8 + 8 + column, high[2 * h], high[2 * h + 1]);
            continue;
          }
          // Of 16 columns the lane and its neighbour have eight: one takes four of the first half, one of the second,
          // so that the four lanes of a row write 32 bytes without gaps.
          const uint32_t first = writer.template Round<Half>(low[2 * h], low[2 * h + 1]);
          const uint32_t second = writer.template Round<Half>(high[2 * h], high[2 * h + 1]);
          const bool odd = lane % 2 != 0;
          const uint32_t other = BitsOf(t.ShuffleXor(FloatOf(odd ? first : second), 1));
          if (own >= place.rows) continue;
          if (odd) {
            writer.Four(n * 8 + 8 + lane / 2 * 4, other, second);
          } else {
            writer.Four(n * 8 + lane / 2 * 4, first, other);
          }
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
      const float level = source.scores.Level(BaseOf(most));
      float sum = 0.0f, first = 0.0f, second = 0.0f;
      THRESHER_UNROLL
      for (int k = 0; k < Tiles::kKeyWarps; ++k) {
        const int line = MergeLine(k, row);
        const float kept = source.scores.Kept(shared[line + kDepth], level);
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
