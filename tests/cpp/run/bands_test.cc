// Steps that are computed band by band: the same bits in less memory, wherever bands begin.
#include "thresher/plan/bands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/for_each_isa.h"
#include "run/test_graphs.h"
#include "run/two_threads.h"
#include "thresher/plan/builder.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/session.h"

namespace thresher {
namespace {

using kernels::ForEachIsa;
using kernels::ForEachIsaAndPlainTiles;

constexpr int64_t kChannels = 5, kWide = 24;

struct Case {
  std::string about;
  Dims picture;  // batch, height, width
  int64_t kernel = 3, stride = 1, dilation = 1;
  Dims padding = {1, 1};
  int64_t groups = kWide;
  bool residual = false;  // x is added to the result, where sizes allow
  bool norm = false;      // in front of the last product
  int64_t times = 1;      // the memory, for weights
};

// x -> 1x1 -> convolution of lines -> norm -> 1x1 + x.
Graph MakeBlock(const Case& c, const std::string& precision = "fp32") {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {c.picture[0], c.picture[1], c.picture[2], kChannels});
  const ValueId copy = Must(g.Add1("relu", {x}, {}));
  const auto linear = [&](ValueId from, int64_t k, int64_t n, uint32_t seed, ValueId added) {
    const ValueId bias = AddF32(g, "b" + std::to_string(seed), {n}, RandomFloats(n, seed + 50));
    return Must(g.Add1("linear", {from, AddWeight(g, {n, k}, seed), bias, added},
                       {{"activation", std::string("relu")}, {"precision", precision}}));
  };
  ValueId y = linear(copy, kChannels, kWide, 1, kNoValue);
  y = Must(g.Add1("convolution", {y, AddWeight(g, {kWide, kWide / c.groups, c.kernel, c.kernel}, 2)},
                  {{"stride", Dims{c.stride, c.stride}},
                   {"padding", c.padding},
                   {"dilation", Dims{c.dilation, c.dilation}},
                   {"groups", c.groups},
                   {"activation", std::string("relu6")}}));
  if (c.norm) {
    y = Must(g.Add1("layer_norm", {y, AddWeight(g, {kWide}, 3), AddWeight(g, {kWide}, 4)}, {}));
  }
  const bool added = c.residual && g.value(y).shape[1] == c.picture[1] && g.value(y).shape[2] == c.picture[2];
  EXPECT_EQ(added, c.residual);
  g.SetOutputs({linear(y, kWide, kChannels, 5, added ? copy : kNoValue)});
  return g;
}

std::shared_ptr<const Plan> PlanFor(const Graph& g, int64_t cache_bytes, int threads) {
  WeightStore weights;
  PlanOptions options;
  options.num_threads = threads;
  options.cache = {.bytes = cache_bytes, .price = 0};  // as many steps as can be
  return Must(BuildPlan(g, weights, options));
}

std::vector<float> RunOnce(const Graph& g, Session& session) {
  const Dims& in = g.value(g.inputs()[0]).shape;
  const Dims& out = g.value(g.outputs()[0]).shape;
  std::vector<float> x = RandomFloats(NumElements(in), 7);
  std::vector<float> y(static_cast<size_t>(NumElements(out)));
  const Status status = session.Run(std::vector<View>{MakeView(x.data(), DType::kF32, in)},
                                    std::vector<View>{MakeView(y.data(), DType::kF32, out)});
  EXPECT_TRUE(status.ok()) << status.message();
  return y;
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {.about = "lines of 3 taps", .picture = {1, 37, 23}},
      {.about = "with a residual", .picture = {1, 37, 23}, .residual = true},
      {.about = "pictures", .picture = {3, 23, 27}, .residual = true},
      {.about = "strided", .picture = {2, 41, 19}, .stride = 2},
      {.about = "5 taps, strided", .picture = {1, 40, 25}, .kernel = 5, .stride = 2, .padding = {2, 2}},
      {.about = "more padding above", .picture = {1, 31, 21}, .kernel = 4, .padding = {3, 2, 0, 1}},
      {.about = "more padding below", .picture = {1, 31, 21}, .kernel = 4, .padding = {0, 1, 3, 2}},
      {.about = "no padding", .picture = {1, 31, 21}, .padding = {0, 0}},
      {.about = "dilated", .picture = {1, 45, 21}, .dilation = 3, .padding = {3, 3}, .residual = true},
      {.about = "groups of 8", .picture = {1, 43, 29}, .groups = 3, .residual = true, .times = 2},
      {.about = "a product of windows", .picture = {2, 75, 53}, .stride = 2, .groups = 1, .times = 3},
      {.about = "1x1 by strides", .picture = {1, 60, 19}, .kernel = 1, .stride = 2, .padding = {0, 0}, .groups = 1},
      {.about = "with a norm", .picture = {1, 37, 23}, .residual = true, .norm = true},
  };
  return cases;
}

