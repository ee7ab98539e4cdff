// Convolutions of each channel by itself where x is rows of bf16 (RowForm::kBF16), a row a position.
#pragma once

#include <cstddef>

#include "thresher/kernels/depthwise.h"

namespace thresher::kernels {

// Whether DepthwiseRows() takes these windows of so many channels, of two dimensions, without a residual, and this
// activation; only where StoresRows().
bool SuitsDepthwiseRows(const Windows& windows, Activation activation);

// As Depthwise() with one channel a group and no residual. args.x is bf16, and so is args.out if `out_bf16`; windows
// and args.ldc count their elements. Both are rows of kBF16 with zeros behind their channels up to a multiple of 32, or
// dense ones, if there are at least 32 channels.
void DepthwiseRows(const DepthwiseArgs& args, bool out_bf16, int part = 0, int num_parts = 1);

}  // namespace thresher::kernels
