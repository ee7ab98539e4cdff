#include "passes/pass_testing.h"
#include "thresher/kernels/arithmetic.h"
#include "thresher/kernels/peaks.h"
#include "thresher/plan/weight_store.h"

namespace thresher::pass_testing {
namespace {

// Two layers and a head, whose weights are random and so lose about 0.5% in int8 and 9% in int4.
const std::string kModel =
    "input %x : f32[2, 64]\nweight %w0 : f32[48, 64]\nweight %b0 : f32[48]\nweight %w1 : f32[48, 64]\n"
    "weight %wh : f32[8, 48]\n%a = linear(%x, %w0, %b0) {activation = \"gelu\"} @ \"m.py:1 in f\" in \"layer.0.fc\"\n"
    "%t = linear(%a, %wh) {layout = \"nk\"} in \"head\"\n%b = linear(%x, %w1) in \"layer.10.fc\"\n"
    "return %t, %b\n";

struct Outcome {
  Graph graph;
  std::vector<PrecisionDecision> decisions;
};

Outcome Assign(const Graph& before, const PrecisionOptions& options, WeightStore* store = nullptr,
               ArithmeticFunction arithmetic = {}, bool matrix_unit = false,
               const std::function<bool(bool, Precision, int64_t)>& multiplies = {}) {
  WeightStore own;
  WeightStore& weights = store == nullptr ? own : *store;
  Outcome outcome;
  PassContext context;
  context.arithmetic = std::move(arithmetic);
  if (matrix_unit) {
    context.bf16_tiles = [] { return true; };
    context.fills_channels = [](int64_t channels) { return channels <= 4; };
    context.int8_pays = [](int64_t outputs, int64_t k) { return outputs >= 96 && k >= 64; };
  }
  context.multiplies = multiplies;
  context.precision = options;
  context.decisions = &outcome.decisions;
  context.weight_error = [&weights](const Value& weight, bool transposed, Precision precision) {
    const int64_t k = NumElements(weight.shape) / weight.shape[transposed ? 0 : 1];
    return weights.GetError(WeightStore::MatrixOf(weight, transposed), k, transposed, precision);
  };
  const std::vector<std::string> passes = {"precision_assignment"};
  Result<Graph> after = RunPasses(before, passes, context);
  EXPECT_TRUE(after.ok()) << after.status().message();
  if (after.ok()) outcome.graph = std::move(after).value();
  return outcome;
}

std::vector<std::string> Precisions(const Graph& graph) {
  std::vector<std::string> found;
  for (const Node& node : graph.nodes()) {
    if (node.op->name == "linear" || node.op->name == "convolution")
      found.push_back(GetAttr<std::string>(node.attrs, "precision", "fp32"));
  }
  return found;
}

using Names = std::vector<std::string>;

TEST(PrecisionAssignment, NothingIsAskedForNothingChanges) {
  const Graph before = FromText(kModel);
  const Outcome outcome = Assign(before, {});
  EXPECT_EQ(PrintGraph(outcome.graph), PrintGraph(before));
  EXPECT_TRUE(outcome.decisions.empty());
}

TEST(PrecisionAssignment, WhatTheMachineIsSlowAtIsComputedOtherwise) {
  const auto slow = [](Precision wanted) {
    return std::make_pair(wanted == Precision::kInt8 ? Precision::kInt8Weight : wanted, std::string("it is slow"));
  };
  const Outcome int8 = Assign(FromText(kModel), {"int8", {"head"}, {}}, nullptr, slow);
  EXPECT_EQ(Precisions(int8.graph), (Names{"int8_weight", "fp32", "int8_weight"}));
  EXPECT_EQ(int8.decisions[0].precision, Precision::kInt8Weight);
  EXPECT_EQ(int8.decisions[0].reason, "asked for; it is slow");
  EXPECT_EQ(int8.decisions[1].reason, "excluded by \"head\"");
  const Outcome bf16 = Assign(FromText(kModel), {"bf16", {}, {}}, nullptr, slow);
  EXPECT_EQ(Precisions(bf16.graph), (Names{"bf16", "bf16", "bf16"}));
  EXPECT_EQ(bf16.decisions[0].reason, "asked for; it is slow");
}

// All that read a number count for what quantising it costs.
TEST(PrecisionAssignment, WhatInt8WouldSlowDownIsMultipliedInBf16) {
  const auto both = [](Precision wanted) { return std::make_pair(wanted, std::string()); };
  const Outcome outcome = Assign(FromText(kModel), {"int8", {}, {}}, nullptr, both, true);
  EXPECT_EQ(Precisions(outcome.graph), (Names{"int8", "bf16", "int8"}));
  EXPECT_EQ(outcome.decisions[1].reason,
            "asked for; multiplied in bf16, since int8 saves less time than quantising takes");
  EXPECT_EQ(Precisions(Assign(FromText(kModel), {"bf16", {}, {}}, nullptr, both, true).graph),
            (Names{"bf16", "bf16", "bf16"}));
}

TEST(PrecisionAssignment, FewChannelsAndSmallGroupsAreFilledUp) {
  const Graph before = FromText(
      "input %x : f32[1, 9, 9, 3]\nweight %w0 : f32[64, 3, 3, 3]\nweight %w1 : f32[64, 8, 3, 3]\n"
      "weight %w2 : f32[64, 1, 3, 3]\nweight %w3 : f32[64, 6, 1, 1]\nweight %w4 : f32[3, 16, 3, 3]\n"
      "weight %w5 : f32[48, 8, 1, 1]\n"
      "%a = convolution(%x, %w0)\n%b = convolution(%a, %w1) {groups = 8}\n%c = convolution(%b, %w2) {groups = 64}\n"
      "%d = slice(%c) {dim = 3, start = 0, end = 6}\n%e = convolution(%d, %w3)\n"
      "%f = convolution(%x, %w4) {transposed = true}\n%g = slice(%c) {dim = 3, start = 0, end = 16}\n"
      "%h = convolution(%g, %w5) {groups = 2}\nreturn %e, %f, %h\n");
  const auto both = [](Precision wanted) { return std::make_pair(wanted, std::string()); };
  for (const char* precision : {"int8", "bf16"}) {
    const Outcome filled = Assign(before, {precision, {}, {}}, nullptr, both, true);
    // Other groups, channels in between, and what is spread stay.
    const Names wanted = {"bf16", "bf16", "fp32", "fp32", "fp32", "bf16"};
    EXPECT_EQ(Precisions(filled.graph), wanted);
    EXPECT_EQ(filled.decisions[0].reason,
              "asked for; 3 channels are no multiple of 8, so it is filled up and multiplied in bf16");
    EXPECT_EQ(filled.decisions[3].reason, "6 channels are no multiple of 8");
    const Outcome plain = Assign(before, {precision, {}, {}}, nullptr, both);
    EXPECT_EQ(Precisions(plain.graph), (Names{"fp32", "fp32", "fp32", "fp32", "fp32", precision}));
  }
  EXPECT_EQ(Precisions(Assign(before, {"int8_weight", {}, {}}, nullptr, both, true).graph), Names(6, "fp32"));
}

// What a device does not multiply in the precision that it takes for int8 is computed as the model has it.
TEST(PrecisionAssignment, WhatTheDeviceDoesNotMultiplyStays) {
  const Graph before = FromText(
      "input %x : f32[1, 9, 9, 16]\nweight %w0 : f32[32, 16, 3, 3]\nweight %w1 : f32[24, 32]\nweight %w2 : f32[8, 24]\n"
      "%a = convolution(%x, %w0)\n%b = linear(%a, %w1)\n%c = linear(%b, %w2)\nreturn %c\n");
  const auto arithmetic = [](Precision wanted) {
    return std::make_pair(wanted == Precision::kInt8 ? Precision::kInt8Weight : wanted, std::string("so it is"));
  };
  const auto multiplies = [](bool convolution, Precision precision, int64_t k) {
    return precision != Precision::kInt8Weight || (!convolution && k % 32 == 0);
  };
  const Outcome outcome = Assign(before, {"int8", {}, {}}, nullptr, arithmetic, false, multiplies);
  EXPECT_EQ(Precisions(outcome.graph), (Names{"fp32", "int8_weight", "fp32"}));
  EXPECT_EQ(outcome.decisions[0].reason, "a convolution, which this device does not multiply in int8_weight");
  EXPECT_EQ(outcome.decisions[2].reason, "a linear of 24 inputs, which this device does not multiply in int8_weight");
  EXPECT_EQ(Precisions(Assign(before, {"int8", {}, {}}, nullptr, arithmetic).graph), Names(3, "int8_weight"));
  EXPECT_EQ(Precisions(Assign(before, {"bf16", {}, {}}, nullptr, arithmetic, false, multiplies).graph),
            Names(3, "bf16"));
}

TEST(PrecisionAssignment, AttentionIsInBf16WhereTheMachineMultipliesIt) {
  const Graph before = FromText(
      "input %q : f32[1, 2, 8, 16]\ninput %k : f32[1, 2, 8, 16]\ninput %v : f32[1, 2, 8, 16]\n"
      "%a = sdpa(%q, %k, %v) {scale = 0.25}\nreturn %a\n");
  const auto widens = [](Precision wanted) { return std::make_pair(wanted, std::string("multiplied in fp32")); };
  for (const char* precision : {"bf16", "int8"}) {
    const Outcome fast = Assign(before, {precision, {}, {}});
    EXPECT_EQ(GetAttr<std::string>(fast.graph.nodes()[0].attrs, "precision", "fp32"), "bf16") << precision;
    const Outcome slow = Assign(before, {precision, {}, {}}, nullptr, widens);
    EXPECT_EQ(GetAttr<std::string>(slow.graph.nodes()[0].attrs, "precision", "fp32"), "fp32") << precision;
  }
  // What has no tiles of fp16 multiplies it in fp32.
  const Outcome fp16 = Assign(before, {"fp16", {}, {}});
  EXPECT_EQ(GetAttr<std::string>(fp16.graph.nodes()[0].attrs, "precision", "fp32"), "fp16");
}

TEST(PrecisionAssignment, SetsEveryLinearAndReports) {
  const Graph before = FromText(kModel);
  const Outcome outcome = Assign(before, {"int8", {}, {}});
  EXPECT_EQ(Precisions(outcome.graph), (Names{"int8", "int8", "int8"}));
  ASSERT_EQ(outcome.decisions.size(), 3u);
  const PrecisionDecision& first = outcome.decisions[0];
  EXPECT_EQ(first.module, "layer.0.fc");
  EXPECT_EQ(first.source, "m.py:1 in f");
  EXPECT_EQ(first.op, "linear");
  EXPECT_EQ(first.k, 64);
  EXPECT_EQ(first.n, 48);
  EXPECT_EQ(first.precision, Precision::kInt8);
  ASSERT_TRUE(first.weight_error.has_value());
  EXPECT_GT(*first.weight_error, 0.001);
  EXPECT_LT(*first.weight_error, 0.02);
  EXPECT_EQ(GetAttr<std::string>(outcome.graph.nodes()[0].attrs, "activation", ""), "gelu");
}

TEST(PrecisionAssignment, ExcludesModulesByPatternAndPrefix) {
  const Graph before = FromText(kModel);
  const auto excluded = [&](const Names& patterns) { return Precisions(Assign(before, {"bf16", patterns, {}}).graph); };
  EXPECT_EQ(excluded({"head"}), (Names{"bf16", "fp32", "bf16"}));
  EXPECT_EQ(excluded({"layer.0"}), (Names{"fp32", "bf16", "bf16"}));
  EXPECT_EQ(excluded({"layer.1"}), (Names{"bf16", "bf16", "bf16"}));  // no part of "layer.10"
  EXPECT_EQ(excluded({"layer.?"}), (Names{"fp32", "bf16", "bf16"}));
  EXPECT_EQ(excluded({"*.fc"}), (Names{"fp32", "bf16", "fp32"}));
  EXPECT_EQ(excluded({"layer"}), (Names{"fp32", "bf16", "fp32"}));
  EXPECT_EQ(excluded({"l*1*c"}), (Names{"bf16", "bf16", "fp32"}));
  EXPECT_EQ(excluded({"fc", "ayer.0", ""}), (Names{"bf16", "bf16", "bf16"}));
  EXPECT_EQ(excluded({"*"}), (Names{"fp32", "fp32", "fp32"}));
  const Outcome outcome = Assign(before, {"bf16", {"none", "he*"}, {}});
  EXPECT_EQ(outcome.decisions[1].precision, Precision::kFp32);
  EXPECT_EQ(outcome.decisions[1].reason, "excluded by \"he*\"");
  EXPECT_FALSE(outcome.decisions[1].weight_error.has_value());
}

TEST(PrecisionAssignment, KeepsWhatWouldLoseTooMuch) {
  const Graph before = FromText(kModel);
  const Outcome tight = Assign(before, {"int8_weight", {}, 1e-4});
  EXPECT_EQ(Precisions(tight.graph), (Names{"fp32", "fp32", "fp32"}));
  for (const PrecisionDecision& decision : tight.decisions) {
    EXPECT_GT(decision.weight_error.value_or(0), 1e-4);
    EXPECT_NE(decision.reason.find("exceeds 0.01%"), std::string::npos) << decision.reason;
  }
  EXPECT_EQ(Precisions(Assign(before, {"int4_weight", {}, {}}).graph), (Names(3, "int4_weight")));
  EXPECT_EQ(Precisions(Assign(before, {"int4_weight", {}, 0.02}).graph), (Names(3, "fp32")));
  EXPECT_EQ(Precisions(Assign(before, {"int4_weight", {}, 0.0}).graph), (Names(3, "int4_weight")));
}

TEST(PrecisionAssignment, KeepsWhatDoesNotFit) {
  const Graph before = FromText(
      "input %x : f32[2, 2]\ninput %v : f32[2, 2]\nconst %big : f32[2, 2] = [1, 2, 3, 70000]\n"
      "const %nan : f32[2, 2] = [1, 2, nan, 4]\nconst %good : f32[2, 2] = [1, 2, 3, 4]\n%a = linear(%x, %big)\n"
      "%b = linear(%x, %nan)\n%c = linear(%x, %v)\n%d = linear(%x, %good)\n"
      "%e = linear(%x, %good) {precision = \"bf16\"}\nreturn %a, %b, %c, %d, %e\n");
  const Outcome outcome = Assign(before, {"fp16", {}, {}});
  EXPECT_EQ(Precisions(outcome.graph), (Names{"fp32", "fp32", "fp32", "fp16", "bf16"}));
  EXPECT_EQ(outcome.decisions[0].reason, "the weight exceeds the range of fp16");
  EXPECT_EQ(outcome.decisions[1].reason, "the weight holds infinities or NaN");
  EXPECT_EQ(outcome.decisions[2].reason, "the weight is not a constant");
  EXPECT_EQ(outcome.decisions[4].reason, "the graph sets it");
}

// What is stored in 16 bits stays so, unless something else is asked for.
TEST(PrecisionAssignment, FollowsHowWeightsAreStored) {
  const Graph before = FromText(
      "input %x : f32[2, 64]\nweight %w0 : bf16[48, 64]\nweight %w1 : f16[48, 64]\nweight %w2 : f32[48, 64]\n"
      "%a = linear(%x, %w0) in \"a\"\n%b = linear(%x, %w1) in \"b\"\n%c = linear(%x, %w2) in \"c\"\nreturn %a, %b, "
      "%c\n");
  const auto decided = [&](const PrecisionOptions& options) {
    Names names;
    const Outcome outcome = Assign(before, options);
    for (const PrecisionDecision& decision : outcome.decisions) names.emplace_back(Name(decision.precision));
    return names;
  };
  const auto set = [&](const PrecisionOptions& options) {
    Names names;
    const Outcome outcome = Assign(before, options);
    for (const Node& node : outcome.graph.nodes()) names.push_back(GetAttr<std::string>(node.attrs, "precision", "-"));
    return names;
  };
  EXPECT_EQ(set({}), (Names{"-", "-", "-"}));
  EXPECT_EQ(decided({}), (Names{"bf16", "fp16"}));
  EXPECT_EQ(Assign(before, {}).decisions[0].reason, "the weight is stored so");
  EXPECT_EQ(set({"fp32", {}, {}}), (Names{"fp32", "fp32", "-"}));
  EXPECT_EQ(decided({"fp32", {}, {}}), (Names{"fp32", "fp32"}));
  EXPECT_EQ(set({"bf16", {}, {}}), (Names{"-", "bf16", "bf16"}));
  EXPECT_EQ(set({"int8", {"b"}, {}}), (Names{"int8", "-", "int8"}));
  EXPECT_EQ(decided({"int8", {"b"}, {}}), (Names{"int8", "fp16", "int8"}));
}

TEST(PrecisionAssignment, RefusesWhatItDoesNotKnow) {
  const Graph before = FromText(kModel);
  const std::vector<std::string> passes = {"precision_assignment"};
  PassContext context;
  context.precision.precision = "int7";
  const Result<Graph> unknown = RunPasses(before, passes, context);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().message(),
            "pass precision_assignment: expected a precision of model fp32 bf16 fp16 int8 int8_weight int4_weight, got "
            "'int7'");
  context.precision = {"int8", {}, -1.0};
  EXPECT_FALSE(RunPasses(before, passes, context).ok());
  Result<Graph> parsed =
      ParseGraph("graph 1\ninput %x : f32[2, 2]\n%y = linear(%x, %x) {precision = \"f8\"}\nreturn %y\n");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.status().message().find("precision \"f8\" is not known"), std::string::npos);
}

