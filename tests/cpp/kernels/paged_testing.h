// Sequences whose keys and values lie in pages of a state: what the tests of paged attention share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "thresher/base/half.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/paged_attention.h"

namespace thresher::kernels::testing {

struct Sequence {
  int64_t queries = 1;
  int64_t length = 1;
};

struct PagedShape {
  int64_t query_heads = 4;
  int64_t heads = 2;
  int64_t depth = 32;
  int64_t page_tokens = 16;
  DType dtype = DType::kF32;
  int64_t window = 0;
  float softcap = 0;
  Encoding blocks = Encoding::kF32;
};

// Pages in an order of their own, those that no sequence has full of NaN, as are the slots behind a sequence's end.
class PagedCase {
 public:
  // Keys and values are what they become in the blocks `round_to`.
  PagedCase(const PagedShape& shape, const std::vector<Sequence>& sequences, Encoding round_to = Encoding::kF32)
      : shape_(shape), round_to_(round_to) {
    const int64_t width =
        1 + std::accumulate(sequences.begin(), sequences.end(), int64_t{0}, [&](int64_t most, auto& s) {
          return std::max(most, (s.length + shape.page_tokens - 1) / shape.page_tokens);
        });
    const auto count = static_cast<int64_t>(sequences.size());
    std::vector<int32_t> pages(static_cast<size_t>(width * count));
    std::iota(pages.begin(), pages.end(), 0);
    std::mt19937 random(7);
    std::shuffle(pages.begin(), pages.end(), random);
    const int64_t numbers = width * count * shape.heads * 2 * shape.page_tokens * shape.depth;
    const Encoding kept = IsBlocked(shape.blocks) ? shape.blocks : *EncodingOf(shape.dtype);
    state_.assign(static_cast<size_t>(EncodedBytes(kept, numbers)), 0xff);
    state_view_ = MakeView(state_.data(), shape.dtype, {width * count, shape.heads, 2, shape.page_tokens, shape.depth});
    starts_ = {0};
    tables_.assign(static_cast<size_t>(width * count), -1);
    for (int64_t s = 0; s < count; ++s) {
      const Sequence& sequence = sequences[static_cast<size_t>(s)];
      starts_.push_back(starts_.back() + static_cast<int32_t>(sequence.queries));
      lengths_.push_back(static_cast<int32_t>(sequence.length));
      std::vector<int32_t> slots;
      for (int64_t t = 0; t < sequence.length; ++t) {
        int32_t& page = tables_[static_cast<size_t>(s * width + t / shape.page_tokens)];
        if (page < 0) page = pages[static_cast<size_t>(s * width + t / shape.page_tokens)];
        slots.push_back(static_cast<int32_t>(page * shape.page_tokens + t % shape.page_tokens));
      }
      Write(slots, static_cast<unsigned>(s));
      const int64_t first = sequence.length - sequence.queries - shape.window + 1;
      for (int64_t p = 0; shape.window > 0 && (p + 1) * shape.page_tokens <= first; ++p) {
        tables_[static_cast<size_t>(s * width + p)] = -1;  // given back
      }
    }
    q_ = RandomFloats(static_cast<size_t>(starts_.back() * shape.query_heads * shape.depth), 3, -2, 2);
  }

  std::vector<float> Run(int parts, bool reference = false, bool cut = true) {
    std::vector<float> out(q_.size(), -7);
    PagedAttentionArgs args = Args(out);
    std::vector<float> partial;
    args.partial_rows =
        cut ? PartialRows(shape_.query_heads, shape_.heads, shape_.depth, args.table_width * shape_.page_tokens, parts)
            : 0;
    partial.resize(static_cast<size_t>(args.partial_rows * (shape_.depth + 2)));
    args.partial = partial.data();
    if (reference) {
      EXPECT_TRUE(PagedAttentionReference(args).ok());
      return out;
    }
    std::vector<std::byte> scratch(PagedAttentionScratchBytes(args));
    for (int part = 0; part < parts; ++part) {
      const Status status = PagedAttention(args, scratch.data(), part, parts);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    for (int part = 0; part < parts; ++part) EXPECT_TRUE(PagedAttentionMerge(args, part, parts).ok());
    return out;
  }

  PagedAttentionArgs Args(std::vector<float>& out) {
    PagedAttentionArgs args;
    args.state = state_view_;
    args.q = MakeView(q_.data(), DType::kF32, {starts_.back(), shape_.query_heads, shape_.depth});
    args.out = args.q;
    args.out.data = out.data();
    args.starts = starts_.data();
    args.lengths = lengths_.data();
    args.tables = tables_.data();
    args.sequences = static_cast<int64_t>(lengths_.size());
    args.table_width = static_cast<int64_t>(tables_.size() / lengths_.size());
    args.scale = 0.3f;
    args.window = shape_.window;
    args.softcap = shape_.softcap;
    args.blocks = shape_.blocks;
    args.wide_from = wide_from_;
    return args;
  }

  const PagedShape& shape() const { return shape_; }
  View state() const { return state_view_; }

  std::vector<int32_t> starts_, lengths_, tables_;
  std::vector<float> q_;
  int64_t wide_from_ = PagedAttentionArgs().wide_from;

 private:
  void Write(const std::vector<int32_t>& slots, unsigned seed) {
    const auto tokens = static_cast<int64_t>(slots.size());
    std::vector<float> k = RandomFloats(static_cast<size_t>(tokens * shape_.heads * shape_.depth), 10 + seed, -1, 1);
    std::vector<float> v = RandomFloats(k.size(), 50 + seed, -1, 1);
    if (round_to_ != Encoding::kF32) {
      for (std::vector<float>* const x : {&k, &v}) {
        std::vector<uint8_t> bytes(x->size() * 2);
        const auto count = static_cast<int64_t>(x->size());
        EXPECT_TRUE(EncodeNumbers(round_to_, x->data(), count, 32, bytes.data()).ok());
        DecodeNumbers(round_to_, bytes.data(), count, x->data());
      }
    }
    const Dims shape = {tokens, shape_.heads, shape_.depth};
    for (int part = 0; part < 3; ++part) {
      const KvWriteArgs args{state_view_, MakeView(k.data(), DType::kF32, shape),
                             MakeView(v.data(), DType::kF32, shape), slots.data(), shape_.blocks};
      EXPECT_TRUE(KvWrite(args, part, 3).ok());
    }
  }

  PagedShape shape_;
  Encoding round_to_;
  std::vector<uint8_t> state_;
  View state_view_;
};

}  // namespace thresher::kernels::testing
