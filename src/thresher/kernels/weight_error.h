// How far a weight matrix moves when it is stored in another number format.
#pragma once

#include <cstdint>

#include "thresher/base/precision.h"
#include "thresher/kernels/gemm.h"

namespace thresher::kernels {

// Measures the k x n matrix at `weight`; `transposed` says it is stored [n, k]. int8 is symmetric with one scale per
// output channel (max|w| / 127, or more where Int8SumsAreShort() says so), int4 with one per kInt4Group elements of a
// channel (max|w| / 7, itself rounded to bf16); all round to nearest, ties to even. Where an element is not finite or
// overflows, `relative` is 0.
WeightError MeasureWeightError(const float* weight, int64_t k, int64_t n, bool transposed, Precision precision);

// The same element by element in float64.
WeightError MeasureWeightErrorReference(const float* weight, int64_t k, int64_t n, bool transposed,
                                        Precision precision);

}  // namespace thresher::kernels
