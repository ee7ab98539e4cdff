// Attention over keys and values in pages, of any type: what the sources that are compiled for it share (paged_*.cc).

#if defined(THRESHER_KERNELS_PAGED_CHUNKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PAGED_CHUNKS_INL_H_
#undef THRESHER_KERNELS_PAGED_CHUNKS_INL_H_
#else
#define THRESHER_KERNELS_PAGED_CHUNKS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "thresher/base/half.h"
#include "thresher/kernels/amx_tile-inl.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/math-inl.h"
#include "thresher/kernels/paged_pairs-inl.h"
#include "thresher/kernels/paged_quads-inl.h"
#include "thresher/kernels/paged_rows-inl.h"
#include "thresher/kernels/paged_tiles-inl.h"
#include "thresher/kernels/paged_work.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace paged_chunks {

namespace hn = hwy::HWY_NAMESPACE;
using few_rows::Codes;
using few_rows::Load;
using few_rows::Tag;
using few_rows::Values;
using few_rows::Vec;
using paged::Cut;
using paged::kChunkPanels;
using paged::kNoKey;
using paged::Sizes;
using paged::Unit;

inline int64_t RoundUp(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
inline int64_t Width() { return static_cast<int64_t>(PanelWidth()); }

// Whether keys and values are multiplied as the integers that they are kept as.
template <class T>
inline constexpr bool kQuads = false;
#if THRESHER_PAGED_QUADS
template <>
inline constexpr bool kQuads<paged::Blocks<Encoding::kQ8_0>> = true;
#endif
template <class T>
inline constexpr bool kPairs = false;
#if THRESHER_PAGED_PAIRS
template <>
inline constexpr bool kPairs<paged::Blocks<Encoding::kQ8_0>> = true;
#endif

template <class T>
inline constexpr bool kHalves = std::is_same_v<T, BF16> || std::is_same_v<T, F16>;

// Whether tiles multiply them now.
template <class T>
HWY_INLINE bool OnTiles() {
  if (UnitInUse() == isa::Tiles::kNone) return false;
  if constexpr (kHalves<T>) return RoundsToPages(std::is_same_v<T, F16> ? DType::kF16 : DType::kBF16);
  return kQuads<T>;
}

// Of what they are multiplied by where they are integers.
#if THRESHER_PAGED_PAIRS
using IntegerBuffers = pairs::Buffers;
#else
using IntegerBuffers = quads::Buffers;
#endif

// What a part works with: buffers in its scratch memory, each on a line of its own.
struct Scratch {
  explicit Scratch(const Sizes& sizes, std::byte* memory = nullptr)
      : scores_ld(kChunkTokens + Width()), sums_ld(RoundUp(sizes.depth, Width())) {
    const auto reserve = [&](int64_t count) {
      float* const at = floats(memory) + used;
      used += RoundUp(count, kLine);
      return memory == nullptr ? nullptr : at;
    };
    const int64_t rows = sizes.block_rows();
    q = reserve(rows * sizes.depth);
    scores = reserve(rows * scores_ld);
    sums = reserve(rows * sums_ld);
    all = reserve(rows * sizes.depth);
    m = reserve(rows);
    l = reserve(rows);
    all_m = reserve(rows);
    all_l = reserve(rows);
    constexpr int64_t kBytes = sizeof(float);
    panel = reserve(std::max(Width() * std::max(kChunkTokens, sizes.depth), IntegerBuffers::kValueBytes / kBytes));
    digits = reserve(IntegerBuffers::QueryBytes(rows, sizes.depth) / kBytes + 1);
    if (!THRESHER_UNIT_TARGET) return;
    split_q = reserve(unit_pages::SplitRows::Bytes(rows, sizes.depth) / kBytes);
    split_weights = reserve(unit_pages::SplitRows::Bytes(rows, kChunkTokens) / kBytes);
    restore = reserve(rows);
    weight_digits = reserve(unit_pages::WeightRows::kBytes / kBytes);
  }

  IntegerBuffers integer_buffers(const Sizes& sizes) const { return {sizes.block_rows(), sizes.depth, digits, panel}; }

  static constexpr int64_t kLine = 16;
  static float* floats(std::byte* memory) {
    constexpr uintptr_t kBytes = kLine * sizeof(float);
    return reinterpret_cast<float*>(memory + (0 - reinterpret_cast<uintptr_t>(memory)) % kBytes);
  }
  size_t bytes() const { return static_cast<size_t>(used + kLine) * sizeof(float); }

  int64_t scores_ld, sums_ld;
  int64_t used = 0;
  float* q;                      // [rows, depth], scaled
  float* scores;                 // [rows, scores_ld], then exp of them
  float* sums;                   // [rows, sums_ld]: of one chunk
  float* all;                    // [rows, depth]: of the chunks so far
  float *m, *l, *all_m, *all_l;  // [rows]: maximum and sum
  float* panel;                  // [depth, Width()] of keys, or [kChunkTokens, Width()] of values
  float* digits;                 // of q, where it is multiplied so
  // Where numbers of 16 bits are multiplied, in two of them: q, and what its scores are too small by in fp16; weights.
  float *split_q = nullptr, *restore = nullptr, *split_weights = nullptr;
  float* weight_digits = nullptr;  // or weights of q8_0
};

// Rows times a panel: each sum in the order of k, whatever the number of rows, so that a row has the same bits in every
// tile. Rows are more than few_rows::kMostRows, so that no tile has less than half of the rows that it may have.
constexpr size_t kLeastTileRows = static_cast<size_t>(kTileRows) / 2;
static_assert(few_rows::kMostRows >= kTileRows / 2);

template <size_t... I>
constexpr TileFunction TileOf(size_t rows, std::index_sequence<I...>) {
  constexpr TileFunction table[] = {&RunTile<FloatPanel, static_cast<int>(I + kLeastTileRows), 1>...};
  return table[rows - kLeastTileRows];
}

inline void Multiply(const float* a, int64_t lda, int64_t rows, const float* panel, int64_t k, float* out,
                     int64_t out_ld) {
  const RowTiles tiles(static_cast<size_t>(rows));
  TileArgs args{};
  args.lda = static_cast<size_t>(lda);
  args.b = panel;
  args.k = static_cast<size_t>(k);
  args.out_ld = static_cast<size_t>(out_ld);
  int64_t row = 0;
  for (size_t tile = 0; tile < tiles.count; tile += args.tiles) {
    const size_t height = tiles.Height(tile);
    args.a = a + row * lda;
    args.out = out + row * out_ld;
    args.tiles = tiles.Alike(tile);
    // It is there already; a tile that fetches a line a turn takes its turns in twos.
    args.fetch = {reinterpret_cast<const uint8_t*>(panel), 1, MayFetchIntoL1(height)};
    TileOf(height, std::make_index_sequence<static_cast<size_t>(kTileRows) - kLeastTileRows + 1>())(args);
    row += static_cast<int64_t>(args.tiles * height);
  }
}

// The keys of a panel's tokens [column, column + count), whole vectors: [depth] of them Width() apart.
template <class T>
HWY_INLINE void UnpackKeys(const uint8_t* HWY_RESTRICT from, int64_t column, int64_t count, int64_t depth,
                           float* HWY_RESTRICT to) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), width = Width();
  if constexpr (paged::kInBlocks<T>) {
    constexpr int64_t kNumbers = BlockNumbers(T::encoding), kCodes = paged::CodesOfBlock(T::encoding);
    for (int64_t block = 0; block < depth / kNumbers; ++block, from += paged::BlocksAt(T::encoding, 1)) {
      for (int64_t j = 0; j < count; j += lanes) {
        const Vec scale = Load(d, reinterpret_cast<const F16*>(from) + column + j);
        float* HWY_RESTRICT out = to + block * kNumbers * width + j;
        for (int64_t i = 0; i < kNumbers; ++i, out += width) {
          const uint8_t* const codes = from + paged::KeyCodes(column + j).at(i % kCodes);
          hn::StoreU(Codes<T::encoding>(d, codes, i >= kCodes, scale), d, out);
        }
      }
    }
  } else {
    const T* HWY_RESTRICT key = reinterpret_cast<const T*>(from) + column;
    for (int64_t i = 0; i < depth; ++i, key += kPanelTokens, to += width) {
      for (int64_t j = 0; j < count; j += lanes) hn::StoreU(Load(d, key + j), d, to + j);
    }
  }
}