TEST(Bands, ResultsHaveTheSameBits) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.about);
    const Graph g = MakeBlock(c);
    ForEachIsa([&] {
      Session whole(PlanFor(g, 0, 1));
      EXPECT_TRUE(whole.plan().bands.empty());
      const std::vector<float> expected = RunOnce(g, whole);
      int banded = 0;  // where lines that two bands want are too dear, there are none
      for (const int threads : {1, 2}) {
        for (const int64_t cache_bytes : {32 << 10, 48 << 10, 80 << 10}) {
          Session session(PlanFor(g, c.times * cache_bytes, threads));
          if (session.plan().bands.empty()) continue;
          ++banded;
          EXPECT_LT(session.plan().arena_bytes, whole.plan().arena_bytes);
          EXPECT_EQ(RunOnce(g, session), expected) << threads << " threads, " << cache_bytes;
        }
      }
      EXPECT_GE(banded, 3);
    });
  }
}

// Rows that are converted within a band, have scales behind them, or are stored as bf16 by who makes them.
TEST(Bands, ResultsOfSmallNumbersHaveTheSameBits) {
  for (const char* precision : {"bf16", "int8"}) {
    for (const Case& c : Cases()) {
      SCOPED_TRACE(std::string(precision) + ", " + c.about);
      const Graph g = MakeBlock(c, precision);
      ForEachIsaAndPlainTiles([&] {
        Session whole(PlanFor(g, 0, 1));
        const std::vector<float> expected = RunOnce(g, whole);
        int banded = 0, converted = 0;
        for (const int threads : {1, 2}) {
          for (const int64_t cache_bytes : {16 << 10, 24 << 10, 32 << 10, 48 << 10, 80 << 10}) {
            Session session(PlanFor(g, c.times * cache_bytes, threads));
            for (const Bands& bands : session.plan().bands) {
              ++banded;
              for (size_t s = bands.first; s < bands.end(); ++s) {
                converted += session.plan().steps[s].kernel == KernelId::kConvertRows;
              }
            }
            EXPECT_EQ(RunOnce(g, session), expected) << threads << " threads, " << cache_bytes;
          }
        }
        EXPECT_GE(banded, 3);
        if (std::string(precision) == "int8" && c.groups == kWide) {
          EXPECT_GE(converted, 1);
        }
      });
    }
  }
}

