#include "thresher/plan/extent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "run/test_graphs.h"
#include "thresher/plan/memory_planner.h"
#include "thresher/run/compile.h"

namespace thresher {
namespace {

constexpr int64_t kWidth = 32;

// Weights outlive the graphs, as those of a model do.
struct Weights {
  std::vector<float> w = RandomFloats(kWidth * kWidth, 2, 0.1f);
  std::vector<float> b = RandomFloats(kWidth, 3);
};

ValueId AddWeight(Graph& g, const char* name, Dims shape, const std::vector<float>& data) {
  Constant constant;
  constant.data = data.data();
  constant.is_weight = true;
  return g.AddConstant(name, DType::kF32, std::move(shape), constant);
}

// Attention with positions, a mask that hides later keys, a slice, a mean and a softmax over the sequence.
Graph MakeGraph(const Weights& weights, int64_t batch, int64_t length) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {batch, length, kWidth});
  const ValueId w = AddWeight(g, "w", {kWidth, kWidth}, weights.w);
  const ValueId b = AddWeight(g, "b", {kWidth}, weights.b);
  const ValueId h = Must(g.Add1("linear", {x, w, b}, {{"activation", std::string("gelu")}}));
  const ValueId heads = Must(g.Add1("reshape", {h}, {{"shape", Dims{batch, length, 4, 8}}}));
  const ValueId q = Must(g.Add1("permute", {heads}, {{"dims", Dims{0, 2, 1, 3}}}));
  const ValueId at = Must(g.Add1("arange", {}, {{"end", static_cast<double>(length)}, {"dtype", std::string("i64")}}));
  const ValueId rows = Must(g.Add1("reshape", {at}, {{"shape", Dims{length, 1}}}));
  const ValueId mask = Must(g.Add1("ge", {rows, at}));
  const ValueId a = Must(g.Add1("sdpa", {q, q, q, mask}, {{"scale", 0.3}}));
  const ValueId back = Must(g.Add1("permute", {a}, {{"dims", Dims{0, 2, 1, 3}}}));
  const ValueId merged = Must(g.Add1("reshape", {back}, {{"shape", Dims{batch, length, kWidth}}}));
  const ValueId fill = Must(g.Add1("full", {}, {{"shape", Dims{batch, length, kWidth}}, {"value", 0.5}}));
  const ValueId y = Must(g.Add1("mul", {Must(g.Add1("linear", {merged, w, b, x})), fill}));
  const ValueId last = Must(g.Add1("slice", {y}, {{"dim", int64_t{1}}, {"start", length - 2}, {"end", length}}));
  const ValueId mean = Must(g.Add1("mean", {y}, {{"dims", Dims{1}}}));
  const ValueId soft = Must(g.Add1("softmax", {y}, {{"dim", int64_t{1}}}));
  g.SetOutputs({y, last, mean, soft});
  return g;
}

const std::vector<Dims> kPoints = {{3, 5}, {11, 5}, {3, 13}, {11, 13}, {19, 23}, {95, 121}};

GraphFamily MakeFamily(const Weights& weights) {
  std::vector<Graph> graphs;
  for (const Dims& point : kPoints) graphs.push_back(MakeGraph(weights, point[0], point[1]));
  std::vector<GraphFamily::Sample> samples;
  for (size_t i = 0; i < graphs.size(); ++i) samples.push_back({kPoints[i], &graphs[i]});
  return Must(GraphFamily::Fit({"batch", "length"}, 1, samples));
}

std::vector<std::vector<float>> RunAt(Session& session, const Dims& sizes, bool many) {
  const int64_t batch = sizes[0], length = sizes[1];
  const std::vector<float> x = RandomFloats(batch * length * kWidth, 9);
  const std::vector<Dims> shapes = {
      {batch, length, kWidth}, {batch, 2, kWidth}, {batch, kWidth}, {batch, length, kWidth}};
  std::vector<std::vector<float>> results;
  std::vector<View> outputs;
  for (const Dims& shape : shapes) results.emplace_back(static_cast<size_t>(NumElements(shape)));
  for (size_t i = 0; i < shapes.size(); ++i) outputs.push_back(MakeView(results[i].data(), DType::kF32, shapes[i]));
  const View input = MakeView(const_cast<float*>(x.data()), DType::kF32, {batch, length, kWidth});
  const Status status = session.Run(std::vector<View>{input}, outputs, many ? sizes : Dims{});
  EXPECT_TRUE(status.ok()) << status.message();
  return results;
}

