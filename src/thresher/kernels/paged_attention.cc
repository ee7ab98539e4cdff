#include "thresher/kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "thresher/base/half.h"
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/paged_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/math-inl.h"

#ifndef THRESHER_KERNELS_PAGED_ATTENTION_ONCE_
#define THRESHER_KERNELS_PAGED_ATTENTION_ONCE_
namespace thresher::kernels::paged {

// Queries times heads of a group that are computed together: their scores stay near L1.
inline constexpr int64_t kBlockRows = 32;
inline constexpr int64_t kChunkPanels = kChunkTokens / kPanelTokens;
inline constexpr int64_t kUnitsPerPart = 4;  // with so many there is no need to cut the keys
inline constexpr float kNoKey = -std::numeric_limits<float>::infinity();

// A state in blocks of q8_0 or q4_0, in place of its elements' type.
template <Encoding kEncoding>
struct Blocks {
  static constexpr Encoding encoding = kEncoding;
};
template <class T>
inline constexpr bool kInBlocks = false;
template <Encoding kEncoding>
inline constexpr bool kInBlocks<Blocks<kEncoding>> = true;

// Sizes that follow from the arguments.
struct Sizes {
  explicit Sizes(const PagedAttentionArgs& a)
      : pages(a.state.shape[0]),
        heads(a.state.shape[1]),
        page_tokens(a.state.shape[3]),
        depth(a.state.shape[4]),
        group(a.q.shape[1] / std::max<int64_t>(heads, 1)),
        block_queries(std::max<int64_t>(1, kBlockRows / std::max<int64_t>(group, 1))),
        row_bytes(RowBytes(a.state, a.blocks)) {}

  // Of the keys or the values of one token and head.
  static int64_t RowBytes(const View& state, Encoding blocks) {
    return IsBlocked(blocks) ? EncodedBytes(blocks, state.shape[4])
                             : state.shape[4] * static_cast<int64_t>(SizeOf(state.dtype));
  }

  int64_t block_rows() const { return block_queries * group; }
  // Where the keys of one page and head begin in the state, and how far behind them the values.
  int64_t part(int64_t page, int64_t head) const { return (page * heads + head) * 2 * values(); }
  int64_t values() const { return page_tokens * row_bytes; }

  int64_t pages, heads, page_tokens, depth, group, block_queries, row_bytes;
};

// The queries [first, last) of one sequence and the heads of one group.
struct Unit {
  int64_t sequence = 0;
  int64_t head = 0;   // of keys
  int64_t first = 0;  // among the sequence's own queries
  int64_t last = 0;
  int64_t position = 0;  // of query `first`
  int64_t begin = 0;     // the first key that any of them sees
  int64_t end = 0;       // behind the last one

  int64_t first_chunk() const { return begin / kChunkTokens; }
  int64_t chunks() const { return (end + kChunkTokens - 1) / kChunkTokens - first_chunk(); }
  int64_t rows(const Sizes& sizes) const { return (last - first) * sizes.group; }
};

// Calls visit(unit) for all of them, in a fixed order.
template <class Visit>
void ForEachUnit(const PagedAttentionArgs& a, const Sizes& sizes, const Visit& visit) {
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t queries = a.starts[s + 1] - a.starts[s];
    const int64_t context = a.lengths[s] - queries;
    for (int64_t head = 0; head < sizes.heads; ++head) {
      for (int64_t first = 0; first < queries; first += sizes.block_queries) {
        Unit unit;
        unit.sequence = s;
        unit.head = head;
        unit.first = first;
        unit.last = std::min(queries, first + sizes.block_queries);
        unit.position = context + first;
        unit.begin = a.window > 0 ? std::max<int64_t>(0, unit.position - a.window + 1) : 0;
        unit.end = context + unit.last;
        visit(unit);
      }
    }
  }
}

// How the work is cut, told from the arguments by every part alike.
struct Cut {
  Cut(const PagedAttentionArgs& a, const Sizes& sizes, int num_parts) {
    int64_t units = 0, longest = 0, rows = 0;
    ForEachUnit(a, sizes, [&](const Unit& unit) {
      ++units;
      longest = std::max(longest, unit.chunks());
      rows += unit.chunks() * unit.rows(sizes);
      cost += unit.rows(sizes) * (unit.end - unit.begin);
    });
    by_keys = num_parts > 1 && units < kUnitsPerPart * num_parts && longest > 1 && rows <= a.partial_rows;
  }

  bool by_keys = false;
  int64_t cost = 0;
};

