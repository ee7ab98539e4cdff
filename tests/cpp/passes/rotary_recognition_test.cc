#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

const std::string kTables =
    "const %c : f32[1, 3, 1, 4] = [1, 0.5, 1, 0.5, 0.25, 0.5, 0.25, 0.5, -1, 0.125, -1, 0.125]\n"
    "const %s : f32[1, 3, 1, 4] = [0, 0.5, 0, 0.5, 0.75, 0.5, 0.75, 0.5, 0.5, 1, 0.5, 1]\n";
const std::string kHead = "input %x : f32[2, 3, 5, 4]\ninput %z : f32[2, 3, 5, 4]\n" + kTables;

std::string Turned(const std::string& dim = "dim = 3") {
  return "%lo = slice(%x) {" + dim + ", start = 0, end = 2, step = 1}\n%hi = slice(%x) {" + dim +
         ", start = 2, end = 4, step = 1}\n%n = neg(%hi)\n%t = cat(%n, %lo) {" + dim + "}\n";
}
const std::string kSum = "%a = mul(%x, %c)\n%b = mul(%t, %s)\n%y = add(%a, %b)\nreturn %y\n";

void Expect(const std::string& body, const std::string& ops) { ExpectPass("rotary_recognition", body, ops); }

bool Recognized(const std::string& text) {
  return Ops(After(FromText(text), {"rotary_recognition"})).find("rotary") != std::string::npos;
}

TEST(RotaryRecognition, AsLlamaWritesIt) {
  Expect(kHead + Turned() + kSum, "slice reshape expand reshape slice reshape expand reshape reshape rotary reshape");
}

// Queries and keys are turned by the same tables, made once.
TEST(RotaryRecognition, TablesAreShared) {
  const std::string second =
      "%lo2 = slice(%z) {dim = 3, start = 0, end = 2, step = 1}\n%hi2 = slice(%z) {dim = 3, start = 2, end = 4, step = "
      "1}\n%n2 = neg(%hi2)\n%t2 = cat(%n2, %lo2) {dim = 3}\n%a2 = mul(%z, %c)\n%b2 = mul(%t2, %s)\n"
      "%y2 = add(%a2, %b2)\n";
  const std::string text = kHead + Turned() + "%a = mul(%x, %c)\n%b = mul(%t, %s)\n%y = add(%a, %b)\n" + second;
  const Graph after = After(FromText(text + "return %y, %y2\n"), {"rotary_recognition", "common_subexpressions"});
  EXPECT_EQ(Ops(after),
            "slice reshape expand reshape slice reshape expand reshape reshape rotary reshape reshape rotary reshape");
}

TEST(RotaryRecognition, OperandsInAnyOrder) {
  EXPECT_TRUE(
      Recognized(kHead + Turned("dim = -1") + "%a = mul(%c, %x)\n%b = mul(%s, %t)\n%y = add(%b, %a)\nreturn %y\n"));
}

TEST(RotaryRecognition, HeadsOutside) {
  const std::string head =
      "input %x : f32[2, 5, 3, 4]\nconst %c : f32[3, 4] = [1, 0.5, 1, 0.5, 0.25, 0.5, 0.25, 0.5, -1, 0.125, -1, "
      "0.125]\nconst %s : f32[3, 4] = [0, 0.5, 0, 0.5, 0.75, 0.5, 0.75, 0.5, 0.5, 1, 0.5, 1]\n";
  Expect(head + Turned() + kSum,
         "permute slice reshape expand reshape slice reshape expand reshape reshape rotary reshape permute");
}

TEST(RotaryRecognition, TablesOfThePositions) {
  const std::string head =
      "input %x : f32[2, 3, 5, 4]\ninput %f : f32[2, 3, 1, 2]\n%g = cat(%f, %f) {dim = 3}\n%c0 = cos(%g)\n"
      "%s0 = sin(%g)\nconst %one : f32[] = [1.5]\n%c = mul(%c0, %one)\n%s = mul(%s0, %one)\n";
  Expect(head + Turned() + kSum,
         "cat cos sin mul mul slice reshape reshape slice reshape reshape reshape rotary reshape");
}

TEST(RotaryRecognition, NearMisses) {
  EXPECT_TRUE(Recognized(kHead + Turned() + kSum));
  const auto with = [](std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::string all = kHead + Turned() + kSum;
  EXPECT_FALSE(Recognized(with(all, "-1, 0.125]", "-1, 0.25]")));  // halves that differ
  EXPECT_FALSE(Recognized(with(all, "0.5, 1, 0.5, 1]", "0.5, 1, 1, 0.5]")));
  EXPECT_FALSE(Recognized(with(all, "neg(%hi)", "abs(%hi)")));
  EXPECT_FALSE(Recognized(with(all, "neg(%hi)", "neg(%lo)")));
  EXPECT_FALSE(Recognized(with(all, "cat(%n, %lo)", "cat(%lo, %n)")));
  EXPECT_FALSE(Recognized(with(all, "mul(%x, %c)", "mul(%z, %c)")));
  EXPECT_FALSE(Recognized(with(all, "start = 2, end = 4", "start = 1, end = 3")));
  EXPECT_FALSE(Recognized(with(all, "add(%a, %b)", "sub(%a, %b)")));
  // Tables that differ from head to head.
  const std::string heads =
      "input %x : f32[2, 3, 5, 4]\ninput %f : f32[1, 3, 5, 2]\n%c = cat(%f, %f) {dim = 3}\n"
      "%s = cat(%f, %f) {dim = 3}\n";
  EXPECT_FALSE(Recognized(heads + Turned() + kSum));
  // Tables of which nothing is known.
  const std::string unknown = "input %x : f32[2, 3, 5, 4]\ninput %c : f32[1, 3, 1, 4]\ninput %s : f32[1, 3, 1, 4]\n";
  EXPECT_FALSE(Recognized(unknown + Turned() + kSum));
}

}  // namespace
}  // namespace thresher::pass_testing
