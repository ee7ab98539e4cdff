#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

void Expect(const std::string& body, const std::string& ops) { ExpectPass("view_simplification", body, ops, 0); }

TEST(ViewSimplification, CollapsesChains) {
  Expect("input %x : f32[2, 3, 4]\n%a = reshape(%x) {shape = [6, 4]}\n%b = reshape(%a) {shape = [3, -1]}\nreturn %b\n",
         "reshape");
  Expect(
      "input %x : f32[2, 3, 4]\n%a = reshape(%x) {shape = [6, 4]}\n%b = reshape(%a) {shape = [2, 3, 4]}\n%y = "
      "neg(%b)\nreturn %y\n",
      "neg");
  Expect(
      "input %x : f32[2, 3, 4]\n%a = permute(%x) {dims = [1, 2, 0]}\n%b = permute(%a) {dims = [1, -1, 0]}\nreturn %b\n",
      "permute");
  Expect(
      "input %x : f32[2, 3, 4]\n%a = permute(%x) {dims = [1, 2, 0]}\n%b = permute(%a) {dims = [2, 0, 1]}\n%y = "
      "neg(%b)\nreturn %y\n",
      "neg");
  Expect("input %x : f32[3, 1]\n%a = expand(%x) {shape = [3, 4]}\n%b = expand(%a) {shape = [2, -1, -1]}\nreturn %b\n",
         "expand");
  Expect("input %x : bool[3]\n%a = cast(%x) {dtype = \"i64\"}\n%b = cast(%a) {dtype = \"f32\"}\nreturn %b\n", "cast");
}

TEST(ViewSimplification, DropsWhatDoesNothing) {
  const std::string x = "input %x : f32[2, 3]\n";
  Expect(x + "%a = reshape(%x) {shape = [2, 3]}\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = permute(%x) {dims = [0, 1]}\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = expand(%x) {shape = [2, -1]}\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = cast(%x) {dtype = \"f32\"}\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = slice(%x) {dim = -1, start = 0, end = 100}\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = cat(%x) {dim = 0}\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(
      "input %x : f32[2, 1, 3]\n%a = permute(%x) {dims = [1, 0, 2]}\n%b = select(%a) {dim = 0, index = 0}\n%y = "
      "neg(%b)\nreturn %y\n",
      "reshape neg");
}

TEST(ViewSimplification, KeepsWhatDoesSomething) {
  const std::string x = "input %x : f32[2, 2]\n";
  Expect(x + "%a = permute(%x) {dims = [1, 0]}\nreturn %a\n", "permute");
  Expect(x + "%a = slice(%x) {dim = 0, start = 1}\nreturn %a\n", "slice");
  Expect(x + "%a = slice(%x) {dim = 0, step = 2}\nreturn %a\n", "slice");
  Expect(x + "%a = select(%x) {dim = 0, index = 0}\nreturn %a\n", "select");
  Expect(x + "%a = cast(%x) {dtype = \"i64\"}\n%b = cast(%a) {dtype = \"f32\"}\nreturn %b\n", "cast cast");
}

