#include "passes/pass_testing.h"
#include "thresher/plan/builder.h"
#include "thresher/plan/weight_store.h"

namespace thresher::pass_testing {
namespace {

std::string Replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
  return text;
}

// Runs the pass on `text` and compares with `plain`, which says in f32 what has to be computed; both for bf16 (HALF in
// the texts) and f16.
void ExpectWidened(const std::string& text, const std::string& plain, const std::string& ops) {
  for (const std::string half : {"bf16", "f16"}) {
    const Graph before = FromText(Replaced(text, "HALF", half));
    const Graph wanted = FromText(Replaced(plain, "HALF", half));
    const Graph after = After(before, {std::string(kWideningPass)});
    EXPECT_EQ(Ops(after), Replaced(ops, "HALF", half)) << PrintGraph(after);
    ASSERT_TRUE(CheckRewrite(before, after).ok());
    ExpectSameResults(wanted, after, 0);
  }
}

TEST(ValueWidening, LeavesF32Alone) {
  const Graph before = FromText("input %x : f32[2, 3]\n%y = exp(%x)\nreturn %y\n");
  EXPECT_EQ(PrintGraph(After(before, {"value_widening"})), PrintGraph(before));
}

TEST(ValueWidening, RoundsOnceWhereAValueIsHandedOut) {
  ExpectWidened(
      "input %x : HALF[5, 7]\n%a = exp(%x)\n%b = mul(%a, %x)\n%c = add(%b, %b)\nreturn %c\n",
      "input %x : HALF[5, 7]\n%w = cast(%x) {dtype = \"f32\"}\n%a = exp(%w)\n%b = mul(%a, %w)\n%c = add(%b, %b)\n"
      "%n = cast(%c) {dtype = \"HALF\"}\nreturn %n\n",
      "cast exp mul add cast");
}

TEST(ValueWidening, MovesWhatIsStoredAsItIs) {
  ExpectWidened(
      "input %x : HALF[4, 6]\ninput %i : i64[3]\n%p = permute(%x) {dims = [1, 0]}\n%s = slice(%p) {dim = 0, end = 4}\n"
      "%c = cat(%s, %s) {dim = 0}\n%e = embedding(%c, %i)\nreturn %e, %x\n",
      "input %x : HALF[4, 6]\ninput %i : i64[3]\n%p = permute(%x) {dims = [1, 0]}\n%s = slice(%p) {dim = 0, end = 4}\n"
      "%c = cat(%s, %s) {dim = 0}\n%e = embedding(%c, %i)\nreturn %e, %x\n",
      "permute slice cat embedding");
}

TEST(ValueWidening, MovesWhatIsWideWide) {
  ExpectWidened(
      "input %x : HALF[4, 6]\n%a = exp(%x)\n%c = cat(%a, %x) {dim = 1}\n%r = reshape(%c) {shape = [48]}\nreturn %r\n",
      "input %x : HALF[4, 6]\n%w = cast(%x) {dtype = \"f32\"}\n%a = exp(%w)\n%c = cat(%a, %w) {dim = 1}\n%r = "
      "reshape(%c) {shape = [48]}\n%n = cast(%r) {dtype = \"HALF\"}\nreturn %n\n",
      "cast exp cat reshape cast");
}

TEST(ValueWidening, CastsBetweenFloatsDisappear) {
  ExpectWidened(
      "input %x : HALF[8]\n%f = cast(%x) {dtype = \"f32\"}\n%a = exp(%f)\n%h = cast(%a) {dtype = \"HALF\"}\n%b = "
      "mul(%h, %x)\n%o = cast(%b) {dtype = \"f32\"}\nreturn %o\n",
      "input %x : HALF[8]\n%f = cast(%x) {dtype = \"f32\"}\n%a = exp(%f)\n%b = mul(%a, %f)\nreturn %b\n",
      "cast exp mul");
}

// Comparisons, indices and integers tell a rounded value from another one.
TEST(ValueWidening, RoundsWhereItIsNoticed) {
  ExpectWidened(
      "input %x : HALF[8]\ninput %i : i64[8]\n%a = exp(%x)\n%r = reshape(%a) {shape = [2, 4]}\n%t = reshape(%r) {shape "
      "= [8]}\n%g = gt(%t, %x)\n%j = mul(%a, %a)\n%k = cast(%j) {dtype = \"i64\"}\n%big = cast(%i) {dtype = \"HALF\"}\n"
      "%back = floor(%big)\nreturn %g, %k, %back\n",
      "input %x : HALF[8]\ninput %i : i64[8]\n%w = cast(%x) {dtype = \"f32\"}\n%a0 = exp(%w)\n%a1 = cast(%a0) {dtype = "
      "\"HALF\"}\n%a = cast(%a1) {dtype = \"f32\"}\n%g = gt(%a, %w)\n%j0 = mul(%a, %a)\n%j1 = cast(%j0) {dtype = "
      "\"HALF\"}\n%k = cast(%j1) {dtype = \"i64\"}\n%big = cast(%i) {dtype = \"HALF\"}\nreturn %g, %k, %big\n",
      "cast exp round_HALF reshape reshape gt mul round_HALF cast cast round_HALF floor cast");
}

TEST(ValueWidening, WidensSmallConstantsOnce) {
  ExpectWidened(
      "input %x : HALF[3, 4]\nweight %b : HALF[4]\n%y = add(%x, %b)\n%z = mul(%y, %b)\nreturn %z\n",
      "input %x : HALF[3, 4]\nweight %b : HALF[4]\n%w = cast(%x) {dtype = \"f32\"}\n%c = cast(%b) {dtype = \"f32\"}\n"
      "%y = add(%w, %c)\n%z = mul(%y, %c)\n%n = cast(%z) {dtype = \"HALF\"}\nreturn %n\n",
      "cast add mul cast");
}

TEST(ValueWidening, ProductsTakeTheirWeightAsItIsStored) {
  const std::string text =
      "input %x : bf16[3, 64]\nweight %w : bf16[48, 64]\nweight %b : bf16[48]\n%t = permute(%w) {dims = [1, 0]}\n"
      "%a = matmul(%x, %t)\n%y = linear(%a, %v, %b)\nreturn %y\n";
  const Graph before = FromText(Replaced(text, "%y =", "weight %v : bf16[48, 48]\n%y ="));
  const Graph after = After(before, {"value_widening", "linear_recognition"});
  EXPECT_EQ(Ops(after), "cast linear linear cast") << PrintGraph(after);
  for (const Node& node : after.nodes()) {
    if (node.op->name != "linear") continue;
    EXPECT_EQ(after.value(node.inputs[0]).dtype, DType::kF32);
    EXPECT_EQ(after.value(node.inputs[1]).dtype, DType::kBF16);
    EXPECT_TRUE(after.is_constant(node.inputs[1]));
  }
}

TEST(ValueWidening, AttentionAsksForTheTypeThatItIsGiven) {
  const std::string text =
      "input %q : HALF[1, 2, 5, 8]\n%y = sdpa(%q, %q, %q) {scale = 0.35}\n%p = permute(%y) {dims = [0, 2, 1, 3]}\n"
      "%r = reshape(%p) {shape = [1, 5, 16]}\nreturn %r\n";
  const auto precision = [&](const std::string& half) {
    const Graph after = After(FromText(Replaced(text, "HALF", half)), {"value_widening"});
    for (const Node& node : after.nodes()) {
      if (node.op->name == "sdpa") return GetAttr<std::string>(node.attrs, "precision", "fp32");
    }
    return std::string("none");
  };
  EXPECT_EQ(precision("bf16"), "bf16");
  EXPECT_EQ(precision("f16"), "fp16");
}

TEST(ValueWidening, PlansRefuseWhatWasNotWidened) {
  const Graph graph = FromText("input %x : bf16[4]\n%y = exp(%x)\nreturn %y\n");
  WeightStore weights;
  const auto plan = BuildPlan(graph, weights, {});
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("exp: expected operand 0 as f32, got bf16; run the pass value_widening first"),
            std::string::npos)
      << plan.status().message();
}

// At every level, without anybody asking for it.
TEST(ValueWidening, CompileRunsIt) {
  const Graph graph = FromText("input %x : f16[4]\n%y = exp(%x)\nreturn %y\n");
  for (const std::string level : {"O0", "O1", "O2", "O3"}) {
    WeightStore weights;
    CompileOptions options;
    options.level = level;
    const auto session = Compile(graph, weights, options);
    ASSERT_TRUE(session.ok()) << session.status().message();
    std::vector<uint16_t> x = {ToF16(0.0f).bits, ToF16(1.0f).bits, ToF16(-1.0f).bits, ToF16(20.0f).bits}, y(4);
    const View in = MakeView(x.data(), DType::kF16, {4}), out = MakeView(y.data(), DType::kF16, {4});
    ASSERT_TRUE(session.value()->Run(std::vector<View>{in}, std::vector<View>{out}).ok());
    EXPECT_EQ(y[0], ToF16(1.0f).bits);
    EXPECT_EQ(y[1], ToF16(2.7182817f).bits);
    EXPECT_EQ(y[2], ToF16(0.36787944f).bits);
    EXPECT_EQ(y[3], 0x7c00);  // beyond the format
  }
}

}  // namespace
}  // namespace thresher::pass_testing
