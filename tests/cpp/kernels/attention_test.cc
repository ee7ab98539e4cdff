#include "thresher/kernels/attention.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/base.h"
#include "kernels/float_testing.h"
#include "thresher/base/half.h"
#include "thresher/kernels/gemm_dot.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::ExpectClose;
using testing::ForEachIsaAndPlainTiles;
using testing::RandomFloats;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, depth = 1, out_depth = 0;
  bool causal = false;
  // true: [B, S, H, D] in memory, as a projection leaves it; false: [B, H, S, D].
  bool heads_inside = false;
  int num_parts = 1;
};

View Tensor(std::vector<float>& data, int64_t b, int64_t h, int64_t s, int64_t d, bool heads_inside) {
  if (!heads_inside) return MakeView(data.data() + 1, DType::kF32, {b, h, s, d});
  View view = MakeView(data.data() + 1, DType::kF32, {b, s, h, d});
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.strides[1], view.strides[2]);
  return view;
}

void Check(Case c, const View& mask = {}) {
  if (c.out_depth == 0) c.out_depth = c.depth;
  SCOPED_TRACE("B " + std::to_string(c.batch) + " H " + std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) +
               " Sq " + std::to_string(c.queries) + " Skv " + std::to_string(c.keys) + " D " + std::to_string(c.depth) +
               " Dv " + std::to_string(c.out_depth) + " causal " + std::to_string(c.causal) + " parts " +
               std::to_string(c.num_parts));
  const auto floats = [](int64_t count) { return static_cast<size_t>(count + 1); };
  std::vector<float> q = RandomFloats(floats(c.batch * c.heads * c.queries * c.depth), 1, -2.0f, 2.0f);
  std::vector<float> k = RandomFloats(floats(c.batch * c.kv_heads * c.keys * c.depth), 2, -2.0f, 2.0f);
  std::vector<float> v = RandomFloats(floats(c.batch * c.kv_heads * c.keys * c.out_depth), 3);
  std::vector<float> expected(floats(c.batch * c.heads * c.queries * c.out_depth), 9.0f);
  SdpaArgs args;
  args.q = Tensor(q, c.batch, c.heads, c.queries, c.depth, c.heads_inside);
  args.k = Tensor(k, c.batch, c.kv_heads, c.keys, c.depth, c.heads_inside);
  args.v = Tensor(v, c.batch, c.kv_heads, c.keys, c.out_depth, c.heads_inside);
  args.out = Tensor(expected, c.batch, c.heads, c.queries, c.out_depth, c.heads_inside);
  args.mask = mask;
  args.scale = 1.0f / std::sqrt(static_cast<float>(c.depth));
  args.causal = c.causal;
  SdpaReference(args);
  const auto run = [&](SdpaArgs own, const std::vector<float>& wanted, float tolerance) {
    std::vector<float> actual(wanted.size(), 9.0f);
    own.out = Tensor(actual, c.batch, c.heads, c.queries, c.out_depth, c.heads_inside);
    for (int part = 0; part < c.num_parts; ++part) {
      AlignedFloats scratch(SdpaScratchBytes(own) / sizeof(float));
      // Whatever was in the scratch memory must not matter.
      std::fill_n(scratch.data(), SdpaScratchBytes(own) / sizeof(float), std::numeric_limits<float>::quiet_NaN());
      Sdpa(own, scratch.data(), part, c.num_parts);
    }
    ExpectClose(actual, wanted, tolerance);
  };
  ForEachIsaAndPlainTiles([&] { run(args, expected, 3e-6f); });

  // In bf16, against the reference on rounded operands: what is left is the rounding of the weights, 2^-9 of each, and
  // they add up to 1 and multiply numbers up to 1.
  for (std::vector<float>* operand : {&q, &k, &v}) {
    for (float& x : *operand) x = hwy::F32FromBF16(hwy::BF16FromF32(x));
  }
  SdpaReference(args);
  SdpaArgs halved = args;
  halved.precision = Precision::kBf16;
  ForEachIsaAndPlainTiles([&] { run(halved, expected, 4e-3f); });

  // In fp16 likewise, where there are tiles of it.
  for (std::vector<float>* operand : {&q, &k, &v}) {
    for (float& x : *operand) x = ToFloat(ToF16(x * 1.01f));
  }
  SdpaReference(args);
  halved.precision = Precision::kFp16;
  ForEachIsaAndPlainTiles([&] {
    if (isa::HasF16Tiles()) run(halved, expected, 6e-4f);
  });
}

