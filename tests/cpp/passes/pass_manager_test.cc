#include "thresher/passes/pass_manager.h"

#include <algorithm>
#include <set>

#include "passes/pass_testing.h"

namespace thresher {
namespace {

using pass_testing::FromText;

TEST(PassManager, NamesAreUniqueAndLevelsNameThem) {
  std::set<std::string_view> names;
  for (const Pass& pass : AllPasses()) {
    EXPECT_TRUE(names.insert(pass.name).second) << pass.name;
    EXPECT_FALSE(pass.doc.empty());
    EXPECT_EQ(FindPass(pass.name), &pass);
  }
  for (const Level level : {Level::kO0, Level::kO1, Level::kO2, Level::kO3}) {
    for (const std::string& name : PassesForLevel(level)) EXPECT_TRUE(names.contains(name)) << name;
  }
  EXPECT_EQ(PassesForLevel(Level::kO0), (std::vector<std::string>{"value_widening"}));
  EXPECT_EQ(PassesForLevel(Level::kO1), (std::vector<std::string>{"value_widening", "dead_code", "constant_folding"}));
  for (const std::string_view name : names) {
    if (name == kNarrowingPass) continue;  // the device decides about it
    const auto all = PassesForLevel(Level::kO2);
    EXPECT_NE(std::find(all.begin(), all.end(), name), all.end()) << name << " is in no list";
  }
}

TEST(PassManager, LevelsHaveNames) {
  EXPECT_EQ(ParseLevel("O0").value(), Level::kO0);
  EXPECT_EQ(ParseLevel("O3").value(), Level::kO3);
  EXPECT_EQ(ParseLevel("fast").status().message(), "expected an optimisation level O0, O1, O2 or O3, got 'fast'");
}

TEST(PassManager, DumpSeesEveryPass) {
  const Graph graph = FromText("input %x : f32[2]\n%d = neg(%x)\n%y = relu(%x)\nreturn %y\n");
  std::string seen;
  const std::vector<std::string> names = {"dead_code", "common_subexpressions"};
  const Result<Graph> result = RunPasses(graph, names, {}, [&](std::string_view pass, const Graph& after) {
    seen += std::string(pass) + ":" + std::to_string(after.nodes().size()) + " ";
  });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(seen, "dead_code:1 common_subexpressions:1 ");
}

TEST(PassManager, UnknownPassIsAnErrorThatListsTheKnown) {
  const std::vector<std::string> names = {"dead_code", "magic"};
  const Result<Graph> result = RunPasses(FromText("input %x : f32[2]\nreturn %x\n"), names, {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  EXPECT_NE(result.status().message().find("there is no pass 'magic'; known are value_widening dead_code"),
            std::string::npos);
}

Result<Graph> RunCustom(const std::function<Result<Graph>(const Graph&)>& pass) {
  const std::vector<std::string> names = {"mine", "dead_code"};
  return RunPasses(FromText("input %x : f32[2]\n%y = neg(%x)\nreturn %y\n"), names, {}, {}, {{"mine", pass}});
}

TEST(PassManager, CustomPassRunsInItsPlaceAndLosesItsDeadNodes) {
  const Result<Graph> result = RunCustom([](const Graph& before) -> Result<Graph> {
    Graph after = before;
    THRESHER_ASSIGN(const ValueId dead, after.Add1("exp", {after.inputs()[0]}));
    static_cast<void>(dead);
    THRESHER_ASSIGN(const ValueId y, after.Add1("relu", {after.outputs()[0]}));
    after.SetOutputs({y});
    return after;
  });
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_EQ(PrintGraph(result.value()),
            "graph 1\ninput %0 \"x\" : f32[2]\n%1 = neg(%0) : f32[2]\n%2 = relu(%1) : f32[2]\nreturn %2\n");
}

TEST(PassManager, CustomPassKeepsInputsAndOutputs) {
  const Result<Graph> outputs = RunCustom([](const Graph& before) -> Result<Graph> {
    Graph after = before;
    after.SetOutputs({});
    return after;
  });
  EXPECT_EQ(
      outputs.status().message(),
      "pass mine: expected 1 outputs, got 0; a pass keeps the number, the order and the types of outputs, rewrite "
      "what stands between");
  const Result<Graph> inputs = RunCustom([](const Graph&) -> Result<Graph> {
    Graph after;
    after.AddInput("x", DType::kF32, {3});
    return after;
  });
  EXPECT_NE(inputs.status().message().find("expected number 0 of the inputs as f32[2], got f32[3]"), std::string::npos)
      << inputs.status().message();
  const Result<Graph> failed = RunCustom([](const Graph&) -> Result<Graph> { return Unsupported("not today"); });
  EXPECT_EQ(failed.status().code(), Code::kUnsupported);
  EXPECT_EQ(failed.status().message(), "pass mine: not today");
}

TEST(DeadCode, KeepsInputsAndWhatOutputsNeed) {
  const Graph graph = FromText(
      "input %x : f32[2]\ninput %unused : i64[3]\nconst %c : f32[] = [2]\nconst %d : f32[] = [3]\n"
      "%a = mul(%x, %c)\n%b = mul(%x, %d)\n%e = neg(%b)\n%y = relu(%a) @ \"here\"\nreturn %y, %x\n");
  const Graph lean = pass_testing::After(graph, {"dead_code"});
  EXPECT_EQ(PrintGraph(lean),
            "graph 1\ninput %0 \"x\" : f32[2]\ninput %1 \"unused\" : i64[3]\nconst %2 \"c\" : f32[] = [2]\n"
            "%3 = mul(%0, %2) : f32[2]\n%4 = relu(%3) : f32[2] @ \"here\"\nreturn %4, %0\n");
}

TEST(CommonSubexpressions, ComputesEqualNodesOnce) {
  pass_testing::ExpectPass(
      "common_subexpressions",
      "input %x : f32[2, 3]\nconst %c : f32[] = [2]\nconst %d : f32[] = [2]\n"
      "%a = mul(%x, %c)\n%b = mul(%x, %d)\n%e = softmax(%a) {dim = 1}\n%f = softmax(%b) {dim = 1}\n"
      "%y = add(%e, %f)\nreturn %y, %f\n",
      "mul softmax add", 0);
}

TEST(CommonSubexpressions, KeepsWhatDiffersInAttributesOperandsOrBits) {
  pass_testing::ExpectPass(
      "common_subexpressions",
      "input %x : f32[2, 2]\nconst %c : f32[] = [0]\nconst %d : f32[] = [-0]\n"
      "%a = softmax(%x) {dim = 0}\n%b = softmax(%x) {dim = 1}\n%e = mul(%a, %c)\n%f = mul(%a, %d)\n"
      "%g = sub(%a, %b)\n%h = sub(%b, %a)\nreturn %e, %f, %g, %h\n",
      "softmax softmax mul mul sub sub", 0);
}

}  // namespace
}  // namespace thresher
