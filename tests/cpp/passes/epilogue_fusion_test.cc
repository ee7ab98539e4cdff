#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

const std::string kHead =
    "input %x : f32[2, 3, 4]\ninput %r : f32[2, 3, 5]\nweight %w : f32[5, 4]\nweight %b : f32[5]\n%l = linear(%x, "
    "%w)\n";

void Expect(const std::string& body, const std::string& ops) { ExpectPass("epilogue_fusion", kHead + body, ops); }

TEST(EpilogueFusion, BiasActivationAndResidual) {
  Expect("%y = add(%l, %b)\nreturn %y\n", "linear");
  Expect("%y = add(%b, %l)\nreturn %y\n", "linear");
  for (const char* activation : {"relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"}) {
    const std::string body =
        std::string("%a = add(%l, %b)\n%c = ") + activation + "(%a)\n%y = add(%r, %c)\nreturn %y\n";
    Expect(body, "linear");
    const Graph after = After(FromText(kHead + body), {"epilogue_fusion"});
    EXPECT_EQ(GetAttr<std::string>(after.nodes()[0].attrs, "activation", ""), activation);
  }
  Expect("%y = add(%l, %r)\nreturn %y\n", "linear");
}

TEST(EpilogueFusion, CommutesWithReshapes) {
  Expect("%s = reshape(%l) {shape = [6, 5]}\n%a = add(%s, %b)\n%g = gelu(%a)\nreturn %g\n", "linear reshape");
  Expect("%s = reshape(%l) {shape = [6, 5]}\n%t = reshape(%r) {shape = [6, 5]}\n%y = add(%s, %t)\nreturn %y\n",
         "reshape reshape linear reshape");
}

TEST(EpilogueFusion, KeepsTheOrderActivationThenResidual) {
  Expect("%a = add(%l, %r)\n%y = gelu(%a)\nreturn %y\n", "linear gelu");
  Expect("%g = gelu(%l)\n%y = add(%g, %b)\nreturn %y\n", "linear add");
  Expect("%g = gelu(%l)\n%y = relu(%g)\nreturn %y\n", "linear relu");
  Expect("%a = add(%l, %r)\n%y = add(%a, %r)\nreturn %y\n", "linear add");
  Expect("%a = add(%l, %b)\n%y = add(%a, %b)\nreturn %y\n", "linear add");
}

TEST(EpilogueFusion, NeedsTheOnlyUse) {
  Expect("%y = add(%l, %b)\nreturn %y, %l\n", "linear add");
  Expect("%a = gelu(%l)\n%y = add(%a, %l)\nreturn %y\n", "linear gelu add");
  Expect("%y = add(%l, %l)\nreturn %y\n", "linear add");
  Expect("%s = reshape(%l) {shape = [6, 5]}\n%a = gelu(%s)\nreturn %a, %s\n", "linear reshape gelu");
  // Behind the reshape: fused, the product would be computed twice.
  Expect("%s = reshape(%l) {shape = [6, 5]}\n%a = gelu(%s)\nreturn %a, %l\n", "linear reshape gelu");
  Expect("%s = reshape(%l) {shape = [6, 5]}\n%a = add(%s, %b)\n%n = neg(%l)\nreturn %a, %n\n",
         "linear reshape add neg");
}

TEST(EpilogueFusion, NeedsTheLastDimension) {
  Expect("input %c : f32[3, 1]\n%y = add(%l, %c)\nreturn %y\n", "linear add");
  Expect("input %c : f32[]\n%y = add(%l, %c)\nreturn %y\n", "linear add");
  Expect("%s = reshape(%l) {shape = [2, 5, 3]}\ninput %c : f32[3]\n%a = add(%s, %c)\nreturn %a\n",
         "linear reshape add");
  Expect("input %c : f32[4, 2, 3, 5]\n%y = add(%l, %c)\nreturn %y\n", "linear add");  // broadcasts the linear
  Expect("%y = sub(%l, %b)\nreturn %y\n", "linear sub");
}

TEST(EpilogueFusion, OfTwoLinearsTheLaterTakesTheOther) {
  ExpectPass("epilogue_fusion", kHead + "weight %v : f32[5, 4]\n%m = linear(%x, %v)\n%y = add(%m, %l)\nreturn %y\n",
             "linear linear");
}

TEST(EpilogueFusion, TheResidualMayBeComputedAfterTheLinear) {
  Expect("%n = neg(%r)\n%y = add(%l, %n)\nreturn %y\n", "neg linear");
}

TEST(EpilogueFusion, MergesSources) {
  const Graph after =
      After(FromText("input %x : f32[3, 4]\nweight %w : f32[5, 4]\nweight %b : f32[5]\n%l = linear(%x, %w) @ \"fc\"\n"
                     "%a = add(%l, %b) @ \"fc\"\n%y = gelu(%a) @ \"act\"\nreturn %y\n"),
            {"epilogue_fusion"});
  ASSERT_EQ(Ops(after), "linear");
  EXPECT_EQ(after.nodes()[0].source, "fc, act");
}

TEST(EpilogueFusion, KeepsTheModuleOfTheLinear) {
  const Graph after =
      After(FromText("input %x : f32[3, 4]\nweight %w : f32[5, 4]\n%l = linear(%x, %w) in \"block.fc\"\n"
                     "%r = reshape(%l) {shape = [15]} in \"block\"\n%y = gelu(%r) in \"block.act\"\n"
                     "return %y\n"),
            {"epilogue_fusion"});
  ASSERT_EQ(Ops(after), "linear reshape");
  EXPECT_EQ(after.nodes()[0].module, "block.fc");
  EXPECT_EQ(after.nodes()[1].module, "block.act");  // made by the rule that replaced the gelu
}

}  // namespace
}  // namespace thresher::pass_testing
