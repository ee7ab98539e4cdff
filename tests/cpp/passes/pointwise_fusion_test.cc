#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

// Runs the pass, expects these operators, and the same bits.
void Expect(const std::string& text, const std::string& ops) { ExpectPass("pointwise_fusion", text, ops, 0); }

// The program of the only pointwise node.
std::string ProgramOf(const Graph& graph) {
  std::string program;
  for (const Node& node : graph.nodes()) {
    if (node.op->name == std::string_view("pointwise")) program += GetAttr<std::string>(node.attrs, "program", "");
  }
  return program;
}

std::string ErrorOf(const std::string& body) {
  const Result<Graph> graph = ParseGraph("graph 1\n" + body, RandomConstant);
  return graph.ok() ? "" : graph.status().message();
}

void ExpectError(const std::string& node, const std::string& part) {
  const std::string error =
      ErrorOf("input %x : f32[2, 3]\ninput %r : f32[3]\ninput %m : bool[2, 3]\n" + node + "\nreturn %y\n");
  EXPECT_NE(error.find(part), std::string::npos) << node << "\ngave: " << error;
}

// The names of the steps of the plan made of `graph`.
std::vector<std::string> Steps(const Graph& graph) {
  WeightStore weights;
  const auto plan = BuildPlan(graph, weights, {});
  EXPECT_TRUE(plan.ok());
  std::vector<std::string> names;
  for (const Step& step : plan.value()->steps) names.push_back(step.name);
  return names;
}

const std::string kGeluByHand =
    "input %x : f32[5, 7]\nconst %three : f32[] = [3]\nconst %c : f32[] = [0.044715]\nconst %d : f32[] = [0.7978846]\n"
    "const %one : f32[] = [1]\nconst %half : f32[] = [0.5]\n"
    "%cube = pow(%x, %three)\n%a = mul(%cube, %c)\n%b = add(%x, %a)\n%e = mul(%b, %d)\n%t = tanh(%e)\n"
    "%f = add(%t, %one)\n%g = mul(%x, %half)\n%y = mul(%g, %f)\nreturn %y\n";

TEST(PointwiseFusion, AWholeChainBecomesOneNode) {
  Expect(kGeluByHand, "pointwise");
  EXPECT_EQ(ProgramOf(After(FromText(kGeluByHand), {"pointwise_fusion"})),
            "s0=pow(in0,3); s1=mul(s0,0.044715); s2=add(in0,s1); s3=mul(s2,0.7978846); s4=tanh(s3); s5=add(s4,1); "
            "s6=mul(in0,0.5); s7=mul(s6,s5)");
  EXPECT_EQ(Steps(After(FromText(kGeluByHand), {"pointwise_fusion"})), std::vector<std::string>{"pointwise"});
}

TEST(PointwiseFusion, EveryElementWiseOperatorJoins) {
  for (const std::string op : {"sign", "floor", "ceil", "round", "trunc"}) {
    Expect("input %x : f32[5, 7]\n%a = " + op + "(%x)\n%y = mul(%a, %x)\nreturn %y\n", "pointwise");
  }
  for (const std::string op : {"isnan", "isinf"}) {
    Expect("input %x : f32[5, 7]\n%a = " + op + "(%x)\n%b = neg(%x)\n%y = where(%a, %b, %x)\nreturn %y\n", "pointwise");
  }
  for (const std::string op : {"floor_divide", "remainder", "fmod"}) {
    Expect("input %x : f32[5, 7]\n%a = " + op + "(%x, %x)\n%y = mul(%a, %x)\nreturn %y\n", "pointwise");
  }
  Expect("input %x : f32[5, 7]\n%a = logical_xor(%x, %x)\n%b = neg(%x)\n%y = where(%a, %b, %x)\nreturn %y\n",
         "pointwise");
}

TEST(PointwiseFusion, CountsTheArithmeticOfAllStepsAndTheBytesOfOperandsAndResult) {
  const std::string text =
      "input %x : f32[50, 60]\ninput %r : f32[60]\n%a = mul(%x, %r)\n%b = tanh(%a)\n%y = add(%b, %x)\nreturn %y\n";
  WeightStore weights;
  const auto single = BuildPlan(FromText(text), weights, {});
  const auto fused = BuildPlan(After(FromText(text), {"pointwise_fusion"}), weights, {});
  ASSERT_TRUE(single.ok() && fused.ok());
  double flops = 0;
  for (const Step& step : single.value()->steps) flops += step.flops;
  ASSERT_EQ(fused.value()->steps.size(), 1u);
  const Step& step = fused.value()->steps[0];
  EXPECT_EQ(step.flops, flops);
  EXPECT_EQ(step.bytes, 4.0 * (2 * 50 * 60 + 60));
  EXPECT_EQ(step.section, Section::kForward);
  EXPECT_GT(fused.value()->scratch_bytes, 0);
  EXPECT_EQ(fused.value()->arena_bytes, 0);
}

