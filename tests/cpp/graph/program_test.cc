#include "thresher/graph/program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace thresher {
namespace {

std::string ErrorOf(const std::string& text) {
  const Result<Program> program = ParseProgram(text);
  return program.ok() ? "" : program.status().message();
}

void ExpectError(const std::string& text, const std::string& part) {
  const std::string error = ErrorOf(text);
  EXPECT_NE(error.find(part), std::string::npos) << "'" << text << "' gave '" << error << "'";
}

TEST(Program, ReadsWhatItPrints) {
  const std::string text = "s0=mul(in0,in12); s1=silu(s0); s2=add(s1,0.5); s3=where(s2,-inf,in1)";
  const Result<Program> program = ParseProgram(text);
  ASSERT_TRUE(program.ok()) << program.status().message();
  ASSERT_EQ(program.value().size(), 4u);
  EXPECT_EQ(program.value()[0].args[1].index, 12);
  EXPECT_EQ(PrintProgram(program.value()), text);
  const Result<Program> spaced =
      ParseProgram(" s0 = mul( in0 , in12 );s1=silu(s0)\n; s2=add(s1, 5e-1);s3=where(s2,-inf,in1);");
  ASSERT_TRUE(spaced.ok()) << spaced.status().message();
  EXPECT_EQ(PrintProgram(spaced.value()), text);
}

TEST(Program, NumbersKeepTheirBits) {
  for (const float number : {0.0f, -0.0f, 0.1f, 0.044715f, 1.0f / 3, std::numeric_limits<float>::denorm_min(),
                             std::numeric_limits<float>::max(), -std::numeric_limits<float>::infinity()}) {
    const Result<Program> program =
        ParseProgram(PrintProgram({{"mul", {ProgramArg::Operand(0), ProgramArg::Number(number)}}}));
    ASSERT_TRUE(program.ok()) << program.status().message();
    const float back = program.value()[0].args[1].number;
    EXPECT_EQ(back, number);
    EXPECT_EQ(std::signbit(back), std::signbit(number));
  }
}

TEST(Program, ErrorsNameTheStep) {
  ExpectError("", "got none");
  ExpectError("mul(in0,in1)", "got 'mul(in0,in1)'");
  ExpectError("s0=mul(in0,in1", "got 's0=mul(in0,in1'");
  ExpectError("s0=mul(in0,)", "got 's0=mul(in0,)'");
  ExpectError("s0=mul(in0,x)", "got 's0=mul(in0,x)'");
  ExpectError("s0=mul(in0,in-1)", "got 's0=mul(in0,in-1)'");
  ExpectError("s0=mul(in0,1.5.2)", "got 's0=mul(in0,1.5.2)'");
  ExpectError("s0=(in0)", "got 's0=(in0)'");
  ExpectError("s0=neg(in0);;s1=neg(s0)", "got ''");
  ExpectError("s1=neg(in0)", "expected step s0, got 's1=neg(in0)'");
  ExpectError("s0=neg(in0); s1=add(s0,s1)", "step 1 (add): expected earlier steps as arguments, got s1");
}

}  // namespace
}  // namespace thresher