// Whether work that begins at `cost` of `total` is this part's.
inline bool IsMine(int64_t cost, int64_t total, int part, int num_parts) {
  return cost >= total * part / num_parts && cost < total * (part + 1) / num_parts;
}

}  // namespace thresher::kernels::paged
#endif  // THRESHER_KERNELS_PAGED_ATTENTION_ONCE_

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using paged::Cut;
using paged::kChunkPanels;
using paged::kNoKey;
using paged::Sizes;
using paged::Unit;
using Tag = hn::CappedTag<float, static_cast<size_t>(kPanelTokens)>;
using Vec = hn::Vec<Tag>;

HWY_INLINE Vec Load(Tag d, const float* p) { return hn::LoadU(d, p); }
template <class Half>
HWY_INLINE Vec Load(Tag d, const Half* p) {
  return Widen<Half>(d, hn::LoadU(hn::Rebind<uint16_t, Tag>(), reinterpret_cast<const uint16_t*>(p)));
}

// What a part works with, in floats of its scratch memory.
struct Scratch {
  Scratch(std::byte* memory, const Sizes& sizes)
      : q(reinterpret_cast<float*>(memory)),
        scores(q + sizes.block_rows() * sizes.depth),
        sums(scores + sizes.block_rows() * kChunkTokens),
        all(sums + sizes.block_rows() * sizes.depth),
        m(all + sizes.block_rows() * sizes.depth),
        l(m + sizes.block_rows()),
        all_m(l + sizes.block_rows()),
        all_l(all_m + sizes.block_rows()),
        keys(all_l + sizes.block_rows()),
        values(keys + kChunkTokens * sizes.depth) {}

  float* q;                      // [rows, depth], scaled
  float* scores;                 // [rows, kChunkTokens], then exp of them
  float* sums;                   // [rows, depth]: of one chunk
  float* all;                    // [rows, depth]: of the chunks so far
  float *m, *l, *all_m, *all_l;  // [rows]: maximum and sum
  float *keys, *values;          // of a chunk, where the state is in blocks
};

// A block of each of 16 tokens, or one block: codes times scales, as floats. `codes` are those of 16 tokens or numbers.
template <Encoding kEncoding>
HWY_INLINE void StoreCodes(Tag d, const uint8_t* HWY_RESTRICT codes, Vec scale, float* HWY_RESTRICT first,
                           float* HWY_RESTRICT second) {
  const hn::Rebind<int32_t, Tag> di;
  if constexpr (kEncoding == Encoding::kQ8_0) {
    const hn::Rebind<int8_t, Tag> d8;
    const auto level = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes)));
    hn::StoreU(hn::Mul(hn::ConvertTo(d, level), scale), d, first);
  } else {
    const hn::Rebind<uint8_t, Tag> d8;
    const auto both = hn::PromoteTo(di, hn::LoadU(d8, codes));
    const auto eight = hn::Set(di, 8);
    const auto low = hn::Sub(hn::And(both, hn::Set(di, 15)), eight);
    const auto high = hn::Sub(hn::ShiftRight<4>(both), eight);
    hn::StoreU(hn::Mul(hn::ConvertTo(d, low), scale), d, first);
    hn::StoreU(hn::Mul(hn::ConvertTo(d, high), scale), d, second);
  }
}

// A panel of keys in blocks as floats [depth][kPanelTokens].
template <Encoding kEncoding>
void UnpackKeys(const uint8_t* HWY_RESTRICT panel, int64_t depth, float* HWY_RESTRICT out) {
  constexpr int64_t kNumbers = BlockNumbers(kEncoding), kBytes = BlockBytes(kEncoding);
  constexpr int64_t kCodes = kBytes - 2;  // bytes of a block behind its scale
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t block = 0; block < depth / kNumbers; ++block) {
    const uint8_t* const scales = panel + block * kBytes * kPanelTokens;
    const uint8_t* const codes = scales + 2 * kPanelTokens;
    float* const to = out + block * kNumbers * kPanelTokens;
    for (int64_t at = 0; at < kPanelTokens; at += lanes) {
      const Vec scale = Load(d, reinterpret_cast<const F16*>(scales) + at);
      for (int64_t i = 0; i < kCodes; ++i) {
        StoreCodes<kEncoding>(d, codes + i * kPanelTokens + at, scale, to + i * kPanelTokens + at,
                              to + (i + kCodes) * kPanelTokens + at);
      }
    }
  }
}

