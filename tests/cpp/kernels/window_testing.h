// Geometries of convolutions for tests of products over windows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "thresher/kernels/windows.h"

namespace thresher::kernels::testing {

// One of each dimension of a convolution; a size of 1 leaves a dimension out.
struct Axis {
  int64_t in = 1, kernel = 1, stride = 1, before = 0, after = 0, dilation = 1, spread = 1;

  int64_t out() const { return ((in - 1) * spread + 1 + before + after - dilation * (kernel - 1) - 1) / stride + 1; }
};

// The windows of an x whose pixels lie `extra` elements further apart than they are wide.
inline Windows WindowsOf(const std::vector<Axis>& axes, int64_t channels, int64_t extra) {
  Windows w;
  w.channels = channels;
  int64_t distance = channels + extra;
  for (int d = 2; d >= 0; --d) {
    const int from = d - 3 + static_cast<int>(axes.size());
    const Axis axis = from < 0 ? Axis{} : axes[static_cast<size_t>(from)];
    w.x_strides[d] = distance;
    w.in[d] = axis.in;
    w.out[d] = axis.out();
    w.kernel[d] = axis.kernel;
    w.stride[d] = axis.stride;
    w.padding[d] = axis.before;
    w.dilation[d] = axis.dilation;
    w.spread[d] = axis.spread;
    distance *= axis.in;
  }
  w.x_batch = distance;
  return w;
}

inline std::string ToString(const Windows& w) {
  std::string text = "channels " + std::to_string(w.channels);
  for (int d = 0; d < 3; ++d) {
    for (const int64_t n : {w.in[d], w.kernel[d], w.stride[d], w.padding[d], w.dilation[d], w.spread[d]}) {
      text += (n == w.in[d] ? "; " : " ") + std::to_string(n);
    }
  }
  return text;
}

inline const std::vector<std::vector<Axis>> kGeometries = {
    {{.in = 9}},
    {{.in = 37, .kernel = 10, .stride = 5}},
    {{.in = 17, .kernel = 3, .before = 1, .after = 1, .dilation = 2}},
    {{.in = 6, .kernel = 3, .before = 1, .after = 1}, {.in = 11, .kernel = 3, .before = 1, .after = 1}},
    {{.in = 9, .kernel = 7, .stride = 2, .before = 3, .after = 3},
     {.in = 8, .kernel = 7, .stride = 2, .before = 3, .after = 3}},
    {{.in = 5, .kernel = 2, .stride = 3, .after = 4},
     {
         .in = 7,
         .kernel = 3,
         .stride = 2,
         .before = 5,
         .dilation = 3,
     }},
    {{.in = 3, .kernel = 3, .before = 2, .after = 2}, {.in = 1, .kernel = 3, .before = 1, .after = 1}},
    {{.in = 4, .kernel = 3, .before = 2, .after = 2, .spread = 2}, {.in = 3, .kernel = 2, .before = 1, .spread = 3}},
    {{.in = 5, .kernel = 4, .before = -1, .spread = 2}, {.in = 6, .kernel = 3, .before = -1, .after = -1}},
    {{.in = 4, .kernel = 3, .before = 1},
     {.in = 5, .kernel = 2},
     {.in = 6, .kernel = 3, .stride = 2, .before = 1, .after = 1}},
};

}  // namespace thresher::kernels::testing
