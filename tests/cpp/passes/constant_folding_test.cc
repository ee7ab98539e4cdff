#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

const std::string kPass = "constant_folding";

TEST(ConstantFolding, ComputesWhatDependsOnConstantsAlone) {
  const std::string text =
      "input %x : f32[4]\n%r = arange() {end = 4.0}\nconst %c : f32[] = [2]\n%s = mul(%r, %c)\n%t = exp(%s)\n"
      "%y = add(%x, %t)\nreturn %y, %s\n";
  ExpectPass(kPass, text, "add", 0);
}

TEST(ConstantFolding, ComputesWithWeights) {
  ExpectPass(kPass, "input %x : f32[4]\nweight %w : f32[4]\n%e = exp(%w)\n%y = add(%x, %e)\nreturn %y\n", "add");
  // Weight norm.
  ExpectPass(kPass,
             "input %x : f32[2, 8]\nweight %v : f32[4, 8]\nweight %g : f32[4, 1]\n%p = mul(%v, %v)\n%s = sum(%p) {dims "
             "= [1], keepdim = true}\n%n = sqrt(%s)\n%q = div(%g, %n)\n%w = mul(%v, %q)\n%t = permute(%w) {dims = [1, "
             "0]}\n%y = matmul(%x, %t)\nreturn %y\n",
             "permute matmul");
}

TEST(ConstantFolding, LeavesWeightsThatAreMovedToTheirOwner) {
  ExpectPass(kPass,
             "input %x : f32[4]\nweight %w : f32[2]\nweight %v : f32[2]\n%c = cat(%w, %v) {dim = 0}\n%y = add(%x, "
             "%c)\nreturn %y\n",
             "cat add", 0);
  ExpectPass(kPass,
             "input %x : f32[2, 4]\nweight %w : f32[9, 4]\nconst %i : i64[2] = [3, 5]\n%e = embedding(%w, %i)\n%y = "
             "add(%x, %e)\nreturn %y\n",
             "embedding add", 0);
}

TEST(ConstantFolding, DoesNotGrowConstantsByBroadcasting) {
  const Graph folded = After(FromText("input %x : f32[512, 1024]\nconst %c : f32[1024]\nconst %d : f32[512, 1]\n"
                                      "%s = add(%c, %d)\n%y = mul(%x, %s)\nreturn %y\n"),
                             {kPass});
  EXPECT_EQ(Ops(folded), "add mul");  // 2 MiB of result from 6 KiB of operands
  ExpectPass(
      kPass,
      "input %x : f32[64, 4]\nconst %c : f32[4]\n%e = expand(%c) {shape = [64, 4]}\n%y = mul(%x, %e)\nreturn %y\n",
      "expand mul", 0);
}

TEST(ConstantFolding, ViewsOfWeightsAliasThem) {
  const Graph graph = FromText(
      "input %x : f32[2, 4]\nweight %w : f32[12, 4]\n%q = slice(%w) {dim = 0, start = 4, end = 8}\n"
      "%s = select(%w) {dim = 0, index = -1}\n%r = reshape(%s) {shape = [2, -1]}\n%p = slice(%w) {dim = 1, start = 1, "
      "end = 3}\n"
      "%y = linear(%x, %q)\nreturn %y, %r, %p\n");
  const Graph folded = After(graph, {kPass});
  EXPECT_EQ(Ops(folded), "slice linear") << PrintGraph(folded);  // columns are no window without strides
  const auto* base = static_cast<const float*>(graph.value(1).constant.data);
  const Value& q = folded.value(folded.nodes()[1].inputs[1]);
  EXPECT_EQ(q.constant.data, base + 16);
  EXPECT_TRUE(q.constant.is_weight);
  EXPECT_EQ(folded.value(folded.outputs()[1]).constant.data, base + 44);
  ExpectSameResults(graph, folded, 0);
}

TEST(ConstantFolding, ASliceWithGapsIsNoConstantOnTheSameMemory) {
  for (const char* kind : {"const %c : f32[8] = [1, 2, 3, 4, 5, 6, 7, 8]", "weight %c : f32[8]"}) {
    const std::string text = std::string("input %x : f32[4]\n") + kind +
                             "\n%s = slice(%c) {dim = 0, start = 0, end = 8, step = 2}\n%y = mul(%x, %s)\nreturn %y\n";
    ExpectPass(kPass, text, "slice mul", 0);
  }
}

TEST(ConstantFolding, ShrinksFull) {
  ExpectPass(kPass, "input %x : f32[64, 8]\n%f = full() {shape = [64, 8], value = 1.5}\n%y = mul(%x, %f)\nreturn %y\n",
             "expand mul", 0);
  ExpectPass(kPass, "%f = full() {shape = [2], value = 1.0, dtype = \"bool\"}\nreturn %f\n", "expand", 0);
}

TEST(ConstantFolding, AnErrorInOnePartKeepsTheOthersFolding) {
  const Graph graph = FromText(
      "input %x : f32[2]\nconst %t : f32[2, 1] = [1, 2]\nconst %bad : i64[1] = [9]\n%e = embedding(%t, %bad)\n"
      "const %c : f32[] = [2]\n%n = exp(%c)\n%y = mul(%x, %n)\n%z = add(%x, %e)\nreturn %y, %z\n");
  EXPECT_EQ(Ops(After(graph, {kPass})), "embedding mul add");
}

TEST(ConstantFolding, WithoutAnEvaluatorOnlyViewsFold) {
  const Graph graph =
      FromText("const %c : f32[4] = [1, 2, 3, 4]\n%r = reshape(%c) {shape = [2, 2]}\n%e = exp(%r)\nreturn %e\n");
  const std::vector<std::string> names = {kPass};
  const Result<Graph> folded = RunPasses(graph, names, PassContext{});
  ASSERT_TRUE(folded.ok());
  EXPECT_EQ(Ops(folded.value()), "exp");
}

}  // namespace
}  // namespace thresher::pass_testing