// A row of values in blocks as floats.
template <Encoding kEncoding>
void UnpackValues(const uint8_t* HWY_RESTRICT row, int64_t depth, float* HWY_RESTRICT out) {
  constexpr int64_t kNumbers = BlockNumbers(kEncoding), kBytes = BlockBytes(kEncoding);
  constexpr int64_t kCodes = kBytes - 2;
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t block = 0; block < depth / kNumbers; ++block, row += kBytes, out += kNumbers) {
    F16 stored;
    std::memcpy(&stored, row, sizeof(stored));
    const Vec scale = hn::Set(d, ToFloat(stored));
    for (int64_t i = 0; i < kCodes; i += lanes) {
      StoreCodes<kEncoding>(d, row + 2 + i, scale, out + i, out + i + kCodes);
    }
  }
}

// Scores of kRows queries with two vectors of keys.
template <int kRows, class T>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, int64_t depth, const T* HWY_RESTRICT k0,
                          const T* HWY_RESTRICT k1, float* HWY_RESTRICT scores) {
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  Vec s00 = hn::Zero(d), s01 = s00, s10 = s00, s11 = s00, s20 = s00, s21 = s00, s30 = s00, s31 = s00;
  for (int64_t i = 0; i < depth; ++i) {
    const Vec a = Load(d, k0 + i * kPanelTokens);
    const Vec b = Load(d, k1 + i * kPanelTokens);
    const auto add = [&](int64_t row, Vec& x, Vec& y) HWY_ATTR {
      const Vec value = hn::Set(d, q[row * depth + i]);
      x = hn::MulAdd(value, a, x);
      y = hn::MulAdd(value, b, y);
    };
    add(0, s00, s01);
    if constexpr (kRows > 1) add(1, s10, s11);
    if constexpr (kRows > 2) add(2, s20, s21);
    if constexpr (kRows > 3) add(3, s30, s31);
  }
  const auto store = [&](int64_t row, Vec x, Vec y) HWY_ATTR {
    hn::StoreU(x, d, scores + row * kChunkTokens);
    hn::StoreU(y, d, scores + row * kChunkTokens + lanes);
  };
  store(0, s00, s01);
  if constexpr (kRows > 1) store(1, s10, s11);
  if constexpr (kRows > 2) store(2, s20, s21);
  if constexpr (kRows > 3) store(3, s30, s31);
}

// Two vectors of the sums of values of kRows queries, weighted, over the keys [begin, end) of the chunk; `x` and `y`
// are the columns where they begin.
template <int kRows, class T>
HWY_INLINE void SumTile(const float* HWY_RESTRICT weights, const T* const* panels, int64_t begin, int64_t end,
                        int64_t depth, int64_t x, int64_t y, float* HWY_RESTRICT sums) {
  const Tag d;
  Vec s00 = hn::Zero(d), s01 = s00, s10 = s00, s11 = s00, s20 = s00, s21 = s00, s30 = s00, s31 = s00;
  for (int64_t panel = begin / kPanelTokens; panel * kPanelTokens < end; ++panel) {
    const T* HWY_RESTRICT v = panels[panel];
    const int64_t stop = std::min(end - panel * kPanelTokens, kPanelTokens);
    const float* HWY_RESTRICT w = weights + panel * kPanelTokens;
    for (int64_t t = 0; t < stop; ++t) {
      const Vec a = Load(d, v + t * depth + x);
      const Vec b = Load(d, v + t * depth + y);
      const auto add = [&](int64_t row, Vec& first, Vec& second) HWY_ATTR {
        const Vec weight = hn::Set(d, w[row * kChunkTokens + t]);
        first = hn::MulAdd(weight, a, first);
        second = hn::MulAdd(weight, b, second);
      };
      add(0, s00, s01);
      if constexpr (kRows > 1) add(1, s10, s11);
      if constexpr (kRows > 2) add(2, s20, s21);
      if constexpr (kRows > 3) add(3, s30, s31);
    }
  }
  const auto store = [&](int64_t row, Vec first, Vec second) HWY_ATTR {
    hn::StoreU(first, d, sums + row * depth + x);
    hn::StoreU(second, d, sums + row * depth + y);
  };
  store(0, s00, s01);
  if constexpr (kRows > 1) store(1, s10, s11);
  if constexpr (kRows > 2) store(2, s20, s21);
  if constexpr (kRows > 3) store(3, s30, s31);
}

template <int kRows, class T>
HWY_INLINE void SumRows(const float* weights, const T* const* panels, int64_t begin, int64_t end, int64_t depth,
                        float* sums) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Tag()));
  for (int64_t x = 0; x < depth; x += 2 * lanes) {
    SumTile<kRows>(weights, panels, begin, end, depth, x, x + lanes < depth ? x + lanes : x, sums);
  }
}

