// The gradient of a convolution of single channels or small groups as to its weight, where x and the result's gradient
// lie in planes, [batch, channels, positions] in memory: lanes are neighbouring positions of a line.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/kernels/iterate.h"
#include "thresher/kernels/weight_gradient.h"

namespace thresher::kernels {

// Sums that a group may have, taps times inputs times outputs, of a vector each.
inline constexpr int64_t kMostPlaneSums = 4096;

// Whether both lie so, and the sums of a group fit into L2.
bool SuitsPlaneGradient(const WeightGradientArgs& args);

// Bytes of scratch memory that it wants.
size_t PlaneGradientScratchBytes();

// The sums of some images for some groups, into a slab. `scratch` is 64-byte aligned.
void PlaneGradient(const WeightGradientArgs& args, Range images, Range groups, float* slab, void* scratch);

}  // namespace thresher::kernels
