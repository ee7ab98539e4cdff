// Results that are stored as rows of bf16, where products multiply such: by tiles of a matrix unit, or by vectors.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "run/test_graphs.h"
#include "run/two_threads.h"
#include "thresher/base/isa.h"

namespace thresher {
namespace {

// The parameter: whether there are tiles.
class StoredRowsOfBf16 : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!(GetParam() ? isa::ForcePlainTiles() : isa::Force("avx512_bf16").ok())) {
      GTEST_SKIP() << "this machine cannot run kAvx512Bf16";
    }
    setenv("THRESHER_SMALL_PRODUCTS", "always", 1);
  }
  void TearDown() override {
    unsetenv("THRESHER_SMALL_PRODUCTS");
    ASSERT_TRUE(isa::Select().ok());
  }
};

// What only products and attention read is stored as they take it, gelu with the digits that are kept.
TEST_P(StoredRowsOfBf16, ProductsStoreWhatTheNextOneTakes) {
  constexpr int64_t kBatch = 2, kTokens = 19, kHeads = 2, kDepth = 32, kWide = kHeads * kDepth;
  const Attrs bf16 = {{"precision", std::string("bf16")}};
  const auto run = [&](bool kept, std::vector<std::string>* names) {
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {kBatch, kTokens, kWide});
    const auto weight = [&](int64_t n, int64_t k, uint32_t seed) {
      return AddF32(g, "w" + std::to_string(seed), {n, k}, RandomFloats(static_cast<size_t>(n * k), seed, 0.1f));
    };
    const ValueId qkv = Must(g.Add1("linear", {x, weight(3 * kWide, kWide, 2)}, bf16));
    std::vector<ValueId> parts;
    for (int64_t i = 0; i < 3; ++i) {
      const ValueId part = Must(g.Add1(
          "slice", {qkv}, {{"dim", int64_t{2}}, {"start", i * kWide}, {"end", (i + 1) * kWide}, {"step", int64_t{1}}}));
      const ValueId heads =
          Must(g.Add1("reshape", {part}, {{"shape", std::vector<int64_t>{kBatch, kTokens, kHeads, kDepth}}}));
      parts.push_back(Must(g.Add1("permute", {heads}, {{"dims", std::vector<int64_t>{0, 2, 1, 3}}})));
    }
    const ValueId heads = Must(g.Add1("sdpa", parts, {{"scale", 0.25}, {"precision", std::string("bf16")}}));
    const ValueId inner = Must(g.Add1("permute", {heads}, {{"dims", std::vector<int64_t>{0, 2, 1, 3}}}));
    const ValueId merged = Must(g.Add1("reshape", {inner}, {{"shape", std::vector<int64_t>{kBatch, kTokens, kWide}}}));
    Attrs gelu = bf16;
    gelu["activation"] = std::string("gelu");
    const ValueId up = Must(g.Add1("linear", {merged, weight(2 * kWide, kWide, 3)}, gelu));
    const ValueId down = Must(g.Add1("linear", {up, weight(kWide, 2 * kWide, 4)}, bf16));
    std::vector<ValueId> results = {down};
    // What others read as well is stored as floats.
    for (const ValueId id : {qkv, merged, up}) {
      if (kept) results.push_back(Must(g.Add1("neg", {id})));
    }
    g.SetOutputs(results);
    PlanOptions options;
    options.num_threads = 2;
    WeightStore weights;
    Session session(Must(BuildPlan(g, weights, options)));
    for (const Step& step : session.plan().steps) names->push_back(step.name);
    std::vector<float> in = RandomFloats(kBatch * kTokens * kWide, 1), out(in.size());
    const std::vector<View> inputs = {MakeView(in.data(), DType::kF32, {kBatch, kTokens, kWide})};
    std::vector<View> outputs = {MakeView(out.data(), DType::kF32, {kBatch, kTokens, kWide})};
    std::vector<float> others[3];
    for (size_t i = 0; kept && i < 3; ++i) {
      const int64_t columns = i == 0 ? 3 * kWide : i == 1 ? kWide : 2 * kWide;
      others[i].resize(static_cast<size_t>(kBatch * kTokens * columns));
      outputs.push_back(MakeView(others[i].data(), DType::kF32, {kBatch, kTokens, columns}));
    }
    const Status status = session.Run(inputs, outputs);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  };
  std::vector<std::string> kept, stored;
  const std::vector<float> expected = run(true, &kept), actual = run(false, &stored);
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 2e-3f) << i;
  EXPECT_EQ(std::count(kept.begin(), kept.end(), "to_bf16"), 3);
  EXPECT_EQ(std::count(stored.begin(), stored.end(), "to_bf16"), 1);  // the graph's input
}