TEST(Extent, EqualsThePlanForTheSize) {
  const Weights weights;
  const GraphFamily family = MakeFamily(weights);
  for (const int threads : {1, 2}) {
    CompileOptions options;
    options.plan.num_threads = threads;
    WeightStore store;
    const auto session = Must(CompileExtent(family, store, options, {6, 10}, {32, 256}));
    for (const Dims& sizes : std::vector<Dims>{{2, 4}, {32, 256}, {7, 7}, {2, 255}, {31, 4}, {6, 10}, {17, 100}}) {
      const auto own = Must(Compile(Must(family.At(sizes)), store, options));
      if (sizes[0] != sizes[1]) {
        EXPECT_EQ(NumbersOf(Must(PlanAt(session->plan(), sizes))), NumbersOf(own->plan())) << ToString(sizes);
      }
      const auto plain = Must(Compile(MakeGraph(weights, sizes[0], sizes[1]), store, options));
      EXPECT_EQ(RunAt(*session, sizes, true), RunAt(*plain, sizes, false)) << ToString(sizes);
    }
  }
}

// As a decoder that knows how many tokens came before: positions less that number, no farther than `bound`.
Graph Distances(int64_t before, double bound) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kI64, {before + 1});
  const auto positions = [&] {
    return Must(g.Add1("arange", {}, {{"end", static_cast<double>(before + 1)}, {"dtype", std::string("i64")}}));
  };
  const auto full = [&](Dims shape, double value) {
    const Attrs attrs = {{"shape", std::move(shape)}, {"value", value}, {"dtype", std::string("i64")}};
    return Must(g.Add1("full", {}, attrs));
  };
  const ValueId past = full({1}, static_cast<double>(before));
  const ValueId distance = Must(g.Add1("sub", {past, positions()}));
  const ValueId near = Must(g.Add1("minimum", {distance, full({before + 1}, bound)}));
  g.SetOutputs({Must(g.Add1("mul", {Must(g.Add1("add", {near, x})), positions()}))});
  return g;
}

TEST(Extent, IntegersFollowTheSizes) {
  constexpr double kBound = 31;  // which `before` is in some of the samples, and at capacity less one
  std::vector<Graph> graphs;
  std::vector<GraphFamily::Sample> samples;
  for (const int64_t before : {3, 11, 19, 95}) graphs.push_back(Distances(before, kBound));
  for (size_t i = 0; i < graphs.size(); ++i) samples.push_back({{Dims{3, 11, 19, 95}[i]}, &graphs[i]});
  const GraphFamily family = Must(GraphFamily::Fit({"before"}, 1, samples));
  for (const auto& [seed, capacity] : std::vector<std::pair<Dims, Dims>>{{{5}, {32}}, {{31}, {64}}, {{30}, {256}}}) {
    WeightStore store;
    const auto session = Must(CompileExtent(family, store, {}, seed, capacity));
    const auto at_once = std::ranges::count(session->plan().steps, KernelId::kArange, &Step::kernel);
    EXPECT_EQ(at_once, 1);  // the two are one at all sizes
    for (const int64_t before : {4, 17, 30, 31, 32}) {
      std::vector<int64_t> x(static_cast<size_t>(before) + 1, 2), y(x.size());
      const View in = MakeView(x.data(), DType::kI64, {before + 1}),
                 out = MakeView(y.data(), DType::kI64, {before + 1});
      const Status status = session->Run(std::vector<View>{in}, std::vector<View>{out}, Dims{before});
      ASSERT_TRUE(status.ok()) << status.message();
      for (int64_t i = 0; i <= before; ++i) {
        EXPECT_EQ(y[static_cast<size_t>(i)], (std::min<int64_t>(before - i, 31) + 2) * i) << before;
      }
    }
  }
}

