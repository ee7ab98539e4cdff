#include "thresher/graph/parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "thresher/graph/hash.h"
#include "thresher/graph/printer.h"

namespace thresher {
namespace {

constexpr const char* kSample =
    "graph 1\n"
    "# a comment\n"
    "input %x : f32[2, 3]\n"
    "const %c \"half\" : f32[] = [0.5]\n"
    "%y = mul(%x, %c)\n"
    "%z = softmax(%y) {dim = -1} : f32[2, 3] @ \"attention\"  # another\n"
    "return %z, %y\n";

std::string ErrorOf(const std::string& text) {
  const Result<Graph> graph = ParseGraph(text);
  EXPECT_FALSE(graph.ok()) << text;
  return graph.status().message();
}

TEST(ParseGraph, ReadsHandWrittenText) {
  const Result<Graph> graph = ParseGraph(kSample);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(PrintGraph(graph.value()),
            "graph 1\n"
            "input %0 \"x\" : f32[2, 3]\n"
            "const %1 \"half\" : f32[] = [0.5]\n"
            "%2 = mul(%0, %1) : f32[2, 3]\n"
            "%3 = softmax(%2) {dim = -1} : f32[2, 3] @ \"attention\"\n"
            "return %3, %2\n");
}

TEST(ParseGraph, ErrorsNameThePlaceWantedAndFound) {
  EXPECT_EQ(ErrorOf("graph 1\ninput %x : f32[2\nreturn %x\n"),
            "graph text, line 3, column 1: expected ',', got 'return'");
  EXPECT_EQ(ErrorOf("graph 1\ninput %x : f64[2]\nreturn %x\n"),
            "graph text, line 2, column 12: expected a type such as f32[2, 3] (f32, i64, i32 or bool), got 'f64'");
  EXPECT_EQ(ErrorOf("graph 1\nreturn %x\n"), "graph text, line 2, column 8: %x is used before it is defined");
  EXPECT_EQ(ErrorOf("graph 1\ninput %x : f32[]\ninput %x : f32[]\nreturn\n"),
            "graph text, line 3, column 7: %x is defined twice");
  EXPECT_EQ(ErrorOf("graph 2\nreturn\n"),
            "graph text, line 1, column 7: expected format version 1, the only one there is, got '2'");
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[2]\n%y = relu(%x) : f32[3]\nreturn %y\n")
                .find("relu gives f32[2], but the text says f32[3]"),
            std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[2]\n%y = nonsense(%x)\nreturn %y\n")
                .find("line 3, column 6: operator 'nonsense'"),
            std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\nconst %c : f32[2] = [1]\nreturn %c\n").find("expected 2 elements, got 1"),
            std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[2]\n%y = relu(%x) in fc\nreturn %y\n")
                .find("line 3, column 18: expected the module as a string, got 'fc'"),
            std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x \"name\nreturn\n").find("no closing quote"), std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[2]\n%y = softmax(%x) {dim = 0, dim = -1}\nreturn %y\n")
                .find("line 3, column 28: attribute 'dim' stands twice"),
            std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[2]\n%y, %z = relu(%x)\nreturn %y\n")
                .find("relu has 1 outputs, got 2 names and 0 types"),
            std::string::npos);
  EXPECT_NE(ErrorOf(std::string(kSample) + "input %w : f32[]\n").find("expected the end of the text, got 'input'"),
            std::string::npos);
}

