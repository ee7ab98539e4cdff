#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

const std::string kHead =
    "input %q : f32[2, 3, 5, 4]\ninput %k : f32[2, 3, 6, 4]\ninput %v : f32[2, 3, 6, 7]\nconst %s : f32[] = [0.5]\n"
    "const %inf : f32[] = [-inf]\nconst %min : f32[] = [-3.4028235e38]\nconst %soft : f32[] = [-10000]\n"
    "%t = permute(%k) {dims = [0, 1, 3, 2]}\n";
const std::string kScores = kHead + "%m = matmul(%q, %t)\n%n = mul(%m, %s)\n";

void Expect(const std::string& text, const std::string& ops) { ExpectPass("attention_recognition", text, ops); }

double ScaleOf(const std::string& text) {
  const Graph graph = After(FromText(text), {"attention_recognition"});
  for (const Node& node : graph.nodes()) {
    if (node.op->name == "sdpa") return GetAttr<double>(node.attrs, "scale", 0);
  }
  ADD_FAILURE() << PrintGraph(graph);
  return 0;
}

TEST(AttentionRecognition, ScaledScores) {
  const std::string tail = "%p = softmax(%n) {dim = -1}\n%y = matmul(%p, %v)\nreturn %y\n";
  Expect(kScores + tail, "sdpa");
  EXPECT_EQ(ScaleOf(kScores + tail), 0.5);
  EXPECT_EQ(ScaleOf(kHead + "%m = matmul(%q, %t)\n%n = div(%m, %s)\n" + tail), 2.0);
  EXPECT_EQ(ScaleOf(kHead + "%m = matmul(%q, %t)\n%p = softmax(%m) {dim = 3}\n%y = matmul(%p, %v)\nreturn %y\n"), 1.0);
  const std::string scaled_both = kHead + "%a = mul(%q, %s)\n%b = mul(%t, %s)\n%n = matmul(%a, %b)\n" + tail;
  Expect(scaled_both, "sdpa");
  EXPECT_EQ(ScaleOf(scaled_both), 0.25);
}

TEST(AttentionRecognition, OperandsThatWereScaledBeforeTheyWereCutIntoHeads) {
  const std::string head = "input %x : f32[2, 5, 12]\ninput %k : f32[2, 3, 6, 4]\ninput %v : f32[2, 3, 6, 4]\n";
  const std::string heads = "%h = reshape(%a) {shape = [2, 5, 3, 4]}\n%q = permute(%h) {dims = [0, 2, 1, 3]}\n";
  const std::string tail = "%y = sdpa(%q, %k, %v) {causal = false, scale = 3.0}\n";
  const std::string scaled = head + "const %s : f32[] = [0.5]\n%a = mul(%x, %s)\n" + heads + tail + "return %y\n";
  Expect(scaled, "reshape permute sdpa");
  EXPECT_EQ(ScaleOf(scaled), 1.5);
  const std::string divided = head + "const %s : f32[] = [0.5]\n%a = div(%x, %s)\n" + heads + tail + "return %y\n";
  Expect(divided, "reshape permute sdpa");
  EXPECT_EQ(ScaleOf(divided), 6.0);
  // The keys as well.
  const std::string both = head + "const %s : f32[] = [0.5]\n%a = mul(%x, %s)\n" + heads +
                           "%b = mul(%s, %k)\n%y = sdpa(%q, %b, %v) {causal = false, scale = 3.0}\nreturn %y\n";
  Expect(both, "reshape permute sdpa");
  EXPECT_EQ(ScaleOf(both), 0.75);
  // What others read is made anyway; zeros and infinities cannot be moved.
  Expect(head + "const %s : f32[] = [0.5]\n%a = mul(%x, %s)\n" + heads + tail + "return %y, %a\n",
         "mul reshape permute sdpa");
  Expect(head + "const %s : f32[] = [inf]\n%a = mul(%x, %s)\n" + heads + tail + "return %y\n",
         "mul reshape permute sdpa");
  // A factor for each column.
  Expect(head + "input %s : f32[12]\n%a = mul(%x, %s)\n" + heads + tail + "return %y\n", "mul reshape permute sdpa");
}

