// Several element-wise operators in one loop over tiles, so that what stands between them stays in the L1 cache.
//
// The operators are those of pointwise.h, row by row the same functions: the bits are those of one operator after the
// other. Operands have out's shape and any strides, stride 0 where broadcast. Operands and out are f32, or bf16 or f16,
// which are widened as they are read and rounded once as they are stored; what lies between is f32 or bool.
//
// A Chain is the parameters of KernelId::kPointwise on every device: the CPU runs it tile by tile, others element by
// element (cuda/chain_kernel.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/base/view.h"
#include "thresher/kernels/pointwise.h"

namespace thresher::kernels {

inline constexpr int kMaxChainOperands = 8;
inline constexpr int kMaxChainSteps = 16;

struct ChainArg {
  enum class Kind : uint8_t { kOperand, kStep, kNumber };
  Kind kind = Kind::kOperand;
  uint8_t index = 0;  // of the operand, or of an earlier step
  float number = 0;
  friend bool operator==(const ChainArg&, const ChainArg&) = default;
};

struct ChainStep {
  enum class Kind : uint8_t { kUnary, kBinary, kWhere };
  Kind kind = Kind::kUnary;
  UnaryOp unary = UnaryOp::kNeg;
  BinaryOp binary = BinaryOp::kAdd;
  // As the operator takes them. At most one is a number, none where the operator is unary, and neither a condition nor
  // the base of a power is.
  ChainArg args[3];
  DType operand_dtype = DType::kF32;  // of the branches for where
  DType dtype = DType::kF32;          // of the result
  uint8_t slot = 0;                   // where the result waits, set by AssignSlots; not for the last step

  friend bool operator==(const ChainStep&, const ChainStep&) = default;
  int num_args() const { return kind == Kind::kUnary ? 1 : kind == Kind::kBinary ? 2 : 3; }
};

// Every step but the last is read by a later one; the last is the result.
struct Chain {
  int num_operands = 0;
  int num_steps = 0;
  int num_slots = 0;
  int num_late_slots =
      0;  // slots below this one hold what steps after the next one read, the others what only that does
  ChainStep steps[kMaxChainSteps];
  friend bool operator==(const Chain&, const Chain&) = default;
};

// Gives every step's result but the last a slot; results that are not needed at the same time share. What only the next
// step reads lies in slots of its own behind the others: a device that holds it in registers needs none for it.
void AssignSlots(Chain& chain);

// What RunChain wants to write to besides `out`, for each part.
size_t ChainScratchBytes(const Chain& chain);

// out = the last step. `scratch` is aligned to 64 bytes. Parts as in pointwise.h.
void RunChain(const Chain& chain, const View* operands, const View& out, std::byte* scratch, int part = 0,
              int num_parts = 1);

}  // namespace thresher::kernels
