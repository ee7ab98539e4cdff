// What the tests of chains share: random chains, operands in awkward layouts, comparison bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "kernels/tensor_testing.h"
#include "thresher/kernels/pointwise_chain.h"

namespace thresher::kernels {

// The same bits; only the payload of a NaN may differ.
inline ::testing::AssertionResult SameBits(const Tensor& got, const Tensor& want) {
  if (!got.GuardIntact()) return ::testing::AssertionFailure() << "bytes behind the output were written";
  for (int64_t i = 0; i < want.view.size(); ++i) {
    const float g = got.view.as<float>()[i];
    const float w = want.view.as<float>()[i];
    if (std::memcmp(&g, &w, sizeof(float)) == 0 || (std::isnan(g) && std::isnan(w))) continue;
    return ::testing::AssertionFailure() << "element " << i << " is " << g << ", expected " << w;
  }
  return ::testing::AssertionSuccess();
}

// Random chains.
class ChainMaker {
 public:
  ChainMaker(int num_operands, std::mt19937& random) : random_(random) { chain_.num_operands = num_operands; }

  // Steps that read what came before, mostly the latest; some compare, and a where reads the comparison.
  Chain Make(int steps) {
    Unary(Below(2) ? UnaryOp::kSilu : UnaryOp::kNeg, Operand());
    while (chain_.num_steps + 3 <= steps) {
      static constexpr UnaryOp kUnary[] = {UnaryOp::kExp,  UnaryOp::kTanh, UnaryOp::kAbs,   UnaryOp::kSigmoid,
                                           UnaryOp::kRelu, UnaryOp::kGelu, UnaryOp::kRsqrt, UnaryOp::kFloor};
      static constexpr BinaryOp kBinary[] = {BinaryOp::kAdd, BinaryOp::kSub,     BinaryOp::kMul,
                                             BinaryOp::kDiv, BinaryOp::kMaximum, BinaryOp::kPow};
      const ChainArg last = Last();
      switch (Below(4)) {
        case 0:
          Unary(kUnary[Below(std::size(kUnary))], Below(4) ? last : Operand());
          break;
        case 1:
          Binary(kBinary[Below(std::size(kBinary))], last, Other());
          break;
        case 2:
          Binary(kBinary[Below(std::size(kBinary) - 1)], Other(), last);
          break;
        default: {
          const ChainArg other = Other();
          Binary(BinaryOp::kGt, last, other, DType::kBool);
          const ChainArg condition = Last();
          const ChainArg yes = Below(2) ? last : Number();
          const ChainArg no = yes.kind == ChainArg::Kind::kNumber ? last : Other();
          ChainStep& step = Add(ChainStep::Kind::kWhere);
          step.args[0] = condition;
          step.args[1] = yes;
          step.args[2] = no;
        }
      }
    }
    // The last one reads an operand once more, so that all of them are read somewhere or nowhere at all.
    Binary(BinaryOp::kAdd, Last(), Operand());
    AssignSlots(chain_);
    return chain_;
  }

 private:
  uint32_t Below(size_t n) { return static_cast<uint32_t>(random_() % n); }
  ChainArg Operand() {
    return {ChainArg::Kind::kOperand, static_cast<uint8_t>(Below(static_cast<size_t>(chain_.num_operands))), 0};
  }
  ChainArg Number() {
    static constexpr float kNumbers[] = {2, 3, 0.5f, -0.5f, -1, 0.3f};
    return {ChainArg::Kind::kNumber, 0, kNumbers[Below(6)]};
  }
  ChainArg Last() const { return {ChainArg::Kind::kStep, static_cast<uint8_t>(chain_.num_steps - 1), 0}; }
  ChainArg Other() {
    const auto step = static_cast<uint8_t>(Below(static_cast<size_t>(chain_.num_steps)));
    if (Below(3) == 0 && chain_.steps[step].dtype == DType::kF32) return {ChainArg::Kind::kStep, step, 0};
    return Below(2) ? Operand() : Number();
  }
  ChainStep& Add(ChainStep::Kind kind) {
    ChainStep& step = chain_.steps[chain_.num_steps++];
    step.kind = kind;
    return step;
  }
  void Unary(UnaryOp op, ChainArg x) {
    ChainStep& step = Add(ChainStep::Kind::kUnary);
    step.unary = op;
    step.args[0] = x;
  }
  void Binary(BinaryOp op, ChainArg a, ChainArg b, DType dtype = DType::kF32) {
    // A base is no number.
    if (op == BinaryOp::kPow && a.kind == ChainArg::Kind::kNumber) std::swap(a, b);
    ChainStep& step = Add(ChainStep::Kind::kBinary);
    step.binary = op;
    step.args[0] = a;
    step.args[1] = b;
    step.dtype = dtype;
  }

  Chain chain_;
  std::mt19937& random_;
};

// Shapes with the layouts of their operands.
struct ChainCase {
  Dims shape;
  std::vector<Layout> operands;
};

inline std::vector<ChainCase> ChainCases() {
  std::vector<ChainCase> cases;
  for (const int64_t n : {0, 1, 5, 63, 64, 1000, 1024, 1025, 5000}) {
    cases.push_back({{n}, {{}, {.offset = 1}, {.broadcast = 1}, {.step = 2}}});
    cases.push_back({{n}, {{}, {.broadcast = 1}, {.broadcast = 1}}});
    cases.push_back({{n}, {{.broadcast = 1}, {.broadcast = 1}}});
  }
  cases.push_back({{}, {{}, {}}});
  cases.push_back({{1, 1}, {{}, {.broadcast = 3}}});
  cases.push_back({{7, 130}, {{}, {.broadcast = 1}, {.broadcast = 2}, {.broadcast = 3}}});  // long rows
  cases.push_back({{3, 3000}, {{}, {.broadcast = 1}, {.broadcast = 2}}});
  cases.push_back({{7, 130}, {{.broadcast = 2}, {.broadcast = 2}, {}}});
  cases.push_back({{90, 33}, {{}, {.broadcast = 1}, {.broadcast = 2}, {.broadcast = 3}}});  // short rows
  cases.push_back({{33, 150}, {{.order = {1, 0}}, {}, {.broadcast = 1}}});                  // transposed
  cases.push_back({{3, 4, 5, 30}, {{.order = {2, 0, 3, 1}}, {.broadcast = 0b0101}, {}}});
  cases.push_back({{2, 3, 200}, {{.step = 2}, {.broadcast = 0b010, .offset = 1}, {}}});
  cases.push_back({{4, 0, 3}, {{}, {.broadcast = 1}}});
  cases.push_back({{2, 1, 3, 1, 2, 2, 3, 40}, {{}, {.broadcast = 0b10100}, {}, {}, {}, {}, {}, {.broadcast = 0xff}}});
  return cases;
}

}  // namespace thresher::kernels
