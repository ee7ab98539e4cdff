// Softmax and log-softmax over one dimension.
#pragma once

#include <cstdint>

namespace thresher::kernels {

// x and out are contiguous [outer, dim, inner]; the softmax runs over dim. out may be x itself. As in torch: a NaN or a
// +infinity makes its whole slice NaN, and so does a slice of -infinity only.
void Softmax(const float* x, float* out, int64_t outer, int64_t dim, int64_t inner, bool log, int part = 0,
             int num_parts = 1);

// The same in scalar code with float64 accumulation.
void SoftmaxReference(const float* x, float* out, int64_t outer, int64_t dim, int64_t inner, bool log);

}  // namespace thresher::kernels
