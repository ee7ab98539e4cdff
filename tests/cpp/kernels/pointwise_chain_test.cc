#include "thresher/kernels/pointwise_chain.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/chain_testing.h"
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

TEST(PointwiseChain, GivesTheBitsOfSingleOperators) {
  std::mt19937 random(5);
  for (const ChainCase& c : ChainCases()) {
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

// As what is widened before and rounded behind, bit by bit.
TEST(PointwiseChain, WidensAndRoundsWhatIsStoredInSixteenBits) {
  std::mt19937 random(6);
  constexpr DType kStored[] = {DType::kBF16, DType::kF16, DType::kF32};
  for (const ChainCase& c : ChainCases()) {
    std::vector<std::unique_ptr<Tensor>> tensors, wide_tensors;
    std::vector<View> operands, wide;
    for (const Layout& layout : c.operands) {
      tensors.push_back(std::make_unique<Tensor>(kStored[random() % 3], c.shape, layout));
      FillRandom(*tensors.back(), random);
      operands.push_back(tensors.back()->view);
      wide_tensors.push_back(std::make_unique<Tensor>(DType::kF32, c.shape, layout));
      Tensor& widened = *wide_tensors.back();
      // Whole memory, gaps between strides too.
      const auto all = static_cast<int64_t>(widened.elements());
      CastReference(MakeView(tensors.back()->view.data, operands.back().dtype, {all}),
                    MakeView(widened.view.data, DType::kF32, {all}));
      wide.push_back(widened.view);
    }
    for (int round = 0; round < 6; ++round) {
      const Chain chain =
          ChainMaker(static_cast<int>(operands.size()), random).Make(3 + static_cast<int>(random() % 9));
      const DType stored = kStored[round % 3];
      SCOPED_TRACE("shape " + ToString(c.shape) + ", operands " + std::to_string(operands.size()) + ", round " +
                   std::to_string(round));
      ForEachIsa([&] {
        Tensor exact(DType::kF32, c.shape);
        RunSingly(chain, wide, exact);
        Tensor want(stored, c.shape);
        Cast(exact.view, want.view);
        for (const int parts : kPartCounts) {
          Tensor out(stored, c.shape);
          Tensor scratch(DType::kF32, {static_cast<int64_t>(ChainScratchBytes(chain) / sizeof(float))});
          for (int part = 0; part < parts; ++part) {
            scratch.Clear();
            RunChain(chain, operands.data(), out.view, scratch.memory<std::byte>(), part, parts);
          }
          Tensor got_wide(DType::kF32, c.shape), want_wide(DType::kF32, c.shape);
          Cast(out.view, got_wide.view);
          Cast(want.view, want_wide.view);
          ASSERT_TRUE(SameBits(got_wide, want_wide)) << parts << " parts";
          ASSERT_TRUE(out.GuardIntact()) << "wrote behind the output";
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
  EXPECT_EQ(chain.num_late_slots, 0);
  // The first result is wanted at the end.
  chain.steps[9].kind = ChainStep::Kind::kBinary;
  chain.steps[9].args[1] = {Kind::kStep, 0, 0};
  AssignSlots(chain);
  EXPECT_EQ(chain.num_slots, 2);
  EXPECT_EQ(chain.num_late_slots, 1);
  EXPECT_EQ(chain.steps[0].slot, 0);
  EXPECT_EQ(chain.steps[1].slot, 1);
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