// Scales of rows lie behind all of them: what quantises rows does not end a band, and what reads them begins none.
TEST(Bands, ScalesOfRowsStayWithThem) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {4096, kWide});
  const std::string precision = "int8";
  const ValueId y = Must(g.Add1("linear", {x, AddWeight(g, {kWide, kWide}, 1)}, {}));
  const ValueId z = Must(g.Add1("linear", {y, AddWeight(g, {512, kWide}, 2)}, {{"precision", precision}}));
  g.SetOutputs({Must(g.Add1("linear", {z, AddWeight(g, {kWide, 512}, 3)}, {{"precision", precision}}))});
  ForEachIsa([&] {
    int found = 0;
    Session whole(PlanFor(g, 0, 1));
    const std::vector<float> expected = RunOnce(g, whole);
    // The last one is left by y, but not by its rows in int8.
    for (const int64_t cache_bytes : {32 << 10, 64 << 10, 128 << 10, 256 << 10, 1400 << 10}) {
      Session session(PlanFor(g, cache_bytes, 1));
      const Plan& plan = session.plan();
      for (const Bands& bands : plan.bands) {
        ++found;
        EXPECT_NE(plan.steps[bands.end() - 1].kernel, KernelId::kConvertRows) << cache_bytes;
        EXPECT_NE(plan.steps[bands.first].kernel, KernelId::kDotProduct) << cache_bytes;
      }
      EXPECT_EQ(RunOnce(g, session), expected) << cache_bytes;
    }
    EXPECT_GE(found, 1);
  });
}

TEST(Bands, HaveLinesThatFitTheCache) {
  const Graph g = MakeBlock({.about = "a block", .picture = {2, 61, 11}, .residual = true});
  int64_t before = 62;
  for (const int64_t cache_bytes : {128 << 10, 64 << 10, 40 << 10}) {
    const auto plan = PlanFor(g, cache_bytes, 1);
    ASSERT_EQ(plan->bands.size(), 1u);
    const Bands& bands = plan->bands[0];
    EXPECT_EQ(bands.steps.size(), 3u);
    EXPECT_LT(bands.bytes - bands.kernel_bytes, cache_bytes / 2);
    EXPECT_LT(bands.lines, before);
    before = bands.lines;
    EXPECT_EQ(bands.count(), 2 * bands.in_picture);
    EXPECT_EQ(plan->steps[bands.first].parts, bands.count());
    EXPECT_GE(plan->scratch_bytes, bands.bytes);
    int64_t kept = 0;
    for (const Buffer& buffer : plan->buffers) kept += buffer.kind == Buffer::Kind::kBand;
    EXPECT_EQ(kept, 2);
    const std::vector<bool> banded = BandedSteps(*plan);
    EXPECT_EQ(std::count(banded.begin(), banded.end(), true), 3);
  }
  // Of no use: all fits.
  EXPECT_TRUE(PlanFor(g, 16 << 20, 1)->bands.empty());
  // Of no use: weights alone fill it.
  EXPECT_TRUE(PlanFor(g, 2 << 10, 1)->bands.empty());
}

TEST(Bands, AreWhatGainsMostInAll) {
  // Two blocks, one after the other: what lies between them is small, and lines of the second want many of the first.
  Graph g;
  ValueId y = g.AddInput("x", DType::kF32, {1, 64, 256, kChannels});
  y = Must(g.Add1("relu", {y}, {}));
  for (const uint32_t seed : {1u, 2u}) {
    y = Must(g.Add1("linear", {y, AddWeight(g, {kWide, kChannels}, seed)}));
    y = Must(g.Add1("convolution", {y, AddWeight(g, {kWide, 1, 9, 9}, seed + 2)},
                    {{"stride", Dims{1, 1}}, {"padding", Dims{4, 4}}, {"dilation", Dims{1, 1}}, {"groups", kWide}}));
    y = Must(g.Add1("linear", {y, AddWeight(g, {kChannels, kWide}, seed + 4)}));
  }
  g.SetOutputs({y});
  WeightStore weights;
  const auto banded = [&](double price) {
    PlanOptions options;
    options.cache = {.bytes = 3 << 20, .share_of_result = 0.02, .far_bytes_per_ns = 1, .price = price};
    const auto plan = Must(BuildPlan(g, weights, options));
    std::vector<size_t> sizes;
    for (const Bands& bands : plan->bands) sizes.push_back(bands.steps.size());
    return sizes;
  };
  EXPECT_EQ(banded(0), std::vector<size_t>({6}));
  EXPECT_EQ(banded(3), std::vector<size_t>({3, 3}));
}