TEST(PointwiseFusion, OperandsBroadcast) {
  const std::string head = "input %x : f32[2, 3, 5]\ninput %r : f32[5]\ninput %c : f32[3, 1]\ninput %s : f32[]\n";
  Expect(head + "%a = mul(%x, %r)\n%b = add(%a, %c)\n%d = sub(%s, %b)\n%y = maximum(%d, %s)\nreturn %y\n", "pointwise");
  // What is smaller than the result is computed first, and once.
  Expect(head + "%a = mul(%r, %r)\n%b = neg(%a)\n%d = add(%x, %b)\n%y = neg(%d)\nreturn %y\n", "pointwise pointwise");
  Expect(head + "%a = neg(%r)\n%y = add(%x, %a)\nreturn %y\n", "neg add");
  // Both are needed for the shape.
  Expect(head + "%a = mul(%r, %c)\n%y = neg(%a)\nreturn %y\n", "pointwise");
}

TEST(PointwiseFusion, StopsAtOtherReadersAndOutputs) {
  const std::string head = "input %x : f32[4, 5]\n";
  Expect(head + "%a = neg(%x)\n%b = exp(%a)\n%y = relu(%b)\nreturn %y, %a\n", "neg pointwise");
  Expect(head + "%a = neg(%x)\n%b = exp(%a)\n%y = relu(%b)\n%z = softmax(%a)\nreturn %y, %z\n",
         "neg pointwise softmax");
  // Read twice, but inside.
  Expect(head + "%a = neg(%x)\n%b = exp(%a)\n%c = tanh(%a)\n%y = mul(%b, %c)\nreturn %y\n", "pointwise");
  Expect(head + "%a = neg(%x)\n%y = mul(%a, %a)\nreturn %y\n", "pointwise");
  // A way out and back in.
  Expect(head + "%a = neg(%x)\n%s = softmax(%a)\n%y = mul(%a, %s)\n%z = neg(%y)\nreturn %z\n", "neg softmax pointwise");
}

TEST(PointwiseFusion, TakesConditionsThatItComputes) {
  const std::string head =
      "input %x : f32[4, 5]\ninput %m : bool[4, 5]\nconst %z : f32[] = [0]\nconst %s : f32[] = [0.1]\n";
  Expect(head + "%c = gt(%x, %z)\n%a = mul(%x, %s)\n%y = where(%c, %x, %a)\nreturn %y\n", "pointwise");
  Expect(head + "%c = gt(%x, %z)\n%d = le(%x, %s)\n%e = logical_and(%c, %d)\n%y = where(%e, %x, %z)\nreturn %y\n",
         "pointwise");
  // A mask that comes in stays outside; what surrounds the where still becomes one.
  Expect(head + "%a = exp(%x)\n%b = neg(%a)\n%w = where(%m, %b, %z)\n%t = tanh(%w)\n%y = abs(%t)\nreturn %y\n",
         "pointwise where pointwise");
  // Results other than f32 are no groups of their own.
  Expect(head + "%a = exp(%x)\n%y = gt(%a, %z)\nreturn %y\n", "exp gt");
}

TEST(PointwiseFusion, LeavesIntegersAlone) {
  Expect("input %x : i64[4]\n%a = neg(%x)\n%y = mul(%a, %x)\nreturn %y\n", "neg mul");
  Expect("input %x : i64[4]\n%a = cast(%x) {dtype = \"f32\"}\n%y = neg(%a)\nreturn %y\n", "cast neg");
}

TEST(PointwiseFusion, KeepsToTheLimits) {
  std::string text = "input %x : f32[3]\n%v0 = neg(%x)\n";
  for (int i = 1; i < 20; ++i) text += "%v" + std::to_string(i) + " = neg(%v" + std::to_string(i - 1) + ")\n";
  Expect(text + "return %v19\n", "pointwise pointwise");
  text.clear();
  for (int i = 0; i < 12; ++i) text += "input %x" + std::to_string(i) + " : f32[3]\n";
  text += "%v0 = neg(%x0)\n";
  for (int i = 1; i < 12; ++i) {
    text += "%v" + std::to_string(i) + " = add(%v" + std::to_string(i - 1) + ", %x" + std::to_string(i) + ")\n";
  }
  Expect(text + "return %v11\n", "pointwise pointwise");
}

