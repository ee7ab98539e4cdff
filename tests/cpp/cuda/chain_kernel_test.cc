// The device's chains of element-wise operators, on the emulator: every operator against float64, and chains bit by bit
// against their operators one after the other.
#include "thresher/cuda/chain_kernel.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/chain_testing.h"
#include "kernels/tensor_testing.h"
#include "thresher/base/half.h"

namespace thresher::cuda::testing {
namespace {

using kernels::Chain;
using kernels::ChainArg;
using kernels::ChainStep;
using kernels::FillRandom;
using kernels::SameBits;
using kernels::Tensor;
using Kind = ChainArg::Kind;

// Both orders must give the same.
void RunOnDevice(const Chain& chain, const std::vector<View>& operands, Tensor& out) {
  if (out.view.size() == 0) return;
  ASSERT_EQ(LaunchChain(Launcher{Order::kForward}, chain, operands.data(), out.view), "");
  Tensor again(DType::kF32, Dims(out.view.shape, out.view.shape + out.view.rank));
  ASSERT_EQ(LaunchChain(Launcher{Order::kBackward}, chain, operands.data(), again.view), "");
  ASSERT_TRUE(SameBits(again, out));
}

// One step as a chain of its own, whose arguments are operands.
Chain Alone(const ChainStep& step) {
  Chain chain;
  chain.num_operands = step.num_args();
  chain.num_steps = 1;
  chain.steps[0] = step;
  for (int a = 0; a < step.num_args(); ++a) {
    if (step.args[a].kind != Kind::kNumber) chain.steps[0].args[a] = {Kind::kOperand, static_cast<uint8_t>(a), 0};
  }
  return chain;
}

void RunSingly(const Chain& chain, const std::vector<View>& operands, Tensor& out) {
  std::vector<std::unique_ptr<Tensor>> results;
  const Dims shape(out.view.shape, out.view.shape + out.view.rank);
  for (int s = 0; s < chain.num_steps; ++s) {
    const ChainStep& step = chain.steps[s];
    std::vector<View> args;
    for (int a = 0; a < step.num_args(); ++a) {
      const ChainArg& arg = step.args[a];
      args.push_back(arg.kind == Kind::kOperand ? operands[arg.index]
                     : arg.kind == Kind::kStep  ? results[arg.index]->view
                                                : operands[0]);
    }
    results.push_back(std::make_unique<Tensor>(DType::kF32, shape));
    RunOnDevice(Alone(step), args, *results.back());
    if (::testing::Test::HasFatalFailure()) return;
  }
  std::memcpy(out.view.data, results.back()->view.data, out.num_bytes());
}

TEST(ChainKernel, GivesTheBitsOfSingleOperators) {
  std::mt19937 random(5);
  for (const kernels::ChainCase& c : kernels::ChainCases()) {
    std::vector<std::unique_ptr<Tensor>> tensors;
    std::vector<View> operands;
    for (const kernels::Layout& layout : c.operands) {
      tensors.push_back(std::make_unique<Tensor>(DType::kF32, c.shape, layout));
      FillRandom(*tensors.back(), random);
      if (layout.broadcast != 0 && random() % 2) *tensors.back()->memory<float>() = 2.0f;
      operands.push_back(tensors.back()->view);
    }
    for (int round = 0; round < 6; ++round) {
      SCOPED_TRACE("shape " + ToString(c.shape) + ", operands " + std::to_string(operands.size()) + ", round " +
                   std::to_string(round));
      const int steps = 3 + static_cast<int>(random() % (kernels::kMaxChainSteps - 3));
      const Chain chain = kernels::ChainMaker(static_cast<int>(operands.size()), random).Make(steps);
      Tensor out(DType::kF32, c.shape), want(DType::kF32, c.shape);
      RunOnDevice(chain, operands, out);
      RunSingly(chain, operands, want);
      ASSERT_TRUE(SameBits(out, want));
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

struct Tolerance {
  double relative, absolute;
};

TEST(ChainKernel, EveryUnaryOperatorAgreesWithFloat64) {
  std::mt19937 random(1);
  Tensor x(DType::kF32, {3000});
  FillRandom(x, random);
  for (const kernels::UnaryOp op : kernels::AllUnaryOps()) {
    if (!Supports(op, DType::kF32)) continue;
    SCOPED_TRACE(std::string(Name(op)));
    Chain chain;
    chain.num_operands = chain.num_steps = 1;
    chain.steps[0].unary = op;
    const DType type = ResultType(op, DType::kF32);
    Tensor out(DType::kF32, {3000}), want(type, {3000});
    RunOnDevice(chain, {x.view}, out);
    UnaryReference(op, x.view, want.view);
    const bool gelu = op == kernels::UnaryOp::kGelu || op == kernels::UnaryOp::kGeluTanh;
    const Tolerance tolerance = gelu ? Tolerance{5e-7, 2e-7} : Tolerance{1e-6, 1e-37};
    for (int64_t i = 0; i < 3000; ++i) {
      const float g = out.view.as<float>()[i];
      const float w = type == DType::kBool ? want.view.as<uint8_t>()[i] : want.view.as<float>()[i];
      const float v = x.view.as<float>()[i];
      ASSERT_TRUE(kernels::Close(g, w, tolerance.relative, tolerance.absolute + (gelu ? 3e-7 * std::fabs(v) : 0)))
          << "of " << v << ": " << g << ", expected " << w;
    }
  }
}

TEST(ChainKernel, EveryBinaryOperatorAgreesWithFloat64) {
  std::mt19937 random(2);
  Tensor a(DType::kF32, {60, 50}), b(DType::kF32, {60, 50}, {.order = {1, 0}});
  FillRandom(a, random);
  FillRandom(b, random);
  for (const kernels::BinaryOp op : kernels::AllBinaryOps()) {
    if (!Supports(op, DType::kF32)) continue;
    SCOPED_TRACE(std::string(Name(op)));
    Chain chain;
    chain.num_operands = 2;
    chain.num_steps = 1;
    chain.steps[0].kind = ChainStep::Kind::kBinary;
    chain.steps[0].binary = op;
    chain.steps[0].args[1].index = 1;
    const DType type = ResultType(op, DType::kF32);
    Tensor out(DType::kF32, {60, 50}), want(type, {60, 50});
    RunOnDevice(chain, {a.view, b.view}, out);
    BinaryReference(op, a.view, b.view, want.view);
    for (int64_t i = 0; i < 3000; ++i) {
      const float g = out.view.as<float>()[i];
      const float w = type == DType::kBool ? want.view.as<uint8_t>()[i] : want.view.as<float>()[i];
      ASSERT_TRUE(kernels::Close(g, w, 1e-6, 1e-37)) << i << ": " << g << ", expected " << w;
    }
  }
}

// bool between the steps: comparisons, then every operator that takes bool, then back to numbers.
TEST(ChainKernel, OperatorsOnBool) {
  std::mt19937 random(3);
  Tensor a(DType::kF32, {500}), b(DType::kF32, {500});
  FillRandom(a, random);
  FillRandom(b, random);
  Tensor positive(DType::kBool, {500}), greater(DType::kBool, {500});
  for (int64_t i = 0; i < 500; ++i) {
    positive.view.as<uint8_t>()[i] = a.view.as<float>()[i] > 0;
    greater.view.as<uint8_t>()[i] = a.view.as<float>()[i] > b.view.as<float>()[i];
  }
  const auto chain_with = [](const ChainStep& step) {
    Chain chain;
    chain.num_operands = 2;
    chain.num_steps = 4;
    for (int s = 0; s < 2; ++s) {
      chain.steps[s].kind = ChainStep::Kind::kBinary;
      chain.steps[s].binary = kernels::BinaryOp::kGt;
      chain.steps[s].dtype = DType::kBool;
    }
    chain.steps[0].args[1] = {Kind::kNumber, 0, 0.0f};
    chain.steps[1].args[1] = {Kind::kOperand, 1, 0};
    chain.steps[2] = step;
    chain.steps[2].operand_dtype = chain.steps[2].dtype = DType::kBool;
    chain.steps[3].kind = ChainStep::Kind::kWhere;
    chain.steps[3].args[0] = {Kind::kStep, 2, 0};
    chain.steps[3].args[1] = {Kind::kNumber, 0, 2.0f};
    chain.steps[3].args[2] = {Kind::kOperand, 1, 0};
    AssignSlots(chain);
    return chain;
  };
  const auto check = [&](const ChainStep& step, const Tensor& truth) {
    Tensor out(DType::kF32, {500});
    RunOnDevice(chain_with(step), {a.view, b.view}, out);
    for (int64_t i = 0; i < 500; ++i) {
      const float want = truth.view.as<uint8_t>()[i] ? 2.0f : b.view.as<float>()[i];
      ASSERT_TRUE(kernels::Close(out.view.as<float>()[i], want, 0, 0)) << i;
    }
  };
  int checked = 0;
  for (const kernels::BinaryOp op : kernels::AllBinaryOps()) {
    if (!Supports(op, DType::kBool)) continue;
    SCOPED_TRACE(std::string(Name(op)));
    ChainStep step;
    step.kind = ChainStep::Kind::kBinary;
    step.binary = op;
    step.args[0] = {Kind::kStep, 0, 0};
    step.args[1] = {Kind::kStep, 1, 0};
    Tensor truth(DType::kBool, {500});
    BinaryReference(op, positive.view, greater.view, truth.view);
    check(step, truth);
    ++checked;
  }
  for (const kernels::UnaryOp op : kernels::AllUnaryOps()) {
    if (!Supports(op, DType::kBool)) continue;
    SCOPED_TRACE(std::string(Name(op)));
    ChainStep step;
    step.unary = op;
    step.args[0] = {Kind::kStep, 1, 0};
    Tensor truth(DType::kBool, {500});
    UnaryReference(op, greater.view, truth.view);
    check(step, truth);
    ++checked;
  }
  EXPECT_GE(checked, 18);
}

TEST(ChainKernel, PowersWithOneExponentTakeShortCuts) {
  const std::vector<float> bases = {-0.0f, 0.0f, 2.0f, -3.0f, 0.25f, 1e30f};
  Tensor x(DType::kF32, {6});
  std::copy(bases.begin(), bases.end(), x.memory<float>());
  for (const float exponent : {2.0f, 3.0f, -1.0f, 0.5f, -0.5f, 1.7f}) {
    Chain chain;
    chain.num_operands = chain.num_steps = 1;
    chain.steps[0].kind = ChainStep::Kind::kBinary;
    chain.steps[0].binary = kernels::BinaryOp::kPow;
    chain.steps[0].args[1] = {Kind::kNumber, 0, exponent};
    Tensor out(DType::kF32, {6}), want(DType::kF32, {6});
    RunOnDevice(chain, {x.view}, out);
    // The CPU's chain has the same rules.
    Tensor scratch(DType::kF32, {static_cast<int64_t>(ChainScratchBytes(chain) / sizeof(float))});
    RunChain(chain, &x.view, want.view, scratch.memory<std::byte>());
    EXPECT_TRUE(Same(out, want, 1e-6)) << exponent;
    if (exponent == 0.5f) {
      EXPECT_TRUE(std::signbit(out.memory<float>()[0]));
    }
  }
}

TEST(ChainKernel, InPlace) {
  std::mt19937 random(4);
  Tensor x(DType::kF32, {3, 700}), b(DType::kF32, {3, 700}, {.broadcast = 1}), want(DType::kF32, {3, 700});
  FillRandom(x, random);
  FillRandom(b, random);
  Chain chain;
  chain.num_operands = 2;
  chain.num_steps = 2;
  chain.steps[0].unary = kernels::UnaryOp::kRelu;
  chain.steps[1].kind = ChainStep::Kind::kBinary;
  chain.steps[1].args[0] = {Kind::kStep, 0, 0};
  chain.steps[1].args[1] = {Kind::kOperand, 1, 0};
  AssignSlots(chain);
  const std::vector<View> operands = {x.view, b.view};
  RunOnDevice(chain, operands, want);
  ASSERT_EQ(LaunchChain(Launcher{}, chain, operands.data(), x.view), "");
  EXPECT_TRUE(SameBits(x, want));
}

TEST(ChainKernel, OperandsKnowTheirLayout) {
  Tensor x(DType::kF32, {4, 5}), row(DType::kF32, {4, 5}, {.broadcast = 1}), one(DType::kF32, {4, 5}, {.broadcast = 3}),
      turned(DType::kF32, {4, 5}, {.order = {1, 0}});
  const View operands[] = {x.view, row.view, one.view, turned.view};
  const Elements<kMaxChainOperands> elements = ElementsOf<kMaxChainOperands>(operands, 4);
  EXPECT_EQ(elements.dense, 1u);
  EXPECT_EQ(elements.single, 4u);
  EXPECT_EQ(elements.rank, 2);
  EXPECT_EQ(elements.size, 20);
  EXPECT_EQ(elements.strides[1][0], 0);
  EXPECT_EQ(elements.strides[3][1], 4);
}

// One operator as a step of a plan calls it, in both orders.
template <class Params>
void RunStep(KernelId kernel, const Params& params, std::vector<View> views, Tensor& out) {
  const auto run = [&](Order order, const View& to) {
    views.push_back(to);
    const Call call{static_cast<uint32_t>(kernel), &params, sizeof params, views.data(),
                    static_cast<int32_t>(views.size())};
    EXPECT_EQ(ChainFamily::Check(call).problem, "");
    EXPECT_EQ(ChainFamily::Launch(Launcher{order}, call), "");
    views.pop_back();
  };
  Tensor again(out.view.dtype, Dims(out.view.shape, out.view.shape + out.view.rank));
  run(Order::kForward, out.view);
  run(Order::kBackward, again.view);
  EXPECT_TRUE(out.GuardIntact());
  ASSERT_EQ(std::memcmp(out.memory<std::byte>(), again.memory<std::byte>(), out.num_bytes()), 0);
}

constexpr DType kAllTypes[] = {DType::kF32, DType::kI64, DType::kI32, DType::kBool, DType::kBF16, DType::kF16};

void ExpectSameElements(const Tensor& found, const Tensor& wanted, double tolerance) {
  ASSERT_EQ(found.view.dtype, wanted.view.dtype);
  for (int64_t i = 0; i < found.view.size(); ++i) {
    switch (found.view.dtype) {
      case DType::kF32:
        ASSERT_TRUE(kernels::Close(found.view.as<float>()[i], wanted.view.as<float>()[i], tolerance, 1e-37)) << i;
        break;
      case DType::kI64:
        ASSERT_EQ(found.view.as<int64_t>()[i], wanted.view.as<int64_t>()[i]) << i;
        break;
      case DType::kI32:
        ASSERT_EQ(found.view.as<int32_t>()[i], wanted.view.as<int32_t>()[i]) << i;
        break;
      case DType::kBool:
        ASSERT_EQ(found.view.as<uint8_t>()[i] != 0, wanted.view.as<uint8_t>()[i] != 0) << i;
        break;
      case DType::kBF16:
        ASSERT_TRUE(kernels::Close(ToFloat(found.view.as<BF16>()[i]), ToFloat(wanted.view.as<BF16>()[i]), 0, 0)) << i;
        break;
      case DType::kF16:
        ASSERT_TRUE(kernels::Close(ToFloat(found.view.as<F16>()[i]), ToFloat(wanted.view.as<F16>()[i]), 0, 0)) << i;
        break;
    }
  }
}

struct ShapeCase {
  Dims shape;
  kernels::Layout layout;
};
const ShapeCase kShapes[] = {
    {{2048}, {}}, {{37, 61}, {}}, {{40, 64}, {}}, {{40, 64}, {.order = {1, 0}}}, {{1024}, {.offset = 1}}};

TEST(ChainKernel, OperatorsOnIntegersAndBool) {
  std::mt19937 random(6);
  int checked = 0;
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kBool}) {
    for (const ShapeCase& c : kShapes) {
      Tensor a(dtype, c.shape), b(dtype, c.shape, c.layout);
      FillRandom(a, random);
      FillRandom(b, random);
      for (const kernels::UnaryOp op : kernels::AllUnaryOps()) {
        if (!Supports(op, dtype)) continue;
        SCOPED_TRACE(std::string(Name(op)) + " " + std::string(Name(dtype)) + ToString(c.shape));
        Tensor out(ResultType(op, dtype), c.shape), want(ResultType(op, dtype), c.shape);
        RunStep(KernelId::kUnary, kernels::UnaryParams{op}, {b.view}, out);
        UnaryReference(op, b.view, want.view);
        ExpectSameElements(out, want, 0);
        ++checked;
      }
      for (const kernels::BinaryOp op : kernels::AllBinaryOps()) {
        if (!Supports(op, dtype)) continue;
        SCOPED_TRACE(std::string(Name(op)) + " " + std::string(Name(dtype)) + ToString(c.shape));
        Tensor out(ResultType(op, dtype), c.shape), want(ResultType(op, dtype), c.shape);
        RunStep(KernelId::kBinary, kernels::BinaryParams{op}, {a.view, b.view}, out);
        BinaryReference(op, a.view, b.view, want.view);
        ExpectSameElements(out, want, 0);
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 250);
}

TEST(ChainKernel, ComparisonsOfFloatsGiveBool) {
  std::mt19937 random(7);
  for (const ShapeCase& c : kShapes) {
    Tensor a(DType::kF32, c.shape), b(DType::kF32, c.shape, c.layout);
    FillRandom(a, random);
    FillRandom(b, random);
    for (const kernels::BinaryOp op :
         {kernels::BinaryOp::kLe, kernels::BinaryOp::kNe, kernels::BinaryOp::kLogicalXor}) {
      Tensor out(DType::kBool, c.shape), want(DType::kBool, c.shape);
      RunStep(KernelId::kBinary, kernels::BinaryParams{op}, {a.view, b.view}, out);
      BinaryReference(op, a.view, b.view, want.view);
      ExpectSameElements(out, want, 0);
    }
    Tensor out(DType::kBool, c.shape), want(DType::kBool, c.shape);
    RunStep(KernelId::kUnary, kernels::UnaryParams{kernels::UnaryOp::kIsNan}, {b.view}, out);
    UnaryReference(kernels::UnaryOp::kIsNan, b.view, want.view);
    ExpectSameElements(out, want, 0);
  }
}

TEST(ChainKernel, ChoosesElementsOfEveryType) {
  std::mt19937 random(8);
  for (const DType dtype : kAllTypes) {
    for (const ShapeCase& c : kShapes) {
      SCOPED_TRACE(std::string(Name(dtype)) + ToString(c.shape));
      Tensor cond(DType::kBool, c.shape, c.layout), a(dtype, c.shape), b(dtype, c.shape, {.broadcast = 1});
      for (Tensor* tensor : {&cond, &a, &b}) FillRandom(*tensor, random);
      Tensor out(dtype, c.shape), want(dtype, c.shape);
      RunStep(KernelId::kWhere, NoParams{}, {cond.view, a.view, b.view}, out);
      kernels::WhereReference(cond.view, a.view, b.view, want.view);
      ExpectSameElements(out, want, 0);
    }
  }
}

TEST(ChainKernel, CastsBetweenAllTypes) {
  std::mt19937 random(9);
  for (const DType from : kAllTypes) {
    for (const DType to : kAllTypes) {
      for (const ShapeCase& c : kShapes) {
        SCOPED_TRACE(std::string(Name(from)) + " to " + std::string(Name(to)) + ToString(c.shape));
        Tensor x(from, c.shape, c.layout), out(to, c.shape), want(to, c.shape);
        FillRandom(x, random);
        RunStep(KernelId::kCast, NoParams{}, {x.view}, out);
        kernels::CastReference(x.view, want.view);
        ExpectSameElements(out, want, 0);
      }
    }
  }
}

TEST(ChainKernel, RoundsToSixteenBitsAsTheCpuDoes) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 0x6789)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (uint32_t upper = 0; upper < 0x10000u; upper += 37) {  // ties, and their neighbours
    for (const uint32_t lower : {0x7fffu, 0x8000u, 0x8001u, 0xfffu, 0x1000u, 0x1001u}) {
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  x.resize(x.size() / 8 * 8);
  const Dims shape = {static_cast<int64_t>(x.size())};
  Tensor from(DType::kF32, shape);
  std::copy(x.begin(), x.end(), from.memory<float>());
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Tensor rounded(dtype, shape), want(dtype, shape), wide(DType::kF32, shape);
    RunStep(KernelId::kCast, NoParams{}, {from.view}, rounded);
    RunStep(KernelId::kCast, NoParams{}, {rounded.view}, wide);
    kernels::Cast(from.view, want.view);
    EXPECT_EQ(std::memcmp(rounded.memory<uint8_t>(), want.memory<uint8_t>(), want.num_bytes()), 0);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_TRUE(kernels::Close(wide.memory<float>()[i], Rounded(x[i], dtype), 0, 0));
  }
}

// Every operand as any float, the result too: as if they had been widened before and rounded behind.
TEST(ChainKernel, FloatsOfSixteenBits) {
  std::mt19937 random(10);
  const DType floats[] = {DType::kF32, DType::kBF16, DType::kF16};
  for (const Dims& shape : {Dims{6, 88}, Dims{5, 33}, Dims{3, 4, 24}}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<std::unique_ptr<Tensor>> tensors, wide;
      std::vector<View> operands, wide_operands;
      for (int i = 0; i < 4; ++i) {
        const kernels::Layout layout{.broadcast = i == 1 ? 1u : i == 2 ? 7u : 0u, .offset = i == 3 ? round % 2 : 0};
        tensors.push_back(std::make_unique<Tensor>(floats[random() % 3], shape, layout));
        FillRandom(*tensors.back(), random);
        operands.push_back(tensors.back()->view);
        wide.push_back(std::make_unique<Tensor>(DType::kF32, shape));
        kernels::Cast(operands.back(), wide.back()->view);
        wide_operands.push_back(wide.back()->view);
      }
      const Chain chain = kernels::ChainMaker(4, random).Make(6);
      const DType type = floats[random() % 3];
      Tensor out(type, shape), plain(DType::kF32, shape), want(type, shape);
      RunStep(KernelId::kPointwise, chain, operands, out);
      RunOnDevice(chain, wide_operands, plain);
      kernels::Cast(plain.view, want.view);
      ExpectSameElements(out, want, 0);
    }
  }
}

// What more than 2^31 elements take, tried with few.
TEST(ChainKernel, WideIndicesGiveTheSame) {
  std::mt19937 random(11);
  Tensor a(DType::kF32, {7, 5, 33}, {.order = {2, 0, 1}}), b(DType::kF32, {7, 5, 33}, {.broadcast = 2});
  FillRandom(a, random);
  FillRandom(b, random);
  const View all[] = {a.view, b.view, Tensor(DType::kF32, {7, 5, 33}).view};
  const Chain chain = kernels::ChainMaker(2, random).Make(5);
  Tensor narrow(DType::kF32, {7, 5, 33}), wide(DType::kF32, {7, 5, 33});
  RunOnDevice(chain, {a.view, b.view}, narrow);
  const auto elements = ElementsOf<kMaxChainOperands + 1>(all, 3);
  Shape shape;
  shape.width = kChainWidth;
  shape.shared_floats = chain.num_late_slots * kItems * shape.width;
  ASSERT_EQ(Launcher{}(shape, MakeChainKernel<Floats, 1, true>(elements, chain, all, wide.view)), "");
  EXPECT_TRUE(SameBits(narrow, wide));
}

TEST(Divisor, DividesWhatItSays) {
  std::mt19937 random(12);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t bits = random() % 31 + 1;
    const uint32_t divisor =
        std::max<uint32_t>(1, static_cast<uint32_t>(random() & ((uint64_t{1} << bits) - 1)) & 0x7fffffffu);
    const uint32_t number =
        i % 3 == 0 ? divisor * (random() % 3) & 0x7fffffffu : static_cast<uint32_t>(random()) & 0x7fffffffu;
    ASSERT_EQ(Divisor::By(divisor).Quotient(number), number / divisor) << number << " / " << divisor;
    ASSERT_EQ(Divisor::By(divisor).Quotient(0x7fffffffu), 0x7fffffffu / divisor) << divisor;
  }
}

// The last step stores what it has, whatever its slot says; those before it keep what is wanted late only.
TEST(ChainKernel, OnlyLateResultsTakeSharedMemory) {
  Chain chain;
  chain.num_operands = 1;
  chain.num_steps = 10;
  for (uint8_t s = 1; s < 10; ++s) chain.steps[s].args[0] = {Kind::kStep, static_cast<uint8_t>(s - 1), 0};
  Tensor x(DType::kF32, {4}), out(DType::kF32, {4});
  const auto shared_floats = [&] {
    AssignSlots(chain);
    int floats = -1;
    const std::string problem = LaunchChain(
        [&](const Shape& shape, const auto& kernel) {
          floats = shape.shared_floats;
          return Launcher{}(shape, kernel);
        },
        chain, &x.view, out.view);
    EXPECT_EQ(problem, "");
    return floats;
  };
  EXPECT_EQ(shared_floats(), 0);
  // Steps 0 and 1 are wanted at the end; 2 is wanted by 4, and its slot by nobody later.
  for (const auto& [step, reads] : {std::pair{9, 0}, {8, 1}, {4, 2}}) {
    chain.steps[step].kind = ChainStep::Kind::kBinary;
    chain.steps[step].args[1] = {Kind::kStep, static_cast<uint8_t>(reads), 0};
  }
  EXPECT_EQ(shared_floats(), 3 * kItems * kChainWidth);
}

TEST(ChainKernel, EveryNumberOfSlotsFitsTheDevice) {
  for (int slots = 0; slots <= kernels::kMaxChainSteps; ++slots) {
    const int width = ChainWidth(slots);
    EXPECT_EQ(width % kWarp, 0);
    EXPECT_LE(slots * kItems * width, kMostSharedFloats) << slots;
  }
}

}  // namespace
}  // namespace thresher::cuda::testing
