// The rows of a convolution as a product: row r is output position r, and its elements are what the window there covers
// of x, position by position, all channels of each. Nothing of it is stored; products read the rows they want in
// blocks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace thresher::kernels {

// A tensor [batch, depth, height, width, channels] seen through windows. Dimensions: depth, height, width.
struct Windows {
  int64_t channels = 0;       // that each window takes, one behind the other; others may lie between positions
  int64_t x_batch = 0;        // elements from one image to the next
  int64_t x_strides[3] = {};  // and from one position to the next
  int64_t in[3] = {1, 1, 1};
  int64_t out[3] = {1, 1, 1};
  int64_t kernel[3] = {1, 1, 1};
  int64_t stride[3] = {1, 1, 1};
  int64_t padding[3] = {};          // positions of zeros before the first
  int64_t dilation[3] = {1, 1, 1};  // positions from one tap to the next
  int64_t spread[3] = {1, 1, 1};    // x lies so far apart, with zeros between: a transposed convolution

  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t positions() const { return out[0] * out[1] * out[2]; }  // of one image

  // Where tap `k` of output position `o` lies in dimension d of x, or -1 among the zeros.
  int64_t At(int d, int64_t o, int64_t k) const {
    const int64_t at = o * stride[d] - padding[d] + k * dilation[d];
    if (spread[d] == 1) return at >= 0 && at < in[d] ? at : -1;
    return at >= 0 && at % spread[d] == 0 && at / spread[d] < in[d] ? at / spread[d] : -1;
  }
};

// An output position.
struct WindowPosition {
  int64_t batch, at[3];

  WindowPosition(const Windows& w, int64_t row) {
    for (int d = 2; d >= 0; --d) {
      at[d] = row % w.out[d];
      row /= w.out[d];
    }
    batch = row;
  }
  void Next(const Windows& w) {
    for (int d = 2; d >= 0; --d) {
      if (++at[d] < w.out[d]) return;
      at[d] = 0;
    }
    ++batch;
  }
};

// Elements [begin, begin + count) of rows [row, row + rows), rows of `out` ld apart.
inline void GatherWindows(const Windows& w, const float* x, int64_t row, int64_t rows, int64_t begin, int64_t count,
                          float* out, int64_t ld) {
  const int64_t width = w.kernel[2];
  // Taps beside one another in x are copied at once.
  const bool joined = w.dilation[2] == 1 && w.spread[2] == 1 && w.x_strides[2] == w.channels;
  WindowPosition position(w, row);
  for (int64_t i = 0; i < rows; ++i, position.Next(w)) {
    const float* const image = x + position.batch * w.x_batch;
    float* to = out + i * ld;
    int64_t left = count;
    int64_t tap = begin / w.channels, channel = begin % w.channels;
    while (left > 0) {
      const int64_t kw = tap % width, line = tap / width;
      const int64_t d = w.At(0, position.at[0], line / w.kernel[1]);
      const int64_t h = w.At(1, position.at[1], line % w.kernel[1]);
      const int64_t line_left = std::min((width - kw) * w.channels - channel, left);
      if (d < 0 || h < 0) {
        std::fill_n(to, line_left, 0.0f);
        to += line_left;
        left -= line_left;
        tap += width - kw;
        channel = 0;
        continue;
      }
      const float* const from = image + d * w.x_strides[0] + h * w.x_strides[1];
      if (joined) {
        // The part of the line within x, in elements from its first tap.
        const int64_t first = position.at[2] * w.stride[2] - w.padding[2];
        const int64_t at = (first + kw) * w.channels + channel;
        const int64_t low = std::clamp<int64_t>(-at, 0, line_left);
        const int64_t high = std::clamp<int64_t>(w.in[2] * w.channels - at, low, line_left);
        if (low > 0) std::fill_n(to, low, 0.0f);
        std::copy_n(from + at + low, high - low, to + low);
        if (high < line_left) std::fill_n(to + high, line_left - high, 0.0f);
        to += line_left;
        left -= line_left;
        tap += width - kw;
        channel = 0;
        continue;
      }
      const int64_t n = std::min(w.channels - channel, left);
      const int64_t at = w.At(2, position.at[2], kw);
      if (at < 0) {
        std::fill_n(to, n, 0.0f);
      } else {
        std::copy_n(from + at * w.x_strides[2] + channel, n, to);
      }
      to += n;
      left -= n;
      ++tap;
      channel = 0;
    }
  }
}

}  // namespace thresher::kernels