// Calls tile(integral constant of rows, first row) for all rows, four at a time.
template <class Tile>
HWY_INLINE void ByFour(int64_t rows, const Tile& tile) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) tile(std::integral_constant<int, 4>(), row);
  switch (rows - row) {
    case 3:
      return tile(std::integral_constant<int, 3>(), row);
    case 2:
      return tile(std::integral_constant<int, 2>(), row);
    case 1:
      return tile(std::integral_constant<int, 1>(), row);
    default:
      return;
  }
}

// Scores become weights: exp(score - maximum) of the keys [begin, end) that the row sees, 0 for the others below
// `stop`.
HWY_INLINE void Softmax(float* HWY_RESTRICT row, int64_t begin, int64_t end, int64_t stop, float softcap, float* m,
                        float* l) {
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
  Vec most = hn::Set(d, kNoKey);
  for (int64_t j = 0; j < seen; j += lanes) most = MaxNan(d, most, hn::LoadU(d, row + j));
  const float maximum = hn::ReduceMax(d, most);
  const Vec shift = hn::Set(d, maximum);
  Vec sum = hn::Zero(d);
  for (int64_t j = 0; j < all; j += lanes) {
    const Vec weight = ExpNonPositive(d, hn::Sub(hn::LoadU(d, row + j), shift));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, d, row + j);
  }
  *m = maximum;
  *l = hn::ReduceSum(d, sum);
}

// What a row has of one chunk, added to what it has of those before.
HWY_INLINE void Merge(const float* HWY_RESTRICT sums, float m, float l, int64_t depth, float* HWY_RESTRICT all,
                      float* all_m, float* all_l) {
  if (l == 0) return;  // no key of this chunk
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float most = std::max(*all_m, m);
  const float kept = std::exp(*all_m - most), added = std::exp(m - most);
  const Vec x = hn::Set(d, kept), y = hn::Set(d, added);
  for (int64_t j = 0; j < depth; j += lanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, all + j), x, hn::Mul(hn::LoadU(d, sums + j), y)), d, all + j);
  }
  *all_m = most;
  *all_l = *all_l * kept + l * added;
}

HWY_INLINE void Finish(const float* HWY_RESTRICT all, float l, int64_t depth, float* HWY_RESTRICT out) {
  const Tag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Vec factor = hn::Set(d, 1.0f / l);
  for (int64_t j = 0; j < depth; j += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, all + j), factor), d, out + j);
}

float* OutRow(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t row) {
  const int64_t token = a.starts[unit.sequence] + unit.first + row / sizes.group;
  const int64_t head = unit.head * sizes.group + row % sizes.group;
  return a.out.as<float>() + token * a.out.strides[0] + head * a.out.strides[1];
}

void LoadQueries(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, float* HWY_RESTRICT q) {
  const int64_t rows = unit.rows(sizes);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t token = a.starts[unit.sequence] + unit.first + row / sizes.group;
    const int64_t head = unit.head * sizes.group + row % sizes.group;
    const float* from = a.q.as<const float>() + token * a.q.strides[0] + head * a.q.strides[1];
    for (int64_t i = 0; i < sizes.depth; ++i) q[row * sizes.depth + i] = from[i] * a.scale;
  }
}