// What a norm makes is rounded once, by the norm, where one product reads it; the same bits as by a step between them.
TEST_P(StoredRowsOfBf16, NormsStoreWhatOneProductTakes) {
  constexpr int64_t kRows = 37, kWide = 64;
  const Attrs bf16 = {{"precision", std::string("bf16")}};
  const auto run = [&](const char* norm, int64_t columns, bool kept, bool residual, std::vector<std::string>* names) {
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {kRows, columns});
    const auto random = [&](const Dims& shape, uint32_t seed) {
      return AddF32(g, "w" + std::to_string(seed), shape,
                    RandomFloats(static_cast<size_t>(NumElements(shape)), seed, 0.1f));
    };
    std::vector<ValueId> operands = {Must(g.Add1("neg", {x})), random({columns}, 2)};
    if (residual) {
      if (std::string(norm) == "layer_norm") operands.push_back(kNoValue);
      operands.push_back(x);
    }
    const ValueId normed = Must(g.Add1(norm, operands, {}));
    const ValueId product = Must(g.Add1("linear", {normed, random({kWide, columns}, 3)}, bf16));
    g.SetOutputs(kept ? std::vector<ValueId>{product, Must(g.Add1("neg", {normed}))} : std::vector<ValueId>{product});
    PlanOptions options;
    options.num_threads = 2;
    WeightStore weights;
    Session session(Must(BuildPlan(g, weights, options)));
    for (const Step& step : session.plan().steps) names->push_back(step.name);
    std::vector<float> in = RandomFloats(static_cast<size_t>(kRows * columns), 1), out(kRows * kWide), other(in.size());
    std::vector<View> outputs = {MakeView(out.data(), DType::kF32, {kRows, kWide})};
    if (kept) outputs.push_back(MakeView(other.data(), DType::kF32, {kRows, columns}));
    const Status status = session.Run(std::vector<View>{MakeView(in.data(), DType::kF32, {kRows, columns})}, outputs);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  };
  for (const char* const norm : {"layer_norm", "rms_norm"}) {
    // Whole lines, and columns behind which zeros would be wanted; then one whose sum waits where the result goes.
    for (const auto& [columns, residual, converted] :
         {std::tuple(int64_t{96}, false, 0), {int64_t{90}, false, 1}, {int64_t{96}, true, 1}}) {
      SCOPED_TRACE(std::string(norm) + " of " + std::to_string(columns));
      std::vector<std::string> kept, stored;
      const std::vector<float> expected = run(norm, columns, true, residual, &kept);
      const std::vector<float> actual = run(norm, columns, false, residual, &stored);
      EXPECT_EQ(actual, expected);
      EXPECT_EQ(std::count(kept.begin(), kept.end(), "to_bf16"), 1);
      EXPECT_EQ(std::count(stored.begin(), stored.end(), "to_bf16"), converted);
    }
  }
}

