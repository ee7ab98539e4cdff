#include <algorithm>

#include "passes/pass_testing.h"
#include "thresher/plan/weight_store.h"

namespace thresher::pass_testing {
namespace {

// Attention over 2 x 3 x 8 with two heads, whose projections have 24, 40 and 8 columns: none a whole panel everywhere.
std::string Attention(const std::string& tail = "return %y\n", const std::string& attrs = "") {
  std::string text =
      "input %x : f32[2, 3, 8]\nweight %wq : f32[24, 8]\nweight %wk : f32[24, 8]\nweight %wv : f32[40, 8]\n"
      "weight %bq : f32[24]\nweight %bk : f32[24]\nweight %bv : f32[40]\n";
  for (const std::string name : {"q", "k", "v"}) {
    text += "%" + name + "0 = linear(%x, %w" + name + ", %b" + name + ")" + attrs + " @ \"" + name +
            "\" in \"layer.0.self." + name + "\"\n%" + name + "1 = reshape(%" + name + "0) {shape = [2, 3, 2, " +
            (name == "v" ? "20" : "12") + "]}\n%" + name + " = permute(%" + name + "1) {dims = [0, 2, 1, 3]}\n";
  }
  return text + "%s = sdpa(%q, %k, %v) {scale = 0.3}\n%p = permute(%s) {dims = [0, 2, 1, 3]}\n" +
         "%y = reshape(%p) {shape = [2, 3, 40]}\n" + tail;
}

std::vector<std::string> StepNames(const Graph& graph) {
  WeightStore weights;
  const auto plan = BuildPlan(graph, weights, PlanOptions{});
  EXPECT_TRUE(plan.ok());
  std::vector<std::string> names;
  for (const Step& step : plan.value()->steps) names.push_back(step.name);
  return names;
}

void Expect(const std::string& text, const std::string& ops) { ExpectPass("projection_merge", text, ops, 1e-6); }

const std::string kViews = " reshape permute reshape permute reshape permute sdpa permute reshape";

TEST(ProjectionMerge, QueriesKeysAndValues) {
  Expect(Attention(), "linears" + kViews);
  Expect(Attention("return %y\n", " {activation = \"silu\"}"), "linears" + kViews);
  const Graph after = After(FromText(Attention()), {"projection_merge"});
  EXPECT_EQ(after.nodes()[0].source, "q, k, v");
  EXPECT_EQ(after.nodes()[0].module, "layer.0.self");
  EXPECT_EQ(after.nodes()[0].inputs.size(), 7u);
}

TEST(ProjectionMerge, MakesNoCopies) {
  const Graph after = After(FromText(Attention()), {"projection_merge"});
  EXPECT_EQ(StepNames(after), (std::vector<std::string>{"linears", "sdpa"}));
}

TEST(ProjectionMerge, HoldsNoWeightTwice) {
  const Graph before = FromText(Attention());
  WeightStore separate, merged;
  ASSERT_TRUE(BuildPlan(before, separate, PlanOptions{}).ok());
  const Graph after = After(before, {"projection_merge"});
  ASSERT_TRUE(BuildPlan(after, merged, PlanOptions{}).ok());
  ASSERT_TRUE(BuildPlan(after, merged, PlanOptions{}).ok());
  EXPECT_GT(merged.bytes(), 0);
  EXPECT_EQ(merged.bytes(), separate.bytes());
}

TEST(ProjectionMerge, OneOrNoBias) {
  const std::string head =
      "input %x : f32[5, 8]\nweight %w : f32[16, 8]\nweight %v : f32[16, 8]\nweight %b : f32[16]\n";
  Expect(head + "%a = linear(%x, %w)\n%c = linear(%x, %v)\n%y = mul(%a, %c)\nreturn %y\n", "linears mul");
  Expect(head + "%a = linear(%x, %w, %b)\n%c = linear(%x, %v)\n%y = mul(%a, %c)\nreturn %y\n", "linears mul");
  Expect(head + "%a = linear(%x, %w)\n%c = linear(%x, %v, %b)\n%y = mul(%a, %c)\nreturn %y\n", "linears mul");
  Expect(head + "input %d : f32[16]\n%a = linear(%x, %w)\n%c = linear(%x, %v, %d)\n%y = mul(%a, %c)\nreturn %y\n",
         "linear linear mul");
}

TEST(ProjectionMerge, KernelLayout) {
  Expect(
      "input %x : f32[5, 8]\nweight %w : f32[8, 16]\nweight %v : f32[8, 3]\n%a = linear(%x, %w) {layout = \"kn\"}\n"
      "%b = linear(%x, %v) {layout = \"kn\"}\n%c = slice(%a) {dim = 1, start = 13, end = 16}\n%y = mul(%b, %c)\n"
      "return %y\n",
      "linears slice mul");
}

TEST(ProjectionMerge, WantsEqualsOfOneOperand) {
  const std::string head =
      "input %x : f32[5, 8]\ninput %z : f32[5, 8]\ninput %r : f32[5, 8]\nweight %w : f32[8, 8]\nweight %v : f32[8, "
      "8]\n";
  const std::string tail = "%y = mul(%a, %b)\nreturn %y\n";
  Expect(head + "%a = linear(%x, %w)\n%b = linear(%z, %v)\n" + tail, "linear linear mul");
  Expect(head + "%a = linear(%x, %w) {layout = \"nk\"}\n%b = linear(%x, %v) {layout = \"kn\"}\n" + tail,
         "linear linear mul");
  Expect(head + "%a = linear(%x, %w, _, %r)\n%b = linear(%x, %v)\n" + tail, "linear linear mul");
  Expect(head + "input %m : f32[8, 8]\n%a = linear(%x, %m)\n%b = linear(%x, %v)\n" + tail, "linear linear mul");
  Expect(head + "%a = linear(%x, %w) {precision = \"bf16\"}\n%b = linear(%x, %v)\n" + tail, "linear linear mul");
}

TEST(ProjectionMerge, RowsThatMayBeWideStaySo) {
  const std::string head =
      "input %x : f32[5, 8]\ninput %from : i32[1]\ninput %other : i32[1]\nweight %w : f32[8, 8]\n"
      "weight %v : f32[8, 8]\nweight %c : f32[8]\n";
  const std::string tail = "%y = mul(%a, %b)\nreturn %y\n";
  const std::string first = "%a = linear(%x, %w, %c, _, %from)\n";
  Expect(head + first + "%b = linear(%x, %v)\n" + tail, "linear linear mul");
  Expect(head + first + "%b = linear(%x, %v, _, _, %other)\n" + tail, "linear linear mul");
  Expect(head + first + "%b = linear(%x, %v, _, _, %from)\n" + tail, "linears mul");
  const Graph after = After(FromText(head + first + "%b = linear(%x, %v, _, _, %from)\n" + tail), {"projection_merge"});
  EXPECT_EQ(after.nodes()[0].inputs.size(), 6u);  // x, two weights, two biases, from
  EXPECT_EQ(after.value(after.nodes()[0].inputs.back()).name, "from");
}

TEST(ProjectionMerge, TheActivationOfAGateJoinsWhatReadsBoth) {
  const std::string head =
      "input %x : f32[5, 8]\nweight %w : f32[16, 8]\nweight %v : f32[16, 8]\nweight %b : f32[16]\n";
  const std::string gate = "%a = linear(%x, %w, %b) {activation = \"silu\"} @ \"act\" in \"mlp.gate\"\n";
  const std::string up = "%c = linear(%x, %v) in \"mlp.up\"\n", tail = "return %y\n";
  Expect(head + gate + up + "%y = mul(%a, %c)\n" + tail, "linears silu mul");
  Expect(head + up + gate + "%y = mul(%c, %a)\n" + tail, "linears silu mul");
  Expect(head + gate + "%c = linear(%x, %v) {activation = \"tanh\"}\n%y = mul(%a, %c)\n" + tail,
         "linears silu tanh mul");
  const Graph after = After(FromText(head + gate + up + "%y = mul(%a, %c)\n" + tail), {"projection_merge"});
  EXPECT_EQ(after.nodes()[1].source, "act");
  EXPECT_EQ(after.nodes()[1].module, "mlp.gate");
  // Both are one step then.
  const Graph fused = After(after, {"pointwise_fusion"});
  EXPECT_EQ(Ops(fused), "linears pointwise");
  EXPECT_EQ(StepNames(fused), (std::vector<std::string>{"linears", "pointwise"}));
}

TEST(ProjectionMerge, ResultsOfAGateAreStoredAsTheModelHasThem) {
  const std::string text =
      "input %x : bf16[5, 8]\nweight %w : bf16[16, 8]\nweight %v : bf16[16, 8]\n%a = linear(%x, %w)\n%s = silu(%a)\n"
      "%c = linear(%x, %v)\n%y = mul(%s, %c)\nreturn %y\n";
  const Graph after =
      After(FromText(text), {"value_widening", "epilogue_fusion", "projection_merge", "pointwise_fusion"});
  EXPECT_EQ(Ops(after), "cast linears pointwise") << PrintGraph(after);
  const Graph narrowed = After(after, {"value_narrowing"});
  EXPECT_EQ(Ops(narrowed), "linears pointwise") << PrintGraph(narrowed);
  for (const ValueId id : narrowed.nodes()[0].outputs) EXPECT_EQ(narrowed.value(id).dtype, DType::kBF16);
}

TEST(ProjectionMerge, LeavesOtherActivationsWhereTheyAre) {
  const std::string head =
      "input %x : f32[5, 8]\ninput %z : f32[5, 8]\nweight %w : f32[8, 8]\nweight %v : f32[8, 8]\nweight %u : f32[1, "
      "8]\n"
      "%a = linear(%x, %w) {activation = \"silu\"}\n";
  const std::string both = "%b = linear(%x, %v)\n", tail = "return %y\n";
  Expect(head + both + "%t = gelu(%a)\n%y = add(%t, %b)\n" + tail, "linear linear gelu add");
  Expect(head + both + "%t = mul(%a, %b)\n%y = add(%t, %a)\n" + tail, "linear linear mul add");
  Expect(head + "%b = linear(%z, %v)\n%y = mul(%a, %b)\n" + tail, "linear linear mul");
  Expect(head + both + "%y = mul(%a, %b)\nreturn %y, %b\n", "linear linear mul");
  // Smaller than what reads it, it would be a step of its own.
  Expect(head + "%b = linear(%x, %u) {activation = \"tanh\"}\n%y = mul(%a, %b)\n" + tail, "linear linear mul");
  // Weights so large that their products take long.
  Expect(
      "input %x : f32[5, 4096]\nweight %w : f32[4097, 4096]\nweight %v : f32[4097, 4096]\n%a = linear(%x, %w) "
      "{activation = \"silu\"}\n" +
          both + "%y = mul(%a, %b)\n" + tail,
      "linear linear mul");
  // Of two that agree nothing has to move.
  Expect(head + "%b = linear(%x, %v) {activation = \"silu\"}\n%y = mul(%a, %b)\n" + tail, "linears mul");
  // An activation that is no operator of its own.
  Expect(
      "input %x : f32[5, 8]\nweight %w : f32[8, 8]\nweight %v : f32[8, 8]\n%a = linear(%x, %w) {activation = "
      "\"hardswish\"}\n" +
          both + "%y = mul(%a, %b)\n" + tail,
      "linear linear mul");
}

TEST(ProjectionMerge, LeavesWhatWouldBeCopied) {
  const std::string head =
      "input %x : f32[5, 8]\nweight %w : f32[8, 8]\nweight %v : f32[8, 8]\n%a = linear(%x, %w)\n%b = linear(%x, %v)\n";
  Expect(head + "return %a, %b\n", "linear linear");
  Expect(head + "%y = mul(%a, %b)\nreturn %y, %b\n", "linear linear mul");
  Expect(head + "%t = permute(%b) {dims = [1, 0]}\n%y = gelu(%a)\nreturn %y, %t\n", "linear linear permute gelu");
  Expect(head + "%s = reshape(%a) {shape = [40]}\n%y = gelu(%s)\n%z = gelu(%b)\nreturn %y, %z\n",
         "linear linear reshape gelu gelu");
  Expect(head + "%y = softmax(%a)\n%z = gelu(%b)\nreturn %y, %z\n", "linear linear softmax gelu");
  Expect(head + "%r = reshape(%a) {shape = [5, 2, 4]}\n%y = softmax(%r)\n%z = gelu(%b)\nreturn %y, %z\n",
         "linear linear reshape softmax gelu");
  // The other two still merge.
  Expect(head + "weight %u : f32[8, 8]\n%c = linear(%x, %u)\n%y = mul(%a, %b)\nreturn %y, %c\n", "linears linear mul");
}

TEST(ProjectionMerge, KeepsTheLayersOfADecoderApart) {
  // Both layers read what the encoder made; the second one's keys are not computed before the first layer is done.
  std::string text = "input %e : f32[1, 3, 8]\ninput %q0 : f32[1, 2, 3, 4]\n";
  for (const std::string layer : {"1", "2"}) {
    for (const std::string name : {"k", "v"}) {
      const std::string id = name + layer;
      text += "weight %w" + id + " : f32[8, 8]\n%l" + id + " = linear(%e, %w" + id + ")\n%r" + id + " = reshape(%l" +
              id + ") {shape = [1, 3, 2, 4]}\n%" + id + " = permute(%r" + id + ") {dims = [0, 2, 1, 3]}\n";
    }
    text += "%q" + layer + " = sdpa(%q" + (layer == "1" ? "0" : "1") + ", %k" + layer + ", %v" + layer +
            ") {scale = 0.5}\n";
  }
  const Graph after = After(FromText(text + "return %q2\n"), {"projection_merge"});
  EXPECT_EQ(Ops(after), "linears reshape permute reshape permute sdpa linears reshape permute reshape permute sdpa")
      << PrintGraph(after);
  ExpectPass("projection_merge", text + "return %q2\n", Ops(after));
}

TEST(Linears, WithWeightsComputedAtRunTime) {
  const Graph graph = FromText(
      "input %x : f32[4, 8]\ninput %v : f32[3, 8]\nweight %w : f32[5, 8]\nweight %b : f32[5]\nweight %c : f32[3]\n"
      "%p, %q = linears(%x, %w, %v, %b, %c) {activation = \"relu\", weights = 2}\nreturn %p, %q\n");
  const Graph separate = FromText(
      "input %x : f32[4, 8]\ninput %v : f32[3, 8]\nweight %w : f32[5, 8]\nweight %b : f32[5]\nweight %c : f32[3]\n"
      "%p = linear(%x, %w, %b) {activation = \"relu\"}\n%q = linear(%x, %v, %c) {activation = \"relu\"}\n"
      "return %p, %q\n");
  ExpectSameResults(separate, graph, 1e-6);
}

TEST(Linears, OutputsOfTheGraphAndEmptyOnes) {
  for (const std::string rows : {"4", "1", "0"}) {
    const std::string head = "input %x : f32[" + rows + ", 2, 8]\nweight %w : f32[5, 8]\nweight %v : f32[3, 8]\n";
    ExpectSameResults(FromText(head + "%p = linear(%x, %w)\n%q = linear(%x, %v)\nreturn %p, %q\n"),
                      FromText(head + "%p, %q = linears(%x, %w, %v) {weights = 2}\nreturn %p, %q\n"), 1e-6);
  }
}

TEST(Linears, RefusesOtherOperands) {
  const auto error = [](const std::string& node) {
    const Result<Graph> graph =
        ParseGraph("graph 1\ninput %x : f32[4, 8]\ninput %w : f32[5, 8]\ninput %b : f32[5]\n" + node + "\nreturn %x\n");
    return graph.ok() ? std::string() : graph.status().message();
  };
  const auto expect = [&](const std::string& node, const std::string& message) {
    EXPECT_NE(error(node).find(message), std::string::npos) << error(node);
  };
  expect("%a, %c = linears(%x, %w, %w, %b) {weights = 2}", "got 3 operands behind x, of which weights = 2");
  expect("%a = linears(%x) {weights = 0}", "got 0 operands behind x");
  expect("%a = linears(%x, %w) {weights = -1}", "of which weights = -1");
  expect("%a = linears(%x, %w)", "weights");
  expect("%a = linears(%x, %w) {layout = \"kn\", weights = 1}", "weight [K, N], got x [4, 8]");
  expect("%a, %c = linears(%x, %w, %b) {weights = 2}", "weight [N, K], got x [4, 8] and weight [5]");
  expect("%a, %c = linears(%x, %w, %w, %b, %b) {precision = \"q\", weights = 2}", "\"q\" is not known");
  EXPECT_EQ(error("%a, %c = linears(%x, %w, %w, %b, %b) {weights = 2}"), "");
}

}  // namespace
}  // namespace thresher::pass_testing
