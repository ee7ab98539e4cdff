// Attention in fp32 throughout: as AttentionKernel, with scores and sums by fused multiply-adds of each thread.
#pragma once

#include <cstdint>

#include "thresher/cuda/attention_result.h"
#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

// kDepth: of the tiles, as for AttentionKernel. A thread has four rows, of which 16 threads share the keys, then the
// columns. Keys and values pass through one place in slices of kSlice columns.
template <class Source, int kDepth>
struct AttentionF32Kernel {
  static constexpr int kRows = 32;
  static constexpr int kKeys = 64;
  static constexpr int kSlice = kDepth < 64 ? kDepth : 64;
  static constexpr int kSlices = kDepth / kSlice;
  static constexpr int kSharers = 16;
  static constexpr int kColumns = kSlice / kSharers;  // of a slice that a thread has
  static constexpr int kMostThreads = kRows / 4 * kSharers;
  static constexpr int kLeastBlocks = kDepth <= 64 ? 4 : kDepth <= 128 ? 3 : 2;
  Source source;
  int64_t places;

  static constexpr int kSliceAt = kRows * kDepth;  // behind the queries, [kDepth][kRows]
  static constexpr int kWeightsAt = kSliceAt + kKeys * kSlice;
  static constexpr int kSharedWords = kWeightsAt + kKeys * kRows;
  static_assert(kSharedWords * 4 <= kMostSharedBytes);

