#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

void Expect(const std::string& body, const std::string& ops) { ExpectPass("layout_motion", body, ops); }

TEST(LayoutMotion, ReshapesMeetAndCancel) {
  const std::string head = "input %x : f32[2, 3, 4]\nconst %c : f32[] = [3]\n%r = reshape(%x) {shape = [6, 4]}\n";
  Expect(head + "%f = gelu(%r)\n%y = reshape(%f) {shape = [2, 3, 4]}\nreturn %y\n", "gelu");
  Expect(head + "%f = mul(%r, %c)\n%y = reshape(%f) {shape = [2, 3, 4]}\nreturn %y\n", "mul");
  Expect(head + "%f = softmax(%r) {dim = 1}\n%y = reshape(%f) {shape = [2, 3, 4]}\nreturn %y\n", "softmax");
  Expect(head + "weight %w : f32[4]\n%f = layer_norm(%r, %w)\n%y = reshape(%f) {shape = [2, 3, 4]}\nreturn %y\n",
         "layer_norm");
  Expect(head +
             "input %z : f32[2, 3, 4]\n%s = reshape(%z) {shape = [6, 4]}\n%f = add(%r, %s)\n"
             "%y = reshape(%f) {shape = [2, 3, 4]}\nreturn %y\n",
         "add");
}

TEST(LayoutMotion, ReshapesStayAboveWhatTheyChange) {
  const std::string head = "input %x : f32[2, 3, 4]\n%r = reshape(%x) {shape = [6, 4]}\n";
  Expect(head + "%y = softmax(%r) {dim = 0}\nreturn %y\n", "reshape softmax");
  Expect(head + "input %b : f32[4]\n%y = add(%r, %b)\nreturn %y\n", "reshape add");
  Expect("input %x : f32[2, 3, 4]\n%r = reshape(%x) {shape = [6, 2, 2]}\n%y = layer_norm(%r)\nreturn %y\n",
         "reshape layer_norm");
  Expect("input %x : f32[2, 3, 4]\n%r = reshape(%x) {shape = [3, 8]}\n%y = softmax(%r)\nreturn %y\n",
         "reshape softmax");
}

TEST(LayoutMotion, PermutesPassOneNumberAChannel) {
  const std::string head = "input %x : f32[2, 3, 4, 5]\n%p = permute(%x) {dims = [0, 3, 1, 2]}\n";
  const std::string back = "%y = permute(%f) {dims = [0, 2, 3, 1]}\nreturn %y\n";
  Expect(head + "const %c : f32[5, 1, 1] = [1, 2, 3, 4, 5]\n%f = mul(%p, %c)\n" + back, "reshape mul");
  Expect(head + "input %c : f32[2, 5, 1, 1]\n%f = sub(%c, %p)\n" + back, "reshape sub");
  // The other operand would have to be turned, or the result is larger.
  Expect(head + "input %c : f32[1, 5, 3, 1]\n%f = mul(%p, %c)\n" + back, "permute mul permute");
  Expect(
      "input %x : f32[2, 1, 4, 5]\n%p = permute(%x) {dims = [0, 3, 1, 2]}\ninput %c : f32[3, 1]\n"
      "%f = mul(%p, %c)\n%y = permute(%f) {dims = [0, 2, 3, 1]}\nreturn %y\n",
      "permute mul permute");
}

TEST(LayoutMotion, PermutesPassCatAndReductions) {
  const std::string head =
      "input %x : f32[2, 3, 4, 5]\ninput %z : f32[2, 3, 4, 6]\n%p = permute(%x) {dims = [0, 3, 1, 2]}\n"
      "%q = permute(%z) {dims = [0, 3, 1, 2]}\n";
  Expect(head + "%f = cat(%p, %q) {dim = 1}\n%y = permute(%f) {dims = [0, 2, 3, 1]}\nreturn %y\n", "cat");
  Expect(head + "%y = mean(%p) {dims = [2, 3]}\nreturn %y\n", "mean");
  Expect(head + "%y = amax(%p) {dims = [-1], keepdim = true}\nreturn %y\n", "amax permute");
  Expect(head + "%y = sum(%p) {dims = [0, 2]}\nreturn %y\n", "sum permute");
  Expect(
      "input %x : f32[2, 3]\n%p = permute(%x) {dims = [1, 0]}\ninput %z : f32[3, 2]\n"
      "%y = cat(%p, %z) {dim = 1}\nreturn %y\n",
      "permute cat");
}

