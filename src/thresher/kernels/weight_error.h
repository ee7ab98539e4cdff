// How far a weight matrix moves when it is stored in another number format.
#pragma once

#include <cstdint>

#include "thresher/base/precision.h"
#include "thresher/kernels/gemm.h"

namespace thresher::kernels {

// What storing some columns of a weight in another format does to them; that of all columns is the sum of the parts.
struct WeightErrorSums {
  double error = 0;  // the sum of (Q(w) - w)^2
  double norm = 0;   // the sum of w^2
  bool finite = true;
  bool overflows = false;

  WeightErrorSums& operator+=(const WeightErrorSums& other);
  WeightError Relative() const;
};

// Measures a weight against the numbers that it stores. int8 is symmetric with one scale per output channel
// (max|w| / 127, or more where Int8SumsAreShort() says so), int4 with one per kInt4Group elements of a channel
// (max|w| / 7, itself rounded to bf16); all round to nearest, ties to even. Where an element is not finite or
// overflows, `relative` is 0. Part `part` of `num_parts` measures its share of the columns.
WeightErrorSums SumWeightError(const Weight& weight, Precision precision, int part = 0, int num_parts = 1);
inline WeightError MeasureWeightError(const Weight& weight, Precision precision) {
  return SumWeightError(weight, precision).Relative();
}

// The same element by element in float64.
WeightError MeasureWeightErrorReference(const Weight& weight, Precision precision);

}  // namespace thresher::kernels