// Of chunk number `chunk` of the sequence: sums, m and l of all rows.
template <class T>
void Chunk(const PagedAttentionArgs& a, const Sizes& sizes, const Unit& unit, int64_t chunk, const Scratch& scratch) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Tag()));
  const int64_t start = chunk * kChunkTokens;
  const int64_t begin = std::max<int64_t>(unit.begin - start, 0) / kPanelTokens * kPanelTokens;
  const int64_t end = std::min(unit.end - start, kChunkTokens);
  using Element = std::conditional_t<paged::kInBlocks<T>, float, T>;
  const Element* keys[kChunkPanels] = {};
  const Element* values[kChunkPanels] = {};
  for (int64_t panel = begin / kPanelTokens; panel * kPanelTokens < end; ++panel) {
    const int64_t token = start + panel * kPanelTokens;
    const int64_t page = a.tables[unit.sequence * a.table_width + token / sizes.page_tokens];
    // A panel of keys and its rows of values take the same room.
    const uint8_t* const panel_keys =
        a.state.as<const uint8_t>() + sizes.part(page, unit.head) + token % sizes.page_tokens * sizes.row_bytes;
    const uint8_t* const panel_values = panel_keys + sizes.values();
    if constexpr (paged::kInBlocks<T>) {
      float* const to_keys = scratch.keys + panel * kPanelTokens * sizes.depth;
      float* const to_values = scratch.values + panel * kPanelTokens * sizes.depth;
      UnpackKeys<T::encoding>(panel_keys, sizes.depth, to_keys);
      for (int64_t t = 0; t < std::min(end - panel * kPanelTokens, kPanelTokens); ++t) {
        UnpackValues<T::encoding>(panel_values + t * sizes.row_bytes, sizes.depth, to_values + t * sizes.depth);
      }
      keys[panel] = to_keys;
      values[panel] = to_values;
    } else {
      keys[panel] = reinterpret_cast<const T*>(panel_keys);
      values[panel] = reinterpret_cast<const T*>(panel_values);
    }
  }
  const auto vector = [&](int64_t key) { return keys[key / kPanelTokens] + key % kPanelTokens; };
  const int64_t rows = unit.rows(sizes);
  for (int64_t key = begin; key < end; key += 2 * lanes) {
    const Element* const first = vector(key);
    const Element* const second = key + lanes < end ? vector(key + lanes) : first;
    ByFour(rows, [&](auto count, int64_t row) HWY_ATTR {
      ScoreTile<count.value>(scratch.q + row * sizes.depth, sizes.depth, first, second,
                             scratch.scores + row * kChunkTokens + key);
    });
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = unit.position + row / sizes.group - start;
    const int64_t row_end = std::min(position + 1, end);
    const int64_t row_begin = a.window > 0 ? std::max<int64_t>(position - a.window + 1, 0) : 0;
    if (row_begin >= row_end) {
      std::fill_n(scratch.scores + row * kChunkTokens, kChunkTokens, 0.0f);
      scratch.m[row] = kNoKey;
      scratch.l[row] = 0;
      continue;
    }
    Softmax(scratch.scores + row * kChunkTokens, row_begin, row_end, end, a.softcap, scratch.m + row, scratch.l + row);
  }
  ByFour(rows, [&](auto count, int64_t row) HWY_ATTR {
    SumRows<count.value>(scratch.scores + row * kChunkTokens, values, begin, end, sizes.depth,
                         scratch.sums + row * sizes.depth);
  });
}