// Numbers [column, column + Width()) of the values of a panel's first `count` tokens, as far as there are so many: rows
// of Width().
template <class T>
HWY_INLINE void UnpackValues(const uint8_t* HWY_RESTRICT panel, int64_t column, int64_t depth, int64_t count,
                             float* HWY_RESTRICT to) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), width = Width();
  const int64_t stop = std::min(width, depth - column);
  for (int64_t token = 0; token < count; ++token, to += width) {
    const int64_t i = token % kQuadTokens;
    const auto unpack = [&](int64_t j)
                            HWY_ATTR { hn::StoreU(Values<T>(d, panel, token - i, i, column + j, depth), d, to + j); };
    if (stop == width) {
      for (int64_t j = 0; j < width; j += lanes) unpack(j);
    } else {
      for (int64_t j = 0; j < stop; j += lanes) unpack(j);
    }
  }
}

HWY_INLINE void Prefetch(const uint8_t* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// Where a row's weights go: in the place of its scores.
struct StoredWeights {
  static constexpr bool kForBf16 = false;  // whether they are rounded to bf16

  float* row;
  HWY_INLINE void Store(int64_t key, Vec weights) const { hn::StoreU(weights, Tag(), row + key); }
};

inline constexpr int64_t kSoftmaxStep = 32;  // keys with a step of Ahead

// Scores become weights: exp(score - maximum) of the keys [begin, end) that the row sees, 0 for the others below
// `stop`, which weights.Store(key, vector) gets.
template <class Weights>
HWY_INLINE void Softmax(float* HWY_RESTRICT row, int64_t begin, int64_t end, int64_t stop, float softcap,
                        const Weights& weights, few_rows::Ahead& ahead, float* m, float* l) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t all = (stop + lanes - 1) / lanes * lanes;  // a chunk is whole vectors
  if (softcap > 0) {
    const Vec cap = hn::Set(d, softcap), factor = hn::Set(d, 1.0f / softcap);
    for (int64_t j = begin / lanes * lanes; j < end; j += lanes) {
      hn::StoreU(hn::Mul(cap, Tanh(d, hn::Mul(factor, hn::LoadU(d, row + j)))), d, row + j);
    }
  }
  std::fill(row, row + begin, kNoKey);
  std::fill(row + end, row + all, kNoKey);
  const int64_t seen = (end + lanes - 1) / lanes * lanes;
  // A NaN may get lost here, but not in the sum of the exponentials.
  // Of two vectors in turn, so that neither waits for the one before.
  Vec most = hn::Set(d, kNoKey), most_odd = most;
  int64_t j = 0;
  for (; j + lanes < seen; j += 2 * lanes) {
    most = hn::Max(most, hn::LoadU(d, row + j));
    most_odd = hn::Max(most_odd, hn::LoadU(d, row + j + lanes));
  }
  if (j < seen) most = hn::Max(most, hn::LoadU(d, row + j));
  const float maximum = hn::ReduceMax(d, hn::Max(most, most_odd));
  const Vec shift = hn::Set(d, maximum);
  Vec sum = hn::Zero(d), sum_odd = sum;
  const auto weigh = [&](int64_t key, Vec& to) HWY_ATTR {
    const Vec exponent = hn::Sub(hn::LoadU(d, row + key), shift);
    Vec weight;
    if constexpr (Weights::kForBf16) {
      weight = Exp2ForBf16(d, hn::Mul(exponent, hn::Set(d, 1.44269504088896341f)));
    } else {
      weight = ExpNonPositive(d, exponent);
    }
    to = hn::Add(to, weight);
    weights.Store(key, weight);
  };
  for (j = 0; j + lanes < all; j += 2 * lanes) {
    if (j % kSoftmaxStep == 0) ahead.Step();
    weigh(j, sum);
    weigh(j + lanes, sum_odd);
  }
  if (j < all) weigh(j, sum);
  *m = maximum;
  *l = hn::ReduceSum(d, hn::Add(sum, sum_odd));
}

