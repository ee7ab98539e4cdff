// The windows of a convolution (kernels/windows.h) as kernels walk them.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/cuda/call.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/convolution_params.h"

namespace thresher::cuda {

// Where a window begins.
struct WindowStart {
  int64_t image;  // elements from the first of x; -1: there is no such window
  int32_t at[3];  // positions of its first tap, which may lie in the padding
};

struct ConvolutionWindows {
  using Beginning = WindowStart;
  static constexpr bool kPieces = false;  // 16 bytes of both factors can always be copied at once
  int64_t x_batch;
  int32_t x_strides[3], in[3], stride[3], padding[3], dilation[3];
  Divisor out[3], kernel[3], spread[3], channels;
  int32_t m, k;

  static ConvolutionWindows Of(const kernels::ConvolutionParams& p) {
    const kernels::Windows w = WindowsOf(p);
    ConvolutionWindows made{};
    made.x_batch = w.x_batch;
    for (int d = 0; d < 3; ++d) {
      const auto narrow = [](int64_t number) { return static_cast<int32_t>(number); };
      made.x_strides[d] = narrow(w.x_strides[d]);
      made.in[d] = narrow(w.in[d]);
      made.stride[d] = narrow(w.stride[d]);
      made.padding[d] = narrow(w.padding[d]);
      made.dilation[d] = narrow(w.dilation[d]);
      made.spread[d] = Divisor::By(w.spread[d]);
      made.out[d] = Divisor::By(w.out[d]);
      made.kernel[d] = Divisor::By(w.kernel[d]);
    }
    made.channels = Divisor::By(w.channels);
    made.m = static_cast<int32_t>(p.m);
    made.k = static_cast<int32_t>(p.k);
    return made;
  }

  // The first element of a group's channels.
  THRESHER_DEVICE int64_t OfGroup(int32_t group) const { return int64_t{group} * channels.divisor; }

  THRESHER_DEVICE WindowStart Start(int32_t row) const {
    if (row >= m) return {-1, {0, 0, 0}};
    auto rest = static_cast<uint32_t>(row);
    WindowStart start;
    THRESHER_UNROLL
    for (int d = 2; d >= 0; --d) {
      const uint32_t quotient = out[d].Quotient(rest);
      start.at[d] = static_cast<int32_t>(rest - quotient * out[d].divisor) * stride[d] - padding[d];
      rest = quotient;
    }
    start.image = static_cast<int64_t>(rest) * x_batch;
    return start;
  }

  // The taps of a number along k, and the channel there.
  THRESHER_DEVICE void TapOf(int32_t number, int32_t (&tap)[3], int32_t& channel) const {
    const uint32_t all = channels.Quotient(static_cast<uint32_t>(number));
    channel = number - static_cast<int32_t>(all * channels.divisor);
    SplitTap(all, tap);
  }

  THRESHER_DEVICE void SplitTap(uint32_t all, int32_t (&tap)[3]) const {
    const uint32_t lines = kernel[2].Quotient(all), planes = kernel[1].Quotient(lines);
    tap[2] = static_cast<int32_t>(all - lines * kernel[2].divisor);
    tap[1] = static_cast<int32_t>(lines - planes * kernel[1].divisor);
    tap[0] = static_cast<int32_t>(planes);
  }

  // Where a window's tap lies, in elements from the first of x, or -1 among the zeros.
  THRESHER_DEVICE int64_t At(const WindowStart& start, const int32_t (&tap)[3]) const {
    if (start.image < 0) return -1;
    int32_t offset = 0;
    bool inside = true;
    THRESHER_UNROLL
    for (int d = 0; d < 3; ++d) {
      int32_t at = start.at[d] + tap[d] * dilation[d];
      if (spread[d].divisor != 1) {
        inside = inside && at >= 0;
        const uint32_t quotient = spread[d].Quotient(static_cast<uint32_t>(at < 0 ? 0 : at));
        inside = inside && quotient * spread[d].divisor == static_cast<uint32_t>(at);
        at = static_cast<int32_t>(quotient);
      }
      inside = inside && at >= 0 && at < in[d];
      offset += at * x_strides[d];
    }
    return inside ? start.image + offset : -1;
  }
};

// Whether all of it can be counted in 32 bits.
inline Verdict CheckWindows(const Call& call) {
  const auto& p = call.as<kernels::ConvolutionParams>();
  constexpr int64_t kMost = INT32_MAX / 2;
  const kernels::Windows w = WindowsOf(p);
  bool fits = p.m <= kMost && p.k <= kMost && p.n * p.shape.groups <= kMost;
  int64_t image = 0;
  for (int d = 0; d < 3; ++d) {
    const int64_t reach = (w.out[d] - 1) * w.stride[d] + (w.kernel[d] - 1) * w.dilation[d] + w.padding[d];
    // Before and behind x, too, offsets are computed.
    const int64_t last = (reach / w.spread[d] + w.padding[d] + 1) * w.x_strides[d];
    fits = fits && reach <= kMost && w.padding[d] <= kMost && last <= kMost;
    image += last;
  }
  if (fits && image <= kMost) return {};
  return Unsupported(std::string(Name(call.kernel())) +
                     ": expected fewer than 2^30 output positions, and elements of one image, on this device");
}

}  // namespace thresher::cuda
