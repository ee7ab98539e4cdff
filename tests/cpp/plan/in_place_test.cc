// Which results lie where an operand of theirs lay, and that they are what they would be elsewhere.
#include "thresher/plan/in_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "run/test_graphs.h"
#include "thresher/plan/extent.h"
#include "thresher/run/compile.h"
#include "thresher/run/session.h"

namespace thresher {
namespace {

constexpr int64_t kRows = 37, kWidth = 64;

// Steps of this target may write where their operand 1 lies.
class SecondReplaced : public Target {
 public:
  std::string variant() const override { return "test"; }
  bool packs_weights() const override { return false; }
  bool takes_halves() const override { return false; }
  bool chains_take_halves() const override { return false; }
  kernels::RowForm RowsFor(Precision, int64_t, kernels::Variant) const override { return kernels::RowForm::kF32; }
  int Parts(int num_threads) const override { return num_threads; }
  Result<size_t> ScratchBytes(const Step&, const View*, const void*) const override { return size_t{0}; }
  int ReplacedOperand(const Step&) const override { return 1; }
};

// Buffers 0 and 1 are read by step 0, which makes 2, which step 1 reads with 0 and makes the caller's 3 of.
struct Made {
  Plan plan;

  Made() {
    plan.target = std::make_shared<SecondReplaced>();
    plan.buffers.resize(4);
    plan.buffers[3].kind = Buffer::Kind::kOutput;
    Add({0, 1, 2});
    Add({2, 0, 3});
    Mark();
  }
  void Add(const std::vector<int>& buffers) {
    Step step;
    step.num_inputs = static_cast<int>(buffers.size()) - 1;
    for (const int buffer : buffers) {
      TensorRef ref;
      ref.buffer = buffer;
      ref.view = MakeView(nullptr, DType::kF32, {4, 8});
      step.operands.push_back(ref);
    }
    plan.steps.push_back(std::move(step));
  }
  void Mark() {
    for (Buffer& buffer : plan.buffers) buffer.bytes = 128, buffer.first_step = buffer.last_step = -1;
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      for (const TensorRef& ref : plan.steps[s].operands) {
        Buffer& buffer = plan.buffers[static_cast<size_t>(ref.buffer)];
        if (buffer.first_step < 0) buffer.first_step = static_cast<int>(s);
        buffer.last_step = static_cast<int>(s);
      }
    }
  }
  TensorRef& operand(size_t step, size_t i) { return plan.steps[step].operands[i]; }
  std::vector<int> Replaced() const { return ReplacedBuffers(plan); }
};

const std::vector<int> kNone = {-1, -1, -1, -1};

TEST(InPlace, WhatNobodyReadsLaterIsReplaced) {
  Made made;
  EXPECT_EQ(made.Replaced(), (std::vector<int>{-1, -1, 1, -1}));  // 3 is the caller's
  made.plan.buffers[3].kind = Buffer::Kind::kArena;
  made.Add({3, 2, 3});  // reads 2 later than step 0 wrote it: 2 may still replace 1, and 3, made before, not 2
  made.Mark();
  EXPECT_EQ(made.Replaced(), (std::vector<int>{-1, -1, 1, 0}));
}

TEST(InPlace, WhatIsReadOrLiesOtherwiseIsNot) {
  const auto none = [](auto change) {
    Made made;
    change(made);
    return made.Replaced() == kNone;
  };
  // Read once more by a later step, or by the same one, in an order of its own.
  EXPECT_TRUE(none([](Made& m) { m.operand(1, 0).buffer = 1, m.Mark(); }));
  EXPECT_TRUE(none([](Made& m) { m.operand(0, 0).buffer = 1, m.Mark(); }));
  EXPECT_TRUE(none([](Made& m) { m.operand(0, 1).offset = 8; }));
  EXPECT_TRUE(none([](Made& m) { m.operand(0, 2).offset = 8; }));
  EXPECT_TRUE(none([](Made& m) { m.operand(0, 1).view.dtype = DType::kBF16; }));
  EXPECT_TRUE(none([](Made& m) { m.operand(0, 1).view.strides[0] = 16; }));
  EXPECT_TRUE(none([](Made& m) { std::swap(m.operand(0, 1).view.strides[0], m.operand(0, 1).view.strides[1]); }));
  EXPECT_TRUE(none([](Made& m) { m.operand(0, 1).view = MakeView(nullptr, DType::kF32, {8}); }));
  EXPECT_TRUE(none([](Made& m) { m.plan.buffers[1].kind = Buffer::Kind::kInput; }));
  EXPECT_TRUE(none([](Made& m) { m.plan.buffers[1].kind = Buffer::Kind::kConstant; }));
  // Gaps are no obstacle where both have them.
  Made gaps;
  gaps.operand(0, 1).view.strides[0] = gaps.operand(0, 2).view.strides[0] = 16;
  EXPECT_EQ(gaps.Replaced()[2], 1);
}

TEST(InPlace, APlaceIsTakenAsLongAsAnyOfItsBuffers) {
  Made made;
  made.plan.buffers[3].kind = Buffer::Kind::kArena;
  made.plan.buffers[2].replaces = 1;
  made.plan.buffers[3].replaces = 2;
  made.plan.buffers[3].bytes = 256;
  EXPECT_EQ(PlaceOf(made.plan, 3), 1);
  EXPECT_EQ(PlaceOf(made.plan, 0), 0);
  const std::vector<Lifetime> places = LifetimesOfPlaces(made.plan);
  EXPECT_EQ(places[1].first, 0);
  EXPECT_EQ(places[1].last, 1);
  EXPECT_EQ(places[1].bytes, 256);
}

struct Weights {
  std::vector<float> w = RandomFloats(kWidth * kWidth, 2, 0.1f);
  std::vector<float> b = RandomFloats(kWidth, 3);
};

// Three layers, each of which adds to what the last one gave, and a norm of that; `kept`: that is wanted in the end,
// too.
Graph MakeLayers(const Weights& weights, int64_t rows, bool kept) {
  Graph g;
  ValueId x = Must(g.Add1("neg", {g.AddInput("x", DType::kF32, {rows, kWidth})}));
  Constant constant;
  constant.is_weight = true;
  constant.data = weights.w.data();
  const ValueId w = g.AddConstant("w", DType::kF32, {kWidth, kWidth}, constant);
  constant.data = weights.b.data();
  const ValueId b = g.AddConstant("b", DType::kF32, {kWidth}, constant);
  std::vector<ValueId> all;
  for (const char* precision : {"int8", "bf16", "int8"}) {
    const ValueId n = Must(g.Add1("layer_norm", {x, b, b}));
    x = Must(g.Add1("linear", {n, w, b, x}, {{"precision", std::string(precision)}}));
    all.push_back(x);
  }
  all.push_back(Must(g.Add1("layer_norm", {x, b, b})));
  std::vector<ValueId> results;
  for (const ValueId id : all) {
    if (kept || id == all.back()) results.push_back(Must(g.Add1("neg", {id})));
  }
  g.SetOutputs(results);
  return g;
}

std::vector<std::vector<float>> RunLayers(Session& session, int64_t rows, size_t count, Dims sizes = {}) {
  const std::vector<float> x = RandomFloats(rows * kWidth, 9);
  std::vector<std::vector<float>> results(count, std::vector<float>(static_cast<size_t>(rows * kWidth)));
  std::vector<View> outputs;
  for (auto& result : results) outputs.push_back(MakeView(result.data(), DType::kF32, {rows, kWidth}));
  const View input = MakeView(const_cast<float*>(x.data()), DType::kF32, {rows, kWidth});
  const Status status = session.Run(std::vector<View>{input}, outputs, std::move(sizes));
  EXPECT_TRUE(status.ok()) << status.message();
  return results;
}

int64_t CountReplacing(const Plan& plan) {
  return std::count_if(plan.buffers.begin(), plan.buffers.end(), [](const Buffer& b) { return b.replaces >= 0; });
}

class InPlaceRun : public ::testing::Test {
 protected:
  void SetUp() override { setenv("THRESHER_SMALL_PRODUCTS", "always", 1); }
  void TearDown() override { unsetenv("THRESHER_SMALL_PRODUCTS"); }
};

TEST_F(InPlaceRun, ResidualsAreReplacedWithTheSameBits) {
  const Weights weights;
  for (const int threads : {1, 2}) {
    for (const bool kept : {false, true}) {
      std::vector<std::vector<float>> found[2];
      for (const bool share : {false, true}) {
        PlanOptions options;
        options.num_threads = threads;
        options.share_memory = share;
        WeightStore store;
        Session session(Must(BuildPlan(MakeLayers(weights, kRows, kept), store, options)));
        // Where bf16 is widened, its product is one of floats, which keeps to places of its own.
        const int64_t replacing = CountReplacing(session.plan());
        EXPECT_GE(replacing, !share ? 0 : kept ? 1 : 3);
        EXPECT_LE(replacing, !share ? 0 : kept ? 1 : 4);
        found[share] = RunLayers(session, kRows, kept ? 4 : 1);
      }
      EXPECT_EQ(found[0], found[1]) << threads << " threads, kept " << kept;
    }
  }
}

TEST_F(InPlaceRun, PlansForManySizesReplaceThem) {
  const Weights weights;
  std::vector<Graph> graphs;
  for (const int64_t rows : {3, 11, 95}) graphs.push_back(MakeLayers(weights, rows, false));
  std::vector<GraphFamily::Sample> samples;
  for (size_t i = 0; i < 3; ++i) samples.push_back({{i == 0 ? 3 : i == 1 ? 11 : 95}, &graphs[i]});
  const GraphFamily family = Must(GraphFamily::Fit({"rows"}, 1, samples));
  WeightStore store;
  const auto many = Must(CompileExtent(family, store, {}, {5}, {256}));
  EXPECT_GE(CountReplacing(many->plan()), 3);
  SizedPlan sized(std::make_shared<Plan>(many->plan()));
  CompileOptions apart;
  apart.plan.share_memory = false;
  for (const int64_t rows : {256, 5, 64, 33}) {
    ASSERT_TRUE(sized.Set(Dims{rows}).ok());
    for (size_t b = 0; b < many->plan().buffers.size(); ++b) {
      const auto place = static_cast<size_t>(PlaceOf(many->plan(), static_cast<int>(b)));
      EXPECT_EQ(sized.arena_offsets[b], sized.arena_offsets[place]);
    }
    const auto own = Must(Compile(MakeLayers(weights, rows, false), store, apart));
    EXPECT_EQ(RunLayers(*many, rows, 1, {rows}), RunLayers(*own, rows, 1)) << rows;
  }
}

}  // namespace
}  // namespace thresher