// [B, H, S, D] of halves in rows of `columns` for each of B and S, of which the heads begin at `column`.
View Stored(std::vector<BF16>& rows, int64_t b, int64_t h, int64_t s, int64_t d, int64_t columns, int64_t column) {
  View view = MakeView(rows.data() + column, DType::kBF16, {b, h, s, d});
  view.strides[0] = s * columns;
  view.strides[1] = d;
  view.strides[2] = columns;
  return view;
}

// Operands and results that are stored as bf16 give the bits that the same numbers in fp32 do.
TEST(SdpaTest, StoredBf16IsWhatFloatsBecome) {
  struct Sizes {
    int64_t batch, heads, kv_heads, queries, depth, out_depth;
  };
  for (const auto& [batch, heads, kv_heads, queries, depth, out_depth] :
       {Sizes{2, 3, 3, 37, 32, 32}, Sizes{1, 4, 2, 70, 64, 64}, Sizes{1, 2, 2, 1, 6, 10},
        Sizes{2, 2, 1, 130, 80, 34}}) {
    SCOPED_TRACE("depth " + std::to_string(depth) + " queries " + std::to_string(queries));
    const int64_t k_at = heads * depth, v_at = k_at + kv_heads * depth, columns = v_at + kv_heads * out_depth + 2;
    const std::vector<float> floats = RandomFloats(static_cast<size_t>(batch * queries * columns), 5, -2.0f, 2.0f);
    std::vector<BF16> halves(floats.size());
    std::vector<float> wide(floats.size());
    for (size_t i = 0; i < floats.size(); ++i) {
      halves[i] = ToBF16(floats[i]);
      wide[i] = ToFloat(halves[i]);
    }
    SdpaArgs stored;
    stored.q = Stored(halves, batch, heads, queries, depth, columns, 0);
    stored.k = Stored(halves, batch, kv_heads, queries, depth, columns, k_at);
    stored.v = Stored(halves, batch, kv_heads, queries, out_depth, columns, v_at);
    stored.scale = 0.2f;
    stored.precision = Precision::kBf16;
    SdpaArgs plain = stored;
    for (View* view : {&plain.q, &plain.k, &plain.v}) {
      view->data = wide.data() + (view->as<BF16>() - halves.data());
      view->dtype = DType::kF32;
    }
    const int64_t out_columns = heads * out_depth + 4;
    const auto run = [](const SdpaArgs& args) {
      AlignedFloats scratch(SdpaScratchBytes(args) / sizeof(float));
      Sdpa(args, scratch.data());
    };
    ForEachIsaAndPlainTiles([&] {
      if (!StoresRows(RowForm::kBF16)) return;
      std::vector<BF16> found(static_cast<size_t>(batch * queries * out_columns), ToBF16(7.0f));
      stored.out = Stored(found, batch, heads, queries, out_depth, out_columns, 0);
      run(stored);
      std::vector<float> wanted(found.size(), 7.0f);
      plain.out = stored.out;
      plain.out.data = wanted.data();
      plain.out.dtype = DType::kF32;
      run(plain);
      for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(ToFloat(found[i]), ToFloat(ToBF16(wanted[i]))) << i;
    });
  }
}

View Broadcast(void* data, DType dtype, int64_t b, int64_t h, int64_t sq, int64_t skv, std::vector<int64_t> strides) {
  View view;
  view.data = data;
  view.dtype = dtype;
  view.rank = 4;
  const int64_t shape[4] = {b, h, sq, skv};
  for (int i = 0; i < 4; ++i) {
    view.shape[i] = shape[i];
    view.strides[i] = strides[static_cast<size_t>(i)];
  }
  return view;
}

TEST(SdpaTest, OddSizes) {
  for (const int64_t queries : {1, 2, 5, 6, 7, 13, 50}) {
    for (const int64_t keys : {1, 3, 8, 17, 40}) {
      Check({.queries = queries, .keys = keys, .depth = 9, .out_depth = 11});
    }
  }
}