TEST(ParseGraph, ConstantsOutsideTheTextNeedAResolver) {
  const std::string text = "graph 1\nweight %w \"fc.weight\" : f32[2, 2]\nreturn %w\n";
  EXPECT_EQ(
      ErrorOf(text),
      "graph text, line 2, column 8: the contents of constant 'fc.weight' are not in the text: pass a resolver that "
      "finds them");
  const std::vector<float> contents = {1, 2, 3, 4};
  const auto resolver = [&](const ConstantRequest& request) -> Result<Constant> {
    EXPECT_EQ(request.name, "fc.weight");
    EXPECT_EQ(request.shape, (Dims{2, 2}));
    EXPECT_TRUE(request.is_weight);
    Constant constant;
    constant.data = contents.data();
    return constant;
  };
  const Result<Graph> graph = ParseGraph(text, resolver);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_EQ(graph.value().value(0).constant.data, contents.data());
  EXPECT_TRUE(graph.value().value(0).constant.is_weight);

  const auto without_bytes = [](const ConstantRequest&) -> Result<Constant> { return Constant(); };
  EXPECT_NE(ParseGraph(text, without_bytes).status().message().find("gave no bytes for constant 'fc.weight'"),
            std::string::npos);
  const auto failing = [](const ConstantRequest&) -> Result<Constant> { return Unsupported("no such tensor"); };
  EXPECT_NE(ParseGraph(text, failing).status().message().find("constant 'fc.weight': no such tensor"),
            std::string::npos);

  const std::string digest = ToHex(HashConstant(graph.value().value(0)));
  EXPECT_TRUE(
      ParseGraph("graph 1\nweight %w \"fc.weight\" : f32[2, 2] digest " + digest + "\nreturn %w\n", resolver).ok());
  const Result<Graph> other = ParseGraph(
      "graph 1\nweight %w \"fc.weight\" : f32[2, 2] digest " + std::string(32, '0') + "\nreturn %w\n", resolver);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("got " + digest + "; the graph was written with other weights"),
            std::string::npos);
}

TEST(ParseGraph, RefusesWhatIsTooLarge) {
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[1, 1, 1, 1, 1, 1, 1, 1, 1]\nreturn\n").find("more than 8 dimensions"),
            std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[4000000000, 4000000000]\nreturn\n").find("larger than"),
            std::string::npos);
  EXPECT_NE(
      ErrorOf("graph 1\ninput %x : f32[0, 9000000000000000000, 9000000000000000000]\nreturn\n").find("larger than"),
      std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[-1]\nreturn\n").find("expected a size of 0 or more"), std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[99999999999999999999]\nreturn\n").find("expected a size"),
            std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\nconst %x : f32[17] = [1]\nreturn\n").find("at most 16 elements"), std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x : f32[1]\n%y = expand(%x) {shape = [70368744177664, 70368744177664]}\nreturn\n")
                .find("expected tensors of at most"),
            std::string::npos);
  EXPECT_NE(
      ErrorOf("graph 1\ninput %x : f32[0]\n%y = reshape(%x) {shape = [1099511627776, 1099511627776, 0]}\nreturn\n")
          .find("expected a shape of 0 elements"),
      std::string::npos);
  std::string many = "graph 1\ninput %x : f32[1]\n%y = cat(%x";
  for (int i = 0; i < 5000; ++i) many += ", %x";
  EXPECT_NE(ErrorOf(many + ")\nreturn %y\n").find("more than 4096 operands"), std::string::npos);
  EXPECT_NE(ErrorOf("graph 1\ninput %x \"" + std::string(5000, 'n') + "\" : f32[]\nreturn\n").find("longer than 4096"),
            std::string::npos);
  EXPECT_NE(ErrorOf(std::string(kMaxGraphText + 1, ' ')).find("expected at most 67108864 bytes, got 67108865"),
            std::string::npos);
}

// Whatever the bytes, the answer is a graph or an error.
TEST(ParseGraph, SurvivesDamagedText) {
  const std::string sample = kSample;
  for (size_t end = 0; end < sample.size(); ++end) static_cast<void>(ParseGraph(sample.substr(0, end)).ok());
  std::mt19937 random(5);
  const std::string alphabet = "%()[]{}=,:@\"\\x#_-+.e0123456789 \ninputconstweightreturnf32i64gdsmulrh\xff";
  int good = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = sample;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < edits; ++i) {
      const size_t at = random() % text.size();
      const char c = alphabet[random() % alphabet.size()];
      switch (random() % 3) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.insert(at, 1, c);
          break;
        default:
          text.erase(at, 1 + random() % 5);
          break;
      }
      if (text.empty()) text = " ";
    }
    const Result<Graph> graph = ParseGraph(text);
    if (!graph.ok()) continue;
    ++good;
    const std::string printed = PrintGraph(graph.value());
    const Result<Graph> again = ParseGraph(printed);
    ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << printed;
    EXPECT_EQ(PrintGraph(again.value()), printed);
  }
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace thresher