TEST_P(StoredRowsOfBf16, ConvolutionsStoreWhatTheNextOnesTake) {
  constexpr int64_t kBatch = 2, kSize = 15, kHalf = 8, kFew = 40, kMany = 64;
  const Attrs bf16 = {{"precision", std::string("bf16")}};
  const auto with = [](Attrs attrs, const Attrs& more) {
    attrs.insert(more.begin(), more.end());
    return attrs;
  };
  // `kept`: of the results in between, those that another operator reads as well; all but the first and the one of
  // groups are multiplied in `precision`.
  const auto run_in = [&](const char* precision, const std::vector<bool>& kept, std::vector<Step>* steps) {
    const Attrs narrow = {{"precision", std::string(precision)}};
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {kBatch, kSize, kSize, 3});
    const auto weight = [&](const Dims& shape, uint32_t seed) { return AddWeight(g, shape, seed); };
    const Attrs around = {{"padding", std::vector<int64_t>{1, 1}}};
    const Attrs first = {{"stride", std::vector<int64_t>{2, 2}}, {"activation", std::string("relu6")}};
    const ValueId stem = Must(g.Add1("convolution", {x, weight({kFew, 3, 3, 3}, 2)}, with(with(bf16, around), first)));
    const ValueId own =
        Must(g.Add1("convolution", {stem, weight({kFew, 1, 3, 3}, 3)}, with(around, {{"groups", kFew}})));
    const ValueId wide = Must(g.Add1("linear", {own, weight({kMany, kFew}, 4)}, narrow));
    const ValueId grouped =
        Must(g.Add1("convolution", {wide, weight({kMany, 8, 3, 3}, 8), kNoValue, wide},
                    with(with(bf16, around), {{"groups", kMany / 8}, {"activation", std::string("relu")}})));
    const ValueId inner = Must(g.Add1("convolution", {grouped, weight({kFew, kMany, 3, 3}, 5)},
                                      with(with(narrow, around), {{"activation", std::string("relu")}})));
    const ValueId sum = Must(g.Add1("linear", {inner, weight({kMany, kFew}, 6), kNoValue, wide}, narrow));
    const ValueId last = Must(g.Add1("linear", {sum, weight({kFew, kMany}, 7), kNoValue, stem},
                                     with(narrow, {{"activation", std::string("relu")}, {"residual_first", true}})));
    const std::vector<ValueId> between = {stem, own, wide, inner, sum, grouped};
    std::vector<ValueId> results = {last};
    for (size_t i = 0; i < between.size(); ++i) {
      if (kept[i]) results.push_back(Must(g.Add1("neg", {between[i]})));
    }
    g.SetOutputs(results);
    std::vector<float> in = RandomFloats(kBatch * kSize * kSize * 3, 1);
    const auto out = RunOnTwoThreads(g, {MakeView(in.data(), DType::kF32, {kBatch, kSize, kSize, 3})}, steps);
    EXPECT_EQ(out[0].size(), static_cast<size_t>(kBatch * kHalf * kHalf * kFew));
    return out[0];
  };
  const auto run = [&](const std::vector<bool>& kept, std::vector<Step>* steps) { return run_in("bf16", kept, steps); };
  std::vector<Step> floats, stored, coded;
  const std::vector<float> expected = run(std::vector<bool>(6, true), &floats);
  float most = 0.0f;
  for (const float number : expected) most = std::max(most, std::abs(number));
  ASSERT_GT(most, 1.0f);
  const auto close = [&](const std::vector<float>& actual, float share = 0.01f) {
    for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], share * most) << i;
  };
  close(run(std::vector<bool>(6, false), &stored));
  // Small groups are multiplied by tiles alone: vectors compute these in fp32, and what they read and make stays
  // floats.
  const bool tiles = GetParam();
  EXPECT_EQ(CountSteps(floats, "to_bf16"), tiles ? 6 : 5);
  // The graph's input, and what a window of more than a position covers.
  EXPECT_EQ(CountSteps(stored, "to_bf16"), tiles ? 3 : 2);
  // int8 quantises what is stored so, and finds its range there.
  close(run_in("int8", std::vector<bool>(6, false), &coded), 0.03f);
  const auto is_code = [](const Step& step) { return step.name == "quantize" || step.name == "ranges"; };
  EXPECT_EQ(std::count_if(coded.begin(), coded.end(), is_code), 5);
  const auto of_bf16 = [&](const Step& step) { return is_code(step) && step.operands[0].view.dtype == DType::kBF16; };
  EXPECT_EQ(std::count_if(coded.begin(), coded.end(), of_bf16), tiles ? 5 : 3);
  // What others read as floats stays floats, whatever else is stored.
  for (size_t i = 0; i < 6; ++i) {
    std::vector<bool> kept(6, false);
    kept[i] = true;
    std::vector<Step> steps;
    close(run(kept, &steps));
  }
}

