// Keys and values of new tokens, put into the pages of a state (kernels/paged_attention.h).
#pragma once

#include <cstdint>

#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/paged_attention.h"

namespace thresher::cuda {

// A warp for each token and head.
struct KvWriteKernel {
  static constexpr int kMostThreads = kWarp * kRowsPerBlock;
  RowsOf k, v;  // [1, heads, tokens, head size]
  char* state;
  DType dtype;                                    // of the state
  int64_t page_stride, head_stride, part_stride;  // in elements
  const int32_t* slots;
  int64_t tokens, num_slots;
  int heads, page_tokens, depth;

  // A slot that the state does not have takes nothing, as one below 0.
  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    constexpr int kPanel = static_cast<int>(kernels::kPanelTokens);
    ForEachRow<true>(t, tokens * heads, [&](int64_t row) {
      const int64_t token = row / heads, head = row % heads, slot = slots[token];
      if (slot < 0 || slot >= num_slots) return;
      const int64_t at = slot % page_tokens;
      const int64_t part = slot / page_tokens * page_stride + head * head_stride;
      const int64_t key = part + at / kPanel * kPanel * depth + at % kPanel;
      const int64_t value = part + part_stride + at * depth;
      for (int i = t.x(); i < depth; i += kWarp) {
        StoreElement(state, dtype, key + int64_t{i} * kPanel, LoadElement(k.Row(0, head, token), k.dtype, i));
        StoreElement(state, dtype, value + i, LoadElement(v.Row(0, head, token), v.dtype, i));
      }
    });
  }
};

}  // namespace thresher::cuda