TEST(SdpaTest, EveryDepth) {
  for (int64_t depth = 1; depth <= 40; ++depth) Check({.queries = 9, .keys = 21, .depth = depth});
  for (const int64_t depth : {64, 80, 128}) Check({.queries = 9, .keys = 21, .depth = depth});
}

// What fp16 does not hold is scaled down, and its results up again.
TEST(SdpaTest, LargeNumbersOfF16) {
  constexpr int64_t kQueries = 19, kKeys = 37, kDepth = 24;
  for (const float size : {1.0f, 1e6f}) {
    std::vector<float> q = RandomFloats(kQueries * kDepth, 1), k = RandomFloats(kKeys * kDepth, 2),
                       v = RandomFloats(kKeys * kDepth, 3);
    for (size_t i = 0; i < q.size(); ++i) q[i] *= i / kDepth % 3 == 0 ? size : 1.0f;
    for (float& x : k) x *= size;
    for (float& x : v) x *= size;
    std::vector<float> expected(q.size()), actual(q.size());
    SdpaArgs args;
    args.q = MakeView(q.data(), DType::kF32, {1, 1, kQueries, kDepth});
    args.k = MakeView(k.data(), DType::kF32, {1, 1, kKeys, kDepth});
    args.v = MakeView(v.data(), DType::kF32, {1, 1, kKeys, kDepth});
    args.out = MakeView(expected.data(), DType::kF32, {1, 1, kQueries, kDepth});
    args.scale = 0.5f / (size * size);
    SdpaReference(args);
    args.out.data = actual.data();
    args.precision = Precision::kFp16;
    ForEachIsaAndPlainTiles([&] {
      if (!isa::HasF16Tiles()) return;
      AlignedFloats scratch(SdpaScratchBytes(args) / sizeof(float));
      Sdpa(args, scratch.data());
      ExpectClose(actual, expected, 2e-3f * size);
    });
  }
}

TEST(SdpaTest, EncoderShape) {
  Check({.batch = 2, .heads = 3, .kv_heads = 3, .queries = 128, .keys = 128, .depth = 32});
}

TEST(SdpaTest, SeveralBlocksOfKeys) {
  for (const int64_t keys : {512, 513, 1100}) {
    Check({.queries = 20, .keys = keys, .depth = 16});
    Check({.queries = keys, .keys = keys, .depth = 8, .causal = true});
  }
}

TEST(SdpaTest, CausalIsAlignedTopLeft) {
  for (const int64_t queries : {1, 5, 37}) {
    for (const int64_t keys : {1, 4, 37, 60}) Check({.queries = queries, .keys = keys, .depth = 16, .causal = true});
  }
}

TEST(SdpaTest, GroupedHeadsAndStrides) {
  for (const bool heads_inside : {false, true}) {
    Check(
        {.batch = 2, .heads = 6, .kv_heads = 2, .queries = 10, .keys = 19, .depth = 24, .heads_inside = heads_inside});
    Check({.batch = 2,
           .heads = 4,
           .kv_heads = 1,
           .queries = 10,
           .keys = 19,
           .depth = 24,
           .causal = true,
           .heads_inside = heads_inside});
  }
}

TEST(SdpaTest, Parts) {
  for (const int parts : {2, 3, 8}) {
    Check({.batch = 2, .heads = 3, .kv_heads = 3, .queries = 70, .keys = 40, .depth = 16, .num_parts = parts});
  }
}

TEST(SdpaTest, FloatMasks) {
  const Case c{.batch = 2, .heads = 2, .kv_heads = 2, .queries = 15, .keys = 29, .depth = 16};
  std::vector<float> mask = RandomFloats(2 * 2 * 15 * 29 + 1, 8, -5.0f, 5.0f);
  for (size_t i = 0; i < mask.size(); i += 7) mask[i] = -kInf;
  void* data = mask.data() + 1;
  Check(c, Broadcast(data, DType::kF32, 2, 2, 15, 29, {2 * 15 * 29, 15 * 29, 29, 1}));
  Check(c, Broadcast(data, DType::kF32, 2, 2, 15, 29, {29, 0, 0, 1}));
  Check(c, Broadcast(data, DType::kF32, 2, 2, 15, 29, {0, 0, 29, 1}));
  Check(c, Broadcast(data, DType::kF32, 2, 2, 15, 29, {0, 15, 1, 0}));
  Check(c, Broadcast(data, DType::kF32, 2, 2, 15, 29, {0, 0, 1, 15}));
}

