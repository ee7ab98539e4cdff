// What attention kernels of a device read and write, whatever holds the keys. A source (SdpaSource below, PagedSource)
// tells a block its place: rows that share the keys of one head, `group` heads of queries for each token, token by
// token.
#pragma once

#include <cstdint>

#include "thresher/base/dtype.h"
#include "thresher/base/view.h"
#include "thresher/cuda/halves.h"
#include "thresher/cuda/reduce.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

inline constexpr float kNoKey = -__builtin_huge_valf();  // the score of a key that is not seen
inline constexpr float kNotANumber = __builtin_nanf("");
inline constexpr float kLog2E = 1.44269504088896341f;

// The work of a block.
struct Place {
  int64_t batch;  // or sequence
  int head;       // of keys
  int first;      // row where its tile begins
  int rows;       // that there are of this batch and head
  int begin;      // keys that its rows see, and that are its own where keys are split among blocks
  int end;
  int split;    // whose keys these are
  bool broken;  // what the rows should see is not there: their results are NaN
  int start;    // the sequence's first query among those of all
  int context;  // how many keys come before that query
  bool masks;   // whether a mask has a say about keys that are left
};

// Rows of elements: data + batch * strides[0] + head * strides[1] + row * strides[2], each contiguous.
struct RowsOf {
  const void* data;
  int64_t strides[3];  // in elements
  DType dtype;
  bool vectors;  // 16 bytes can be loaded at once

  THRESHER_DEVICE int Bytes() const { return dtype == DType::kF32 ? 4 : 2; }
  // From row to row, in bytes.
  THRESHER_DEVICE int64_t Step() const { return strides[2] * Bytes(); }
  THRESHER_DEVICE const char* Row(int64_t batch, int64_t head, int64_t row) const {
    const int64_t offset = batch * strides[0] + head * strides[1] + row * strides[2];
    return static_cast<const char*>(data) + offset * Bytes();
  }
};

// A view [batch, heads, rows, width] whose data may be missing yet.
inline RowsOf RowsOfView(const View& view) {
  RowsOf rows{view.data, {view.strides[0], view.strides[1], view.strides[2]}, view.dtype, false};
  const auto per_vector = static_cast<int64_t>(16 / SizeOf(view.dtype));
  rows.vectors = reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.shape[3] % per_vector == 0;
  for (int d = 0; d < 3; ++d) rows.vectors &= view.shape[d] == 1 || view.strides[d] % per_vector == 0;
  return rows;
}

// A view [tokens, heads, width], as rows of one batch.
inline RowsOf TokenRows(const View& view) {
  View rows = view;
  rows.rank = 4;
  rows.shape[0] = 1;
  rows.strides[0] = 0;
  rows.shape[1] = view.shape[1];
  rows.strides[1] = view.strides[1];
  rows.shape[2] = view.shape[0];
  rows.strides[2] = view.strides[0];
  rows.shape[3] = view.shape[2];
  return RowsOfView(rows);
}

THRESHER_DEVICE float LoadElement(const void* row, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(row)[i];
  const uint16_t bits = static_cast<const uint16_t*>(row)[i];
  return dtype == DType::kBF16 ? Bf16::Widen(bits) : Fp16::Widen(bits);
}

THRESHER_DEVICE void StoreElement(void* row, DType dtype, int64_t i, float x) {
  if (dtype == DType::kF32) {
    static_cast<float*>(row)[i] = x;
  } else {
    static_cast<uint16_t*>(row)[i] = dtype == DType::kBF16 ? Bf16::Round(x) : Fp16::Round(x);
  }
}

// What happens to scores before their softmax. Its weights are 2^(factor * (score - base)), where the base is the
// largest score so far or somewhat less. Of plain scores that is one fused multiply-add with the base's level, factor *
// base: rounded once, its error is a factor of all weights of a row and of their sum. Scores that a mask is added to
// may be as low as floats go, and all of them: of these the difference comes first.
struct Scores {
  float scale;
  float softcap;  // 0: none
  float factor;
  float slack;  // by how much a score may exceed the base: weights are below 2^8, and fp16 holds them
  bool plain;   // scores stay as the product gives them: the scale is in the factor