template <class T>
void Attend(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  const Sizes sizes(a);
  const Cut cut(a, sizes, num_parts);
  const Scratch scratch(memory, sizes);
  int64_t cost = 0, slot = 0;
  paged::ForEachUnit(a, sizes, [&](const Unit& unit) {
    const int64_t rows = unit.rows(sizes);
    if (!cut.by_keys) {
      const bool mine = paged::IsMine(cost, cut.cost, part, num_parts);
      cost += rows * (unit.end - unit.begin);
      if (!mine) return;
      LoadQueries(a, sizes, unit, scratch.q);
      std::fill_n(scratch.all, rows * sizes.depth, 0.0f);
      std::fill_n(scratch.all_m, rows, kNoKey);
      std::fill_n(scratch.all_l, rows, 0.0f);
      for (int64_t chunk = 0; chunk < unit.chunks(); ++chunk) {
        Chunk<T>(a, sizes, unit, unit.first_chunk() + chunk, scratch);
        for (int64_t row = 0; row < rows; ++row) {
          Merge(scratch.sums + row * sizes.depth, scratch.m[row], scratch.l[row], sizes.depth,
                scratch.all + row * sizes.depth, scratch.all_m + row, scratch.all_l + row);
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
      if (!loaded) LoadQueries(a, sizes, unit, scratch.q);
      loaded = true;
      Chunk<T>(a, sizes, unit, unit.first_chunk() + chunk, scratch);
      for (int64_t row = 0; row < rows; ++row) {
        float* const kept = a.partial + (slot + row) * (sizes.depth + 2);
        std::copy_n(scratch.sums + row * sizes.depth, sizes.depth, kept);
        kept[sizes.depth] = scratch.m[row];
        kept[sizes.depth + 1] = scratch.l[row];
      }
    }
  });
}

void AttendF32(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  Attend<float>(a, memory, part, num_parts);
}
void AttendBF16(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  Attend<BF16>(a, memory, part, num_parts);
}
void AttendF16(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  Attend<F16>(a, memory, part, num_parts);
}
void AttendQ8(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  Attend<paged::Blocks<Encoding::kQ8_0>>(a, memory, part, num_parts);
}
void AttendQ4(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  Attend<paged::Blocks<Encoding::kQ4_0>>(a, memory, part, num_parts);
}

void MergeParts(const PagedAttentionArgs& a, int part, int num_parts) {
  const Sizes sizes(a);
  if (!Cut(a, sizes, num_parts).by_keys) return;
  int64_t slot = 0, number = 0;
  paged::ForEachUnit(a, sizes, [&](const Unit& unit) {
    const int64_t rows = unit.rows(sizes);
    for (int64_t row = 0; row < rows; ++row) {
      if (number++ % num_parts != part) continue;
      float* const out = OutRow(a, sizes, unit, row);
      std::fill_n(out, sizes.depth, 0.0f);
      float m = kNoKey, l = 0;
      for (int64_t chunk = 0; chunk < unit.chunks(); ++chunk) {
        const float* const kept = a.partial + (slot + chunk * rows + row) * (sizes.depth + 2);
        Merge(kept, kept[sizes.depth], kept[sizes.depth + 1], sizes.depth, out, &m, &l);
      }
      Finish(out, l, sizes.depth, out);
    }
    slot += rows * unit.chunks();
  });
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {

using paged::Sizes;
using paged::Unit;

HWY_EXPORT(AttendF32);
HWY_EXPORT(AttendBF16);
HWY_EXPORT(AttendF16);
HWY_EXPORT(AttendQ8);
HWY_EXPORT(AttendQ4);
HWY_EXPORT(MergeParts);

namespace {

std::string Text(int64_t number) { return std::to_string(number); }

// Everything that says where memory is read, so that no number reaches beyond it.
Status Check(const PagedAttentionArgs& a) {
  const Sizes sizes(a);
  const int64_t tokens = a.q.shape[0];
  if (a.starts[0] != 0 || a.starts[a.sequences] != tokens) {
    return OutOfRange("paged_attention: expected starts from 0 to the number of tokens, " + Text(tokens) + ", got " +
                      Text(a.starts[0]) + " to " + Text(a.starts[a.sequences]));
  }
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t queries = int64_t{a.starts[s + 1]} - a.starts[s], length = a.lengths[s];
    if (queries == 0) continue;
    if (queries < 0 || length < queries || length > a.table_width * sizes.page_tokens) {
      return OutOfRange("paged_attention: expected 1 or more queries and at least as many keys, at most " +
                        Text(a.table_width * sizes.page_tokens) + ", got " + Text(queries) + " and " + Text(length) +
                        " for sequence " + Text(s));
    }
    const int64_t first = a.window > 0 ? std::max<int64_t>(0, length - queries - a.window + 1) : 0;
    for (int64_t p = first / sizes.page_tokens; p * sizes.page_tokens < length; ++p) {
      const int64_t page = a.tables[s * a.table_width + p];
      if (page < 0 || page >= sizes.pages) {
        return OutOfRange("paged_attention: expected pages in [0, " + Text(sizes.pages) + "), got " + Text(page) +
                          " as page " + Text(p) + " of sequence " + Text(s));
      }
    }
  }
  return Status::Ok();
}

// Where an element stands in the part of one head, in elements.
int64_t KeyOffset(int64_t token, int64_t i, int64_t depth) {
  return (token / kPanelTokens * depth + i) * kPanelTokens + token % kPanelTokens;
}

float Number(float x) { return x; }
float Number(BF16 x) { return ToFloat(x); }
float Number(F16 x) { return ToFloat(x); }
void Store(float x, float* to) { *to = x; }
void Store(float x, BF16* to) { *to = ToBF16(x); }
void Store(float x, F16* to) { *to = ToF16(x); }

template <class T>
void Write(const KvWriteArgs& a, int64_t token, T* head_part, int64_t head, int64_t at) {
  const int64_t depth = a.state.shape[4];
  const float* const k = a.k.as<const float>() + token * a.k.strides[0] + head * a.k.strides[1];
  const float* const v = a.v.as<const float>() + token * a.v.strides[0] + head * a.v.strides[1];
  T* const keys = head_part + KeyOffset(at, 0, depth);
  T* const values = head_part + (a.state.shape[3] + at) * depth;
  for (int64_t i = 0; i < depth; ++i) Store(k[i], keys + i * kPanelTokens);
  for (int64_t i = 0; i < depth; ++i) Store(v[i], values + i);
}

// Where byte `i` of block `block` of a token's keys stands in the part of one head; the first two are its scale.
int64_t KeyByte(Encoding blocks, int64_t token, int64_t block, int64_t i, int64_t row_bytes) {
  const int64_t group = token / kPanelTokens * kPanelTokens * row_bytes + block * kPanelTokens * BlockBytes(blocks);
  const int64_t lane = token % kPanelTokens;
  return group + (i < 2 ? 2 * lane + i : i * kPanelTokens + lane);
}

// A row in blocks; one that they cannot hold becomes NaN.
void Encode(Encoding blocks, const float* x, int64_t depth, uint8_t* row) {
  if (EncodeNumbers(blocks, x, depth, kGroupNumbers, row).ok()) return;
  const F16 nan = ToF16(std::numeric_limits<float>::quiet_NaN());
  for (int64_t b = 0; b < depth / kGroupNumbers; ++b) std::memcpy(row + b * BlockBytes(blocks), &nan, sizeof(nan));
}

void WriteBlocks(const KvWriteArgs& a, int64_t token, uint8_t* head_part, int64_t head, int64_t at) {
  const int64_t depth = a.state.shape[4], bytes = BlockBytes(a.blocks), row_bytes = EncodedBytes(a.blocks, depth);
  uint8_t keys[kMostHeadSize / kGroupNumbers * BlockBytes(Encoding::kQ8_0)] = {};
  Encode(a.blocks, a.k.as<const float>() + token * a.k.strides[0] + head * a.k.strides[1], depth, keys);
  for (int64_t i = 0; i < row_bytes; ++i) head_part[KeyByte(a.blocks, at, i / bytes, i % bytes, row_bytes)] = keys[i];
  Encode(a.blocks, a.v.as<const float>() + token * a.v.strides[0] + head * a.v.strides[1], depth,
         head_part + (a.state.shape[3] + at) * row_bytes);
}

template <class T>
Status WriteAll(const KvWriteArgs& a, int part, int num_parts) {
  const int64_t tokens = a.k.shape[0], heads = a.state.shape[1], page_tokens = a.state.shape[3];
  const int64_t slots = a.state.shape[0] * page_tokens;
  for (int64_t token = 0; token < tokens; ++token) {
    if (a.slots[token] >= slots) {
      return OutOfRange("kv_write: expected slots below " + Text(slots) + ", got " + Text(a.slots[token]) +
                        " for token " + Text(token));
    }
  }
  // Heads first: neighbours in a page are written by one thread.
  const int64_t all = heads * tokens;
  for (int64_t i = all * part / num_parts; i < all * (part + 1) / num_parts; ++i) {
    const int64_t head = i / tokens, token = i % tokens, slot = a.slots[token];
    if (slot < 0) continue;
    const int64_t bytes = page_tokens * Sizes::RowBytes(a.state, a.blocks) * 2;
    uint8_t* const head_part = a.state.as<uint8_t>() + (slot / page_tokens * heads + head) * bytes;
    if constexpr (std::is_same_v<T, uint8_t>) {
      WriteBlocks(a, token, head_part, head, slot % page_tokens);
    } else {
      Write(a, token, reinterpret_cast<T*>(head_part), head, slot % page_tokens);
    }
  }
  return Status::Ok();
}

// Number i of a row of keys or values in blocks.
template <class T>
float Decoded(const uint8_t* row, int64_t i) {
  float numbers[kGroupNumbers];
  DecodeNumbers(T::encoding, row + i / kGroupNumbers * BlockBytes(T::encoding), kGroupNumbers, numbers);
  return numbers[i % kGroupNumbers];
}

template <class T>
float Key(const uint8_t* head_part, int64_t token, int64_t i, const Sizes& sizes) {
  if constexpr (paged::kInBlocks<T>) {
    uint8_t block[BlockBytes(T::encoding)];
    for (int64_t b = 0; b < BlockBytes(T::encoding); ++b) {
      block[b] = head_part[KeyByte(T::encoding, token, i / kGroupNumbers, b, sizes.row_bytes)];
    }
    return Decoded<T>(block, i % kGroupNumbers);
  } else {
    return Number(reinterpret_cast<const T*>(head_part)[KeyOffset(token, i, sizes.depth)]);
  }
}

template <class T>
float Value(const uint8_t* row, int64_t i, const Sizes&) {
  if constexpr (paged::kInBlocks<T>) {
    return Decoded<T>(row, i);
  } else {
    return Number(reinterpret_cast<const T*>(row)[i]);
  }
}

template <class T>
void ReferenceRow(const PagedAttentionArgs& a, const Sizes& sizes, int64_t sequence, int64_t position, int64_t head,
                  const float* q, float* out) {
  const int64_t first = a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
  std::vector<double> scores;
  const auto part = [&](int64_t token) {
    const int64_t page = a.tables[sequence * a.table_width + token / sizes.page_tokens];
    return a.state.as<const uint8_t>() + sizes.part(page, head);
  };
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t token = first; token <= position; ++token) {
    double score = 0;
    for (int64_t i = 0; i < sizes.depth; ++i) {
      score +=
          static_cast<double>(q[i]) * static_cast<double>(Key<T>(part(token), token % sizes.page_tokens, i, sizes));
    }
    score *= static_cast<double>(a.scale);
    if (a.softcap > 0) score = static_cast<double>(a.softcap) * std::tanh(score / static_cast<double>(a.softcap));
    scores.push_back(score);
    most = std::max(most, score);
  }
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - most);
  for (int64_t i = 0; i < sizes.depth; ++i) {
    double value = 0;
    for (int64_t token = first; token <= position; ++token) {
      const uint8_t* const row = part(token) + sizes.values() + token % sizes.page_tokens * sizes.row_bytes;
      value += scores[static_cast<size_t>(token - first)] * static_cast<double>(Value<T>(row, i, sizes));
    }
    out[i] = static_cast<float>(value / sum);
  }
}

template <class T>
void ReferenceAll(const PagedAttentionArgs& a) {
  const Sizes sizes(a);
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t queries = a.starts[s + 1] - a.starts[s];
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t token = a.starts[s] + i;
      for (int64_t head = 0; head < a.q.shape[1]; ++head) {
        ReferenceRow<T>(a, sizes, s, a.lengths[s] - queries + i, head / sizes.group,
                        a.q.as<const float>() + token * a.q.strides[0] + head * a.q.strides[1],
                        a.out.as<float>() + token * a.out.strides[0] + head * a.out.strides[1]);
      }
    }
  }
}

}  // namespace

