#include "thresher/kernels/pointwise_chain.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/tensor_testing.h"

namespace thresher::kernels {
namespace {

using Kind = ChainArg::Kind;

// One operator after the other, each over whole tensors.
void RunSingly(const Chain& chain, const std::vector<View>& operands, Tensor& out) {
  std::vector<std::unique_ptr<Tensor>> results;
  const Dims shape(out.view.shape, out.view.shape + out.view.rank);
  for (int s = 0; s < chain.num_steps; ++s) {
    const ChainStep& step = chain.steps[s];
    float numbers[3];
    View args[3];
    for (int a = 0; a < step.num_args(); ++a) {
      const ChainArg& arg = step.args[a];
      if (arg.kind == Kind::kOperand) args[a] = operands[arg.index];
      if (arg.kind == Kind::kStep) args[a] = results[arg.index]->view;
      if (arg.kind != Kind::kNumber) continue;
      numbers[a] = arg.number;
      args[a] = out.view;
      args[a].data = &numbers[a];
      std::fill_n(args[a].strides, kMaxRank, 0);
    }
    results.push_back(std::make_unique<Tensor>(step.dtype, shape));
    const View& to = results.back()->view;
    if (step.kind == ChainStep::Kind::kUnary) Unary(step.unary, args[0], to);
    if (step.kind == ChainStep::Kind::kBinary) Binary(step.binary, args[0], args[1], to);
    if (step.kind == ChainStep::Kind::kWhere) Where(args[0], args[1], args[2], to);
  }
  std::memcpy(out.view.data, results.back()->view.data, out.num_bytes());
}

// The same bits; only the payload of a NaN may differ.
::testing::AssertionResult SameBits(const Tensor& got, const Tensor& want) {
  if (!got.GuardIntact()) return ::testing::AssertionFailure() << "bytes behind the output were written";
  for (int64_t i = 0; i < want.view.size(); ++i) {
    const float g = got.view.as<float>()[i];
    const float w = want.view.as<float>()[i];
    if (std::memcmp(&g, &w, sizeof(float)) == 0 || (std::isnan(g) && std::isnan(w))) continue;
    return ::testing::AssertionFailure() << "element " << i << " is " << g << ", wanted " << w;
  }
  return ::testing::AssertionSuccess();
}

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
          const ChainArg no = yes.kind == Kind::kNumber ? last : Other();
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
    return {Kind::kOperand, static_cast<uint8_t>(Below(static_cast<size_t>(chain_.num_operands))), 0};
  }
  ChainArg Number() {
    static constexpr float kNumbers[] = {2, 3, 0.5f, -0.5f, -1, 0.3f};
    return {Kind::kNumber, 0, kNumbers[Below(6)]};
  }
  ChainArg Last() const { return {Kind::kStep, static_cast<uint8_t>(chain_.num_steps - 1), 0}; }
  ChainArg Other() {
    const auto step = static_cast<uint8_t>(Below(static_cast<size_t>(chain_.num_steps)));
    if (Below(3) == 0 && chain_.steps[step].dtype == DType::kF32) return {Kind::kStep, step, 0};
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
    if (op == BinaryOp::kPow && a.kind == Kind::kNumber) std::swap(a, b);
    ChainStep& step = Add(ChainStep::Kind::kBinary);
    step.binary = op;
    step.args[0] = a;
    step.args[1] = b;
    step.dtype = dtype;
  }

  Chain chain_;
  std::mt19937& random_;
};

struct Case {
  Dims shape;
  std::vector<Layout> operands;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
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

TEST(PointwiseChain, GivesTheBitsOfSingleOperators) {
  std::mt19937 random(5);
  for (const Case& c : Cases()) {
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::vector<View> operands;
    for (const Layout& layout : c.operands) {
      tensors.push_back(std::make_unique<Tensor>(DType::kF32, c.shape, layout));
      FillRandom(*tensors.back(), random);
      // Exponents with a short cut.
      if (layout.broadcast != 0 && random() % 2) *tensors.back()->memory<float>() = 2.0f;
      operands.push_back(tensors.back()->view);
    }
    for (int round = 0; round < 12; ++round) {
      const int steps = 3 + static_cast<int>(random() % (kMaxChainSteps - 3));
      const Chain chain = ChainMaker(static_cast<int>(operands.size()), random).Make(steps);
      SCOPED_TRACE("shape " + ToString(c.shape) + ", operands " + std::to_string(operands.size()) + ", round " +
                   std::to_string(round));
      ForEachIsa([&] {
        Tensor want(DType::kF32, c.shape);
        RunSingly(chain, operands, want);
        for (const int parts : kPartCounts) {
          Tensor out(DType::kF32, c.shape);
          Tensor scratch(DType::kF32, {static_cast<int64_t>(ChainScratchBytes(chain) / sizeof(float))});
          for (int part = 0; part < parts; ++part) {
            scratch.Clear();
            RunChain(chain, operands.data(), out.view, scratch.memory<std::byte>(), part, parts);
          }
          ASSERT_TRUE(SameBits(out, want)) << parts << " parts";
          ASSERT_TRUE(scratch.GuardIntact()) << "wrote behind the scratch memory";
        }
      });
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

ChainStep UnaryStep(ChainArg x) {
  ChainStep step;
  step.args[0] = x;
  return step;
}

TEST(PointwiseChain, ResultsShareSlots) {
  Chain chain;
  chain.num_operands = 1;
  chain.num_steps = 10;
  chain.steps[0] = UnaryStep({});
  for (uint8_t s = 1; s < 10; ++s) chain.steps[s] = UnaryStep({Kind::kStep, static_cast<uint8_t>(s - 1), 0});
  AssignSlots(chain);
  EXPECT_EQ(chain.num_slots, 1);
  // The first result is wanted at the end.
  chain.steps[9].kind = ChainStep::Kind::kBinary;
  chain.steps[9].args[1] = {Kind::kStep, 0, 0};
  AssignSlots(chain);
  EXPECT_EQ(chain.num_slots, 2);
  // bool is never written over f32.
  chain.num_steps = 3;
  chain.steps[1].dtype = DType::kBool;
  chain.steps[2] = UnaryStep({Kind::kStep, 1, 0});
  AssignSlots(chain);
  EXPECT_EQ(chain.num_slots, 2);
  EXPECT_NE(chain.steps[0].slot, chain.steps[1].slot);
}

}  // namespace
}  // namespace thresher::kernels
