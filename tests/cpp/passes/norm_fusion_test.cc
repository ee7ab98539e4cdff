#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

const std::string kHead =
    "input %x : f32[2, 3, 8]\ninput %z : f32[2, 3, 8]\nweight %w : f32[8]\nweight %b : f32[8]\n%s = add(%x, %z)\n";

void Expect(const std::string& body, const std::string& ops) { ExpectPass("norm_fusion", kHead + body, ops); }

TEST(NormFusion, TakesInTheSum) {
  Expect("%y = layer_norm(%s, %w, %b)\nreturn %y\n", "layer_norm");
  Expect("%y = layer_norm(%s)\nreturn %y\n", "layer_norm");
  Expect("%y = rms_norm(%s, %w)\nreturn %y\n", "rms_norm");
  Expect("%y = rms_norm(%s) {eps = 0.5}\nreturn %y\n", "rms_norm");
  Expect("weight %v : f32[3, 8]\n%y = layer_norm(%s, %v) {dims = 2}\nreturn %y\n", "layer_norm");
}

TEST(NormFusion, GivesTheSumToOthers) {
  Expect("%g = gelu(%s)\n%y = layer_norm(%s, %w, %b)\n%t = add(%y, %s)\nreturn %t, %g\n", "layer_norm gelu add");
  Expect("%y = rms_norm(%s, %w)\nreturn %y, %s\n", "rms_norm");
  Expect("%y = rms_norm(%s, %w)\n%v = rms_norm(%s, %b)\nreturn %y, %v\n", "rms_norm rms_norm");
  const Graph after =
      After(FromText(kHead + "%y = rms_norm(%s, %w) @ \"n\" in \"norm\"\nreturn %y, %s\n"), {"norm_fusion"});
  ASSERT_EQ(after.nodes()[0].outputs.size(), 2u);
  EXPECT_EQ(after.nodes()[0].module, "norm");
}

TEST(NormFusion, NeedsAWholeResidualAndItsWeights) {
  Expect("%t = add(%x, %w)\n%y = layer_norm(%t)\nreturn %y\n", "add layer_norm");
  Expect("%m = sub(%x, %z)\n%y = layer_norm(%m)\nreturn %y\n", "sub layer_norm");
  // The weight is computed from the sum itself.
  Expect("%m = mean(%s) {dims = [0, 1]}\n%y = rms_norm(%s, %m)\nreturn %y\n", "add mean rms_norm");
  Expect("%y = rms_norm(%s, _, %x)\nreturn %y\n", "add rms_norm");
}

TEST(NormFusion, ReadsWindows) {
  const std::string text =
      "input %x : f32[4, 6, 8]\ninput %z : f32[6, 4, 8]\n%p = permute(%z) {dims = [1, 0, 2]}\n%a = slice(%x) {dim = 1, "
      "start "
      "= 2, end = 4}\n%c = slice(%p) {dim = 1, start = 1, end = 3}\n%s = add(%a, %c)\n%y = layer_norm(%s)\nreturn %y, "
      "%s\n";
  ExpectPass("norm_fusion", text, "permute slice slice layer_norm");
}

TEST(Norm, RefusesOtherOperands) {
  const auto error = [](const std::string& node) {
    const Result<Graph> graph =
        ParseGraph("graph 1\ninput %x : f32[4, 8]\ninput %w : f32[8]\n" + node + "\nreturn %x\n");
    return graph.ok() ? std::string() : graph.status().message();
  };
  EXPECT_NE(error("%y = rms_norm(%x, %x)").find("expected weight and bias [8], got [4, 8]"), std::string::npos);
  EXPECT_NE(error("%y = rms_norm(%x, %w, %w)").find("expected residual of the shape of x, [4, 8], got [8]"),
            std::string::npos);
  EXPECT_NE(error("%y = layer_norm(%x) {sum = true}").find("expected a residual"), std::string::npos);
  EXPECT_EQ(error("%y, %s = layer_norm(%x, %w, %w, %x) {sum = true}"), "");
}

}  // namespace
}  // namespace thresher::pass_testing
