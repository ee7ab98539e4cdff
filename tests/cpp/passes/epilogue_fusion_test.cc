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

TEST(EpilogueFusion, ARowAloneHasItsResidualAddedAsBesideOthers) {
  constexpr size_t kBias = 2, kResidual = 3;
  const std::string head = "input %x : f32[1, 4]\nweight %w : f32[5, 4]\n%l = linear(%x, %w)\n";
  const auto operand = [&](const std::string& added) {
    const Graph after = After(FromText(head + added), {"epilogue_fusion"});
    const Node& product = after.nodes().back();
    EXPECT_EQ(product.op->name, "linear") << added;
    return product.inputs[kResidual] != kNoValue ? kResidual : product.inputs[kBias] != kNoValue ? kBias : 0;
  };
  EXPECT_EQ(operand("input %r : f32[1, 5]\n%y = add(%l, %r)\nreturn %y\n"), kResidual);
  EXPECT_EQ(operand("input %r : f32[5]\n%y = add(%l, %r)\nreturn %y\n"), kBias);
  EXPECT_EQ(operand("weight %b : f32[1, 5]\n%y = add(%l, %b)\nreturn %y\n"), kBias);
  EXPECT_EQ(operand("weight %b : f32[5]\n%v = reshape(%b) {shape = [1, 5]}\n%y = add(%l, %v)\nreturn %y\n"), kBias);
}

TEST(EpilogueFusion, CommutesWithReshapes) {
  Expect("%s = reshape(%l) {shape = [6, 5]}\n%a = add(%s, %b)\n%g = gelu(%a)\nreturn %g\n", "linear reshape");
  Expect("%s = reshape(%l) {shape = [6, 5]}\n%t = reshape(%r) {shape = [6, 5]}\n%y = add(%s, %t)\nreturn %y\n",
         "reshape reshape linear reshape");
}

TEST(EpilogueFusion, KeepsTheOrderActivationThenResidual) {
  const std::string first = "%a = add(%l, %r)\n%y = gelu(%a)\nreturn %y\n";
  Expect(first, "linear");
  EXPECT_TRUE(
      GetAttr<bool>(After(FromText(kHead + first), {"epilogue_fusion"}).nodes()[0].attrs, "residual_first", false));
  Expect("%g = gelu(%l)\n%y = add(%g, %b)\nreturn %y\n", "linear add");
  Expect("%g = gelu(%l)\n%y = relu(%g)\nreturn %y\n", "linear relu");
  Expect("%a = add(%l, %r)\n%y = add(%a, %r)\nreturn %y\n", "linear add");
  Expect("%a = add(%l, %b)\n%y = add(%a, %b)\nreturn %y\n", "linear");  // the sum of two constants
  Expect("input %c : f32[5]\n%a = add(%l, %c)\n%y = add(%a, %b)\nreturn %y\n", "linear add");
}

TEST(EpilogueFusion, KnownFactorsScaleTheWeight) {
  const std::string factors = "const %s : f32[5] = [1.5, -2, 0.25, 3, 1]\n";
  Expect(factors + "%y = mul(%l, %s)\nreturn %y\n", "linear");
  Expect(factors + "%a = add(%l, %b)\n%y = mul(%s, %a)\n%z = add(%y, %b)\n%o = relu(%z)\nreturn %o\n", "linear");
  Expect("input %s : f32[5]\n%y = mul(%l, %s)\nreturn %y\n", "linear mul");
  Expect(factors + "%y = mul(%l, %s)\nreturn %y, %l\n", "linear mul");
  Expect(factors + "%g = gelu(%l)\n%y = mul(%g, %s)\nreturn %y\n", "linear mul");
  ExpectPass("epilogue_fusion",
             factors +
                 "input %x : f32[3, 4]\nweight %w : f32[4, 5]\n%l = linear(%x, %w) {layout = \"kn\"}\n"
                 "%y = mul(%l, %s)\nreturn %y\n",
             "linear");
}

const std::string kImage =
    "input %x : f32[2, 5, 4, 6]\nweight %w : f32[4, 3, 3, 2]\nconst %s : f32[4] = [1.5, -2, 0.25, 3]\n"
    "%c = convolution(%x, %w) {groups = 2, padding = [1, 1]}\n";

TEST(EpilogueFusion, ConvolutionsTakeTheSame) {
  const std::string norm = kImage + "%m = mul(%c, %s)\n%n = add(%m, %s)\n";
  ExpectPass("epilogue_fusion", norm + "%y = silu(%n)\nreturn %y\n", "convolution");
  ExpectPass("epilogue_fusion", norm + "input %r : f32[2, 5, 5, 4]\n%a = add(%n, %r)\n%y = relu(%a)\nreturn %y\n",
             "convolution");
  ExpectPass("epilogue_fusion",
             "input %x : f32[2, 5, 4, 4]\nweight %w : f32[4, 3, 3, 2]\nconst %s : f32[6] = [1.5, -2, 0.25, 3, 1, 7]\n"
             "%c = convolution(%x, %w) {groups = 2, transposed = true}\n%y = mul(%c, %s)\nreturn %y\n",
             "convolution");
}

TEST(EpilogueFusion, ActivationsOfSeveralOperators) {
  const std::string numbers = "const %0 : f32[] = [0]\nconst %3 : f32[] = [3]\nconst %6 : f32[] = [6]\n";
  const std::string relu6 = "%a = maximum(%c, %0)\n%y = minimum(%a, %6)\n";
  ExpectPass("epilogue_fusion", kImage + numbers + relu6 + "return %y\n", "convolution");
  ExpectPass("epilogue_fusion", kImage + numbers + relu6 + "return %y, %a\n", "convolution maximum minimum");
  const std::string swish =
      "%p = add(%c, %3)\n%a = maximum(%p, %0)\n%g = minimum(%a, %6)\n%m = mul(%c, %g)\n%y = div(%m, %6)\n";
  ExpectPass("epilogue_fusion", kImage + numbers + swish + "return %y\n", "convolution");
  ExpectPass("epilogue_fusion", kImage + numbers + swish + "return %y, %c\n",
             "convolution add maximum minimum mul div");
  ExpectPass("epilogue_fusion", kImage + numbers + swish + "return %y, %g\n",
             "convolution add maximum minimum mul div");
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