// What a row has of one chunk, added to what it has of those before.
HWY_INLINE void Merge(const float* HWY_RESTRICT sums, float m, float l, int64_t depth, float* HWY_RESTRICT all,
                      float* all_m, float* all_l) {
  if (l == 0) return;  // no key of this chunk
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const bool greater = m > *all_m;  // the other of the two factors is 1
  const float kept = greater ? std::exp(*all_m - m) : 1.0f, added = greater ? 1.0f : std::exp(m - *all_m);
  const Vec x = hn::Set(d, kept), y = hn::Set(d, added);
  for (int64_t j = 0; j < depth; j += lanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, all + j), x, hn::Mul(hn::LoadU(d, sums + j), y)), d, all + j);
  }
  if (greater) *all_m = m;
  *all_l = *all_l * kept + l * added;
}

// In place where `out` is `all`.
HWY_INLINE void Finish(const float* all, float l, int64_t depth, float* out) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vec factor = hn::Set(d, 1.0f / l);
  for (int64_t j = 0; j < depth; j += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, all + j), factor), d, out + j);
}

inline float* OutRow(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t row) {
  const int64_t token = a.starts[unit.sequence] + unit.first + row / sizes.group;
  const int64_t head = unit.head * sizes.group + row % sizes.group;
  return a.out.as<float>() + token * a.out.strides[0] + head * a.out.strides[1];
}

// Whether a unit's queries and weights may be rounded to what pages have.
inline bool IsWide(const PagedAttentionArgs& a, const Unit& unit) { return a.starts[unit.sequence] >= a.wide_from; }