TEST(Extent, OtherSizesAreRefused) {
  const Weights weights;
  WeightStore store;
  const auto session = Must(CompileExtent(MakeFamily(weights), store, {}, {6, 10}, {32, 256}));
  const Plan& plan = session->plan();
  EXPECT_TRUE(CheckSizes(plan, Dims{32, 256}).ok());
  for (const Dims& sizes : std::vector<Dims>{{33, 256}, {32, 257}, {1, 9}, {5}, {}, {4, 5, 6}}) {
    EXPECT_EQ(CheckSizes(plan, sizes).code(), Code::kInvalidArgument) << ToString(sizes);
    EXPECT_FALSE(PlanAt(plan, sizes).ok());
    EXPECT_EQ(session->Run({}, {}, sizes).code(), Code::kInvalidArgument);
  }
  EXPECT_NE(CheckSizes(plan, Dims{33, 8}).message().find("size batch: expected 2 to 32"), std::string::npos);
  // Inputs that do not have the sizes said.
  std::vector<float> x(6 * 10 * kWidth);
  const Status status =
      session->Run(std::vector<View>{MakeView(x.data(), DType::kF32, {6, 10, kWidth})}, {}, Dims{6, 11});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  const std::vector<View> outputs(4, MakeView(x.data(), DType::kF32, {1}));
  const Status shape =
      session->Run(std::vector<View>{MakeView(x.data(), DType::kF32, {6, 10, kWidth})}, outputs, Dims{6, 11});
  EXPECT_NE(shape.message().find("expected f32[6, 11, 32], got f32[6, 10, 32]"), std::string::npos) << shape.message();
}

TEST(Extent, FewRowsOfInt4HaveAPlanOfTheirOwn) {
  const Weights weights;
  const auto make = [&](int64_t rows) {
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {rows, kWidth});
    const ValueId w = AddWeight(g, "w", {kWidth, kWidth}, weights.w);
    g.SetOutputs({Must(g.Add1("linear", {x, w}, {{"precision", std::string("int4_weight")}}))});
    return g;
  };
  std::vector<Graph> graphs;
  std::vector<GraphFamily::Sample> samples;
  for (const int64_t rows : {3, 11, 95}) graphs.push_back(make(rows));
  for (size_t i = 0; i < 3; ++i) samples.push_back({{i == 0 ? 3 : i == 1 ? 11 : 95}, &graphs[i]});
  const GraphFamily family = Must(GraphFamily::Fit({"rows"}, 1, samples));
  WeightStore store;
  const auto many = Must(CompileExtent(family, store, {}, {64}, {256}));
  const auto few = CompileExtent(family, store, {}, {5}, {256});
  EXPECT_TRUE(CheckSizes(many->plan(), Dims{9}).ok());
  EXPECT_FALSE(CheckSizes(many->plan(), Dims{8}).ok());
  ASSERT_TRUE(few.ok()) << few.status().message();
  EXPECT_TRUE(CheckSizes(few.value()->plan(), Dims{8}).ok());
  EXPECT_FALSE(CheckSizes(few.value()->plan(), Dims{9}).ok());
}