TEST(PointwiseFusion, ExponentsAreComputedAsBefore) {
  const std::string head = "input %x : f32[2, 2]\n";
  Expect(head + "const %e : f32[] = [0.5]\n%a = pow(%x, %e)\n%y = neg(%a)\nreturn %y\n", "pointwise");
  Expect(head + "const %e : f32[2] = [0.5, 0.5]\n%a = pow(%x, %e)\n%y = neg(%a)\nreturn %y\n", "pointwise");
  EXPECT_EQ(
      ProgramOf(After(FromText(head + "const %e : f32[2] = [0.5, 0.5]\n%a = pow(%x, %e)\n%y = neg(%a)\nreturn %y\n"),
                      {"pointwise_fusion"})),
      "s0=pow(in0,in1); s1=neg(s0)");
  Expect("input %x : f32[1]\n%e = neg(%x)\n%a = pow(%x, %e)\n%y = neg(%a)\nreturn %y\n", "pointwise");
}

TEST(PointwiseFusion, WindowsAreReadWhereTheyLie) {
  const std::string text =
      "input %x : f32[4, 6, 8]\n%p = permute(%x) {dims = [0, 2, 1]}\n%s = slice(%x) {dim = 2, start = 1, end = 7}\n"
      "%t = slice(%s) {dim = 1, start = 0, end = 6}\n%u = permute(%t) {dims = [0, 2, 1]}\n%v = slice(%p) {dim = 1, "
      "start = "
      "2, end = 8}\n%a = mul(%u, %v)\n%y = tanh(%a)\nreturn %y\n";
  const Graph after = After(FromText(text), {"pointwise_fusion"});
  ExpectSameResults(FromText(text), after, 0);
  EXPECT_EQ(Steps(after), std::vector<std::string>{"pointwise"});
}

TEST(PointwiseFusion, NamesItsOrigin) {
  Graph graph;
  const ValueId x = graph.AddInput("x", DType::kF32, {3});
  const ValueId a = graph.Add1("neg", {x}, {}, "a.py:1", "block.act").value();
  graph.SetOutputs({graph.Add1("exp", {a}, {}, "a.py:2", "block").value()});
  const Graph after = After(graph, {"pointwise_fusion"});
  ASSERT_EQ(Ops(after), "pointwise");
  EXPECT_EQ(after.nodes()[0].module, "block");
  EXPECT_EQ(after.nodes()[0].source, "a.py:2, a.py:1");
}

TEST(PointwiseFusion, LeavesEpiloguesToTheirLinear) {
  const std::string text =
      "input %x : f32[4, 8]\nweight %w : f32[8, 8]\nweight %b : f32[8]\n%l = linear(%x, %w)\n%m = add(%l, %b)\n%g = "
      "gelu(%m)\n%y = add(%g, %x)\nreturn %y\n";
  EXPECT_EQ(Ops(After(FromText(text), PassesForLevel(Level::kO2))), "linear");
}

TEST(PointwiseFusion, ASecondTimeChangesNothing) {
  const Graph once = After(FromText(kGeluByHand), {"pointwise_fusion"});
  EXPECT_EQ(PrintGraph(After(once, {"pointwise_fusion"})), PrintGraph(once));
}