// Whether vectors multiply them then.
template <class T>
HWY_INLINE bool OnVectors(const PagedAttentionArgs& a, const Unit& unit) {
  return THRESHER_UNIT_TARGET && std::is_same_v<T, BF16> && IsWide(a, unit);
}

template <class T>
void LoadQueries(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, const Scratch& scratch) {
  float* HWY_RESTRICT q = scratch.q;
  const int64_t rows = unit.rows(sizes);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = a.starts[unit.sequence] + unit.first + row / sizes.group;
    const int64_t head = unit.head * sizes.group + row % sizes.group;
    const float* from = a.q.as<const float>() + token * a.q.strides[0] + head * a.q.strides[1];
    for (int64_t i = 0; i < sizes.depth; ++i) q[row * sizes.depth + i] = from[i] * a.scale;
  }
#if THRESHER_PAGED_QUADS
  if constexpr (kQuads<T>) quads::Digits(q, rows, sizes.depth, scratch.integer_buffers(sizes));
#endif
#if THRESHER_PAGED_PAIRS
  if constexpr (kPairs<T>) pairs::Digits(q, rows, sizes.depth, scratch.integer_buffers(sizes));
#endif
#if THRESHER_UNIT_TARGET
  if constexpr (kHalves<T>) {
    if (!OnTiles<T>() && !OnVectors<T>(a, unit)) return;
    const unit_pages::SplitRows split(rows, sizes.depth, scratch.split_q);
    for (int64_t row = 0; row < rows; ++row) {
      const float* const from = q + row * sizes.depth;
      const float factor = std::is_same_v<T, F16> ? unit_pages::F16Factor(from, sizes.depth) : 1;
      scratch.restore[row] = 1 / factor;
      uint16_t* const low = IsWide(a, unit) ? nullptr : split.low + row * split.ld;
      unit_pages::Split<T>(from, sizes.depth, factor, split.high + row * split.ld, low);
    }
  }
#endif
}

// Where the panels of keys of a chunk begin, from that of token `begin` to that before `end`; their values lie
// Sizes::values() behind them.
struct Panels {
  Panels() = default;  // none
  Panels(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk)
      : begin(std::max<int64_t>(unit.begin - chunk * kChunkTokens, 0) / kPanelTokens * kPanelTokens),
        end(std::min(unit.end - chunk * kChunkTokens, kChunkTokens)) {
    for (int64_t at = begin; at < end; at += kPanelTokens) {
      const int64_t token = chunk * kChunkTokens + at;
      const int64_t page = a.tables[unit.sequence * a.table_width + token / sizes.page_tokens];
      // A panel of keys and its rows of values take the same room.
      keys[at / kPanelTokens] =
          a.state.as<const uint8_t>() + sizes.part(page, unit.head) + token % sizes.page_tokens * sizes.row_bytes;
    }
  }

  const uint8_t* const* first() const { return keys + begin / kPanelTokens; }
  int64_t count() const { return (end - begin + kPanelTokens - 1) / kPanelTokens; }

  int64_t begin = 0, end = 0;
  const uint8_t* keys[kChunkPanels] = {};
};

// Asks memory for them and their values in so many steps.
inline few_rows::Ahead AheadOf(const Panels& panels, const Sizes& sizes, int64_t steps) {
  return {panels.first(), panels.count(), sizes.values(), kPanelTokens * sizes.row_bytes, steps, false};
}
// Or in so many and those of the softmax of `rows` rows of a whole chunk.
inline few_rows::Ahead AheadOf(const Panels& panels, const Sizes& sizes, int64_t rows, int64_t steps) {
  return {panels.first(),
          panels.count(),
          sizes.values(),
          kPanelTokens * sizes.row_bytes,
          steps + rows * (kChunkTokens / kSoftmaxStep),
          rows <= few_rows::kMostRows};
}

// Weights of a row from its scores of the chunk that begins at `start`; `weights` as Softmax's.
template <class Weights>
void SoftmaxRow(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t start, int64_t end,
                int64_t row, const Scratch& scratch, few_rows::Ahead& ahead, const Weights& weights) {
  float* const scores = scratch.scores + row * scratch.scores_ld;
  const int64_t position = unit.position + row / sizes.group - start;
  const int64_t row_end = std::min(position + 1, end);
  const int64_t row_begin = a.window > 0 ? std::max<int64_t>(position - a.window + 1, 0) : 0;
  if (row_begin >= row_end) {
    for (int64_t key = 0; key < kChunkTokens; key += static_cast<int64_t>(hn::Lanes(Tag()))) {
      weights.Store(key, hn::Zero(Tag()));
    }
    scratch.m[row] = kNoKey;
    scratch.l[row] = 0;
    return;
  }
  Softmax(scores, row_begin, row_end, end, a.softcap, weights, ahead, scratch.m + row, scratch.l + row);
}

