// What attributes say of a convolution's windows, and of those of its gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "thresher/base/status.h"
#include "thresher/graph/operator.h"

namespace thresher::ops {

// Larger sizes and attributes are refused, so that arithmetic with them cannot overflow.
inline constexpr int64_t kMostSize = int64_t{1} << 31;
inline constexpr int64_t kMostAttr = int64_t{1} << 20;

// Attributes with one number a spatial dimension.
struct Geometry {
  Dims stride, before, after, dilation, output_padding;
  int64_t groups = 1;
  bool transposed = false;
};

// The attribute of that name, or `fallback` for every dimension. Errors: another count, a number that is not from
// `least` to kMostAttr.
Result<Dims> PerDimension(const Attrs& attrs, const std::string& name, size_t rank, int64_t fallback, int64_t least);

// Errors as PerDimension().
Result<Geometry> GeometryOf(const Attrs& attrs, size_t rank);

}  // namespace thresher::ops