TEST(Pointwise, ErrorsNameTheStep) {
  const auto node = [](const std::string& inputs, const std::string& program) {
    return "%y = pointwise(" + inputs + ") {program = \"" + program + "\"}";
  };
  EXPECT_EQ(ErrorOf("input %x : f32[2, 3]\n" + node("%x", "s0=neg(in0)") + "\nreturn %y\n"), "");
  ExpectError("%y = pointwise(%x)", "expected attribute 'program'");
  ExpectError(node("%x", ""), "got none");
  ExpectError(node("%x", "s0=neg(in0); s1=frob(s0)"), "step 1 (frob): expected an element-wise operator");
  ExpectError(node("%x", "s0=softmax(in0)"), "step 0 (softmax): expected an element-wise operator");
  ExpectError(node("%x", "s0=add(in0)"), "step 0 (add): expected 2 arguments, got 1");
  ExpectError(node("%x", "s0=neg(in0); s1=add(s0,in1)"), "step 1 (add): expected an argument below in1, got in1");
  ExpectError(node("%x", "s0=neg(1)"), "step 0 (neg): expected at most one number");
  ExpectError(node("%x", "s0=pow(2,in0)"), "step 0 (pow): expected at most one number, none as condition, base");
  ExpectError(node("%x", "s0=gt(in0,0); s1=where(s0,1,2)"), "step 1 (where): expected at most one number");
  ExpectError(node("%x", "s0=bitwise_not(in0)"), "step 0 (bitwise_not): expected one of i64 i32 bool, got f32[2, 3]");
  ExpectError(node("%x", "s0=where(in0,in0,1)"), "step 0 (where): expected the condition as bool");
  ExpectError(node("%x", "s0=gt(in0,1)"), "step 0 (gt): expected the result as f32, got bool[2, 3]");
  ExpectError(node("%x, %r", "s0=neg(in1); s1=add(in0,s0)"),
              "step 0 (neg): expected the shape of the last step, [2, 3], got [3]");
  ExpectError(node("%x", "s0=neg(in0); s1=exp(in0)"), "step 0 (neg): expected a later step to read it");
  ExpectError(node("%x, %r", "s0=neg(in0)"), "expected every operand to be read, got none for in1");
  ExpectError(node("%x, %m", "s0=where(in1,in0,0)"), "expected every operand as f32, bf16 or f16, got bool[2, 3]");
  std::string steps = "s0=neg(in0)";
  for (int i = 1; i < 17; ++i) steps += "; s" + std::to_string(i) + "=neg(s" + std::to_string(i - 1) + ")";
  ExpectError(node("%x", steps), "expected at most 16 steps and 8 operands, got 17 and 1");
}

TEST(PointwiseFusion, ValuesOfSixteenBitsAreReadAndStoredAsTheyAre) {
  for (const std::string half : {"bf16", "f16"}) {
    const std::string head = "input %h : " + half + "[5, 70]\ninput %r : f32[70]\n%x = cast(%h) {dtype = \"f32\"}\n";
    const std::string tail = "%y = cast(%b) {dtype = \"" + half + "\"}\nreturn %y\n";
    Expect(head + "%a = mul(%x, %r)\n%b = tanh(%a)\n" + tail, "pointwise");
    // One operator is enough.
    Expect(head + "%b = relu(%x)\n" + tail, "pointwise");
    Expect(head + "%y = relu(%x)\nreturn %y\n", "pointwise");
    // What others read in f32 stays.
    Expect(head + "%b = relu(%x)\n%y = cast(%b) {dtype = \"" + half + "\"}\nreturn %y, %b\n", "pointwise cast");
    Expect(head + "%s = softmax(%x) {dim = 1}\n%b = mul(%x, %r)\n%y = cast(%b) {dtype = \"" + half +
               "\"}\nreturn %y, %s\n",
           "cast softmax pointwise");
    // A bf16 that is widened to be stored as another is no operator of a chain.
    Expect(
        "input %h : " + half + "[5, 7]\n%x = cast(%h) {dtype = \"f32\"}\n%y = cast(%x) {dtype = \"i32\"}\nreturn %y\n",
        "cast cast");
  }
}

TEST(Pointwise, EmptyTensorsAndManyThreads) {
  Expect("input %x : f32[0, 3]\n%a = neg(%x)\n%y = exp(%a)\nreturn %y\n", "pointwise");
  const std::string text =
      "input %x : f32[301, 257]\ninput %r : f32[257]\n%a = mul(%x, %r)\n%b = tanh(%a)\n%y = add(%b, %x)\nreturn %y\n";
  const Graph before = FromText(text);
  const std::vector<OwnedTensor> want = Evaluated(before);
  CompileOptions options;
  options.plan.num_threads = 4;
  WeightStore weights;
  auto session = Compile(before, weights, options);
  ASSERT_TRUE(session.ok());
  std::vector<std::byte> x = RandomBytes("input 0", DType::kF32, {301, 257}, 7);
  std::vector<std::byte> r = RandomBytes("input 1", DType::kF32, {257}, 7);
  std::vector<std::byte> y(x.size());
  const View inputs[] = {MakeView(x.data(), DType::kF32, {301, 257}), MakeView(r.data(), DType::kF32, {257})};
  const View outputs[] = {MakeView(y.data(), DType::kF32, {301, 257})};
  ASSERT_TRUE(session.value()->Run(inputs, outputs).ok());
  EXPECT_TRUE(y == *want[0].bytes);
}

}  // namespace
}  // namespace thresher::pass_testing