TEST(PrecisionAssignment, AStoreMeasuresAWeightOnce) {
  const Graph before = FromText(kModel);
  WeightStore store;
  const Outcome first = Assign(before, {"int8", {}, {}}, &store);
  // Other contents at the same address would be measured anew without the store.
  for (const Value& value : before.values()) {
    if (value.kind == Value::Kind::kConstant) {
      std::memset(const_cast<void*>(value.constant.data), 0, static_cast<size_t>(NumElements(value.shape)) * 4);
    }
  }
  const Outcome second = Assign(before, {"int8", {}, {}}, &store);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(second.decisions[i].weight_error, first.decisions[i].weight_error);
    EXPECT_GT(*second.decisions[i].weight_error, 0);
  }
  EXPECT_EQ(Assign(before, {"int8", {}, {}}).decisions[0].weight_error, 0.0);
}

// Where nothing but floats and int8 is multiplied, and int8 takes no less time: few outputs or products, and windows
// that take fewer multiplications as floats.
TEST(PrecisionAssignment, ProductsThatInt8WouldSlowDownStay) {
  const Graph before = FromText(
      "input %x : f32[1, 40, 40, 256]\nweight %w0 : f32[512, 256, 1, 1]\nweight %w1 : f32[8, 512, 1, 1]\n"
      "weight %w2 : f32[512, 8, 1, 1]\nweight %w3 : f32[512, 512, 3, 3]\nweight %w4 : f32[96, 512]\n"
      "%a = convolution(%x, %w0)\n%b = convolution(%a, %w1)\n%c = convolution(%b, %w2)\n%d = convolution(%c, %w3)\n"
      "%e = linear(%d, %w4)\nreturn %e\n");
  const bool bf16 = kernels::MultipliesBf16();
  const float rate = kernels::MeasureRelativeRates().int8;
  for (const bool always : {false, true}) {
    if (always) setenv("THRESHER_SMALL_PRODUCTS", "always", 1);
    WeightStore store;
    CompileOptions options;
    options.precision = {"int8", {}, {}};
    const Result<std::unique_ptr<Session>> session = Compile(before, store, options);
    unsetenv("THRESHER_SMALL_PRODUCTS");
    ASSERT_TRUE(session.ok()) << session.status().message();
    const std::vector<PrecisionDecision>& found = session.value()->precision_decisions();
    ASSERT_EQ(found.size(), 5u);
    if (always) {
      for (const PrecisionDecision& decision : found) EXPECT_EQ(decision.precision, Precision::kInt8);
    } else if (!bf16 && rate > 1.5F && rate < 3.0F) {
      EXPECT_EQ(found[0].precision, Precision::kInt8);
      for (const size_t i : {1, 2, 3}) {
        EXPECT_EQ(found[i].precision, Precision::kFp32) << i;
        EXPECT_EQ(found[i].reason, "int8 takes no less time") << i;
      }
      EXPECT_EQ(found[4].precision, Precision::kInt8);
    }
  }
}

TEST(PrecisionAssignment, CompileReportsTheDecisions) {
  setenv("THRESHER_SMALL_PRODUCTS", "always", 1);
  WeightStore store;
  CompileOptions options;
  options.precision = {"int8", {"head"}, {}};
  const Result<std::unique_ptr<Session>> session = Compile(FromText(kModel), store, options);
  ASSERT_TRUE(session.ok()) << session.status().message();
  std::vector<std::string> found;
  for (const PrecisionDecision& decision : session.value()->precision_decisions()) {
    found.push_back(decision.module + " " + std::string(Name(decision.precision)));
  }
  EXPECT_EQ(found, (std::vector<std::string>{"layer.0.fc int8", "head fp32", "layer.10.fc int8"}));
  unsetenv("THRESHER_SMALL_PRODUCTS");
}

}  // namespace
}  // namespace thresher::pass_testing