TEST(ViewSimplification, DropsNeutralConstantsOnlyWhereExact) {
  const std::string x =
      "input %x : f32[2, 3]\nconst %one : f32[] = [1]\nconst %zero : f32[] = [0]\nconst %minus : f32[] = [-0]\n"
      "const %near : f32[2] = [1, 1.0000001]\n";
  Expect(x + "%a = mul(%x, %one)\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = mul(%one, %x)\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = div(%x, %one)\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = sub(%x, %zero)\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = add(%x, %minus)\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(x + "%a = add(%x, %zero)\nreturn %a\n", "add");
  Expect(x + "%a = sub(%x, %minus)\nreturn %a\n", "sub");
  Expect(x + "%a = div(%one, %x)\nreturn %a\n", "div");
  Expect(x + "%a = sub(%zero, %x)\nreturn %a\n", "sub");
  Expect("input %x : f32[3, 2]\nconst %near : f32[2] = [1, 1.0000001]\n%a = mul(%x, %near)\nreturn %a\n", "mul");
  Expect("input %x : i64[3]\nconst %zero : i64[] = [0]\n%a = add(%x, %zero)\n%y = neg(%a)\nreturn %y\n", "neg");
  Expect(
      "input %x : bool[3]\nconst %t : bool[2, 3] = [true, true, true, true, true, true]\n%a = bitwise_and(%x, "
      "%t)\nreturn %a\n",
      "expand");
  Expect("input %x : f32[3]\nweight %w : f32[]\n%a = mul(%x, %w)\nreturn %a\n", "mul");
  const auto full = [](const std::string& type, const std::string& value, const std::string& op) {
    return "input %x : " + type + "[3]\n%c = full() {shape = [], value = " + value + ", dtype = \"" + type +
           "\"}\n%a = " + op + "(%x, %c)\n%y = eq(%a, %x)\nreturn %y\n";
  };
  Expect(full("bool", "0.0", "bitwise_or"), "eq");
  Expect(full("bool", "1.0", "bitwise_or"), "full bitwise_or eq");
  Expect(full("i64", "0.0", "add"), "eq");
  Expect(full("i64", "1e300", "mul"), "full mul eq");
}

TEST(ViewSimplification, ComputesBeforeBroadcasting) {
  Expect(
      "input %m : bool[2, 1, 1, 4]\nconst %z : f32[] = [0]\nconst %i : f32[] = [-inf]\n"
      "%e = expand(%m) {shape = [2, 1, 4, 4]}\n%y = where(%e, %z, %i)\nreturn %y\n",
      "where expand");
  Expect("input %x : f32[3, 4]\ninput %b : f32[4]\n%e = expand(%b) {shape = [3, 4]}\n%y = add(%x, %e)\nreturn %y\n",
         "add");
  Expect(
      "input %i : i64[1, 3]\nweight %t : f32[4, 5]\n%e = expand(%i) {shape = [2, 3]}\n%y = embedding(%t, %e)\nreturn "
      "%y\n",
      "embedding expand");
}

TEST(ViewSimplification, IndexingEverythingInOrderIsAReshape) {
  const std::string head = "input %x : f32[2, 3]\n";
  const std::string rows = "const %r : i64[2, 1, 1, 1] = [0, 1]\n";
  Expect(head + rows + "const %c : i64[1, 1, 1, 3] = [0, 1, 2]\n%y = index(%x, %r, %c)\nreturn %y\n", "reshape");
  Expect(head + rows + "const %c : i64[1, 1, 1, 3] = [0, 2, 1]\n%y = index(%x, %r, %c)\nreturn %y\n", "index");
  Expect(head + "const %r : i64[1, 2] = [0, 1]\nconst %c : i64[3, 1] = [0, 1, 2]\n%y = index(%x, %r, %c)\nreturn %y\n",
         "index");
  Expect("input %x : f32[4]\nconst %r : i64[2, 2] = [0, 1, 2, 3]\n%y = index(%x, %r)\nreturn %y\n", "index");
  Expect("input %x : f32[2, 2]\nconst %r : i64[2] = [0, 1]\n%y = index(%x, %r, %r)\nreturn %y\n", "index");
}

TEST(ViewSimplification, RowsInOrderArePartOfTheTable) {
  const auto rows = [](const std::string& indices) {
    return "weight %t : f32[4, 2]\nconst %i : i64" + indices + "\n%y = embedding(%t, %i)\nreturn %y\n";
  };
  Expect(rows("[3] = [1, 2, 3]"), "slice");
  Expect(rows("[1, 2] = [1, 2]"), "slice reshape");
  Expect(rows("[1] = [3]"), "slice");
  Expect(rows("[2, 2] = [1, 1, 1, 1]"), "slice reshape expand");
  Expect(rows("[3] = [1, 1, 2]"), "embedding");
  Expect(rows("[3] = [0, 2, 3]"), "embedding");
  Expect(rows("[2] = [0, 2]"), "embedding");
  Expect(rows("[2] = [2, 1]"), "embedding");
  Expect(rows("[2] = [1, 2]").replace(0, 6, "input"), "slice");
  // What no table has is told when it is looked up.
  for (const char* const indices :
       {"[2] = [9223372036854775807, -9223372036854775807]", "[1] = [9223372036854775807]",
        "[2] = [-9223372036854775807, 9223372036854775807]", "[2] = [3, 4]", "[1] = [-1]"}) {
    EXPECT_EQ(Ops(After(FromText(rows(indices)), {"view_simplification"})), "embedding") << indices;
  }
}

TEST(ViewSimplification, KeepsSourcesOfWhatItMerges) {
  const Graph graph = After(FromText("input %x : f32[6]\n%a = reshape(%x) {shape = [2, 3]} @ \"first\"\n"
                                     "%b = reshape(%a) {shape = [3, 2]} @ \"second\"\nreturn %b\n"),
                            {"view_simplification"});
  ASSERT_EQ(graph.nodes().size(), 1u);
  EXPECT_EQ(graph.nodes()[0].source, "first, second");
}

}  // namespace
}  // namespace thresher::pass_testing
