#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

void Expect(const std::string& body, const std::string& ops) { ExpectPass("linear_recognition", body, ops); }

TEST(LinearRecognition, ProductsWithConstantMatrices) {
  const Graph kn = After(FromText("input %x : f32[2, 3, 4]\nweight %w : f32[4, 5]\n%y = matmul(%x, %w)\nreturn %y\n"),
                         {"linear_recognition"});
  ASSERT_EQ(Ops(kn), "linear");
  EXPECT_EQ(GetAttr<std::string>(kn.nodes()[0].attrs, "layout", ""), "kn");
  Expect("input %x : f32[2, 3, 4]\nweight %w : f32[4, 5]\n%y = matmul(%x, %w)\nreturn %y\n", "linear");
  const std::string nk =
      "input %x : f32[3, 4]\nweight %w : f32[5, 4]\n%t = permute(%w) {dims = [1, 0]}\n%y = matmul(%x, %t)\nreturn %y\n";
  Expect(nk, "linear");
  const Graph after = After(FromText(nk), {"linear_recognition"});
  EXPECT_EQ(GetAttr<std::string>(after.nodes()[0].attrs, "layout", ""), "nk");
  Expect(
      "input %x : f32[3, 4]\nweight %w : f32[5, 4]\n%t = permute(%w) {dims = [1, 0]}\n"
      "%y = linear(%x, %t) {layout = \"kn\"}\nreturn %y\n",
      "linear");
}

TEST(LinearRecognition, LeavesOtherProducts) {
  Expect("input %x : f32[3, 4]\ninput %w : f32[4, 5]\n%y = matmul(%x, %w)\nreturn %y\n", "matmul");
  Expect("input %x : f32[2, 3, 4]\nweight %w : f32[2, 4, 5]\n%y = matmul(%x, %w)\nreturn %y\n", "matmul");
  Expect("input %x : f32[4, 3]\nweight %w : f32[5, 4]\n%y = matmul(%w, %x)\nreturn %y\n", "matmul");
  Expect(
      "input %x : f32[3, 4]\ninput %w : f32[5, 4]\n%t = permute(%w) {dims = [1, 0]}\n%y = matmul(%x, %t)\nreturn %y\n",
      "permute matmul");
}

TEST(LinearRecognition, LooksThroughReshapesOfTheRows) {
  Expect(
      "input %x : f32[2, 3, 4]\nweight %w : f32[5, 4]\n%r = reshape(%x) {shape = [6, 4]}\n%l = linear(%r, %w)\n"
      "%y = reshape(%l) {shape = [2, 3, 5]}\nreturn %y\n",
      "linear");
  // Several linears that share one reshape.
  Expect(
      "input %x : f32[2, 3, 4]\nweight %w : f32[5, 4]\nweight %v : f32[6, 4]\n%r = reshape(%x) {shape = [6, 4]}\n"
      "%a = linear(%r, %w)\n%b = linear(%r, %v)\n%y = reshape(%a) {shape = [2, 3, 5]}\n%z = reshape(%b) {shape = [2, "
      "3, 6]}\n"
      "return %y, %z\n",
      "linear linear");
  // Heads merged together with the rows.
  Expect(
      "input %x : f32[2, 3, 2, 4]\nweight %w : f32[5, 8]\n%r = reshape(%x) {shape = [6, 8]}\n%l = linear(%r, %w)\n"
      "%y = reshape(%l) {shape = [2, 3, 5]}\nreturn %y\n",
      "reshape linear");
}

TEST(LinearRecognition, KeepsReshapesThatCutRows) {
  Expect(
      "input %x : f32[6, 4]\nweight %w : f32[5, 3]\n%r = reshape(%x) {shape = [8, 3]}\n%y = linear(%r, %w)\nreturn "
      "%y\n",
      "reshape linear");
  Expect(
      "input %x : f32[2, 8]\nweight %w : f32[5, 4]\n%r = reshape(%x) {shape = [4, 4]}\n%y = linear(%r, %w)\nreturn "
      "%y\n",
      "reshape linear");
}

TEST(LinearRecognition, KeepsTheModuleOfTheProduct) {
  const Graph after =
      After(FromText("input %x : f32[2, 3, 4]\nweight %w : f32[5, 4]\n%t = permute(%w) {dims = [1, 0]}\n"
                     "%r = reshape(%x) {shape = [6, 4]}\n%y = matmul(%r, %t) in \"fc\"\nreturn %y\n"),
            {"linear_recognition"});
  ASSERT_EQ(Ops(after), "linear reshape") << PrintGraph(after);
  EXPECT_EQ(after.nodes()[0].module, "fc");
}

TEST(LinearRecognition, ConvolutionsOfOneTap) {
  const std::string head = "input %x : f32[2, 3, 4, 6]\nweight %w : f32[5, 6, 1, 1]\nweight %b : f32[5]\n";
  ExpectPass("linear_recognition", head + "%y = convolution(%x, %w, %b) {activation = \"relu\"}\nreturn %y\n",
             "linear");
  for (const char* attrs : {"stride = [1, 2]", "padding = [1, 0]"}) {
    const std::string body = head + "%y = convolution(%x, %w, %b) {" + attrs + "}\nreturn %y\n";
    ExpectPass("linear_recognition", body, "convolution");
  }
  ExpectPass("linear_recognition",
             "input %x : f32[2, 3, 6]\nweight %w : f32[6, 3, 1]\n%y = convolution(%x, %w) {groups = 2}\nreturn %y\n",
             "convolution");
  ExpectPass(
      "linear_recognition",
      "input %x : f32[2, 3, 6]\nweight %w : f32[6, 3, 1]\n%y = convolution(%x, %w) {transposed = true}\nreturn %y\n",
      "convolution");
}

}  // namespace
}  // namespace thresher::pass_testing