// At every size: those alive at the same time share no byte, and the run reaches no higher than planned, nor than a
// plan whose buffers all lie apart.
TEST(Extent, BuffersMoveDownWithTheSizes) {
  const Weights weights;
  for (const bool share : {true, false}) {
    CompileOptions options;
    options.plan.share_memory = share;
    WeightStore store;
    const auto session = Must(CompileExtent(MakeFamily(weights), store, options, {6, 10}, {32, 256}));
    const Plan& plan = session->plan();
    SizedPlan sized(std::make_shared<Plan>(plan));
    for (const Dims& sizes : std::vector<Dims>{{32, 256}, {2, 4}, {32, 4}, {2, 256}, {7, 31}}) {
      ASSERT_TRUE(sized.Set(sizes).ok());
      const Plan own = Must(PlanAt(plan, sizes));
      int64_t top = 0, sum = 0;
      for (size_t a = 0; a < plan.buffers.size(); ++a) {
        const Buffer& x = own.buffers[a];
        if (x.kind != Buffer::Kind::kArena || x.first_step < 0) continue;
        EXPECT_LE(sized.arena_offsets[a], plan.buffers[a].arena_offset);
        EXPECT_EQ(sized.arena_offsets[a] % kArenaAlignment, 0);
        const int64_t end = sized.arena_offsets[a] + x.bytes;
        top = std::max(top, end);
        sum += (x.bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
        for (size_t b = 0; b < a; ++b) {
          const Buffer& y = own.buffers[b];
          if (y.kind != Buffer::Kind::kArena || y.first_step < 0) continue;
          if (share && (x.last_step < y.first_step || y.last_step < x.first_step)) continue;
          EXPECT_TRUE(end <= sized.arena_offsets[b] || sized.arena_offsets[b] + y.bytes <= sized.arena_offsets[a])
              << ToString(sizes) << " " << a << " and " << b;
        }
      }
      EXPECT_LE(top, plan.arena_bytes);
      EXPECT_LE(top, sum);
    }
  }
}

TEST(Extent, AWrongPolynomialDoesNotReachBeyondABuffer) {
  const Weights weights;
  WeightStore store;
  const auto session = Must(CompileExtent(MakeFamily(weights), store, {}, {6, 10}, {32, 256}));
  int refused = 0;
  for (size_t i = 0; i < session->plan().extent->polynomials.size(); ++i) {
    auto plan = std::make_shared<Plan>(session->plan());
    auto extent = std::make_shared<Extent>(*plan->extent);
    extent->polynomials[i].terms.push_back({0, int64_t{1} << 40});
    plan->extent = extent;
    SizedPlan sized(plan);
    const Status status = sized.Set(Dims{6, 10});
    const bool in_view = std::any_of(extent->views.begin(), extent->views.end(),
                                     [i](const Extent::Patch& patch) { return patch.polynomial == i; });
    if (in_view) {
      EXPECT_EQ(status.code(), Code::kInternal) << i;
      EXPECT_TRUE(sized.sizes().empty());
    }
    refused += !status.ok();
  }
  EXPECT_GT(refused, 3);
}

TEST(GraphFamily, RefusesGraphsThatDifferInMoreThanNumbers) {
  const Weights weights;
  const auto fit = [](const std::vector<std::pair<int64_t, Graph>>& graphs) {
    std::vector<GraphFamily::Sample> samples;
    samples.reserve(graphs.size());
    for (const auto& [size, graph] : graphs) samples.push_back({{size}, &graph});
    return GraphFamily::Fit({"size"}, 1, samples).status();
  };
  const auto sliced = [](int64_t size, int64_t end, const char* op) {
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {size, 4});
    const ValueId cut = Must(g.Add1("slice", {x}, {{"end", end}}));
    g.SetOutputs({Must(g.Add1(op, {cut}))});
    return g;
  };
  EXPECT_TRUE(fit({{3, sliced(3, 2, "relu")}, {7, sliced(7, 6, "relu")}, {11, sliced(11, 10, "relu")}}).ok());
  EXPECT_FALSE(fit({{3, sliced(3, 2, "relu")}, {7, sliced(7, 6, "tanh")}, {11, sliced(11, 10, "relu")}}).ok());
  EXPECT_FALSE(fit({{3, sliced(3, 1, "relu")}, {7, sliced(7, 3, "relu")}, {12, sliced(12, 6, "relu")}}).ok());
  EXPECT_FALSE(fit({{3, sliced(3, 2, "relu")}, {7, sliced(7, 6, "relu")}}).ok()) << "nothing is checked";
}

}  // namespace
}  // namespace thresher