// Inputs in bf16 are multiplied as they lie, results are handed out in bf16 as they are stored: without gaps, also
// where rows are no whole lines.
TEST_P(StoredRowsOfBf16, ProductsTakeAndStoreTheCallersBf16) {
  constexpr int64_t kSize = 9, kFew = 10;
  const auto run = [&](int64_t many_columns, bool kept, std::vector<Step>* steps) {
    Graph g;
    const ValueId x = g.AddInput("x", DType::kBF16, {1, kSize, kSize, kFew});
    const ValueId y = g.AddInput("y", DType::kBF16, {1, kSize, kSize, many_columns});
    const auto weight = [&](const Dims& shape, uint32_t seed) { return AddWeight(g, shape, seed); };
    const auto cast = [&](ValueId id, const char* to) {
      return Must(g.Add1("cast", {id}, {{"dtype", std::string(to)}}));
    };
    const Attrs bf16 = {{"precision", std::string("bf16")}};
    const ValueId wide = cast(x, "f32"), own = cast(y, "f32");
    const ValueId up = Must(g.Add1("linear", {wide, weight({many_columns, kFew}, 2), kNoValue, own}, bf16));
    const ValueId each = Must(g.Add1("convolution", {own, weight({many_columns, 1, 3, 3}, 3)},
                                     {{"groups", many_columns}, {"padding", std::vector<int64_t>{1, 1}}}));
    const ValueId sum = Must(g.Add1("linear", {each, weight({many_columns, many_columns}, 4), kNoValue, up}, bf16));
    const ValueId other = Must(g.Add1("linear", {own, weight({many_columns, many_columns}, 7)}, bf16));
    std::vector<ValueId> results = {cast(up, "bf16"), cast(each, "bf16"), cast(sum, "bf16"), cast(other, "bf16")};
    for (const ValueId id : {wide, own, up, each, sum}) {
      if (kept) results.push_back(Must(g.Add1("neg", {id})));
    }
    g.SetOutputs(results);
    const auto halves = [](int64_t count, uint32_t seed) {
      std::vector<uint16_t> bits;
      for (const float number : RandomFloats(static_cast<size_t>(count), seed)) {
        bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16));
      }
      return bits;
    };
    std::vector<uint16_t> few = halves(kSize * kSize * kFew, 5), many = halves(kSize * kSize * many_columns, 6);
    const std::vector<View> inputs = {MakeView(few.data(), DType::kBF16, {1, kSize, kSize, kFew}),
                                      MakeView(many.data(), DType::kBF16, {1, kSize, kSize, many_columns})};
    const auto out = RunOnTwoThreads(g, inputs, steps);
    std::vector<float> numbers;
    for (size_t i = 0; i < 4; ++i) {
      const auto* const bits = reinterpret_cast<const uint16_t*>(out[i].data());
      for (size_t j = 0; j < out[i].size(); ++j) {
        numbers.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits[j]) << 16));
      }
    }
    return numbers;
  };
  // 24 columns fill no vector of the depthwise one, which stays float there.
  for (const int64_t columns : {64, 48, 24}) {
    SCOPED_TRACE(columns);
    std::vector<Step> floats, stored;
    const std::vector<float> expected = run(columns, true, &floats), actual = run(columns, false, &stored);
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], 0.02f + 0.01f * std::abs(expected[i])) << i;
    }
    EXPECT_EQ(CountSteps(floats, "cast"), 5);
    // Of what a product wants as its own rows as well.
    EXPECT_EQ(CountSteps(stored, "cast"), columns == 24 ? 2 : 1);
    // Rows of the caller's are multiplied where they lie.
    EXPECT_EQ(CountSteps(stored, "to_bf16"), columns == 24 ? 2 : 1);
  }
}

// The greatest of what a convolution stores as bf16 are rows of bf16 for the next product.
TEST_P(StoredRowsOfBf16, PoolsTakeAndStoreThem) {
  const auto run = [&](int64_t channels, bool kept, std::vector<Step>* steps) {
    const Attrs bf16 = {{"precision", std::string("bf16")}};
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {2, 11, 13, 8});
    const ValueId made = Must(g.Add1("convolution", {x, AddWeight(g, {channels, 8, 3, 3}, 2)}, bf16));
    const ValueId most = Must(g.Add1("max_pool", {made},
                                     {{"kernel", std::vector<int64_t>{3, 3}},
                                      {"stride", std::vector<int64_t>{2, 2}},
                                      {"padding", std::vector<int64_t>{1, 1}}}));
    const ValueId last = Must(g.Add1("linear", {most, AddWeight(g, {24, channels}, 3)}, bf16));
    std::vector<ValueId> results = {last};
    if (kept) results.push_back(Must(g.Add1("neg", {made})));
    g.SetOutputs(results);
    std::vector<float> in = RandomFloats(2 * 11 * 13 * 8, 1);
    return RunOnTwoThreads(g, {MakeView(in.data(), DType::kF32, {2, 11, 13, 8})}, steps)[0];
  };
  for (const int64_t channels : {64, 40}) {
    std::vector<Step> floats, stored;
    const std::vector<float> expected = run(channels, true, &floats), actual = run(channels, false, &stored);
    // Rounded before or behind the pool.
    EXPECT_EQ(actual, expected);
    EXPECT_EQ(CountSteps(floats, "to_bf16"), 2);
    // Vectors of bf16 want a multiple of 32 channels.
    EXPECT_EQ(CountSteps(stored, "to_bf16"), channels == 64 ? 1 : 2);
  }
}

INSTANTIATE_TEST_SUITE_P(All, StoredRowsOfBf16, testing::Bool(),
                         [](const auto& param) { return param.param ? "Tiles" : "Vectors"; });

}  // namespace
}  // namespace thresher