TEST(AttentionRecognition, Masks) {
  const std::string tail = "%p = softmax(%a) {dim = -1}\n%y = matmul(%p, %v)\nreturn %y\n";
  Expect("input %mask : f32[2, 1, 1, 6]\n" + kScores + "%a = add(%n, %mask)\n" + tail, "sdpa");
  Expect("input %mask : f32[5, 6]\n" + kScores + "%a = add(%mask, %n)\n" + tail, "sdpa");
  Expect("input %mask : bool[2, 1, 5, 6]\n" + kScores + "%a = where(%mask, %n, %min)\n" + tail, "full full where sdpa");
  Expect("input %mask : bool[2, 1, 5, 6]\n" + kScores + "%a = where(%mask, %min, %n)\n" + tail, "full full where sdpa");
  // A row of these is never masked throughout, so that softmax and sdpa agree.
  const std::string some = "const %mask : bool[6] = [true, false, true, true, false, true]\n";
  Expect(some + kScores + "%a = where(%mask, %n, %inf)\n" + tail, "sdpa");
  Expect(some + kScores + "%a = where(%mask, %inf, %n)\n" + tail, "logical_not sdpa");
}

TEST(AttentionRecognition, MadeMasksBecomeBool) {
  Expect("const %keep : bool[6] = [true, false, true, true, false, true]\nconst %zero : f32[] = [0]\n" + kScores +
             "%w = where(%keep, %zero, %inf)\n%e = expand(%w) {shape = [2, 1, 5, 6]}\n%a = add(%n, %e)\n%p = "
             "softmax(%a) {dim = -1}\n"
             "%y = matmul(%p, %v)\nreturn %y\n",
         "sdpa");
}

TEST(AttentionRecognition, OtherRanks) {
  Expect(
      "input %q : f32[6, 5, 4]\ninput %k : f32[6, 3, 4]\ninput %v : f32[6, 3, 4]\ninput %mask : f32[6, 5, 3]\n"
      "%t = permute(%k) {dims = [0, 2, 1]}\n%m = matmul(%q, %t)\n%a = add(%m, %mask)\n%p = softmax(%a)\n%y = "
      "matmul(%p, %v)\nreturn %y\n",
      "reshape reshape reshape sdpa reshape");
  Expect(
      "input %q : f32[5, 4]\ninput %k : f32[3, 4]\ninput %v : f32[3, 4]\n%t = permute(%k) {dims = [1, 0]}\n"
      "%m = matmul(%q, %t)\n%p = softmax(%m)\n%y = matmul(%p, %v)\nreturn %y\n",
      "reshape reshape reshape sdpa reshape");
  // One permute from [batch, sequence, heads, size] straight to the transposed keys.
  Expect(
      "input %q : f32[2, 3, 5, 4]\ninput %k : f32[2, 6, 3, 4]\ninput %v : f32[2, 3, 6, 4]\n%t = permute(%k) {dims = "
      "[0, 2, 3, 1]}\n"
      "%m = matmul(%q, %t)\n%p = softmax(%m)\n%y = matmul(%p, %v)\nreturn %y\n",
      "permute permute sdpa");
}