bool KeepsBlocks(Encoding blocks, int64_t head_size) {
  return (blocks == Encoding::kQ8_0 || blocks == Encoding::kQ4_0) && head_size % BlockNumbers(blocks) == 0;
}

Status KvWrite(const KvWriteArgs& args, int part, int num_parts) {
  if (IsBlocked(args.blocks)) return WriteAll<uint8_t>(args, part, num_parts);
  switch (args.state.dtype) {
    case DType::kBF16:
      return WriteAll<BF16>(args, part, num_parts);
    case DType::kF16:
      return WriteAll<F16>(args, part, num_parts);
    default:
      return WriteAll<float>(args, part, num_parts);
  }
}

Status PagedAttention(const PagedAttentionArgs& args, std::byte* scratch, int part, int num_parts) {
  THRESHER_TRY(Check(args));
  if (args.blocks == Encoding::kQ8_0) {
    HWY_DYNAMIC_DISPATCH(AttendQ8)(args, scratch, part, num_parts);
    return Status::Ok();
  }
  if (args.blocks == Encoding::kQ4_0) {
    HWY_DYNAMIC_DISPATCH(AttendQ4)(args, scratch, part, num_parts);
    return Status::Ok();
  }
  switch (args.state.dtype) {
    case DType::kBF16:
      HWY_DYNAMIC_DISPATCH(AttendBF16)(args, scratch, part, num_parts);
      break;
    case DType::kF16:
      HWY_DYNAMIC_DISPATCH(AttendF16)(args, scratch, part, num_parts);
      break;
    default:
      HWY_DYNAMIC_DISPATCH(AttendF32)(args, scratch, part, num_parts);
  }
  return Status::Ok();
}