  // added: a mask is added to them.
  static Scores Of(float scale, float softcap, bool added) {
    const bool plain = !added && softcap == 0 && scale > 0;
    const float factor = plain ? scale * kLog2E : kLog2E;
    return {scale, softcap, factor, 8.0f / factor, plain};
  }
  // Of scores that are not plain it is the base.
  THRESHER_DEVICE float Level(float base) const { return plain ? RoundedProduct(base, factor) : base; }
  // kPlain: what `plain` says; whoever has many scores asks once.
  template <bool kPlain>
  THRESHER_DEVICE float Weight(float score, float level) const {
    return Exp2(kPlain ? fmaf(score, factor, -level) : (score - level) * factor);
  }
  THRESHER_DEVICE float Weight(float score, float level) const {
    return plain ? Weight<true>(score, level) : Weight<false>(score, level);
  }
  // What sums relative to the base `before` are multiplied by to be relative to a level.
  THRESHER_DEVICE float Kept(float before, float level) const {
    const float difference = Level(before) - level;
    return Exp2(plain ? difference : difference * factor);
  }
  // softcap tanh(score / softcap), to within a few units in the last place of softcap.
  THRESHER_DEVICE float Capped(float score) const {
    return softcap - 2.0f * softcap * Reciprocal(1.0f + Exp2(score * (2.0f * kLog2E) * Reciprocal(softcap)));
  }
};

// What weights are relative to where `most` stands for the largest score so far; any number where no key has been seen.
THRESHER_DEVICE float BaseOf(float most) { return most == kNoKey ? 0.0f : most; }

// Where a block leaves sums of some of the keys: [splits, rows of all places, width + 2], the largest score and the
// sum of the weights behind the values.
struct Partials {
  float* data;
  int64_t rows;
  int splits;  // 1: blocks write results

  THRESHER_DEVICE float* Row(int split, int64_t row, int width) const {
    return data + (int64_t{split} * rows + row) * (width + 2);
  }
};

THRESHER_DEVICE int Least(int a, int b) { return a < b ? a : b; }
THRESHER_DEVICE int Most(int a, int b) { return a > b ? a : b; }

// Of keys [begin, end) those of one split: as many for each, in steps of `step`.
THRESHER_DEVICE void Split(const Partials& partials, int step, Place& place) {
  if (partials.splits == 1) return;
  const int keys = Most(place.end - place.begin, 0);
  const int each = (keys + partials.splits * step - 1) / (partials.splits * step) * step;
  place.begin = Least(place.end, place.begin + place.split * each);
  place.end = Least(place.end, place.begin + each);
}

// What a mask of some type says of two neighbouring keys: floats are added to their scores, which are scaled on the
// way, and bools hide them.
template <DType kOf>
struct MaskPair {
  float added[2];

  THRESHER_DEVICE void Apply(float scale, float& first, float& second) const {
    first = fmaf(first, scale, added[0]);
    second = fmaf(second, scale, added[1]);
  }
};
template <>
struct MaskPair<DType::kBool> {
  bool shows[2];

  THRESHER_DEVICE void Apply(float, float& first, float& second) const {
    first = shows[0] ? first : kNoKey;
    second = shows[1] ? second : kNoKey;
  }
};

// q [B, Hq, Sq, D], k and v [B, Hkv, Skv, D or Dv] of any strides but the innermost.
struct SdpaSource {
  static constexpr bool kPanels = false;
  static constexpr bool kCaps = false;  // scores may be capped
  static constexpr bool kMasks = true;  // there may be a mask
  RowsOf q, k, v, out;
  const void* mask;  // null: none
  int64_t mask_strides[3];
  DType mask_dtype;
  int mask_bytes;     // of an element
  bool repeats_mask;  // along the keys
  bool mask_pairs;    // two elements can be loaded at once; there is an even number of keys
  bool mask_pieces;   // 16 bytes can
  Scores scores;
  Partials partials;
  int64_t batches;
  int heads, group, queries, keys, depth, width;
  bool causal;

  int64_t Places(int tile_rows) const {
    return batches * heads * ((int64_t{queries} * group + tile_rows - 1) / tile_rows) * partials.splits;
  }

