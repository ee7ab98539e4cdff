// A chain of element-wise operators: the kernel reads the steps one after the other, all threads the same one at the
// same time. The result of a step stays in registers for the next one; only what a later step wants waits in shared
// memory, where each thread has places of its own, so that no barrier is needed.
#pragma once

#include <cstdint>

#include "thresher/cuda/call.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/pointwise_kernel.h"
#include "thresher/cuda/rows.h"
#include "thresher/kernels/kernel_params.h"
#include "thresher/kernels/pointwise_chain.h"
#include "thresher/kernels/row_source.h"

namespace thresher::cuda {

using kernels::Chain;
using kernels::ChainArg;
using kernels::ChainStep;
using kernels::kMaxChainOperands;

// Threads of a block; fewer where many results wait in the 48 KiB that every device has.
inline constexpr int kChainWidth = 256;
inline constexpr int kMostSharedFloats = 48 * 1024 / 4;

// kOneDimension, Index: as Elements::OffsetOf wants them.
template <bool kOneDimension, class Index>
struct ChainKernel {
  static constexpr int kMostThreads = kChainWidth;
  Elements<kMaxChainOperands> elements;
  const float* operands[kMaxChainOperands];
  float* out;           // row-major; may be an operand that is read with the same strides
  uint32_t one_powers;  // bit s: step s is a power whose exponent is one value for all elements
  Chain chain;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t tile = int64_t{t.width()} * kItems;
    for (int64_t base = t.block() * tile; base < elements.size; base += t.num_blocks() * tile) {
      float result[kItems];
      for (int s = 0; s < chain.num_steps; ++s) Step(t, base, s, result);
      THRESHER_UNROLL
      for (int i = 0; i < kItems; ++i) {
        if (const int64_t at = ElementOf(t, base, i); at < elements.size) out[at] = result[i];
      }
    }
  }

 private:
  // Neighbouring threads have neighbouring elements.
  template <class T>
  THRESHER_DEVICE int64_t ElementOf(T& t, int64_t base, int item) const {
    return base + int64_t{item} * t.width() + t.x();
  }

  // Where a value waits in shared memory.
  template <class T>
  THRESHER_DEVICE static int PlaceOf(T& t, int slot, int item) {
    return (slot * kItems + item) * t.width() + t.x();
  }

  // `result`: in, that of the step before; out, of this one.
  template <class T>
  THRESHER_DEVICE void Step(T& t, int64_t base, int s, float* result) const {
    const ChainStep& step = chain.steps[s];
    const bool boolean = step.operand_dtype == DType::kBool;
    float a[kItems], b[kItems];
    Load(t, base, s, step.args[0], result, a);
    switch (step.kind) {
      case ChainStep::Kind::kUnary:
        ApplyUnary(step.unary, a, result);
        break;
      case ChainStep::Kind::kBinary:
        Load(t, base, s, step.args[1], result, b);
        if ((one_powers >> s & 1u) != 0) {
          // All elements have the same exponent, those behind the end included; or there is one element, and others
          // are stored by nobody.
          ApplyPower(a, b[0], result);
        } else {
          ApplyBinary(step.binary, boolean, a, b, result);
        }
        break;
      case ChainStep::Kind::kWhere: {
        float c[kItems];
        Load(t, base, s, step.args[1], result, b);
        Load(t, base, s, step.args[2], result, c);
        ApplyWhere(a, b, c, result);
        break;
      }
    }
    if (step.slot >= chain.num_late_slots || s + 1 == chain.num_steps) return;
    auto slots = t.shared();
    THRESHER_UNROLL
    for (int i = 0; i < kItems; ++i) slots[PlaceOf(t, step.slot, i)] = result[i];
  }

