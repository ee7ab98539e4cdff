#include "thresher/run/device_chain.h"

#include <algorithm>
#include <iterator>

#include "thresher/kernels/iterate.h"
#include "thresher/kernels/row_source.h"

namespace thresher {
namespace {

using kernels::kMaxChainOperands;
using kernels::kMaxChainSteps;
using ArgKind = kernels::ChainArg::Kind;
using StepKind = kernels::ChainStep::Kind;

static_assert(kMaxChainOperands == THRESHER_CHAIN_OPERANDS && kMaxChainSteps == THRESHER_CHAIN_STEPS &&
              kMaxRank == THRESHER_CHAIN_RANK);
static_assert(static_cast<int>(StepKind::kUnary) == THRESHER_CHAIN_UNARY &&
              static_cast<int>(StepKind::kBinary) == THRESHER_CHAIN_BINARY &&
              static_cast<int>(StepKind::kWhere) == THRESHER_CHAIN_WHERE);

void SetOperands(const kernels::Chain& chain, const View* operands, const View& out, thresher_chain& to) {
  kernels::Loop<kMaxChainOperands> loop;
  for (int d = 0; d < out.rank; ++d) {
    int64_t strides[kMaxChainOperands] = {};
    for (int i = 0; i < chain.num_operands; ++i) strides[i] = operands[i].strides[d];
    loop.Push(out.shape[d], strides);
  }
  loop.Collapse();
  to.rank = loop.rank;
  to.size = out.size();
  to.out = out.as<float>();
  std::copy_n(loop.shape, loop.rank, to.shape);
  for (int i = 0; i < chain.num_operands; ++i) {
    to.operands[i] = operands[i].as<const float>();
    std::copy_n(loop.strides[i], loop.rank, to.strides[i]);
    bool dense = true;
    int64_t step = 1;
    for (int d = loop.rank - 1; d >= 0; --d) {
      dense = dense && loop.strides[i][d] == step;
      step *= loop.shape[d];
    }
    if (dense) to.dense |= 1u << i;
    if (loop.Constant(i)) to.single |= 1u << i;
  }
}

// The result of the step before is at hand; what a later step reads waits in a slot, which others may have after it.
void AssignSlots(const kernels::Chain& chain, thresher_chain& to) {
  int last_use[kMaxChainSteps] = {};
  for (int s = 0; s < chain.num_steps; ++s) {
    for (int a = 0; a < chain.steps[s].num_args(); ++a) {
      const kernels::ChainArg& arg = chain.steps[s].args[a];
      if (arg.kind == ArgKind::kStep) last_use[arg.index] = s;
    }
  }
  bool busy[kMaxChainSteps] = {};
  for (int s = 0; s < chain.num_steps; ++s) {
    // A thread reads its arguments before it writes its result.
    for (int i = 0; i < s; ++i) {
      if (last_use[i] == s && to.steps[i].slot >= 0) busy[to.steps[i].slot] = false;
    }
    to.steps[s].slot = -1;
    if (last_use[s] <= s + 1) continue;
    const auto free = std::find(std::begin(busy), std::end(busy), false) - std::begin(busy);
    busy[free] = true;
    to.steps[s].slot = static_cast<int8_t>(free);
    to.num_slots = std::max(to.num_slots, static_cast<int32_t>(free) + 1);
  }
}

thresher_chain_arg ArgOf(const kernels::ChainArg& arg, int step, const thresher_chain& to) {
  thresher_chain_arg out{};
  switch (arg.kind) {
    case ArgKind::kOperand:
      out.source = THRESHER_CHAIN_OPERAND;
      out.index = arg.index;
      break;
    case ArgKind::kNumber:
      out.source = THRESHER_CHAIN_NUMBER;
      out.number = arg.number;
      break;
    case ArgKind::kStep:
      out.source = arg.index + 1 == step ? THRESHER_CHAIN_PREVIOUS : THRESHER_CHAIN_SLOT;
      out.index = out.source == THRESHER_CHAIN_SLOT ? static_cast<uint8_t>(to.steps[arg.index].slot) : uint8_t{0};
      break;
  }
  return out;
}

// As kernels::Binary has it for the operator alone.
bool HasOneExponent(const kernels::ChainStep& step, const View* operands, const View& out) {
  if (step.kind != StepKind::kBinary || step.binary != kernels::BinaryOp::kPow) return false;
  const kernels::ChainArg& exponent = step.args[1];
  return exponent.kind == ArgKind::kNumber || out.size() == 1 ||
         (exponent.kind == ArgKind::kOperand && kernels::IsOneValue(operands[exponent.index]));
}

}  // namespace

thresher_chain DeviceChain(const kernels::Chain& chain, const View* operands, const View& out) {
  thresher_chain to{};
  to.num_operands = chain.num_operands;
  to.num_steps = chain.num_steps;
  SetOperands(chain, operands, out, to);
  AssignSlots(chain, to);
  for (int s = 0; s < chain.num_steps; ++s) {
    const kernels::ChainStep& from = chain.steps[s];
    thresher_chain_step& step = to.steps[s];
    step.kind = static_cast<uint8_t>(from.kind);
    step.op = from.kind == StepKind::kUnary ? static_cast<uint8_t>(from.unary) : static_cast<uint8_t>(from.binary);
    if (from.operand_dtype == DType::kBool) step.flags |= THRESHER_CHAIN_BOOL;
    if (HasOneExponent(from, operands, out)) step.flags |= THRESHER_CHAIN_ONE_POWER;
    for (int a = 0; a < from.num_args(); ++a) step.args[a] = ArgOf(from.args[a], s, to);
  }
  return to;
}

}  // namespace thresher
