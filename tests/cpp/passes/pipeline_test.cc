// Whole layers as PyTorch decomposes them, through all passes of a level.
#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

// A layer of a BERT with two heads of size 8 whose attention is written out, with addmm as matmul and add.
std::string BertLayer() {
  std::string text =
      "input %x : f32[2, 6, 16]\ninput %attend : i64[2, 6]\nconst %scale : f32[] = [0.35355338]\n"
      "const %rows : i64[2, 1, 1, 1] = [0, 1]\nconst %columns : i64[1, 1, 1, 6] = [0, 1, 2, 3, 4, 5]\n"
      // The mask, as transformers computes it.
      "%a1 = cast(%attend) {dtype = \"bool\"}\n%a2 = index(%a1, %rows, %columns)\n%n1 = arange() {end = 6.0, dtype = "
      "\"i64\"}\n"
      "const %zero : i64[] = [0]\n%n2 = add(%n1, %zero)\n%n3 = reshape(%n2) {shape = [1, 1, 6, 1]}\n%n4 = ge(%n3, "
      "%zero)\n"
      "%ones = full() {shape = [], value = 1.0, dtype = \"bool\"}\n%n5 = bitwise_and(%ones, %n4)\n%a3 = "
      "bitwise_and(%n5, %a2)\n"
      "%a4 = expand(%a3) {shape = [2, -1, 6, 6]}\n%f0 = full() {shape = [], value = 0.0}\n"
      "%f1 = full() {shape = [], value = -3.4028234663852886e+38}\n%mask = where(%a4, %f0, %f1)\n";
  for (const std::string name : {"q", "k", "v"}) {
    text += "weight %w" + name + " : f32[16, 16]\nweight %b" + name + " : f32[16]\n%t" + name + " = permute(%w" + name +
            ") {dims = [1, 0]}\n%r" + name + " = reshape(%x) {shape = [12, 16]}\n%m" + name + " = matmul(%r" + name +
            ", %t" + name + ")\n%p" + name + " = add(%m" + name + ", %b" + name + ")\n%s" + name + " = reshape(%p" +
            name + ") {shape = [2, 6, 16]}\n%h" + name + " = reshape(%s" + name + ") {shape = [2, 6, -1, 8]}\n%" +
            name + " = permute(%h" + name + ") {dims = [0, 2, 1, 3]}\n";
  }
  return text +
         "%kt = permute(%k) {dims = [0, 1, 3, 2]}\n%qe = expand(%q) {shape = [2, 2, 6, 8]}\n%qb = reshape(%qe) {shape "
         "= [4, 6, 8]}\n"
         "%ke = expand(%kt) {shape = [2, 2, 8, 6]}\n%kb = reshape(%ke) {shape = [4, 8, 6]}\n%s0 = matmul(%qb, %kb)\n"
         "%s1 = reshape(%s0) {shape = [2, 2, 6, 6]}\n%s2 = mul(%s1, %scale)\n%s3 = add(%s2, %mask)\n%s4 = softmax(%s3) "
         "{dim = -1}\n"
         "%s5 = expand(%s4) {shape = [2, 2, 6, 6]}\n%s6 = reshape(%s5) {shape = [4, 6, 6]}\n%vb = reshape(%v) {shape = "
         "[4, 6, 8]}\n"
         "%c0 = matmul(%s6, %vb)\n%c1 = reshape(%c0) {shape = [2, 2, 6, 8]}\n%c2 = permute(%c1) {dims = [0, 2, 1, 3]}\n"
         "%c3 = reshape(%c2) {shape = [2, 6, -1]}\n%c4 = reshape(%c3) {shape = [12, 16]}\n"
         "weight %wo : f32[16, 16]\nweight %bo : f32[16]\n%to = permute(%wo) {dims = [1, 0]}\n%o0 = matmul(%c4, "
         "%to)\n%o1 = add(%bo, %o0)\n"
         "%o2 = reshape(%o1) {shape = [2, 6, 16]}\n%o3 = add(%o2, %x)\nweight %g1 : f32[16]\nweight %h1 : f32[16]\n"
         "%y = layer_norm(%o3, %g1, %h1) {eps = 1e-12, dims = 1}\n"
         "weight %wi : f32[32, 16]\nweight %bi : f32[32]\n%ti = permute(%wi) {dims = [1, 0]}\n%i0 = reshape(%y) {shape "
         "= [12, 16]}\n"
         "%i1 = matmul(%i0, %ti)\n%i2 = add(%i1, %bi)\n%i3 = reshape(%i2) {shape = [2, 6, 32]}\n%i4 = gelu(%i3)\n"
         "%i5 = reshape(%i4) {shape = [12, 32]}\nweight %wj : f32[16, 32]\nweight %bj : f32[16]\n%tj = permute(%wj) "
         "{dims = [1, 0]}\n"
         "%j0 = matmul(%i5, %tj)\n%j1 = add(%j0, %bj)\n%j2 = reshape(%j1) {shape = [2, 6, 16]}\n%j3 = add(%j2, %y)\n"
         "weight %g2 : f32[16]\nweight %h2 : f32[16]\n%z = layer_norm(%j3, %g2, %h2) {eps = 1e-12, dims = 1}\n"
         "%pool = select(%z) {dim = 1, index = 0}\nweight %wp : f32[16, 16]\nweight %bp : f32[16]\n"
         "%u = linear(%pool, %wp, %bp)\n%v9 = tanh(%u)\nreturn %z, %v9\n";
}

