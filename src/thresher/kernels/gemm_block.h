// Products with weights in blocks, which are multiplied as they are stored (block_format.h).
//
// Rows of A are quantised to int8 in groups of 32 along k, with a scale of each group's own:
//   a = scale * q, -127 <= q <= 127.
// A group with an element that is not finite, or beyond 2^100, makes the results of its row NaN.
// The integer sum of a group is exact; it joins the sum of its row and column, in float, times both scales. The order
// of these additions follows from k alone: a row has the same result whatever rows are multiplied beside it.
//
// Or rows are rounded to bf16, from GemmDotArgs::wide_from on and where a matrix unit multiplies such, and so is what
// the blocks stand for: a panel becomes pairs of bf16 that all these rows meet, which takes a matrix unit half as long
// as scaling the sums of every group. The order of additions is that of products of bf16, whatever the other rows are.
//
// Panels hold what the blocks hold, bit by bit: codes are interleaved so that a 32-bit lane has four rows of k of one
// column, or eight of 4 bits; what they need beyond 4 bits, scales and offsets stand beside them, by columns. k is
// whole blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"

namespace thresher::kernels {

// Whether rows from wide_from on are multiplied as bf16.
bool WidensBlocks();

// Bytes of a row of k elements as RowForm::kBlocks.
int64_t BlockRowBytes(int64_t k);
void ConvertRowsToBlocks(const ConvertRowsArgs& args, int64_t begin, int64_t end);
void RestoreBlockRows(const ConvertRowsArgs& converted, float* x);

size_t BlockPanelStride(Precision precision, size_t k);
void PackBlocks(Precision precision, const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end);
void UnpackBlocks(Precision precision, const uint8_t* packed, size_t k, size_t n, float* b);

size_t GemmBlockScratchBytes(const GemmDotArgs& args);
void GemmBlock(const GemmDotArgs& args, void* scratch, const PanelRange& range);

}  // namespace thresher::kernels
