// The weights of convolutions: how they lie, and those that lowering makes of them.
#pragma once

#include <cstdint>

#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/graph/graph.h"
#include "thresher/kernels/convolution_params.h"
#include "thresher/kernels/weight.h"
#include "thresher/plan/lowering.h"

namespace thresher::ops {

// How a weight [outer, inner, kernel...] lies, as the matrices of its groups. Its taps have one stride.
struct WeightLayout {
  Weight matrix;         // of a group, without data
  int64_t first = 0;     // element that the first group begins with
  int64_t to_group = 0;  // elements from one group to the next
};

// Whether all dimensions of the kernel have one stride, and which.
bool TapStride(const View& w, int64_t* stride);
WeightLayout LayoutOf(const View& w, int64_t tap_stride, const kernels::ConvolutionParams& p, bool transposed);

// The weight of a depthwise convolution as [taps, channels of a group, groups, outputs of a group].
Result<TensorRef> DepthwiseWeight(ValueId id, const TensorRef& raw, const WeightLayout& layout,
                                  const kernels::ConvolutionParams& p, Lowering& lowering);
// The constant weight of so many groups together, packed, of which `p` then tells.
Result<TensorRef> JoinGroups(const Value& value, const WeightLayout& layout, int64_t together,
                             kernels::ConvolutionParams& p, Lowering& lowering);
// The constant weight with zeros for the channels that x lacks, packed, of which `p` then tells.
Result<TensorRef> PadWeight(const Value& value, const WeightLayout& layout, kernels::ConvolutionParams& p,
                            Lowering& lowering);
// The constant weight of a transposed convolution as that of all its phases, packed: outputs are those of the first
// phase, then those of the next, the last dimension's phases first. `p`, which has x spread, then tells of windows over
// x as it lies, whose positions are those of a phase.
Result<TensorRef> PhaseWeight(const Value& value, const WeightLayout& layout, kernels::ConvolutionParams& p,
                              Lowering& lowering);
// A constant bias so many times.
Result<TensorRef> RepeatedBias(const Value& value, int64_t times, Lowering& lowering);

}  // namespace thresher::ops
