#include "thresher/graph/printer.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "thresher/graph/parser.h"

namespace thresher {
namespace {

TEST(PrintGraph, IsReadable) {
  Graph graph;
  const ValueId x = graph.AddInput("x", DType::kF32, {2, 8});
  auto bytes = std::make_shared<std::vector<float>>(32, 0.5f);
  Constant weight;
  weight.data = bytes->data();
  weight.owner = bytes;
  weight.is_weight = true;
  const float scale = 0.5f;
  const ValueId w = graph.AddConstant("fc.weight", DType::kF32, {4, 8}, weight);
  const ValueId s = graph.AddOwnedConstant("scale", DType::kF32, {}, &scale);
  const ValueId scaled = graph.Add1("mul", {x, s}, {}, "model.py:7 in forward", "encoder.fc").value();
  const ValueId y =
      graph.Add1("linear", {scaled, w}, {{"activation", std::string("relu")}, {"layout", std::string("nk")}}).value();
  graph.SetOutputs({y, scaled});
  PrintOptions options;
  options.digests = false;
  EXPECT_EQ(PrintGraph(graph, options),
            "graph 1\n"
            "input %0 \"x\" : f32[2, 8]\n"
            "const %1 \"scale\" : f32[] = [0.5]\n"
            "weight %2 \"fc.weight\" : f32[4, 8]\n"
            "%3 = mul(%0, %1) : f32[2, 8] @ \"model.py:7 in forward\" in \"encoder.fc\"\n"
            "%4 = linear(%3, %2, _, _, _) {activation = \"relu\", layout = \"nk\"} : f32[2, 4]\n"
            "return %4, %3\n");
  EXPECT_NE(PrintGraph(graph).find("weight %2 \"fc.weight\" : f32[4, 8] digest " + ToHex(HashConstant(graph.value(w)))),
            std::string::npos);
}

TEST(PrintGraph, InlineConstantsKeepTheirBits) {
  Graph graph;
  const float floats[] = {0.1f,
                          -0.0f,
                          3.4028235e38f,
                          1e-45f,
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::bit_cast<float>(0x7fc00000u),
                          std::bit_cast<float>(0xffc00123u)};
  const int64_t longs[] = {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), 0};
  const int32_t ints[] = {std::numeric_limits<int32_t>::min(), -1};
  const uint8_t flags[] = {1, 0};
  graph.SetOutputs(
      {graph.AddOwnedConstant("f", DType::kF32, {8}, floats), graph.AddOwnedConstant("l", DType::kI64, {3}, longs),
       graph.AddOwnedConstant("i", DType::kI32, {2, 1}, ints), graph.AddOwnedConstant("b", DType::kBool, {2}, flags),
       graph.AddOwnedConstant("none", DType::kF32, {0, 3}, nullptr)});
  const std::string text = PrintGraph(graph);
  const Result<Graph> back = ParseGraph(text);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(PrintGraph(back.value()), text);
  EXPECT_EQ(HashGraph(back.value()), HashGraph(graph));
}

TEST(PrintGraph, NamesAndAttributesOfAnyContentRoundTrip) {
  Graph graph;
  const ValueId x =
      graph.AddInput("quote \" backslash \\ newline \n bell \a tab \t umlaut \xc3\xbc", DType::kF32, {2, 3});
  const ValueId y = graph.Add1("layer_norm", {x}, {{"eps", 1e-5}, {"dims", int64_t{1}}}, "a \"source\"").value();
  const ValueId z = graph.Add1("sum", {y}, {{"dims", Dims{0, 1}}, {"keepdim", true}}, "", "blocks.\"a b\"\n").value();
  graph.SetOutputs({z});
  const std::string text = PrintGraph(graph);
  const Result<Graph> back = ParseGraph(text);
  ASSERT_TRUE(back.ok()) << back.status().message() << text;
  EXPECT_EQ(PrintGraph(back.value()), text);
  EXPECT_EQ(back.value().value(0).name, graph.value(0).name);
  EXPECT_EQ(back.value().nodes()[1].module, "blocks.\"a b\"\n");
  EXPECT_EQ(back.value().nodes()[1].source, "");
}

}  // namespace
}  // namespace thresher