// In the place of its scores.
inline void SoftmaxRow(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t start, int64_t end,
                       int64_t row, const Scratch& scratch, few_rows::Ahead& ahead) {
  SoftmaxRow(a, sizes, unit, start, end, row, scratch, ahead, StoredWeights{scratch.scores + row * scratch.scores_ld});
}

// Of chunk number `chunk` of the sequence: sums, m and l of all rows. Memory is asked for what comes next while it is
// computed with what is there: for values with the keys, for the next chunk's keys with the values.
template <class T>
void Chunk(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk, const Scratch& scratch) {
  const int64_t width = Width();
  const int64_t start = chunk * kChunkTokens;
  const Panels panels(a, sizes, unit, chunk);
  const int64_t rows = unit.rows(sizes), begin = panels.begin, end = panels.end;
  const int64_t panel_bytes = kPanelTokens * sizes.row_bytes;
  const int64_t columns = std::min(width, kPanelTokens);  // of a panel of keys that become one of the tile's
  for (int64_t first = begin; first < end; first += width) {
    for (int64_t key = first; key < std::min(end, first + width); key += columns) {
      const uint8_t* const keys = panels.keys[key / kPanelTokens];
      if (key % kPanelTokens == 0) Prefetch(keys + sizes.values(), panel_bytes);
      UnpackKeys<T>(keys, key % kPanelTokens, columns, sizes.depth, scratch.panel + (key - first));
    }
    Multiply(scratch.q, sizes.depth, rows, scratch.panel, sizes.depth, scratch.scores + first, scratch.scores_ld);
  }
  few_rows::Ahead ahead = AheadOf(Panels(), sizes, 0);  // asks for nothing: this function does so by whole panels
  for (int64_t row = 0; row < rows; ++row) SoftmaxRow(a, sizes, unit, start, end, row, scratch, ahead);
  const bool last = unit.end <= start + kChunkTokens;
  const Panels next = last ? Panels() : Panels(a, sizes, unit, chunk + 1);
  for (int64_t column = 0; column < sizes.depth; column += width) {
    for (int64_t key = begin; key < end; key += kPanelTokens) {
      const uint8_t* const keys = panels.keys[key / kPanelTokens];
      UnpackValues<T>(keys + sizes.values(), column, sizes.depth, std::min(kPanelTokens, end - key),
                      scratch.panel + (key - begin) * width);
      const uint8_t* const next_keys = next.keys[key / kPanelTokens];
      if (column == 0 && next_keys != nullptr) Prefetch(next_keys, panel_bytes);
    }
    Multiply(scratch.scores + begin, scratch.scores_ld, rows, scratch.panel, end - begin, scratch.sums + column,
             scratch.sums_ld);
  }
}

// Where the panels are that come behind a chunk: of the next chunk, the next head or the next sequence.
inline Panels Following(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk) {
  if (unit.end > (chunk + 1) * kChunkTokens) return {a, sizes, unit, chunk + 1};
  Unit next = unit;
  if (unit.last < a.starts[unit.sequence + 1] - a.starts[unit.sequence]) return {};  // more queries see the same keys
  if (++next.head == sizes.heads) {
    next.head = 0;
    const int64_t s = ++next.sequence;
    const int64_t queries = s < a.sequences ? a.starts[s + 1] - a.starts[s] : 0;
    if (queries == 0) return {};
    next.end = a.lengths[s];
    next.begin = a.window > 0 ? std::max<int64_t>(0, next.end - queries - a.window + 1) : 0;
  }
  return {a, sizes, next, next.first_chunk()};
}

// The same of few rows; `cold`: nobody has asked memory for this chunk.
template <class T>
void ChunkOfFewRows(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk,
                    const Scratch& scratch, bool cold) {
  const int64_t start = chunk * kChunkTokens, rows = unit.rows(sizes);
  const Panels panels(a, sizes, unit, chunk), next = Following(a, sizes, unit, chunk);
  const int64_t begin = panels.begin, end = panels.end, count = panels.count();
  if (cold) AheadOf(panels, sizes, 1).Step();
  few_rows::ForRows(rows, [&](auto number) HWY_ATTR {
    constexpr int kRows = decltype(number)::value;
    few_rows::Ahead ahead = AheadOf(next, sizes, rows, few_rows::Steps(kRows, count, end - begin, sizes.depth));
    few_rows::Scores<T, kRows>(panels.first(), count, scratch.q, sizes.depth, scratch.scores + begin, scratch.scores_ld,
                               ahead);
    for (int64_t row = 0; row < rows; ++row) SoftmaxRow(a, sizes, unit, start, end, row, scratch, ahead);
    few_rows::WeightedSums<T, kRows>(panels.keys, sizes.values(), sizes.depth, begin, end, scratch.scores,
                                     scratch.scores_ld, scratch.sums, scratch.sums_ld, ahead);
  });
}

