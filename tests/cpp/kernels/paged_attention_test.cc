#include "thresher/kernels/paged_attention.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "thresher/base/half.h"

namespace thresher::kernels {
namespace {

using testing::ExpectClose;
using testing::ForEachIsa;
using testing::RandomFloats;

struct Sequence {
  int64_t queries = 1;
  int64_t length = 1;
};

struct Shape {
  int64_t query_heads = 4;
  int64_t heads = 2;
  int64_t depth = 32;
  int64_t page_tokens = 16;
  DType dtype = DType::kF32;
  int64_t window = 0;
  float softcap = 0;
};

// Pages in an order of their own, those that no sequence has full of NaN, as are the slots behind a sequence's end.
class Case {
 public:
  Case(const Shape& shape, const std::vector<Sequence>& sequences) : shape_(shape) {
    const int64_t width =
        1 + std::accumulate(sequences.begin(), sequences.end(), int64_t{0}, [&](int64_t most, auto& s) {
          return std::max(most, (s.length + shape.page_tokens - 1) / shape.page_tokens);
        });
    const auto count = static_cast<int64_t>(sequences.size());
    std::vector<int32_t> pages(static_cast<size_t>(width * count));
    std::iota(pages.begin(), pages.end(), 0);
    std::mt19937 random(7);
    std::shuffle(pages.begin(), pages.end(), random);
    const int64_t bytes = static_cast<int64_t>(SizeOf(shape.dtype));
    state_.assign(static_cast<size_t>(width * count * shape.heads * 2 * shape.page_tokens * shape.depth * bytes), 0xff);
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
    return args;
  }

  std::vector<int32_t> starts_, lengths_, tables_;
  std::vector<float> q_;

 private:
  void Write(const std::vector<int32_t>& slots, unsigned seed) {
    const auto tokens = static_cast<int64_t>(slots.size());
    std::vector<float> k = RandomFloats(static_cast<size_t>(tokens * shape_.heads * shape_.depth), 10 + seed, -1, 1);
    std::vector<float> v = RandomFloats(k.size(), 50 + seed, -1, 1);
    const Dims shape = {tokens, shape_.heads, shape_.depth};
    for (int part = 0; part < 3; ++part) {
      const KvWriteArgs args{state_view_, MakeView(k.data(), DType::kF32, shape),
                             MakeView(v.data(), DType::kF32, shape), slots.data()};
      EXPECT_TRUE(KvWrite(args, part, 3).ok());
    }
  }

  Shape shape_;
  std::vector<uint8_t> state_;
  View state_view_;
};

void Check(const Shape& shape, const std::vector<Sequence>& sequences) {
  Case c(shape, sequences);
  const std::vector<float> expected = c.Run(1, true);
  ForEachIsa([&] {
    const std::vector<float> one = c.Run(1);
    ExpectClose(one, expected, 2e-5f, 2e-5f);
    // The same bits, whoever does what.
    for (const int parts : {2, 3, 8}) {
      EXPECT_EQ(std::memcmp(c.Run(parts).data(), one.data(), one.size() * sizeof(float)), 0) << parts;
      EXPECT_EQ(std::memcmp(c.Run(parts, false, false).data(), one.data(), one.size() * sizeof(float)), 0) << parts;
    }
  });
}

TEST(PagedAttention, LengthsAtEveryBoundary) {
  std::vector<Sequence> sequences;
  for (const int64_t edge : {1, 16, 32, 256, 512}) {
    for (const int64_t more : {-1, 0, 1}) {
      if (edge + more < 1) continue;
      sequences.push_back({1, edge + more});
      sequences.push_back({edge + more, edge + more});
      sequences.push_back({std::min<int64_t>(edge + more, 5), edge + more});
    }
  }
  Check({}, sequences);
}

TEST(PagedAttention, HeadSizesAndGroups) {
  for (const int64_t depth : {16, 32, 64, 80, 96, 128, 256}) Check({.depth = depth}, {{1, 300}, {7, 40}, {20, 20}});
  for (const int64_t group : {1, 2, 3, 5, 7, 8, 40}) {
    Check({.query_heads = group * 2, .heads = 2}, {{1, 33}, {1, 700}, {9, 300}});
  }
}

TEST(PagedAttention, PagesOf16Bits) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Check({.depth = 64, .page_tokens = 32, .dtype = dtype}, {{1, 600}, {40, 300}, {1, 1}});
  }
}

TEST(PagedAttention, Windows) {
  for (const int64_t window : {1, 5, 16, 100, 256, 1000}) {
    Check({.window = window}, {{1, 700}, {50, 600}, {300, 300}, {1, 257}, {3, 272}});
  }
}

TEST(PagedAttention, Softcap) { Check({.window = 40, .softcap = 2.0f}, {{1, 300}, {30, 70}}); }

// One sequence that decodes is cut by keys; alone or in a batch, its result is the same.
TEST(PagedAttention, TheSameInABatch) {
  Case alone({}, {{1, 900}});
  Case batch({}, {{1, 900}, {17, 30}, {1, 5}});
  std::copy(alone.q_.begin(), alone.q_.end(), batch.q_.begin());
  ForEachIsa([&] {
    const std::vector<float> one = alone.Run(4), all = batch.Run(4);
    EXPECT_EQ(std::memcmp(one.data(), all.data(), one.size() * sizeof(float)), 0);
  });
}

TEST(PagedAttention, SequencesWithoutQueries) { Check({}, {{0, 5}, {2, 20}, {0, 0}, {1, 300}, {0, 1}}); }

TEST(PagedAttention, RefusesWhatDoesNotFit) {
  const auto error = [](auto&& change) {
    Case c({}, {{2, 20}, {1, 40}});
    change(c);
    std::vector<float> out(c.q_.size());
    PagedAttentionArgs args = c.Args(out);
    std::vector<std::byte> scratch(PagedAttentionScratchBytes(args));
    const Status status = PagedAttention(args, scratch.data());
    EXPECT_EQ(status.code(), Code::kOutOfRange);
    return status.message();
  };
  EXPECT_NE(error([](Case& c) { c.tables_[0] = 99; }).find("got 99 as page 0 of sequence 0"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.tables_[1] = -1; }).find("got -1 as page 1 of sequence 0"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.lengths_[1] = 1000; }).find("got 1 and 1000 for sequence 1"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.lengths_[0] = 1; }).find("got 2 and 1 for sequence 0"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.starts_[1] = 5; }).find("sequence 1"), std::string::npos);
  EXPECT_NE(error([](Case& c) { c.starts_[0] = 1; }).find("got 1 to 3"), std::string::npos);
}

TEST(KvWrite, RefusesSlotsBeyondTheState) {
  std::vector<float> state(2 * 1 * 2 * 16 * 16), k(16), v(16);
  std::vector<int32_t> slots = {32};
  const KvWriteArgs args{MakeView(state.data(), DType::kF32, {2, 1, 2, 16, 16}),
                         MakeView(k.data(), DType::kF32, {1, 1, 16}), MakeView(v.data(), DType::kF32, {1, 1, 16}),
                         slots.data()};
  EXPECT_EQ(KvWrite(args).code(), Code::kOutOfRange);
  slots[0] = -1;
  EXPECT_TRUE(KvWrite(args).ok());
  EXPECT_EQ(state, std::vector<float>(state.size(), 0.0f));
}

}  // namespace
}  // namespace thresher::kernels
