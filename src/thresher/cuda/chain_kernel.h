// A chain of element-wise operators: the kernel reads the steps one after the other, all threads the same one at the
// same time. The result of a step stays in registers for the next one; only what a later step wants waits in shared
// memory, where each thread has places of its own, so that no barrier is needed. Casts are chains without a step.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "thresher/cuda/call.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/pointwise_kernel.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/stored.h"
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
// Operands that are on their way from memory before the first step; others are read where a step wants them.
inline constexpr int kHeldOperands = 2;

struct ChainOperand {
  const void* data;
  DType dtype;
};

// Numbers: Floats or Integers, whose chains have one step at most. kRun, kWide: as Elements has them.
template <class Numbers, int kRun, bool kWide>
struct ChainKernel {
  using Value = typename Numbers::Value;
  using Raw = typename Numbers::Raw;
  static constexpr int kMostThreads = kChainWidth;
  static constexpr int kLeastBlocks = std::is_same_v<Numbers, Floats> ? (kRun == 4 ? 4 : kWide ? 2 : 3) : 2;
  static constexpr int kRuns = kItems / kRun;  // that a thread works on at the same time
  Elements<kMaxChainOperands + 1> elements;    // the last one is the result
  ChainOperand operands[kMaxChainOperands];
  void* out;  // row-major; may be an operand that is read with the same strides
  DType out_dtype;
  uint32_t one_powers;  // bit s: step s is a power whose exponent is one value for all elements
  Chain chain;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t tile = int64_t{t.width()} * kRuns;
    for (int64_t base = t.block() * tile; base < elements.size; base += t.num_blocks() * tile) {
      Raw held[kHeldOperands][kItems];
      THRESHER_UNROLL
      for (int i = 0; i < kHeldOperands; ++i) {
        if (i < chain.num_operands) Fetch(t, base, i, held[i]);
      }
      Value result[kItems];
      if (chain.num_steps == 0) WidenAll(operands[0].dtype, held[0], result);
      for (int s = 0; s < chain.num_steps; ++s) Step(t, base, s, held, result);
      THRESHER_UNROLL
      for (int r = 0; r < kRuns; ++r) {
        const int64_t at = RunOf(t, base, r);
        if (at < elements.size) Numbers::template Store<kRun>(out_dtype, result + r * kRun, out, at * kRun);
      }
    }
  }

 private:
  // Neighbouring threads have neighbouring runs.
  template <class T>
  THRESHER_DEVICE int64_t RunOf(T& t, int64_t base, int run) const {
    return base + int64_t{run} * t.width() + t.x();
  }

  // Where a value waits in shared memory.
  template <class T>
  THRESHER_DEVICE static int PlaceOf(T& t, int slot, int item) {
    return (slot * kItems + item) * t.width() + t.x();
  }

  // `result`: in, that of the step before; out, of this one.
  template <class T>
  THRESHER_DEVICE void Step(T& t, int64_t base, int s, const Raw (*held)[kItems], Value* result) const {
    const ChainStep& step = chain.steps[s];
    const bool boolean = step.operand_dtype == DType::kBool;
    Value a[kItems], b[kItems];
    Load(t, base, s, step.args[0], held, result, a);
    switch (step.kind) {
      case ChainStep::Kind::kUnary:
        ApplyUnary(step.unary, boolean, a, result);
        break;
      case ChainStep::Kind::kBinary:
        Load(t, base, s, step.args[1], held, result, b);
        if constexpr (std::is_same_v<Numbers, Floats>) {
          if ((one_powers >> s & 1u) != 0) {
            // All elements have the same exponent, those behind the end included; or there is one element, and others
            // are stored by nobody.
            ApplyPower(a, b[0], result);
            break;
          }
        }
        ApplyBinary(step.binary, boolean, a, b, result);
        break;
      case ChainStep::Kind::kWhere: {
        Value c[kItems];
        Load(t, base, s, step.args[1], held, result, b);
        Load(t, base, s, step.args[2], held, result, c);
        ApplyWhere(a, b, c, result);
        break;
      }
    }
    if constexpr (std::is_same_v<Numbers, Floats>) {
      if (step.slot >= chain.num_late_slots || s + 1 == chain.num_steps) return;
      auto slots = t.shared();
      THRESHER_UNROLL
      for (int i = 0; i < kItems; ++i) slots[PlaceOf(t, step.slot, i)] = result[i];
    }
  }

  template <class T>
  THRESHER_DEVICE void Load(T& t, int64_t base, int s, const ChainArg& arg, const Raw (*held)[kItems],
                            const Value* previous, Value* to) const {
    if (arg.kind == ChainArg::Kind::kNumber) {
      THRESHER_UNROLL
      for (int i = 0; i < kItems; ++i) to[i] = static_cast<Value>(arg.number);
      return;
    }
    if (arg.kind == ChainArg::Kind::kStep) {
      if constexpr (std::is_same_v<Numbers, Floats>) {
        if (arg.index + 1 != s) {
          auto slots = t.shared();
          const int slot = chain.steps[arg.index].slot;
          THRESHER_UNROLL
          for (int i = 0; i < kItems; ++i) to[i] = slots[PlaceOf(t, slot, i)];
          return;
        }
      }
      THRESHER_UNROLL
      for (int i = 0; i < kItems; ++i) to[i] = previous[i];
      return;
    }
    // Values are selected here, not arrays: those would have to lie in memory.
    Raw raw[kItems];
    if (arg.index < kHeldOperands) {
      THRESHER_UNROLL
      for (int i = 0; i < kItems; ++i) raw[i] = arg.index == 0 ? held[0][i] : held[1][i];
    } else {
      Fetch(t, base, arg.index, raw);
    }
    WidenAll(operands[arg.index].dtype, raw, to);
  }

  // What lies behind the end computes something that nobody stores.
  template <class T>
  THRESHER_DEVICE void Fetch(T& t, int64_t base, int operand, Raw* raw) const {
    const bool repeated = (elements.repeated >> operand & 1u) != 0;
    THRESHER_UNROLL
    for (int r = 0; r < kRuns; ++r) {
      const int64_t at = RunOf(t, base, r);
      const int64_t offset = at < elements.size ? elements.template OffsetOf<kWide>(at, operand) : 0;
      Numbers::template Load<kRun>(operands[operand].dtype, operands[operand].data, offset, repeated, raw + r * kRun);
    }
  }

  THRESHER_DEVICE static void WidenAll(DType dtype, const Raw* raw, Value* to) {
    THRESHER_UNROLL
    for (int r = 0; r < kRuns; ++r) Numbers::template Widen<kRun>(dtype, raw + r * kRun, to + r * kRun);
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

template <class Numbers, int kRun, bool kWide>
ChainKernel<Numbers, kRun, kWide> MakeChainKernel(const Elements<kMaxChainOperands + 1>& elements, const Chain& chain,
                                                  const View* operands, const View& out) {
  ChainKernel<Numbers, kRun, kWide> kernel{};
  kernel.elements = elements;
  for (int i = 0; i < chain.num_operands; ++i) kernel.operands[i] = {operands[i].data, operands[i].dtype};
  kernel.out = out.data;
  kernel.out_dtype = out.dtype;
  for (int s = 0; s < chain.num_steps; ++s) {
    if (HasOneExponent(chain.steps[s], operands, out)) kernel.one_powers |= 1u << s;
  }
  kernel.chain = chain;
  return kernel;
}

template <class Numbers, class Launch>
auto LaunchChainOf(Launch&& launch, const Chain& chain, const View* operands, const View& out) {
  View all[kMaxChainOperands + 1];
  for (int i = 0; i < chain.num_operands; ++i) all[i] = operands[i];
  all[chain.num_operands] = out;
  const auto elements = ElementsOf<kMaxChainOperands + 1>(all, chain.num_operands + 1);
  Shape shape;
  shape.width = ChainWidth(chain.num_late_slots);
  shape.shared_floats = chain.num_late_slots * kItems * shape.width;
  shape.blocks = AtMostBlocks(DivideUp(elements.size, int64_t{shape.width} * (kItems / elements.run)));
  return ForLayout(elements, [&]<int run, bool wide>() {
    return launch(shape, MakeChainKernel<Numbers, run, wide>(elements, chain, operands, out));
  });
}

inline bool IsInteger(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32; }

// out is row-major and not empty; operands have its shape.
template <class Launch>
auto LaunchChain(Launch&& launch, const Chain& chain, const View* operands, const View& out) {
  bool integers = false;
  for (int i = 0; i < chain.num_operands; ++i) integers = integers || IsInteger(operands[i].dtype);
  return integers ? LaunchChainOf<Integers>(launch, chain, operands, out)
                  : LaunchChainOf<Floats>(launch, chain, operands, out);
}

// One operator as a chain of its own.
inline Chain AloneOf(const Call& call) {
  Chain chain;
  chain.num_operands = call.num_views - 1;
  chain.num_steps = 1;
  ChainStep& step = chain.steps[0];
  for (int a = 0; a < 3; ++a) step.args[a].index = static_cast<uint8_t>(a);
  step.operand_dtype = ComputeType(call.views[chain.num_operands - 1].dtype);
  switch (call.kernel()) {
    case KernelId::kUnary:
      step.unary = call.as<kernels::UnaryParams>().op;
      break;
    case KernelId::kBinary:
      step.kind = ChainStep::Kind::kBinary;
      step.binary = call.as<kernels::BinaryParams>().op;
      break;
    case KernelId::kWhere:
      step.kind = ChainStep::Kind::kWhere;
      break;
    default:  // kCast
      chain.num_steps = 0;
  }
  return chain;
}

struct ChainFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kCast, KernelId::kUnary, KernelId::kBinary, KernelId::kWhere,
                                          KernelId::kPointwise};

  static Verdict Check(const Call& call) {
    switch (call.kernel()) {
      case KernelId::kUnary:
        return Fits(call, sizeof(kernels::UnaryParams), 2);
      case KernelId::kBinary:
        return Fits(call, sizeof(kernels::BinaryParams), 3);
      case KernelId::kWhere:
        return Fits(call, sizeof(NoParams), 4);
      case KernelId::kCast:
        return Fits(call, sizeof(NoParams), 2);
      default:
        break;
    }
    const int32_t operands = call.params_bytes == sizeof(Chain) ? call.as<Chain>().num_operands : 0;
    if (Verdict verdict = Fits(call, sizeof(Chain), operands + 1); !verdict.ok()) return verdict;
    return AllFloats(call);
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    if (call.last().size() == 0) return launch.Nothing();
    const Chain chain = call.kernel() == KernelId::kPointwise ? call.as<Chain>() : AloneOf(call);
    return LaunchChain(launch, chain, call.views, call.last());
  }
};

}  // namespace thresher::cuda
