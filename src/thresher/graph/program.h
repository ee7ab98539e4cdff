// The text of a chain of element-wise operators, as the attribute "program" of the operator "pointwise" holds it:
//
//   s0=mul(in0,in1); s1=silu(s0); s2=add(s1,0.5)
//
// Steps are numbered from 0 and use the names of the operators. An argument is an operand of the node (in0), the result
// of an earlier step (s0), or a number (f32, in the shortest form that reads back as the same bits). The last step is
// the result. Blanks mean nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "thresher/base/status.h"

namespace thresher {

struct ProgramArg {
  enum class Kind : uint8_t { kOperand, kStep, kNumber };
  Kind kind = Kind::kOperand;
  int index = 0;  // of the operand or step
  float number = 0;

  static ProgramArg Operand(int index) { return {Kind::kOperand, index, 0}; }
  static ProgramArg Step(int index) { return {Kind::kStep, index, 0}; }
  static ProgramArg Number(float number) { return {Kind::kNumber, 0, number}; }
};

struct ProgramStep {
  std::string op;
  std::vector<ProgramArg> args;
};

using Program = std::vector<ProgramStep>;

std::string PrintProgram(const Program& program);
// Checks the form, and that steps name earlier steps only; not the operators, nor how many operands there are.
Result<Program> ParseProgram(std::string_view text);

// "step 1 (silu): ", what errors about a step begin with.
std::string StepName(size_t index, const ProgramStep& step);

}  // namespace thresher
