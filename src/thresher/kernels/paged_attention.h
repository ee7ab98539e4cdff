// Attention of several sequences at once over keys and values that lie in pages.
//
// The pages of a layer are a state [pages, heads, 2, tokens of a page, head size] of f32, bf16 or f16. In the part of
// one head the keys stand first, in panels of kPanelTokens tokens: [panel][head size][kPanelTokens], so that the scores
// of a panel are sums of whole vectors; then the values, a row a token. Slot s is token s % tokens of page s / tokens.
//
// A state in blocks is f32 by its type, and kept in q8_0 or q4_0: of each token and head 32 numbers side by side share
// a scale. Panels of keys and of values hold their blocks 16 at a time, one of each token: their scales, then the bytes
// of their codes. Of keys for each byte of a block that of all 16; of values four tokens at a time, for each byte of a
// block that of the four, which is how dot products of four int8 take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "thresher/base/encoding.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"

namespace thresher::kernels {

inline constexpr int64_t kPanelTokens = 16;
inline constexpr int64_t kQuadTokens = 4;  // whose codes of values lie side by side
inline constexpr int64_t kMostHeadSize = 1024;
// Keys whose softmax is taken at once. Chunks begin at multiples of it and are merged in order, whoever computes them,
// so that a sequence gets the same bits whatever it is batched with and however its work is cut.
inline constexpr int64_t kChunkTokens = 256;

struct KvWriteArgs {
  View state;
  View k;  // f32 [tokens, heads, head size], innermost stride 1
  View v;
  const int32_t* slots = nullptr;    // [tokens]; below 0: not kept
  Encoding blocks = Encoding::kF32;  // of the state; kF32: its type says it
};

// Numbers that blocks cannot hold (infinite, say) become NaN. Errors: OutOfRange for a slot beyond the state.
Status KvWrite(const KvWriteArgs& args, int part = 0, int num_parts = 1);

struct PagedAttentionArgs {
  View state;
  View q;                            // f32 [tokens, query heads, head size], innermost stride 1
  View out;                          // f32 of q's shape, innermost stride 1
  const int32_t* starts = nullptr;   // [sequences + 1]: where the queries of each begin; the last is the end
  const int32_t* lengths = nullptr;  // [sequences]: how many keys each has, its own queries' included
  const int32_t* tables = nullptr;   // [sequences, table_width]: its pages in order
  int64_t sequences = 0;
  int64_t table_width = 0;
  float scale = 1;
  int64_t window = 0;        // a query sees its own key and those before, window keys in all; 0: all of them
  float softcap = 0;         // scores become softcap tanh(score / softcap); 0: they stay
  float* partial = nullptr;  // [partial_rows, head size + 2]
  int64_t partial_rows = 0;
  Encoding blocks = Encoding::kF32;  // of the state; kF32: its type says it
  // Of sequences that begin at this query or behind it, queries and weights are rounded to a state's 16 bits where
  // RoundsToPages().
  int64_t wide_from = std::numeric_limits<int64_t>::max();
};

// Whether states may be kept in these blocks, with heads of this size.
inline bool KeepsBlocks(Encoding blocks, int64_t head_size) {
  return (blocks == Encoding::kQ8_0 || blocks == Encoding::kQ4_0) && head_size % BlockNumbers(blocks) == 0;
}

// Query i of n of a sequence with `length` keys stands at length - n + i and sees the keys up to there. Few queries
// over many keys are cut by ranges of keys into `partial`, which PagedAttentionMerge then puts together; it does
// nothing where that was not so. Errors: OutOfRange where starts, lengths or pages do not fit.
Status PagedAttention(const PagedAttentionArgs& args, std::byte* scratch, int part = 0, int num_parts = 1);
Status PagedAttentionMerge(const PagedAttentionArgs& args, int part = 0, int num_parts = 1);
size_t PagedAttentionScratchBytes(const PagedAttentionArgs& args);
// How many rows of `partial` are worth having.
int64_t PartialRows(int64_t query_heads, int64_t heads, int64_t head_size, int64_t most_keys, int num_parts);

// Whether sequences from wide_from on may be rounded so, of a state of this type: where tiles multiply it, and in bf16
// where vectors of 64 bytes do, no slower than floats.
bool RoundsToPages(DType state);

// The same in scalar code and float64.
Status PagedAttentionReference(const PagedAttentionArgs& args);

}  // namespace thresher::kernels