TEST(SdpaTest, BoolMasks) {
  const Case c{.batch = 2, .heads = 2, .kv_heads = 2, .queries = 15, .keys = 29, .depth = 16};
  std::vector<uint8_t> mask(2 * 15 * 29);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i * 2654435761u % 5 != 0;
  Check(c, Broadcast(mask.data(), DType::kBool, 2, 2, 15, 29, {15 * 29, 0, 29, 1}));
  Check(c, Broadcast(mask.data(), DType::kBool, 2, 2, 15, 29, {29, 0, 0, 1}));
  Check(c, Broadcast(mask.data(), DType::kBool, 2, 2, 15, 29, {0, 0, 1, 15}));
}

TEST(SdpaTest, MasksOverSeveralBlocksOfKeys) {
  const Case c{.queries = 8, .keys = 1100, .depth = 8};
  // Row 0 sees only the last keys, so its maximum is -infinity for whole blocks; row 1 only the first ones.
  std::vector<uint8_t> mask(8 * 1100, 1);
  for (size_t j = 0; j < 1090; ++j) mask[j] = 0;
  for (size_t j = 10; j < 1100; ++j) mask[1100 + j] = 0;
  Check(c, Broadcast(mask.data(), DType::kBool, 1, 1, 8, 1100, {0, 0, 1100, 1}));
}

TEST(SdpaTest, RowsThatSeeNoKeyAreZero) {
  std::vector<uint8_t> mask(4 * 20, 1);
  for (size_t j = 0; j < 20; ++j) mask[2 * 20 + j] = 0;
  const Case c{.queries = 4, .keys = 20, .depth = 8};
  Check(c, Broadcast(mask.data(), DType::kBool, 1, 1, 4, 20, {0, 0, 20, 1}));
  std::vector<float> additive(4 * 20, 0.0f);
  for (size_t j = 0; j < 20; ++j) additive[2 * 20 + j] = -kInf;
  Check(c, Broadcast(additive.data(), DType::kF32, 1, 1, 4, 20, {0, 0, 20, 1}));
  Check({.queries = 3, .keys = 0, .depth = 8});
}

// Additive masks of the lowest float, as Hugging Face models build them: a row of nothing else attends to all keys
// equally.
TEST(SdpaTest, LowestFloatMaskIsUniform) {
  std::vector<float> mask(3 * 20, 0.0f);
  for (size_t j = 0; j < 20; ++j) mask[20 + j] = std::numeric_limits<float>::lowest();
  for (size_t j = 5; j < 20; ++j) mask[40 + j] = std::numeric_limits<float>::lowest();
  Check({.queries = 3, .keys = 20, .depth = 8}, Broadcast(mask.data(), DType::kF32, 1, 1, 3, 20, {0, 0, 20, 1}));
}

// Their exponentials are 0: the maximum has to be one of them, in every block of keys.
TEST(SdpaTest, ScoresFarBelowZero) {
  for (const int64_t keys : {20, 1100}) {
    std::vector<float> mask(static_cast<size_t>(keys), -130.0f);
    Check({.queries = 7, .keys = keys, .depth = 8}, Broadcast(mask.data(), DType::kF32, 1, 1, 7, keys, {0, 0, 0, 1}));
  }
}

TEST(SdpaTest, NanSpoilsItsRowOnly) {
  std::vector<float> mask(3 * 20, 0.0f);
  mask[20 + 4] = std::numeric_limits<float>::quiet_NaN();
  mask[40 + 19] = kInf;
  Check({.queries = 3, .keys = 20, .depth = 8}, Broadcast(mask.data(), DType::kF32, 1, 1, 3, 20, {0, 0, 20, 1}));
}

}  // namespace
}  // namespace thresher::kernels
