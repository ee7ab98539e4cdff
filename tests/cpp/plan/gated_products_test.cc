// Which products take a gate, and that those that do give the bits of those that do not.
#include "thresher/plan/gated_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "run/test_graphs.h"
#include "thresher/base/isa.h"
#include "thresher/kernels/block_format.h"
#include "thresher/run/session.h"

namespace thresher {
namespace {

constexpr int64_t kTokens = 21, kModel = 64, kInner = 96;

struct Case {
  std::optional<Encoding> blocks = {};  // of the weights; else bf16
  std::string program = "s0=silu(in0); s1=mul(s0,in1)";
  bool up_first = false;     // the other operand is the first product
  bool kept = false;         // another operator reads one of both halves, too
  bool also_result = false;  // another operator reads the result, too
  std::string activation = "none";
  bool wide = false;  // rows from the third on are of prompts
};

struct Outcome {
  std::vector<float> y;
  std::vector<std::string> steps, kernels;
};

ValueId AddWeight(Graph& graph, const Case& c, int64_t rows, int64_t depth, uint32_t seed) {
  const std::vector<float> numbers = RandomFloats(rows * depth, seed, 0.3f);
  const std::string name = "w" + std::to_string(seed);
  if (!c.blocks) return AddF32(graph, name, {rows, depth}, numbers);
  auto bytes = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(EncodedBytes(*c.blocks, rows * depth)));
  EXPECT_TRUE(kernels::EncodeNumbers(*c.blocks, numbers.data(), rows * depth, 32, bytes->data()).ok());
  Constant constant;
  constant.data = bytes->data();
  constant.owner = bytes;
  constant.is_weight = true;
  constant.blocks = c.blocks;
  return graph.AddConstant(name, DType::kF32, {rows, depth}, constant);
}

// A gated linear unit on two threads.
Outcome RunUnit(const Case& c) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {1, kTokens, kModel});
  const ValueId from = c.wide ? g.AddInput("prompts_from", DType::kI32, {1}) : kNoValue;
  Attrs attrs;
  if (!c.blocks) attrs["precision"] = std::string("bf16");
  Attrs one = attrs, two = attrs;
  two["weights"] = int64_t{2};
  two["activation"] = c.activation;
  std::vector<ValueId> operands = {x, AddWeight(g, c, kInner, kModel, 2), AddWeight(g, c, kInner, kModel, 3)};
  if (c.wide) {
    two["wide_from"] = true;
    operands.push_back(from);
  }
  const std::vector<ValueId> halves = Must(g.Add("linears", operands, two));
  std::vector<ValueId> in = halves;
  if (c.up_first) std::swap(in[0], in[1]);
  const ValueId gated = Must(g.Add1("pointwise", in, {{"program", c.program}}));
  std::vector<ValueId> down = {gated, AddWeight(g, c, kModel, kInner, 4)};
  if (c.wide) down.insert(down.end(), {kNoValue, kNoValue, from});
  std::vector<ValueId> results = {Must(g.Add1("linear", down, one))};
  if (c.kept) results.push_back(Must(g.Add1("neg", {halves[1]})));
  if (c.also_result) results.push_back(Must(g.Add1("neg", {gated})));
  g.SetOutputs(results);
  PlanOptions options;
  options.num_threads = 2;
  WeightStore weights;
  Session session(Must(BuildPlan(g, weights, options)));
  Outcome outcome;
  for (const Step& step : session.plan().steps) {
    outcome.steps.push_back(step.name);
    outcome.kernels.push_back(step.shown.kernel);
  }
  std::vector<float> values = RandomFloats(kTokens * kModel, 1);
  int32_t third = 2;
  std::vector<View> inputs = {MakeView(values.data(), DType::kF32, {1, kTokens, kModel})};
  if (c.wide) inputs.push_back(MakeView(&third, DType::kI32, {1}));
  std::vector<std::vector<float>> out;
  std::vector<View> outputs;
  for (const ValueId id : g.outputs()) {
    const Dims& shape = g.value(id).shape;
    out.emplace_back(static_cast<size_t>(NumElements(shape)));
    outputs.push_back(MakeView(out.back().data(), DType::kF32, shape));
  }
  const Status status = session.Run(inputs, outputs);
  EXPECT_TRUE(status.ok()) << status.message();
  outcome.y = out[0];
  return outcome;
}

int64_t Count(const Outcome& outcome, const std::string& name) {
  return std::count(outcome.steps.begin(), outcome.steps.end(), name);
}

// What nothing else reads passes its gate in the product; in blocks, the product also stores what the next one takes.
TEST(GatedProducts, HaveTheBitsOfTheirSteps) {
  for (const bool plain_tiles : {false, true}) {
    if (plain_tiles && !isa::ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmx";
    for (const bool wide : {false, true}) {
      for (const bool up_first : {false, true}) {
        for (const char* program :
             {"s0=silu(in0); s1=mul(s0,in1)", "s0=gelu_tanh(in0); s1=mul(in1,s0)", "s0=sigmoid(in1); s1=mul(s0,in0)"}) {
          Case c{Encoding::kQ4_0, program, up_first};
          c.wide = wide;
          const Outcome gated = RunUnit(c);
          c.kept = true;
          const Outcome kept = RunUnit(c);
          EXPECT_EQ(Count(gated, "pointwise"), 0);
          EXPECT_EQ(Count(gated, "quantize"), 1);  // of x
          EXPECT_EQ(Count(kept, "pointwise"), 1);
          EXPECT_EQ(Count(kept, "quantize"), 2);
          EXPECT_EQ(gated.y, kept.y) << program;
          c.kept = false;
          c.also_result = true;
          const Outcome floats = RunUnit(c);
          EXPECT_EQ(Count(floats, "pointwise"), 0);
          EXPECT_EQ(Count(floats, "quantize"), 2);
          EXPECT_EQ(gated.y, floats.y) << program;
        }
      }
    }
  }
  ASSERT_TRUE(isa::Select().ok());
}

TEST(GatedProducts, OfBf16StoreWhatTheNextOneTakes) {
  if (!isa::ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmx";
  setenv("THRESHER_SMALL_PRODUCTS", "always", 1);
  Case c;
  const Outcome gated = RunUnit(c);
  c.kept = true;
  const Outcome kept = RunUnit(c);
  EXPECT_EQ(Count(gated, "pointwise"), 0);
  EXPECT_EQ(Count(gated, "to_bf16"), 1);
  EXPECT_EQ(std::count(gated.kernels.begin(), gated.kernels.end(), "linears+silu+mul bf16"), 1);
  EXPECT_EQ(Count(kept, "pointwise"), 1);
  EXPECT_EQ(gated.y, kept.y);
  unsetenv("THRESHER_SMALL_PRODUCTS");
  ASSERT_TRUE(isa::Select().ok());
}

TEST(GatedProducts, LeaveOtherChainsAlone) {
  const std::vector<std::string> others = {"s0=silu(in0); s1=add(s0,in1)", "s0=exp(in0); s1=mul(s0,in1)",
                                           "s0=silu(in0); s1=mul(s0,s0); s2=mul(s1,in1)",
                                           "s0=mul(in0,in1); s1=silu(s0)", "s0=silu(in0); s1=div(s0,in1)"};
  for (const std::string& program : others)
    EXPECT_EQ(Count(RunUnit({Encoding::kQ8_0, program}), "pointwise"), 1) << program;
  Case activated{Encoding::kQ8_0};
  activated.activation = "relu";
  EXPECT_EQ(Count(RunUnit(activated), "pointwise"), 1);
}

}  // namespace
}  // namespace thresher
