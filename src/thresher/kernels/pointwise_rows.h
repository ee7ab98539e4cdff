// The inner loops of pointwise.h, one pointer per operator and type, chosen for the instruction set in use. Internal to
// the kernels. Bool elements are bytes; any value but 0 is true, and results are 0 or 1.
#pragma once

#include <cstdint>

#include "thresher/base/dtype.h"
#include "thresher/kernels/pointwise.h"

namespace thresher::kernels {

// Which operand of a row is one element for the whole row.
enum class Broadcast : uint8_t { kNone, kA, kB };

// n contiguous elements of each operand. `out` may be an operand's own row.
using UnaryRow = void (*)(const void* x, void* out, int64_t n);
using BinaryRow = void (*)(const void* a, const void* b, void* out, int64_t n, Broadcast broadcast);
using WhereRow = void (*)(const void* cond, const void* a, const void* b, void* out, int64_t n, Broadcast broadcast);

// nullptr where Supports says no.
UnaryRow FindUnaryRow(UnaryOp op, DType dtype);
BinaryRow FindBinaryRow(BinaryOp op, DType dtype);
// The short cut for f32 pow with this exponent everywhere, or nullptr; the row's b is not read.
BinaryRow FindPowerRow(float exponent);
WhereRow FindWhereRow(DType dtype);
UnaryRow FindCastRow(DType from, DType to);

}  // namespace thresher::kernels