// nn.TransformerEncoderLayer with batch_first: sequences first inside, one projection for queries, keys and values.
std::string EncoderLayer() {
  std::string text =
      "input %x : f32[2, 6, 16]\n%xt = permute(%x) {dims = [1, 0, 2]}\nweight %wp : f32[48, 16]\nweight %bp : f32[48]\n"
      "%tp = permute(%wp) {dims = [1, 0]}\n%xr = reshape(%xt) {shape = [12, 16]}\n%p0 = matmul(%xr, %tp)\n"
      "%p1 = reshape(%p0) {shape = [6, 2, 48]}\n%p2 = add(%p1, %bp)\n%p3 = reshape(%p2) {shape = [6, 2, 3, 16]}\n"
      "%p4 = reshape(%p3) {shape = [1, 6, 2, 3, 16]}\n%p5 = permute(%p4) {dims = [3, 1, 2, 0, 4]}\n%p6 = reshape(%p5) "
      "{shape = [3, 6, 2, 16]}\n";
  int index = 0;
  for (const std::string name : {"q", "k", "v"}) {
    text += "%" + name + "0 = select(%p6) {dim = 0, index = " + std::to_string(index++) + "}\n%" + name +
            "1 = reshape(%" + name + "0) {shape = [6, 4, 8]}\n%" + name + "2 = permute(%" + name +
            "1) {dims = [1, 0, 2]}\n%" + name + " = reshape(%" + name + "2) {shape = [2, 2, 6, 8]}\n";
  }
  return text +
         "%s = sdpa(%q, %k, %v) {scale = 0.35, causal = false}\n%c0 = permute(%s) {dims = [2, 0, 1, 3]}\n"
         "%c1 = reshape(%c0) {shape = [12, 16]}\nweight %wo : f32[16, 16]\nweight %bo : f32[16]\n%o0 = linear(%c1, "
         "%wo, %bo)\n"
         "%o1 = reshape(%o0) {shape = [6, 2, 16]}\n%o2 = permute(%o1) {dims = [1, 0, 2]}\n%o3 = add(%x, %o2)\n"
         "weight %g1 : f32[16]\nweight %h1 : f32[16]\n%y = layer_norm(%o3, %g1, %h1)\n%i0 = reshape(%y) {shape = [12, "
         "16]}\n"
         "weight %wi : f32[32, 16]\nweight %bi : f32[32]\n%i1 = linear(%i0, %wi, %bi)\n%i2 = reshape(%i1) {shape = [2, "
         "6, 32]}\n"
         "%i3 = gelu(%i2)\n%i4 = reshape(%i3) {shape = [12, 32]}\nweight %wj : f32[16, 32]\nweight %bj : f32[16]\n"
         "%j0 = linear(%i4, %wj, %bj)\n%j1 = reshape(%j0) {shape = [2, 6, 16]}\n%j2 = add(%y, %j1)\n"
         "weight %g2 : f32[16]\nweight %h2 : f32[16]\n%z = layer_norm(%j2, %g2, %h2)\nreturn %z\n";
}

TEST(Pipeline, BertLayerIsLean) {
  const Graph before = FromText(BertLayer());
  const Graph after = After(before, PassesForLevel(Level::kO2));
  ExpectSameResults(before, after, 2e-5);
  EXPECT_EQ(Count(after, "linears"), 1) << PrintGraph(after);  // queries, keys, values
  EXPECT_EQ(Count(after, "linear"), 4) << PrintGraph(after);
  EXPECT_EQ(Count(after, "sdpa"), 1);
  EXPECT_EQ(Count(after, "layer_norm"), 2);
  for (const char* gone :
       {"matmul", "softmax", "add", "mul", "gelu", "tanh", "expand", "index", "arange", "full", "bitwise_and", "ge"}) {
    EXPECT_EQ(Count(after, gone), 0) << gone << "\n" << PrintGraph(after);
  }
  // Cutting and merging the heads, the mask's shape: windows all.
  EXPECT_LE(Count(after, "reshape") + Count(after, "permute"), 9) << PrintGraph(after);
}

TEST(Pipeline, EncoderLayerIsLean) {
  const Graph before = FromText(EncoderLayer());
  const Graph after = After(before, PassesForLevel(Level::kO2));
  ExpectSameResults(before, after, 2e-5);
  EXPECT_EQ(
      Ops(after),
      "linear reshape select reshape permute select reshape permute select reshape permute sdpa permute reshape linear "
      "layer_norm linear linear layer_norm")
      << PrintGraph(after);
}

TEST(Pipeline, LevelsAgree) {
  const Graph before = FromText(BertLayer());
  for (const Level level : {Level::kO0, Level::kO1, Level::kO2, Level::kO3}) {
    ExpectSameResults(before, After(before, PassesForLevel(level)), 2e-5);
  }
}

TEST(Pipeline, ASecondTimeChangesNothing) {
  for (const std::string& text : {BertLayer(), EncoderLayer()}) {
    const Graph once = After(FromText(text), PassesForLevel(Level::kO2));
    const Graph twice = After(once, PassesForLevel(Level::kO2));
    PrintOptions options;
    options.digests = false;
    EXPECT_EQ(PrintGraph(twice, options), PrintGraph(once, options));
  }
}

TEST(Pipeline, PassesArePure) {
  const Graph before = FromText(BertLayer());
  const std::string text = PrintGraph(before);
  After(before, PassesForLevel(Level::kO2));
  EXPECT_EQ(PrintGraph(before), text);
}

}  // namespace
}  // namespace thresher::pass_testing