Status PagedAttentionMerge(const PagedAttentionArgs& args, int part, int num_parts) {
  HWY_DYNAMIC_DISPATCH(MergeParts)(args, part, num_parts);
  return Status::Ok();
}

size_t PagedAttentionScratchBytes(const PagedAttentionArgs& args) {
  const Sizes sizes(args);
  const int64_t unpacked = IsBlocked(args.blocks) ? 2 * kChunkTokens * sizes.depth : 0;
  return static_cast<size_t>(sizes.block_rows() * (3 * sizes.depth + kChunkTokens + 4) + unpacked) * sizeof(float);
}

int64_t PartialRows(int64_t query_heads, int64_t heads, int64_t head_size, int64_t most_keys, int num_parts) {
  constexpr int64_t kMostFloats = int64_t{1} << 22;
  if (num_parts < 2) return 0;
  const int64_t chunks = (most_keys + kChunkTokens - 1) / kChunkTokens + 1;
  const int64_t rows = paged::kUnitsPerPart * num_parts * std::max<int64_t>(query_heads / heads, 1) * chunks;
  return std::min(rows, kMostFloats / (head_size + 2));
}

Status PagedAttentionReference(const PagedAttentionArgs& args) {
  THRESHER_TRY(Check(args));
  if (args.blocks == Encoding::kQ8_0) {
    ReferenceAll<paged::Blocks<Encoding::kQ8_0>>(args);
    return Status::Ok();
  }
  if (args.blocks == Encoding::kQ4_0) {
    ReferenceAll<paged::Blocks<Encoding::kQ4_0>>(args);
    return Status::Ok();
  }
  switch (args.state.dtype) {
    case DType::kBF16:
      ReferenceAll<BF16>(args);
      break;
    case DType::kF16:
      ReferenceAll<F16>(args);
      break;
    default:
      ReferenceAll<float>(args);
  }
  return Status::Ok();
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