  template <class T>
  THRESHER_DEVICE void Load(T& t, int64_t base, int s, const ChainArg& arg, const float* previous, float* to) const {
    switch (arg.kind) {
      case ChainArg::Kind::kNumber:
        THRESHER_UNROLL
        for (int i = 0; i < kItems; ++i) to[i] = arg.number;
        return;
      case ChainArg::Kind::kStep: {
        if (arg.index + 1 == s) {
          THRESHER_UNROLL
          for (int i = 0; i < kItems; ++i) to[i] = previous[i];
          return;
        }
        auto slots = t.shared();
        const int slot = chain.steps[arg.index].slot;
        THRESHER_UNROLL
        for (int i = 0; i < kItems; ++i) to[i] = slots[PlaceOf(t, slot, i)];
        return;
      }
      case ChainArg::Kind::kOperand: {
        const float* operand = operands[arg.index];
        THRESHER_UNROLL
        for (int i = 0; i < kItems; ++i) {
          const int64_t at = ElementOf(t, base, i);
          // What lies behind the end computes something that nobody stores.
          to[i] = operand[at < elements.size ? elements.template OffsetOf<kOneDimension, Index>(at, arg.index) : 0];
        }
      }
    }
  }
};

inline int ChainWidth(int slots) {
  int width = kChainWidth;
  while (width > kWarp && slots * kItems * width > kMostSharedFloats) width /= 2;
  return width;
}

// As kernels::Binary has it for the operator alone.
inline bool HasOneExponent(const ChainStep& step, const View* operands, const View& out) {
  if (step.kind != ChainStep::Kind::kBinary || step.binary != kernels::BinaryOp::kPow) return false;
  const ChainArg& exponent = step.args[1];
  return exponent.kind == ChainArg::Kind::kNumber || out.size() == 1 ||
         (exponent.kind == ChainArg::Kind::kOperand && kernels::IsOneValue(operands[exponent.index]));
}

template <bool kOneDimension, class Index>
ChainKernel<kOneDimension, Index> MakeChainKernel(const Elements<kMaxChainOperands>& elements, const Chain& chain,
                                                  const View* operands, const View& out) {
  ChainKernel<kOneDimension, Index> kernel{};
  kernel.elements = elements;
  for (int i = 0; i < chain.num_operands; ++i) kernel.operands[i] = operands[i].as<const float>();
  kernel.out = out.as<float>();
  for (int s = 0; s < chain.num_steps; ++s) {
    if (HasOneExponent(chain.steps[s], operands, out)) kernel.one_powers |= 1u << s;
  }
  kernel.chain = chain;
  return kernel;
}

// out is not empty.
template <class Launch>
auto LaunchChain(Launch&& launch, const Chain& chain, const View* operands, const View& out) {
  const Elements<kMaxChainOperands> elements = ElementsOf<kMaxChainOperands>(operands, chain.num_operands);
  Shape shape;
  shape.width = ChainWidth(chain.num_late_slots);
  shape.shared_floats = chain.num_late_slots * kItems * shape.width;
  shape.blocks = AtMostBlocks(DivideUp(elements.size, int64_t{shape.width} * kItems));
  return ForLayout(elements, [&]<bool kOneDimension, class Index>() {
    return launch(shape, MakeChainKernel<kOneDimension, Index>(elements, chain, operands, out));
  });
}

// One operator as a chain of its own.
inline Chain AloneOf(const Call& call) {
  Chain chain;
  chain.num_steps = 1;
  ChainStep& step = chain.steps[0];
  if (call.kernel() == KernelId::kUnary) {
    chain.num_operands = 1;
    step.unary = call.as<kernels::UnaryParams>().op;
  } else {
    chain.num_operands = 2;
    step.kind = ChainStep::Kind::kBinary;
    step.binary = call.as<kernels::BinaryParams>().op;
    step.args[1].index = 1;
  }
  return chain;
}

struct ChainFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kUnary, KernelId::kBinary, KernelId::kPointwise};

  static Verdict Check(const Call& call) {
    Verdict verdict;
    switch (call.kernel()) {
      case KernelId::kUnary:
        verdict = Fits(call, sizeof(kernels::UnaryParams), 2);
        break;
      case KernelId::kBinary:
        verdict = Fits(call, sizeof(kernels::BinaryParams), 3);
        break;
      default:
        verdict = Fits(call, sizeof(Chain), call.params_bytes == sizeof(Chain) ? call.as<Chain>().num_operands + 1 : 0);
    }
    return verdict.ok() ? AllF32(call) : verdict;
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    if (call.last().size() == 0) return launch.Nothing();
    const Chain chain = call.kernel() == KernelId::kPointwise ? call.as<Chain>() : AloneOf(call);
    return LaunchChain(launch, chain, call.views, call.last());
  }
};

}  // namespace thresher::cuda
