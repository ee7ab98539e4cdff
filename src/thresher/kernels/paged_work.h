// How attention over pages is cut: into units of queries that share keys, and those into chunks of keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "thresher/base/isa.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/paged_attention.h"

namespace thresher::kernels::paged {

// Queries times heads of a group that are computed together: what it takes to turn keys and values into panels is
// shared by so many rows. Tiles of a matrix unit are done with theirs so soon that it pays to share it by more, as long
// as there are enough such units for each part.
inline constexpr int64_t kBlockRows = 64;
inline constexpr int64_t kLargeBlockRows = 128;
inline constexpr int64_t kLargeUnitsPerPart = 8;
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

// Where blocks of the tokens of a panel begin, one of each: in the part of one head, behind the token's panel; then
// where in those the scale of a token is, and the bytes of the codes of its keys or values.
constexpr int64_t BlocksAt(Encoding blocks, int64_t block) { return block * kPanelTokens * BlockBytes(blocks); }
constexpr int64_t ScaleAt(int64_t token) { return 2 * token; }
constexpr int64_t CodesOfBlock(Encoding blocks) { return BlockBytes(blocks) - 2; }
struct CodePlaces {
  int64_t first, step;
  constexpr int64_t at(int64_t byte) const { return first + byte * step; }
};
constexpr CodePlaces KeyCodes(int64_t token) { return {ScaleAt(kPanelTokens) + token, kPanelTokens}; }
constexpr CodePlaces ValueCodes(Encoding blocks, int64_t token) {
  const int64_t in_quad = token % kQuadTokens;
  return {ScaleAt(kPanelTokens) + (token - in_quad) * CodesOfBlock(blocks) + in_quad, kQuadTokens};
}

// The blocks of values, of 32 numbers of each token, of a chunk: `keys` of them from its first panel on, `behind` bytes
// behind the panels of keys.
struct ValueBlocks {
  const uint8_t* const* panels;
  int64_t keys, behind;

  int64_t all() const { return (keys + kPanelTokens - 1) / kPanelTokens * kPanelTokens; }
  const uint8_t* at(int64_t key) const { return panels[key / kPanelTokens] + behind; }
  const uint8_t* codes(int64_t key) const { return at(key) + ScaleAt(kPanelTokens); }  // of the whole panel
};

// Sizes that follow from the arguments.
struct Sizes {
  // num_parts 0: where units are the largest that there may be, for memory that any number of parts finds enough.
  explicit Sizes(const PagedAttentionArgs& a, int num_parts = 0)
      : pages(a.state.shape[0]),
        heads(a.state.shape[1]),
        page_tokens(a.state.shape[3]),
        depth(a.state.shape[4]),
        group(a.q.shape[1] / std::max<int64_t>(heads, 1)),
        block_queries(std::max<int64_t>(1, BlockRows(a, num_parts) / std::max<int64_t>(group, 1))),
        row_bytes(RowBytes(a.state, a.blocks)) {}

  static int64_t BlockRows(const PagedAttentionArgs& a, int num_parts) {
    // Nothing that is measured or set decides here: every call takes the memory that was made for the first.
    const bool small = isa::CurrentTiles() == isa::Tiles::kNone
                           ? a.state.dtype == DType::kBF16 && isa::Current() == isa::Isa::kAvx512Bf16
                           : a.state.dtype != DType::kF32 || a.blocks == Encoding::kQ8_0;
    if (!small) return kBlockRows;
    const int64_t units = a.q.shape[0] * a.q.shape[1] / kLargeBlockRows;
    return units < kLargeUnitsPerPart * num_parts ? kBlockRows : kLargeBlockRows;
  }

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