#if THRESHER_UNIT_TARGET
// The same by tiles of `Matrix`, or by vectors where that is void and queries and weights are rounded. Each tile takes
// 32 keys, from a multiple of 32 on, whatever else the row is computed with; so a row's sums are added up alike.
// `cold`: nobody has asked memory for this chunk.
template <class Matrix, class T>
void ChunkOnTiles(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk,
                  const Scratch& scratch, bool cold) {
  using Dot = std::conditional_t<std::is_same_v<T, BF16>, Bf16Dot, F16Dot>;
  constexpr bool kVectors = std::is_void_v<Matrix>;
  constexpr int64_t kColumns = unit_pages::kColumns;
  const int64_t start = chunk * kChunkTokens, rows = unit.rows(sizes);
  const Panels panels(a, sizes, unit, chunk), next = Following(a, sizes, unit, chunk);
  const int64_t begin = panels.begin, end = panels.end;
  const bool few = !kVectors && rows <= static_cast<int64_t>(kUnitRows), once = kVectors || IsWide(a, unit);
  if (cold) AheadOf(panels, sizes, 1).Step();
  const int64_t numbers = once ? 1 : 2;
  few_rows::Ahead ahead = AheadOf(next, sizes, rows, unit_pages::Steps(panels.count(), sizes.depth, few ? numbers : 0));
  const auto halves = [](const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); };
  uint16_t* const panel = reinterpret_cast<uint16_t*>(scratch.panel);
  const unit_pages::SplitRows q(rows, sizes.depth, scratch.split_q);
  const unit_pages::SplitRows weights(rows, kChunkTokens, scratch.split_weights);
  std::conditional_t<kVectors, VectorTiles<Bf16Dot>, UnitTiles<Matrix, Dot>> tiles(static_cast<size_t>(rows));
  const auto multiply = [&](const unit_pages::SplitRows& a, int64_t k, float* out, int64_t ld) HWY_ATTR {
    if constexpr (kVectors) {
      unit_pages::Multiply(tiles, a, rows, k, panel, out, ld);
    } else if (few) {
      unit_pages::MultiplyFew<Matrix, Dot>(a, once, k, panel, out, ld, ahead);
    } else {
      unit_pages::Multiply(tiles, a, once, rows, k, panel, out, ld);
    }
  };
  for (int64_t key = begin; key < end; key += kColumns) {
    const uint8_t* const* const at = panels.keys + key / kPanelTokens;
    unit_pages::PackKeys(halves(at[0]), key + kPanelTokens < end ? halves(at[1]) : nullptr, sizes.depth, panel, ahead);
    multiply(q, sizes.depth, scratch.scores + key, scratch.scores_ld);
  }
  const int64_t from = begin / kColumns * kColumns, seen = RoundUp(end, kPanelTokens);
  constexpr float kWeightFactor = std::is_same_v<T, F16> ? unit_pages::kF16WeightFactor : 1;
  for (int64_t row = 0; row < rows; ++row) {
    float* const scores = scratch.scores + row * scratch.scores_ld;
    if constexpr (std::is_same_v<T, F16>) unit_pages::Scale(scores + begin, seen - begin, scratch.restore[row]);
    const auto weigh = [&](auto split) HWY_ATTR {
      split.high = weights.high + row * weights.ld;
      split.low = weights.low + row * weights.ld;
      split.from = from;
      split.end = seen;
      split.factor = kWeightFactor;
      SoftmaxRow(a, sizes, unit, start, end, row, scratch, ahead, split);
      split.Pad();
    };
    if (once) {
      weigh(unit_pages::SplitWeights<T, true>());
    } else {
      weigh(unit_pages::SplitWeights<T, false>());
    }
  }
  for (int64_t column = 0; column < sizes.depth; column += kColumns) {
    for (int64_t key = from; key < unit_pages::WholePieces(end); key += kPanelTokens) {
      const uint8_t* const keys = key < end ? panels.keys[key / kPanelTokens] : nullptr;
      unit_pages::PackValues(keys == nullptr ? nullptr : halves(keys + sizes.values()), sizes.depth, column, end - key,
                             panel + (key - from) * kColumns, ahead);
    }
    multiply(weights, end - from, scratch.sums + column, scratch.sums_ld);
  }
  if constexpr (std::is_same_v<T, F16>) {
    for (int64_t row = 0; row < rows; ++row) {
      unit_pages::Scale(scratch.sums + row * scratch.sums_ld, sizes.depth, 1 / kWeightFactor);
    }
  }
}
#endif