  static Shape ShapeOf(int64_t places) { return ShapeOfPlaces(places, kMostThreads, kSharedWords); }

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachPlace(t, source, places, kRows, kKeys, [&](Place& place) {
      if constexpr (Source::kMasks) {
        source.Trim(t, kRows, kKeys, 0, place);
        t.Sync();  // what it took lies where tiles go
      }
      Attend(t, place);
    });
  }

 private:
  struct State {
    float out[kSlices][kColumns][4];  // of four rows
    float most[4];
    float sum[4];  // of the thread's own keys
  };

  template <class T>
  THRESHER_DEVICE void Attend(T& t, const Place& place) const {
    const int rows = t.x() / kSharers * 4, sharer = t.x() % kSharers;
    State state;
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) {
      state.most[i] = kNoKey;
      state.sum[i] = 0.0f;
      THRESHER_UNROLL
      for (int s = 0; s < kSlices; ++s) {
        THRESHER_UNROLL
        for (int c = 0; c < kColumns; ++c) state.out[s][c][i] = 0.0f;
      }
    }
    LoadQueries(t, place);
    // Keys that every row sees.
    const int all_from = source.KeysFrom(place, Least(place.first + kRows, place.rows) - 1);
    const int all_to = Least(source.KeysTo(place, place.first), place.end);
    for (int tile = place.begin; tile < place.end; tile += kKeys) {
      float scores[4][4] = {};  // of keys and rows
      THRESHER_UNROLL
      for (int s = 0; s < kSlices; ++s) {
        t.Sync();
        LoadKeys(t, place, tile, s * kSlice);
        t.Sync();
        Score(t, rows, sharer, s * kSlice, scores);
      }
      if (!source.scores.plain || place.masks || tile < all_from || tile + kKeys > all_to) {
        Adjust(place, place.first + rows, tile + 4 * sharer, scores);
      }
      Weigh(t, scores, state);
      THRESHER_UNROLL
      for (int k = 0; k < 4; ++k) {
        t.StoreFour(WeightsAt(4 * sharer + k, rows), {scores[k][0], scores[k][1], scores[k][2], scores[k][3]});
      }
      THRESHER_UNROLL
      for (int s = 0; s < kSlices; ++s) {
        t.Sync();
        LoadValues(t, place, tile, s * kSlice);
        t.Sync();
        AddValues(t, rows, sharer, state.out[s]);
      }
    }
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) {
      THRESHER_UNROLL
      for (int mask = kSharers / 2; mask > 0; mask /= 2) state.sum[i] += t.ShuffleXor(state.sum[i], mask);
      if (place.first + rows + i >= place.rows) continue;
      const RowWriter<Source> writer(source, place, place.first + rows + i, state.most[i], state.sum[i]);
      THRESHER_UNROLL
      for (int s = 0; s < kSlices; ++s) {
        THRESHER_UNROLL
        for (int c = 0; c < kColumns; ++c) writer.One(s * kSlice + sharer * kColumns + c, state.out[s][c][i]);
      }
    }
  }

  // Four rows' weights of a key, [kKeys][kRows] in an order that keeps neighbouring keys out of each other's banks.
  THRESHER_DEVICE static int WeightsAt(int key, int row) {
    return kWeightsAt + key * kRows + (row ^ (key / 4 % 8 * 4));
  }

  // Of a row as far as it goes, else zeros.
  THRESHER_DEVICE static Four FourOf(const char* row, const RowsOf& rows, int column, int depth) {
    if (row == nullptr) return {0.0f, 0.0f, 0.0f, 0.0f};
    if (rows.vectors && rows.dtype == DType::kF32) {
      return column < depth ? *reinterpret_cast<const Four*>(row + column * 4) : Four{0.0f, 0.0f, 0.0f, 0.0f};
    }
    float four[4];
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) four[i] = column + i < depth ? LoadElement(row, rows.dtype, column + i) : 0.0f;
    return {four[0], four[1], four[2], four[3]};
  }

  // `count` rows, turned: element (row, column) at `at` + (column - first) * count + row.
  template <class T, class Row>
  THRESHER_DEVICE void LoadTurned(T& t, int at, int count, int first, int columns, const RowsOf& rows, Row row) const {
    auto shared = t.shared();
    const int number = t.x() % count;
    const char* const from = row(number);
    for (int column = t.x() / count * 4; column < columns; column += kMostThreads / count * 4) {
      const Four four = FourOf(from, rows, first + column, source.depth);
      shared[at + column * count + number] = four.x;
      shared[at + (column + 1) * count + number] = four.y;
      shared[at + (column + 2) * count + number] = four.z;
      shared[at + (column + 3) * count + number] = four.w;
    }
  }

  template <class T>
  THRESHER_DEVICE void LoadQueries(T& t, const Place& place) const {
    LoadTurned(t, 0, kRows, 0, kDepth, source.q,
               [&](int i) { return place.first + i < place.rows ? source.Query(place, place.first + i) : nullptr; });
  }

  template <class T>
  THRESHER_DEVICE void LoadKeys(T& t, const Place& place, int tile, int first) const {
    if constexpr (Source::kPanels) {
      for (int i = t.x(); i < kKeys * kSlice / 4; i += kMostThreads) {
        const int key = i % (kKeys / 4) * 4, column = i / (kKeys / 4);
        const char* const panel = tile + key < place.end ? source.KeyPanel(place, tile + key / 16 * 16) : nullptr;
        Four four{0.0f, 0.0f, 0.0f, 0.0f};
        if (panel != nullptr && first + column < source.depth) {
          four = *reinterpret_cast<const Four*>(panel + ((first + column) * 16 + key % 16) * 4);
        }
        t.StoreFour(kSliceAt + column * kKeys + key, four);
      }
    } else {
      LoadTurned(t, kSliceAt, kKeys, first, kSlice, source.k,
                 [&](int i) { return tile + i < place.end ? source.Key(place, tile + i) : nullptr; });
    }
  }

  template <class T>
  THRESHER_DEVICE void LoadValues(T& t, const Place& place, int tile, int first) const {
    constexpr int kFours = kSlice / 4;
    const int column = t.x() % kFours * 4, row = t.x() / kFours;
    const char* rows = nullptr;
    if constexpr (!Source::kPanels) rows = source.Value(place, tile + row);
    for (int key = row; key < kKeys; key += kMostThreads / kFours) {
      const int to = kSliceAt + key * kSlice + column, own = tile + key;
      const char* from = nullptr;
      if constexpr (Source::kPanels) {
        const char* const panel = own < place.end ? source.ValuePanel(place, own / 16 * 16) : nullptr;
        if (own < place.end && panel == nullptr) {
          t.StoreFour(to, {kNotANumber, kNotANumber, kNotANumber, kNotANumber});
          continue;
        }
        if (panel != nullptr) from = panel + own % 16 * source.width * 4;
      } else if (own < place.end) {
        from = rows + (key - row) * source.v.Step();
      }
      t.StoreFour(to, FourOf(from, source.v, first + column, source.width));
    }
  }

  template <class T>
  THRESHER_DEVICE void Score(T& t, int rows, int sharer, int first, float (&scores)[4][4]) const {
    for (int d = 0; d < kSlice; ++d) {
      const Four q = t.LoadFour((first + d) * kRows + rows), k = t.LoadFour(kSliceAt + d * kKeys + 4 * sharer);
      const float qs[] = {q.x, q.y, q.z, q.w}, ks[] = {k.x, k.y, k.z, k.w};
      THRESHER_UNROLL
      for (int key = 0; key < 4; ++key) {
        THRESHER_UNROLL
        for (int row = 0; row < 4; ++row) scores[key][row] = fmaf(qs[row], ks[key], scores[key][row]);
      }
    }
  }

  template <class T>
  THRESHER_DEVICE void AddValues(T& t, int rows, int sharer, float (&out)[kColumns][4]) const {
    auto shared = t.shared();
    for (int key = 0; key < kKeys; ++key) {
      const Four weights = t.LoadFour(WeightsAt(key, rows));
      const int at = kSliceAt + key * kSlice + sharer * kColumns;
      float values[kColumns];
      if constexpr (kColumns == 4) {
        const Four v = t.LoadFour(at);
        values[0] = v.x, values[1] = v.y, values[2] = v.z, values[3] = v.w;
      } else {
        THRESHER_UNROLL
        for (int c = 0; c < kColumns; ++c) values[c] = shared[at + c];
      }
      THRESHER_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        out[c][0] = fmaf(weights.x, values[c], out[c][0]);
        out[c][1] = fmaf(weights.y, values[c], out[c][1]);
        out[c][2] = fmaf(weights.z, values[c], out[c][2]);
        out[c][3] = fmaf(weights.w, values[c], out[c][3]);
      }
    }
  }

  THRESHER_DEVICE void Adjust(const Place& place, int row, int key, float (&scores)[4][4]) const {
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int own = Least(row + i, place.rows - 1);  // rows behind the last one have no result
      const int from = source.KeysFrom(place, own), to = Least(source.KeysTo(place, own), place.end);
      THRESHER_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (key + k < from || key + k >= to) {
          scores[k][i] = kNoKey;
          continue;
        }
        if (!source.scores.plain) {
          scores[k][i] *= source.scores.scale;
          if (Source::kCaps && source.scores.softcap > 0) scores[k][i] = source.scores.Capped(scores[k][i]);
        }
        if constexpr (Source::kMasks) {
          if (place.masks) scores[k][i] = source.Masked(source.MaskOf(place, own), key + k, scores[k][i]);
        }
      }
    }
  }

  template <class T>
  THRESHER_DEVICE void Weigh(T& t, float (&scores)[4][4], State& state) const {
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) {
      float most = state.most[i];
      THRESHER_UNROLL
      for (int k = 0; k < 4; ++k) most = fmaxf(most, scores[k][i]);
      THRESHER_UNROLL
      for (int mask = kSharers / 2; mask > 0; mask /= 2) most = fmaxf(most, t.ShuffleXor(most, mask));
      const float level = source.scores.Level(BaseOf(most));
      const float kept = source.scores.Kept(state.most[i], level);
      state.most[i] = most;
      float sum = 0.0f;
      THRESHER_UNROLL
      for (int k = 0; k < 4; ++k) {
        scores[k][i] = source.scores.Weight(scores[k][i], level);
        sum += scores[k][i];
      }
      state.sum[i] = fmaf(state.sum[i], kept, sum);
      THRESHER_UNROLL
      for (int s = 0; s < kSlices; ++s) {
        THRESHER_UNROLL
        for (int c = 0; c < kColumns; ++c) state.out[s][c][i] *= kept;
      }
    }
  }
};

}  // namespace thresher::cuda