TEST(LayoutMotion, MergedBatchesOfProductsAreCut) {
  Expect(
      "input %a : f32[2, 3, 4, 5]\ninput %b : f32[2, 3, 5, 6]\n%c = reshape(%a) {shape = [6, 4, 5]}\n"
      "%d = reshape(%b) {shape = [6, 5, 6]}\n%m = matmul(%c, %d)\n%y = reshape(%m) {shape = [2, 3, 4, 6]}\nreturn %y\n",
      "matmul");
  Expect(
      "input %a : f32[6, 4, 5]\ninput %b : f32[2, 3, 6, 5]\n%t = permute(%b) {dims = [0, 1, 3, 2]}\n"
      "%d = reshape(%t) {shape = [6, 5, 6]}\n%m = matmul(%a, %d)\n%y = reshape(%m) {shape = [2, 3, 4, 6]}\nreturn %y\n",
      "permute reshape matmul");
  // The reshape cuts the matrices themselves.
  Expect(
      "input %a : f32[2, 3, 4, 5]\ninput %b : f32[2, 5, 6]\n%c = reshape(%a) {shape = [2, 12, 5]}\n%y = matmul(%c, "
      "%b)\nreturn %y\n",
      "reshape matmul");
}

TEST(LayoutMotion, PermutesOfRowsPassLinear) {
  Expect(
      "input %x : f32[2, 3, 4]\nweight %w : f32[5, 4]\n%p = permute(%x) {dims = [1, 0, 2]}\n%l = linear(%p, %w)\n%g = "
      "gelu(%l)\n"
      "%y = permute(%g) {dims = [1, 0, 2]}\nreturn %y\n",
      "linear gelu");
  Expect(
      "input %x : f32[2, 4, 4]\nweight %w : f32[5, 4]\n%p = permute(%x) {dims = [0, 2, 1]}\n%y = linear(%p, "
      "%w)\nreturn %y\n",
      "permute linear");
  Expect(
      "input %x : f32[2, 3, 4]\nweight %b : f32[4]\n%p = permute(%x) {dims = [1, 0, 2]}\n%l = add(%p, %b)\n"
      "%y = permute(%l) {dims = [1, 0, 2]}\nreturn %y\n",
      "add");
}

TEST(LayoutMotion, RowsThatAreCountedKeepTheirOrder) {
  const std::string head = "input %x : f32[2, 3, 4]\ninput %from : i32[1]\nweight %w : f32[5, 4]\n";
  Expect(head + "%p = permute(%x) {dims = [1, 0, 2]}\n%l = linear(%p, %w, _, _, %from)\n" +
             "%y = permute(%l) {dims = [1, 0, 2]}\nreturn %y\n",
         "permute linear permute");
  Expect(
      "input %o : f32[2, 3, 5, 4]\ninput %from : i32[1]\nweight %w : f32[12, 12]\n"
      "%p = permute(%o) {dims = [2, 0, 1, 3]}\n%r = reshape(%p) {shape = [5, 2, 12]}\n"
      "%l = linear(%r, %w, _, _, %from)\n%y = permute(%l) {dims = [1, 0, 2]}\nreturn %y\n",
      "permute reshape linear permute");
}

TEST(LayoutMotion, AttentionOutputComesWithoutASecondPermute) {
  Expect(
      "input %o : f32[2, 3, 5, 4]\nweight %w : f32[12, 12]\n%p = permute(%o) {dims = [2, 0, 1, 3]}\n"
      "%r = reshape(%p) {shape = [5, 2, 12]}\n%l = linear(%r, %w)\n%y = permute(%l) {dims = [1, 0, 2]}\nreturn %y\n",
      "permute reshape linear");
}

TEST(LayoutMotion, HeadsOfAPackedProjectionAreWindows) {
  // The way of nn.MultiheadAttention from its packed projection to one head's operand.
  const std::string text =
      "input %y : f32[8, 2, 96]\n%a = reshape(%y) {shape = [8, 2, 3, 32]}\n%b = reshape(%a) {shape = [1, 8, 2, 3, "
      "32]}\n"
      "%c = permute(%b) {dims = [3, 1, 2, 0, 4]}\n%d = reshape(%c) {shape = [3, 8, 2, 32]}\n%e = select(%d) {dim = 0, "
      "index = 1}\n"
      "%f = reshape(%e) {shape = [8, 8, 8]}\n%g = permute(%f) {dims = [1, 0, 2]}\n%h = reshape(%g) {shape = [2, 4, 8, "
      "8]}\nreturn %h\n";
  const Graph before = FromText(text);
  const Graph after = After(before, {"view_simplification", "layout_motion"});
  ExpectSameResults(before, after, 0);
  EXPECT_EQ(Ops(after), "reshape select reshape permute") << PrintGraph(after);
}

TEST(LayoutMotion, SharedCopiesStayShared) {
  // The reshape of a permute is a copy: one is better than two.
  Expect(
      "input %x : f32[2, 3, 4]\n%p = permute(%x) {dims = [2, 1, 0]}\n%r = reshape(%p) {shape = [4, 6]}\n%a = "
      "gelu(%r)\n%b = relu(%r)\n"
      "return %a, %b\n",
      "permute reshape gelu relu");
}

}  // namespace
}  // namespace thresher::pass_testing
