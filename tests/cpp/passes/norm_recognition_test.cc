#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

const std::string kHead =
    "input %x : f32[2, 3, 8]\ninput %z : f32[2, 3, 8]\nweight %w : f32[8]\nconst %e : f32[] = [1e-6]\n"
    "const %two : f32[] = [2]\n";

void Expect(const std::string& body, const std::string& ops) { ExpectPass("norm_recognition", kHead + body, ops); }

TEST(NormRecognition, AsLlamaWritesIt) {
  const std::string body =
      "%s = pow(%x, %two)\n%m = mean(%s) {dims = [-1], keepdim = true}\n%a = add(%m, %e)\n%r = rsqrt(%a)\n"
      "%n = mul(%x, %r)\n%y = mul(%w, %n)\nreturn %y\n";
  Expect(body, "rms_norm");
  const Graph after = After(FromText(kHead + body), {"norm_recognition"});
  EXPECT_NEAR(GetAttr<double>(after.nodes()[0].attrs, "eps", 0), 1e-6, 1e-12);
  EXPECT_NE(after.nodes()[0].inputs[1], kNoValue);
}

TEST(NormRecognition, OtherSpellings) {
  const std::string mean = "%s = mul(%x, %x)\n%m = mean(%s) {dims = [2], keepdim = true}\n%a = add(%e, %m)\n";
  Expect(mean + "%r = rsqrt(%a)\n%y = mul(%r, %x)\nreturn %y\n", "rms_norm");
  Expect(mean + "%r = sqrt(%a)\n%y = div(%x, %r)\nreturn %y\n", "rms_norm");
  Expect(mean + "%r = rsqrt(%a)\n%n = mul(%r, %x)\n%y = mul(%n, %w)\nreturn %y, %n\n", "rms_norm mul");
}

TEST(NormRecognition, NearMisses) {
  const auto text = [](const std::string& square, const std::string& mean, const std::string& rest) {
    return "%s = " + square + "\n%m = mean(%s) {" + mean + "}\n%a = add(%m, %e)\n" + rest + "\nreturn %y\n";
  };
  const std::string last = "dims = [-1], keepdim = true", rest = "%r = rsqrt(%a)\n%y = mul(%x, %r)";
  Expect(text("mul(%x, %x)", last, rest), "rms_norm");
  Expect(text("mul(%x, %z)", last, "%b = mul(%a, %a)\n%r = rsqrt(%b)\n%y = mul(%x, %r)"), "mul mean add mul rsqrt mul");
  Expect(text("mul(%z, %z)", last, rest), "mul mean add rsqrt mul");
  Expect(text("pow(%x, %e)", last, "%y = mul(%x, %a)"), "pow mean add mul");
  Expect(text("mul(%x, %x)", "dims = [1], keepdim = true", rest), "mul mean add rsqrt mul");
  Expect(text("mul(%x, %x)", "dims = [1, 2], keepdim = true", rest), "mul mean add rsqrt mul");
  Expect(text("mul(%x, %x)", last, "%r = sqrt(%a)\n%y = div(%r, %x)"), "mul mean add sqrt div");
  Expect(
      "%s = mul(%x, %x)\n%m = mean(%s) {dims = [-1], keepdim = true}\n%a = add(%m, %w)\n%r = rsqrt(%a)\n"
      "%y = mul(%x, %r)\nreturn %y\n",
      "mul mean add rsqrt mul");
}

TEST(NormRecognition, ReshapesAndPermutesMovePast) {
  ExpectPass("layout_motion",
             kHead +
                 "%r = reshape(%x) {shape = [6, 8]}\n%n = rms_norm(%r, %w)\n%y = reshape(%n) {shape = [2, 3, 8]}\n"
                 "return %y\n",
             "rms_norm");
  // A residual would have to move too.
  ExpectPass("layout_motion",
             kHead +
                 "%r = reshape(%x) {shape = [6, 8]}\n%t = reshape(%z) {shape = [6, 8]}\n"
                 "%n = rms_norm(%r, %w, %t)\n%y = reshape(%n) {shape = [2, 3, 8]}\nreturn %y\n",
             "reshape reshape rms_norm reshape");
}

}  // namespace
}  // namespace thresher::pass_testing