TEST(AttentionRecognition, NearMisses) {
  const std::string tail = "%y = matmul(%p, %v)\nreturn %y\n";
  // Not the last dimension.
  Expect(
      "input %q : f32[6, 6]\ninput %k : f32[6, 6]\n%t = permute(%k) {dims = [1, 0]}\n%m = matmul(%q, %t)\n%p = "
      "softmax(%m) {dim = 0}\n"
      "%y = matmul(%p, %k)\nreturn %y\n",
      "permute matmul softmax matmul");
  // Keys that are not transposed by a permute.
  Expect(
      "input %q : f32[6, 6]\ninput %k : f32[6, 6]\n%m = matmul(%q, %k)\n%p = softmax(%m)\n%y = matmul(%p, %k)\nreturn "
      "%y\n",
      "matmul softmax matmul");
  // The weights are wanted too, or the scores.
  Expect(kScores + "%p = softmax(%n)\n%y = matmul(%p, %v)\nreturn %y, %p\n", "permute matmul mul softmax matmul");
  Expect(kScores + "%p = softmax(%n)\n%y = matmul(%p, %v)\nreturn %y, %n\n", "permute matmul mul softmax matmul");
  // A scale for each head is no scalar.
  Expect(
      kHead + "const %h : f32[3, 1, 1] = [1, 2, 3]\n%m = matmul(%q, %t)\n%n = mul(%m, %h)\n%p = softmax(%n)\n" + tail,
      "permute matmul mul softmax matmul");
  // A mild fill leaves its positions a share.
  Expect(
      kHead + "input %keep : bool[5, 6]\n%m = matmul(%q, %t)\n%n = where(%keep, %m, %soft)\n%p = softmax(%n)\n" + tail,
      "permute matmul where softmax matmul");
  // v is broadcast over the heads.
  Expect(kHead + "input %u : f32[6, 7]\n%m = matmul(%q, %t)\n%p = softmax(%m)\n%y = matmul(%p, %u)\nreturn %y\n",
         "permute matmul softmax matmul");
  // The softmax is the right operand.
  Expect(
      "input %q : f32[6, 6]\ninput %k : f32[6, 6]\n%t = permute(%k) {dims = [1, 0]}\n%m = matmul(%q, %t)\n%p = "
      "softmax(%m)\n"
      "%y = matmul(%k, %p)\nreturn %y\n",
      "permute matmul softmax matmul");
}

TEST(AttentionRecognition, KeepsTheModule) {
  const Graph after = After(
      FromText("input %q : f32[2, 3, 4]\n%k = permute(%q) {dims = [0, 2, 1]}\n%s = matmul(%q, %k) in \"attention\"\n"
               "%p = softmax(%s) in \"attention\"\n%y = matmul(%p, %q) in \"attention\"\nreturn %y\n"),
      {"attention_recognition"});
  ASSERT_EQ(Count(after, "sdpa"), 1) << PrintGraph(after);
  for (const Node& node : after.nodes()) EXPECT_EQ(node.module, "attention") << node.op->name;
}

TEST(AttentionRecognition, RepeatedHeadsAreShared) {
  const auto text = [](const std::string& k, const std::string& v, const std::string& joined) {
    return "input %q : f32[2, 6, 4, 8]\ninput %k : f32[2, 3, 1, 5, 8]\ninput %v : f32[2, 3, 1, 5, 8]\n"
           "%a = expand(" +
           k + ") {shape = [2, 3, 2, 5, 8]}\n%b = reshape(%a) {shape = [" + joined + "]}\n%c = expand(" + v +
           ") {shape = [2, 3, 2, 5, 8]}\n%d = reshape(%c) {shape = [" + joined +
           "]}\n%y = sdpa(%q, %b, %d) {scale = 0.5, causal = false}\nreturn %y\n";
  };
  ExpectPass("attention_recognition", text("%k", "%v", "2, 6, 5, 8"), "reshape reshape sdpa");
  // Only the keys are repeated.
  ExpectPass("attention_recognition",
             "input %q : f32[2, 6, 4, 8]\ninput %k : f32[2, 3, 1, 5, 8]\ninput %v : f32[2, 6, 5, 8]\n"
             "%a = expand(%k) {shape = [2, 3, 2, 5, 8]}\n%b = reshape(%a) {shape = [2, 6, 5, 8]}\n"
             "%y = sdpa(%q, %b, %v) {scale = 0.5, causal = false}\nreturn %y\n",
             "expand reshape sdpa");
  // The whole sequence is repeated, not each head.
  ExpectPass("attention_recognition",
             "input %q : f32[2, 6, 4, 8]\ninput %k : f32[2, 1, 3, 5, 8]\n%a = expand(%k) {shape = [2, 2, 3, 5, 8]}\n"
             "%b = reshape(%a) {shape = [2, 6, 5, 8]}\n%y = sdpa(%q, %b, %b) {scale = 0.5, causal = false}\n"
             "return %y\n",
             "expand reshape sdpa");
}

}  // namespace
}  // namespace thresher::pass_testing