  THRESHER_DEVICE bool Find(int64_t number, int tile_rows, int step, Place& place) const {
    const int64_t tiles = (int64_t{queries} * group + tile_rows - 1) / tile_rows;
    const int64_t pair = number / tiles;
    int64_t tile = number % tiles;
    if (causal) tile = tiles - 1 - tile;  // those with most keys first
    place.head = static_cast<int>(pair % heads);
    place.batch = pair / heads % batches;
    place.split = static_cast<int>(pair / heads / batches);
    place.first = static_cast<int>(tile) * tile_rows;
    place.rows = queries * group;
    place.begin = 0;
    place.end = KeysTo(place, Least(place.first + tile_rows, place.rows) - 1);
    place.broken = false;
    place.masks = mask != nullptr;
    Split(partials, step, place);
    return true;
  }

  THRESHER_DEVICE int KeysFrom(const Place&, int) const { return 0; }
  THRESHER_DEVICE int KeysTo(const Place&, int row) const { return causal ? Least(keys, row / group + 1) : keys; }

  THRESHER_DEVICE const char* Query(const Place& place, int row) const { return RowOf(q, place, row); }
  THRESHER_DEVICE char* Out(const Place& place, int row) const { return const_cast<char*>(RowOf(out, place, row)); }
  THRESHER_DEVICE const char* Key(const Place& place, int key) const { return k.Row(place.batch, place.head, key); }
  THRESHER_DEVICE const char* Value(const Place& place, int key) const { return v.Row(place.batch, place.head, key); }
  THRESHER_DEVICE int64_t RowNumber(const Place& place, int row) const {
    return (place.batch * heads + place.head) * place.rows + row;
  }

  // Where the result of a row with this RowNumber() goes.
  THRESHER_DEVICE char* OutNumber(int64_t number) const {
    const int64_t rows = int64_t{queries} * group, pair = number / rows;
    Place place;
    place.batch = pair / heads;
    place.head = static_cast<int>(pair % heads);
    return Out(place, static_cast<int>(number % rows));
  }

  THRESHER_DEVICE bool AddsMask() const { return mask != nullptr && mask_dtype != DType::kBool; }
  // Whether all rows of a place have the same one.
  THRESHER_DEVICE bool HasOneMaskRow() const { return mask_strides[1] == 0 && mask_strides[2] == 0; }

  // The first of a row's elements of the mask.
  THRESHER_DEVICE const char* MaskOf(const Place& place, int row) const {
    const int64_t offset = place.batch * mask_strides[0] + (place.head * group + row % group) * mask_strides[1] +
                           row / group * mask_strides[2];
    return static_cast<const char*>(mask) + offset * mask_bytes;
  }
  // Whether element `i` of a word of the mask lets its key be seen, whatever the score.
  THRESHER_DEVICE bool Shows(uint32_t word, int i) const {
    if (mask_dtype == DType::kBool) return (word >> (8 * i) & 0xffu) != 0;
    if (mask_dtype == DType::kF32) return FloatOf(word) != kNoKey;
    const uint32_t bits = word >> (16 * i) & 0xffffu;
    return (mask_dtype == DType::kBF16 ? FloatOfBF16(bits) : FloatOfF16(bits)) != kNoKey;
  }

