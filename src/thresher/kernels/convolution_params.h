// What the kernels of a convolution want besides their operands, on every device: KernelId::kConvolution and
// kDepthwise.
#pragma once

#include <cstdint>
#include <tuple>

#include "thresher/base/precision.h"
#include "thresher/kernels/blocking.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/windows.h"

namespace thresher::kernels {

// What no size of a call changes.
struct ConvolutionShape {
  int64_t channels, groups;  // channels of a group
  int64_t kernel[3], stride[3], padding[3], dilation[3], spread[3];
  bool plain;   // x is rows: of one tap, at every position
  bool planes;  // a depthwise one of x and out in planes, [N, channels, positions] in memory, without a residual
  bool residual_first;
  Activation activation;
  Precision precision;
  RowForm form;        // of x; kF32: as it is
  int64_t x_channels;  // of form kBF16: how many of them x has, where they are filled up with zeros; else 0
  friend bool operator==(const ConvolutionShape&, const ConvolutionShape&) = default;
};

// Operands: x, weight, bias, residual; out. bias and residual may be absent. The weight of a depthwise one is [taps,
// channels of a group, groups, outputs of a group]; that of others is in panels, group by group, where the target packs
// weights, else the rows [outputs, k], k by taps and channels, of the type of x, and out is of that type or f32.
struct ConvolutionParams {
  int64_t m, n, k;  // of a group's product
  int64_t ldr, x_batch, x_channel, x_d, x_h, x_w, in_d, in_h, in_w, out_d, out_h, out_w;
  ConvolutionShape shape;
  Blocking blocking;

  static constexpr auto Sizes() {
    using P = ConvolutionParams;
    return std::tuple(&P::m, &P::n, &P::k, &P::ldr, &P::x_batch, &P::x_channel, &P::x_d, &P::x_h, &P::x_w, &P::in_d,
                      &P::in_h, &P::in_w, &P::out_d, &P::out_h, &P::out_w, &P::blocking);
  }
  friend bool operator==(const ConvolutionParams&, const ConvolutionParams&) = default;
};

inline Windows WindowsOf(const ConvolutionParams& p) {
  Windows w;
  w.channels = p.shape.channels;
  w.x_batch = p.x_batch;
  const int64_t x[] = {p.x_d, p.x_h, p.x_w}, in[] = {p.in_d, p.in_h, p.in_w}, out[] = {p.out_d, p.out_h, p.out_w};
  for (int d = 0; d < 3; ++d) {
    w.x_strides[d] = x[d];
    w.in[d] = in[d];
    w.out[d] = out[d];
    w.kernel[d] = p.shape.kernel[d];
    w.stride[d] = p.shape.stride[d];
    w.padding[d] = p.shape.padding[d];
    w.dilation[d] = p.shape.dilation[d];
    w.spread[d] = p.shape.spread[d];
  }
  return w;
}

}  // namespace thresher::kernels
