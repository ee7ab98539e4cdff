// The phases of a transposed convolution: results that a stride lies between meet the same taps, others meet others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace thresher {

// How many taps of a kernel a result meets, at most.
constexpr int64_t PhaseTaps(int64_t kernel, int64_t stride) { return (kernel + stride - 1) / stride; }

// Whether all phases, side by side as the outputs of one convolution of PhaseTaps() taps, take not much more products
// than the kernel has taps: some phases may meet fewer than others.
inline bool PhasesPay(std::span<const int64_t> kernel, std::span<const int64_t> stride,
                      std::span<const int64_t> dilation) {
  constexpr double kMost = 1.5;
  double products = 1;
  bool phases = false;
  for (size_t d = 0; d < kernel.size(); ++d) {
    if (dilation[d] != 1) return false;
    phases |= stride[d] > 1;
    products *= static_cast<double>(PhaseTaps(kernel[d], stride[d]) * stride[d]) / static_cast<double>(kernel[d]);
  }
  return phases && products <= kMost;
}

}  // namespace thresher