  // Cuts off the keys before the first and behind the last that the mask shows to any of the place's rows, as far as
  // that takes less than it may save: where the mask is read 16 bytes at a time, or is one for all rows. Tiles begin
  // where they did. Where a mask of bools hides nothing before the last of these keys it is not asked again. Takes
  // kReduceFloats of shared memory from `at` on, which are free after the next Sync().
  template <class T>
  THRESHER_DEVICE void Trim(T& t, int tile_rows, int step, int at, Place& place) const {
    constexpr int kMostKeys = 1 << 24;  // that a float counts
    const bool one_row = HasOneMaskRow();
    if (mask == nullptr || repeats_mask || keys > kMostKeys || !(one_row || mask_pieces)) return;
    const int rows = one_row ? 1 : Least(tile_rows, place.rows - place.first);
    const int piece = mask_pieces ? 16 / mask_bytes : 1, from = place.begin / piece;
    const int pieces = Most((place.end + piece - 1) / piece - from, 0);
    // Of the keys that are shown the first, with its sign turned, and the last; likewise the first that is hidden.
    float found[3] = {kNoKey, kNoKey, kNoKey};
    for (int i = t.x(); i < rows * pieces; i += t.width()) {
      const char* const row = MaskOf(place, place.first + i / pieces);
      const int first = (from + i % pieces) * piece;
      const auto note = [&](int key, bool shows) {
        if (key >= place.end) return;
        const auto number = static_cast<float>(key);
        found[0] = fmaxf(found[0], shows ? -number : kNoKey);
        found[1] = fmaxf(found[1], shows ? number : kNoKey);
        found[2] = fmaxf(found[2], shows ? kNoKey : -number);
      };
      if (!mask_pieces) {
        note(first, Masked(row, first, 0.0f) != kNoKey);
        continue;
      }
      uint32_t words[4];
      LoadWords<4>(row, first / piece, words);
      const int per_word = piece / 4;
      THRESHER_UNROLL
      for (int w = 0; w < 4; ++w) {
        for (int e = 0; e < per_word; ++e) note(first + w * per_word + e, Shows(words[w], e));
      }
    }
    ReduceRow<false, Max>(t, found, at);
    if (found[1] == kNoKey) {
      place.end = place.begin;
      return;
    }
    place.begin += (static_cast<int>(-found[0]) - place.begin) / step * step;
    place.end = static_cast<int>(found[1]) + 1;
    place.masks = mask_dtype != DType::kBool || -found[2] <= found[1];
  }

  // What the mask makes of a score.
  THRESHER_DEVICE float Masked(const char* row, int key, float score) const {
    const int64_t i = repeats_mask ? 0 : key;
    if (mask_dtype == DType::kBool) return row[i] != 0 ? score : kNoKey;
    return score + LoadElement(row, mask_dtype, i);
  }
  // Of keys `key`, which is even, and the next; behind the last ones, where nobody looks, of others. kOf: mask_dtype,
  // kPairs: mask_pairs; whoever has many pairs asks once.
  template <DType kOf, bool kPairs>
  THRESHER_DEVICE MaskPair<kOf> PairOf(const char* row, int key) const {
    if constexpr (kPairs) {
      const int at = Least(key, keys - 2);
      if constexpr (kOf == DType::kBool) {
        const uint16_t two = *reinterpret_cast<const uint16_t*>(row + at);
        return {{(two & 0xffu) != 0, two >> 8 != 0}};
      } else if constexpr (kOf == DType::kF32) {
        const auto two = *reinterpret_cast<const Words<2>*>(row + at * 4);
        return {{FloatOf(two.word[0]), FloatOf(two.word[1])}};
      } else {
        const uint32_t two = *reinterpret_cast<const uint32_t*>(row + at * 2);
        if constexpr (kOf == DType::kBF16) return {{FloatOfBF16(two & 0xffffu), FloatOfBF16(two >> 16)}};
        return {{FloatOfF16(two & 0xffffu), FloatOfF16(two >> 16)}};
      }
    } else {
      const int first = repeats_mask ? 0 : Least(key, keys - 1), second = repeats_mask ? 0 : Least(key + 1, keys - 1);
      if constexpr (kOf == DType::kBool) {
        return {{row[first] != 0, row[second] != 0}};
      } else {
        return {{LoadElement(row, kOf, first), LoadElement(row, kOf, second)}};
      }
    }
  }

 private:
  THRESHER_DEVICE const char* RowOf(const RowsOf& rows, const Place& place, int row) const {
    return rows.Row(place.batch, int64_t{place.head} * group + row % group, row / group);
  }
};

inline Shape ShapeOfPlaces(int64_t places, int threads, int shared_words) {
  Shape shape;
  shape.blocks = places;
  shape.width = threads;
  shape.shared_floats = shared_words;
  return shape;
}

// Calls attend(place) for the block's places, each a tile of so many rows.
template <class T, class Source, class Attend>
THRESHER_DEVICE void ForEachPlace(T& t, const Source& source, int64_t places, int rows, int keys, Attend attend) {
  for (int64_t number = t.block(); number < places; number += t.num_blocks()) {
    Place place;
    if (!source.Find(number, rows, keys, place)) continue;
    t.Sync();  // who still reads the last place's shared memory
    attend(place);
  }
}

}  // namespace thresher::cuda
