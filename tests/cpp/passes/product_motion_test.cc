#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

void Expect(const std::string& text, const std::string& ops, double tolerance = 1e-5) {
  ExpectPass("product_motion", text, ops, tolerance);
}

// Three sizes of an image, projected to 24 channels each, enlarged and joined as decoders of segmentation do.
std::string Decoder(const std::string& join, const std::string& tail) {
  std::string text;
  for (const std::string i : {"0", "1", "2"}) {
    const std::string size = i == "0" ? "12, 9" : i == "1" ? "6, 5" : "3, 3";
    text +=
        "input %x" + i + " : f32[2, " + size + ", 5]\nweight %w" + i + " : f32[24, 5]\nweight %b" + i + " : f32[24]\n";
  }
  text += "const %w : f32[7, 72]\nconst %b : f32[7]\n";
  for (const std::string i : {"0", "1", "2"}) {
    text += "%p" + i + " = linear(%x" + i + ", %w" + i + ", %b" + i + ") {layout = \"nk\"}\n";
    if (i == "0") continue;
    text += "%r" + i + " = resize(%p" + i + ") {align_corners = false, mode = \"linear\", size = [12, 9]}\n";
  }
  return text + "%c = cat(" + join + ") {dim = 3}\n" + tail;
}

TEST(ProductMotion, PartsAreMultipliedBeforeTheyAreEnlarged) {
  const std::string tail = "%y = linear(%c, %w, %b, _) {activation = \"relu\", layout = \"nk\"}\nreturn %y\n";
  // What was enlarged is a product of a product; so is what was not.
  const std::string parts = "linear resize linear resize add linear";
  Expect(Decoder("%r2, %r1, %p0", tail), parts);
  Expect(Decoder("%p0, %r2, %r1", tail), parts);
  Expect(Decoder("%r1, %p0, %r2", "%y = linear(%c, %w, _, _) {layout = \"nk\"}\nreturn %y\n"), parts);
  const Graph after = After(FromText(Decoder("%r2, %r1, %p0", tail)), {"product_motion"});
  EXPECT_EQ(after.value(after.nodes()[0].inputs[1]).shape, (Dims{7, 5}));
}

TEST(ProductMotion, WhatStaysJoinedIsOneProduct) {
  Expect(
      "input %x : f32[1, 4, 4, 6]\ninput %s : f32[1, 8, 8, 3]\ninput %t : f32[1, 8, 8, 4]\nconst %w : f32[13, 5]\n"
      "const %b : f32[5]\n%r = resize(%x) {mode = \"cubic\", size = [8, 8]}\n%c = cat(%s, %r, %t) {dim = -1}\n"
      "%y = linear(%c, %w, %b, _) {activation = \"hardswish\", layout = \"kn\"}\nreturn %y\n",
      "linear resize cat linear");
}

TEST(ProductMotion, AllPartsMayBeEnlarged) {
  const std::string text =
      "input %x : f32[1, 4, 4, 6]\ninput %z : f32[1, 2, 3, 9]\nconst %w : f32[3, 15]\nconst %b : f32[3]\n"
      "%r = resize(%x) {mode = \"linear\", align_corners = true, size = [7, 9]}\n"
      "%s = resize(%z) {mode = \"nearest\", size = [7, 9]}\n%c = cat(%r, %s) {dim = 3}\n"
      "%y = linear(%c, %w, %b, _) {activation = \"ACT\", layout = \"nk\"}\nreturn %y\n";
  const auto with = [&](const std::string& activation) {
    std::string made = text;
    return made.replace(made.find("ACT"), 3, activation);
  };
  Expect(with("none"), "linear resize linear resize add");
  Expect(with("gelu"), "linear resize linear resize add gelu");
  // Which is no operator of its own.
  Expect(with("relu6"), "resize resize cat linear");
}

TEST(ProductMotion, OneProductBeforeItIsEnlarged) {
  const std::string text =
      "input %x : f32[2, 3, 4, 16]\nconst %w : f32[5, 16]\nconst %b : f32[5]\n"
      "%r = resize(%x) {mode = \"linear\", size = [12, 7]}\n%y = linear(%r, %w, %b, _) {";
  Expect(text + "layout = \"nk\"}\nreturn %y\n", "linear resize");
  Expect(text + "activation = \"silu\", layout = \"nk\"}\nreturn %y\n", "linear resize silu");
  // Somebody has chosen its arithmetic, or reads what is enlarged.
  Expect(text + "layout = \"nk\", precision = \"fp32\"}\nreturn %y\n", "resize linear");
  Expect(text + "layout = \"nk\"}\nreturn %y, %r\n", "resize linear");
}

TEST(ProductMotion, NothingIsGainedByItElsewhere) {
  // Smaller afterwards; many more columns than channels.
  Expect(
      "input %x : f32[1, 8, 8, 6]\nconst %w : f32[5, 6]\n%r = resize(%x) {mode = \"linear\", size = [4, 4]}\n"
      "%y = linear(%r, %w, _, _) {layout = \"nk\"}\nreturn %y\n",
      "resize linear");
  Expect(
      "input %x : f32[1, 4, 4, 2]\nconst %w : f32[64, 2]\n%r = resize(%x) {mode = \"linear\", size = [5, 5]}\n"
      "%y = linear(%r, %w, _, _) {layout = \"nk\"}\nreturn %y\n",
      "resize linear");
  // Joined along another dimension, or read by others.
  Expect(
      "input %x : f32[1, 4, 4, 6]\nconst %w : f32[5, 6]\n%r = resize(%x) {mode = \"linear\", size = [8, 8]}\n"
      "%c = cat(%r, %r) {dim = 1}\n%y = linear(%c, %w, _, _) {layout = \"nk\"}\nreturn %y\n",
      "resize cat linear");
  Expect(
      "input %x : f32[1, 4, 4, 6]\nconst %w : f32[5, 12]\n%r = resize(%x) {mode = \"linear\", size = [8, 8]}\n"
      "%c = cat(%r, %r) {dim = 3}\n%y = linear(%c, %w, _, _) {layout = \"nk\"}\nreturn %y\n",
      "resize cat linear");
}

