// Reductions over any set of dimensions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "thresher/base/dtype.h"
#include "thresher/base/view.h"

namespace thresher::kernels {

enum class ReduceOp : uint8_t { kSum, kMean, kMax, kMin };

std::span<const ReduceOp> AllReduceOps();

// The operator's name in the graph: "sum", "mean", "amax", "amin".
std::string_view Name(ReduceOp op);
std::optional<ReduceOp> ParseReduce(std::string_view name);

// One sentence for the operator table.
std::string_view Doc(ReduceOp op);

// f32: all; i64 and i32: sum, max, min (a sum wraps around); bool: max (any) and min (all).
bool Supports(ReduceOp op, DType dtype);

// Reduces the dimensions d of x whose bit (1 << d) is set in `dims_mask`. out has x's dtype and holds the kept
// dimensions in order, row-major without holes; its own shape is not looked at, so it may keep the reduced ones with
// size 1 or not. x may have any strides. NaN wins in max and min. Sums of f32 are accumulated in blocks, and blocks in
// float64. Over no elements: sum 0, mean NaN, max and min the least and greatest value of the type (the caller refuses
// these, as torch does). Parts share the outputs: with one output, part 0 does all the work. out does not overlap x.
void Reduce(ReduceOp op, const View& x, uint32_t dims_mask, const View& out, int part = 0, int num_parts = 1);

// The same, element by element with float64 accumulation, in one thread.
void ReduceReference(ReduceOp op, const View& x, uint32_t dims_mask, const View& out);

}  // namespace thresher::kernels
