// Running sums along one dimension.
#pragma once

#include "thresher/base/dtype.h"
#include "thresher/base/view.h"

namespace thresher::kernels {

// f32, i64 and i32.
bool SupportsCumSum(DType dtype);

// out[.., i, ..] = x[.., 0, ..] + .. + x[.., i, ..] along `dim`, 0 <= dim < rank (rank 0 counts as rank 1). f32 is
// summed in float64, as torch does; integers wrap around. x may have any strides; out has its shape, row-major without
// holes, and does not overlap it. Parts share the lines that run along `dim`.
void CumSum(const View& x, int dim, const View& out, int part = 0, int num_parts = 1);

}  // namespace thresher::kernels