TEST(ProductMotion, ProductOfAProduct) {
  const std::string text =
      "input %x : f32[1, 2, 3, 4]\nweight %w : f32[33, 4]\nweight %b : f32[33]\nweight %v : f32[33, 5]\n";
  const std::string first = "%p = linear(%x, %w, %b, _) {layout = \"nk\"}\n";
  const std::string resize = "%r = resize(%p) {mode = \"linear\", size = [5, 8]}\n";
  const std::string second = "%y = linear(%r, %v, _, _) {activation = \"tanh\", layout = \"kn\"}\n";
  Expect(text + first + resize + second + "return %y\n", "linear resize tanh");
  // Rows that are grouped in another way are the same rows.
  Expect(text + first +
             "%q = reshape(%p) {shape = [1, 3, 2, 33]}\n%r = resize(%q) {mode = \"nearest\", size = [4, 4]}\n" +
             second + "return %y\n",
         "reshape linear resize tanh");
  // Of a bias a reshape shows the same numbers.
  Expect(text + first + resize +
             "const %c : f32[1, 5]\n%d = reshape(%c) {shape = [5]}\n%y = linear(%r, %v, %d, _) {layout = \"kn\"}\n"
             "return %y\n",
         "linear resize");
  // Between them stands something, or somebody reads it.
  Expect(
      text + "%p = linear(%x, %w, %b, _) {activation = \"relu\", layout = \"nk\"}\n" + resize + second + "return %y\n",
      "linear linear resize tanh");
  Expect(text + first + resize + second + "return %y, %p\n", "linear linear resize tanh");
  // Two of low rank stay two, and so do layers that nothing has moved.
  Expect(
      "input %x : f32[1, 2, 3, 32]\nweight %w : f32[3, 32]\nweight %v : f32[40, 3]\n"
      "%p = linear(%x, %w) {layout = \"nk\"}\n%r = resize(%p) {mode = \"linear\", size = [40, 41]}\n"
      "%y = linear(%r, %v) {layout = \"nk\"}\nreturn %y\n",
      "linear resize linear");
  Expect(text + first + "%y = linear(%p, %v, _, _) {layout = \"kn\"}\nreturn %y\n", "linear linear");
  // A reshape that moves channels is none between rows.
  Expect(text + first +
             "%q = reshape(%p) {shape = [1, 3, 1, 66]}\n%r = resize(%q) {mode = \"linear\", size = [9, 9]}\n"
             "const %u : f32[2, 66]\n%y = linear(%r, %u, _, _) {layout = \"nk\"}\nreturn %y\n",
         "linear reshape linear resize");
}

TEST(ProductMotion, LayersStayApartWhereOneOfThemIsToStayAsItIs) {
  const Graph before = FromText(
      "input %x : f32[1, 2, 3, 4]\nweight %w : f32[9, 4]\nweight %v : f32[5, 9]\n"
      "%p = linear(%x, %w) {layout = \"nk\"}\n%r = resize(%p) {mode = \"linear\", size = [5, 8]}\n"
      "%y = linear(%r, %v) {layout = \"nk\"}\nreturn %y\n");
  PassContext context;
  context.precision.exclude = {"head"};
  const std::string names[] = {"product_motion"};
  const Result<Graph> after = RunPasses(before, names, context);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(Ops(after.value()), "linear linear resize");
}

TEST(ProductMotion, WeightsThatAreNotFiniteStay) {
  Expect(
      "input %x : f32[1, 1, 3, 2]\nconst %w : f32[4, 2] = [1, 2, inf, 4, 5, 6, 7, 8]\nweight %v : f32[2, 4]\n"
      "%p = linear(%x, %w, _, _) {layout = \"nk\"}\n%r = resize(%p) {mode = \"nearest\", size = [2, 6]}\n"
      "%y = linear(%r, %v, _, _) {layout = \"nk\"}\nreturn %y\n",
      "linear linear resize");
}

TEST(ProductMotion, WeightsOf16BitsAreCutButNotMultiplied) {
  Expect(
      "input %x : f32[1, 4, 4, 8]\nweight %u : bf16[16, 8]\nweight %w : bf16[3, 16]\n"
      "%p = linear(%x, %u, _, _) {layout = \"nk\"}\n%r = resize(%p) {mode = \"linear\", size = [9, 9]}\n"
      "%c = cat(%r) {dim = 3}\n%y = linear(%c, %w, _, _) {layout = \"nk\"}\nreturn %y\n",
      "linear linear resize", 2e-2);
}

TEST(ViewSimplification, ResizeToTheSameSize) {
  ExpectPass(
      "view_simplification",
      "input %x : f32[1, 4, 5, 2]\n%r = resize(%x) {mode = \"linear\", size = [4, 5]}\n%y = relu(%r)\nreturn %y\n",
      "relu", 0);
  ExpectPass(
      "view_simplification",
      "input %x : f32[1, 4, 5, 2]\n%r = resize(%x) {mode = \"linear\", size = [5, 4]}\n%y = relu(%r)\nreturn %y\n",
      "resize relu", 0);
}

}  // namespace
}  // namespace thresher::pass_testing