#if THRESHER_PAGED_QUADS
// The same where they are multiplied as integers, by tiles of `Matrix` unless that is void or rows are few; `cold`:
// nobody has asked memory for this chunk.
template <class Matrix>
void ChunkOfQuads(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk,
                  const Scratch& scratch, bool cold) {
  const int64_t start = chunk * kChunkTokens, rows = unit.rows(sizes), groups = sizes.depth / quads::kNumbers;
  const Panels panels(a, sizes, unit, chunk), next = Following(a, sizes, unit, chunk);
  const int64_t begin = panels.begin, end = panels.end, count = panels.count();
  const quads::Buffers buffers = scratch.integer_buffers(sizes);
  if (cold) AheadOf(panels, sizes, 1).Step();
  // Calls multiply(blocks, sums) for each group, whose scales the buffers then hold.
  const auto values = [&](auto&& multiply) HWY_ATTR {
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t behind = sizes.values() + paged::BlocksAt(Encoding::kQ8_0, group);
      const paged::ValueBlocks blocks = {panels.first(), end - begin, behind};
      few_rows::UnpackScales(blocks, buffers.scales);
      multiply(blocks, scratch.sums + group * quads::kNumbers);
    }
  };
#if THRESHER_UNIT_TARGET
  if constexpr (!std::is_void_v<Matrix>) {
    if (rows >= unit_pages::kLeastDigitRows) {
      few_rows::Ahead ahead = AheadOf(next, sizes, rows, count + rows * groups);
      {
        const ConfiguredTiles<Matrix> tiles(static_cast<size_t>(rows), static_cast<size_t>(quads::kNumbers));
        for (int64_t panel = 0; panel < count; panel += 2) {
          const uint8_t* const* const keys = panels.first() + panel;
          for (int64_t i = panel; i < std::min(panel + 2, count); ++i) ahead.Step();
          unit_pages::DigitScores<Matrix>(keys[0], panel + 1 < count ? keys[1] : nullptr, rows, sizes.depth, buffers,
                                          scratch.scores + begin + panel * kPanelTokens, scratch.scores_ld);
        }
      }
      for (int64_t row = 0; row < rows; ++row) SoftmaxRow(a, sizes, unit, start, end, row, scratch, ahead);
      const ConfiguredTiles<Matrix> tiles(static_cast<size_t>(rows));
      return values([&](const paged::ValueBlocks& blocks, float* sums) {
        unit_pages::DigitValues<Matrix>(blocks, buffers, scratch.scores + begin, scratch.scores_ld, rows, sums,
                                        scratch.sums_ld, reinterpret_cast<uint8_t*>(scratch.weight_digits), ahead);
      });
    }
  }
#endif
  few_rows::Ahead ahead = AheadOf(next, sizes, rows, quads::Steps(rows, count, groups));
  quads::Scores(panels.first(), count, rows, sizes.depth, buffers, scratch.scores + begin, scratch.scores_ld, ahead);
  for (int64_t row = 0; row < rows; ++row) SoftmaxRow(a, sizes, unit, start, end, row, scratch, ahead);
  values([&](const paged::ValueBlocks& blocks, float* sums) {
    quads::Sums(blocks, buffers, scratch.scores + begin, scratch.scores_ld, rows, sums, scratch.sums_ld, ahead);
  });
}
#endif

#if THRESHER_PAGED_PAIRS
// The same where they are multiplied as pairs of integers; `cold`: nobody has asked memory for this chunk.
inline void ChunkOfPairs(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk,
                         const Scratch& scratch, bool cold) {
  const int64_t start = chunk * kChunkTokens, rows = unit.rows(sizes), groups = sizes.depth / pairs::kNumbers;
  const Panels panels(a, sizes, unit, chunk), next = Following(a, sizes, unit, chunk);
  const int64_t begin = panels.begin, end = panels.end, count = panels.count();
  const pairs::Buffers buffers = scratch.integer_buffers(sizes);
  const uint8_t* const* const keys = panels.first();
  if (cold) AheadOf(panels, sizes, 1).Step();
  few_rows::Ahead ahead = AheadOf(next, sizes, rows, pairs::Steps(rows, count, groups));
  pairs::Scores(keys, count, rows, sizes.depth, buffers, scratch.scores + begin, scratch.scores_ld, ahead);
  // All panels are whole, with weights of 0 behind the last key.
  const int64_t stop = begin + count * kPanelTokens;
  for (int64_t row = 0; row < rows; ++row) SoftmaxRow(a, sizes, unit, start, stop, row, scratch, ahead);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t behind = sizes.values() + paged::BlocksAt(Encoding::kQ8_0, group);
    const paged::ValueBlocks blocks = {keys, end - begin, behind};
    pairs::Sums(blocks, buffers, scratch.scores + begin, scratch.scores_ld, rows,
                scratch.sums + group * pairs::kNumbers, scratch.sums_ld, ahead);
  }
}
#endif