TEST(Bands, RowsAloneAreBandsToo) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {3, 211, kWide});
  const ValueId hidden =
      Must(g.Add1("linear", {x, AddWeight(g, {96, kWide}, 1)}, {{"activation", std::string("gelu")}}));
  g.SetOutputs({Must(g.Add1("linear", {hidden, AddWeight(g, {kWide, 96}, 2), kNoValue, x}, {}))});
  Session whole(PlanFor(g, 0, 1));
  for (const int threads : {1, 2}) {
    Session session(PlanFor(g, 128 << 10, threads));
    ASSERT_EQ(session.plan().bands.size(), 1u);
    EXPECT_EQ(session.plan().bands[0].steps[0].lines.lines, 3 * 211);
    EXPECT_EQ(RunOnce(g, session), RunOnce(g, whole));
  }
}

// What somebody else reads, too, or the caller, is written as a whole.
TEST(Bands, WhatOthersReadIsWhole) {
  for (const bool output : {false, true}) {
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {1, 64, 16, kWide});
    const ValueId y = Must(g.Add1("linear", {x, AddWeight(g, {kWide, kWide}, 1)}, {}));
    const ValueId z = Must(g.Add1("linear", {y, AddWeight(g, {kWide, kWide}, 2)}, {}));
    if (output) {
      g.SetOutputs({z, y});
    } else {
      g.SetOutputs({Must(g.Add1("mul", {z, y}, {}))});
    }
    EXPECT_TRUE(PlanFor(g, 64 << 10, 1)->bands.empty()) << output;
  }
}

// A buffer that the first step of a band reads is not given to what the last step of the band before writes.
TEST(Bands, WhatBandsReadLivesUntilTheLast) {
  const Graph g = MakeBlock({.about = "a block", .picture = {1, 37, 11}});
  const auto plan = PlanFor(g, 48 << 10, 1);
  ASSERT_EQ(plan->bands.size(), 1u);
  const Bands& bands = plan->bands[0];
  const int last = static_cast<int>(bands.end()) - 1;
  for (size_t s = bands.first; s < bands.end(); ++s) {
    for (const TensorRef& ref : plan->steps[s].operands) {
      if (ref.buffer < 0) continue;
      EXPECT_GE(plan->buffers[static_cast<size_t>(ref.buffer)].last_step, last);
      EXPECT_LE(plan->buffers[static_cast<size_t>(ref.buffer)].first_step, static_cast<int>(bands.first));
    }
  }
}

TEST(Bands, EveryStepHasItsRecord) {
  for (const int threads : {1, 2}) {
    const Graph g = MakeBlock({.about = "a block", .picture = {2, 61, 31}, .residual = true});
    Session session(PlanFor(g, 128 << 10, threads));
    ASSERT_EQ(session.plan().bands.size(), 1u);
    RunOnce(g, session);
    profile::Reset();
    profile::Start();
    RunOnce(g, session);
    profile::Stop();
    std::vector<profile::Record> steps;
    for (const profile::PlacedRecord& placed : profile::Records()) {
      if (placed.record.kind == profile::Kind::kOp) steps.push_back(placed.record);
    }
    std::ranges::sort(steps, {}, &profile::Record::correlation);
    ASSERT_EQ(steps.size(), session.plan().steps.size());
    for (size_t s = 0; s < steps.size(); ++s) {
      EXPECT_EQ(steps[s].site, session.plan().steps[s].site);
      EXPECT_LT(steps[s].start_ns, steps[s].end_ns) << s;
      if (s > 0) {
        EXPECT_EQ(steps[s].start_ns, steps[s - 1].end_ns) << s;
      }
    }
    profile::Reset();
  }
}

}  // namespace
}  // namespace thresher
