// A chain of element-wise operators: the kernel reads the steps one after the other, all threads the same one at the
// same time. The result of a step stays in registers for the next one; only what a later step wants waits in shared
// memory, where each thread has places of its own, so that no barrier is needed.
#pragma once

#include <cstdint>

#include "thresher/cuda/pointwise_kernel.h"
#include "thresher/cuda/rows.h"
#include "thresher/device_api.h"

namespace thresher::cuda {

// Threads of a block; fewer where many results wait in the 48 KiB that every device has.
inline constexpr int kChainWidth = 256;
inline constexpr int kMostSharedFloats = 48 * 1024 / 4;

// kOneDimension: the chain's rank is 1. Index: wide enough for the chain's size.
template <bool kOneDimension, class Index>
struct ChainKernel {
  static constexpr int kMostThreads = kChainWidth;
  thresher_chain chain;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t tile = int64_t{t.width()} * kItems;
    for (int64_t base = t.block() * tile; base < chain.size; base += t.num_blocks() * tile) {
      float result[kItems];
      for (int s = 0; s < chain.num_steps; ++s) Step(t, base, chain.steps[s], result);
      THRESHER_UNROLL
      for (int i = 0; i < kItems; ++i) {
        if (const int64_t at = ElementOf(t, base, i); at < chain.size) chain.out[at] = result[i];
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
  THRESHER_DEVICE void Step(T& t, int64_t base, const thresher_chain_step& step, float* result) const {
    float a[kItems], b[kItems];
    Load(t, base, step.args[0], result, a);
    switch (step.kind) {
      case THRESHER_CHAIN_UNARY:
        ApplyUnary(static_cast<kernels::UnaryOp>(step.op), a, result);
        break;
      case THRESHER_CHAIN_BINARY:
        Load(t, base, step.args[1], result, b);
        if ((step.flags & THRESHER_CHAIN_ONE_POWER) != 0) {
          // All elements have the same exponent, those behind the end included; or there is one element, and others
          // are stored by nobody.
          ApplyPower(a, b[0], result);
        } else {
          ApplyBinary(static_cast<kernels::BinaryOp>(step.op), (step.flags & THRESHER_CHAIN_BOOL) != 0, a, b, result);
        }
        break;
      default: {
        float c[kItems];
        Load(t, base, step.args[1], result, b);
        Load(t, base, step.args[2], result, c);
        ApplyWhere(a, b, c, result);
      }
    }
    if (step.slot < 0) return;
    auto slots = t.shared();
    THRESHER_UNROLL
    for (int i = 0; i < kItems; ++i) slots[PlaceOf(t, step.slot, i)] = result[i];
  }

  template <class T>
  THRESHER_DEVICE void Load(T& t, int64_t base, const thresher_chain_arg& arg, const float* previous,
                            float* out) const {
    switch (arg.source) {
      case THRESHER_CHAIN_PREVIOUS:
        THRESHER_UNROLL
        for (int i = 0; i < kItems; ++i) out[i] = previous[i];
        return;
      case THRESHER_CHAIN_NUMBER:
        THRESHER_UNROLL
        for (int i = 0; i < kItems; ++i) out[i] = arg.number;
        return;
      case THRESHER_CHAIN_SLOT: {
        auto slots = t.shared();
        THRESHER_UNROLL
        for (int i = 0; i < kItems; ++i) out[i] = slots[PlaceOf(t, arg.index, i)];
        return;
      }
      default: {
        const float* operand = chain.operands[arg.index];
        THRESHER_UNROLL
        for (int i = 0; i < kItems; ++i) {
          const int64_t at = ElementOf(t, base, i);
          // What lies behind the end computes something that nobody stores.
          out[i] = operand[at < chain.size ? OffsetOf(at, arg.index) : 0];
        }
      }
    }
  }

  // In the operand, of an element counted in row-major order.
  THRESHER_DEVICE int64_t OffsetOf(int64_t element, int operand) const {
    const int64_t* strides = chain.strides[operand];
    if constexpr (kOneDimension) {
      return element * strides[0];
    } else {
      if ((chain.dense >> operand & 1u) != 0) return element;
      if ((chain.single >> operand & 1u) != 0) return 0;
      Index rest = static_cast<Index>(element);
      int64_t offset = 0;
      for (int d = chain.rank - 1; d > 0; --d) {
        const Index size = static_cast<Index>(chain.shape[d]);
        offset += static_cast<int64_t>(rest % size) * strides[d];
        rest /= size;
      }
      return offset + static_cast<int64_t>(rest) * strides[0];
    }
  }
};

inline int ChainWidth(int slots) {
  int width = kChainWidth;
  while (width > kWarp && slots * kItems * width > kMostSharedFloats) width /= 2;
  return width;
}

// size > 0.
template <class Launch>
auto LaunchChain(Launch&& launch, const thresher_chain& chain) {
  Shape shape;
  shape.width = ChainWidth(chain.num_slots);
  shape.shared_floats = chain.num_slots * kItems * shape.width;
  shape.blocks = AtMostBlocks(DivideUp(chain.size, int64_t{shape.width} * kItems));
  if (chain.rank == 1) return launch(shape, ChainKernel<true, uint32_t>{chain});
  if (chain.size <= INT32_MAX) return launch(shape, ChainKernel<false, uint32_t>{chain});
  return launch(shape, ChainKernel<false, uint64_t>{chain});
}

}  // namespace thresher::cuda