// Of one chunk, the way that suits how keys and values are kept.
template <class T, class Matrix>
HWY_INLINE void ChunkBy(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk,
                        const Scratch& scratch, [[maybe_unused]] bool cold) {
#if THRESHER_UNIT_TARGET
  if constexpr (kHalves<T> && !std::is_void_v<Matrix>) {
    return ChunkOnTiles<Matrix, T>(a, sizes, unit, chunk, scratch, cold);
  }
  if constexpr (std::is_same_v<T, BF16>) {
    if (OnVectors<T>(a, unit)) return ChunkOnTiles<void, T>(a, sizes, unit, chunk, scratch, cold);
  }
#endif
#if THRESHER_PAGED_QUADS
  if constexpr (kQuads<T>) return ChunkOfQuads<Matrix>(a, sizes, unit, chunk, scratch, cold);
#endif
#if THRESHER_PAGED_PAIRS
  if constexpr (kPairs<T>) return ChunkOfPairs(a, sizes, unit, chunk, scratch, cold);
#endif
  if (unit.rows(sizes) <= few_rows::kMostRows) return ChunkOfFewRows<T>(a, sizes, unit, chunk, scratch, cold);
  Chunk<T>(a, sizes, unit, chunk, scratch);
}

template <class T>
HWY_INLINE void AnyChunk(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk,
                         const Scratch& scratch, bool cold) {
#if THRESHER_UNIT_TARGET
  if constexpr (kHalves<T> || kQuads<T>) {
    if (OnTiles<T>()) {
      return UnitInUse() == isa::Tiles::kPlain ? ChunkBy<T, PlainUnit>(a, sizes, unit, chunk, scratch, cold)
                                               : ChunkBy<T, AmxUnit>(a, sizes, unit, chunk, scratch, cold);
    }
  }
#endif
  ChunkBy<T, void>(a, sizes, unit, chunk, scratch, cold);
}

template <class T>
void Attend(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  const Sizes sizes(a, num_parts);
  const Cut cut(a, sizes, num_parts);
  const Scratch scratch(sizes, memory);
  int64_t cost = 0, slot = 0;
  paged::ForEachUnit(a, sizes, [&](const Unit& unit) {
    const int64_t rows = unit.rows(sizes);
    if (!cut.by_keys) {
      const bool mine = paged::IsMine(cost, cut.cost, part, num_parts);
      cost += rows * (unit.end - unit.begin);
      if (!mine) return;
      LoadQueries<T>(a, sizes, unit, scratch);
      for (int64_t chunk = 0; chunk < unit.chunks(); ++chunk) {
        AnyChunk<T>(a, sizes, unit, unit.first_chunk() + chunk, scratch, chunk == 0);
        for (int64_t row = 0; row < rows; ++row) {
          const float* const sums = scratch.sums + row * scratch.sums_ld;
          float* const all = scratch.all + row * sizes.depth;
          if (chunk > 0) {
            Merge(sums, scratch.m[row], scratch.l[row], sizes.depth, all, scratch.all_m + row, scratch.all_l + row);
          } else {  // what merging with nothing gives
            std::copy_n(sums, sizes.depth, all);
            scratch.all_m[row] = scratch.m[row];
            scratch.all_l[row] = scratch.l[row];
          }
        }
      }
      for (int64_t row = 0; row < rows; ++row) {
        Finish(scratch.all + row * sizes.depth, scratch.all_l[row], sizes.depth, OutRow(a, sizes, unit, row));
      }
      return;
    }
    bool loaded = false;
    for (int64_t chunk = 0; chunk < unit.chunks(); ++chunk, slot += rows) {
      const int64_t start = (unit.first_chunk() + chunk) * kChunkTokens;
      const int64_t keys = std::min(unit.end, start + kChunkTokens) - std::max(unit.begin, start);
      const bool mine = paged::IsMine(cost, cut.cost, part, num_parts);
      cost += rows * keys;
      if (!mine) continue;
      if (!loaded) LoadQueries<T>(a, sizes, unit, scratch);
      AnyChunk<T>(a, sizes, unit, unit.first_chunk() + chunk, scratch, !loaded);
      loaded = true;
      for (int64_t row = 0; row < rows; ++row) {
        float* const kept = a.partial + (slot + row) * (sizes.depth + 2);
        std::copy_n(scratch.sums + row * scratch.sums_ld, sizes.depth, kept);
        kept[sizes.depth] = scratch.m[row];
        kept[sizes.depth + 1] = scratch.l[row];
      }
    }
  });
}

}  // namespace paged_chunks
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
