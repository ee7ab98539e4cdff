// What products over windows read whose operands are smaller than the sums (gemm_dot.h): x, converted once for all
// windows that cover an element, with the zeros around it (and between its positions, where they lie spread). So every
// line that a window covers lies in one piece.
//
// int8 quantises each picture of the batch as gemm_dot.h does a row, with a scale and a zero point of its own: what
// becomes of a picture does not depend on the others. Zeros have the zero point's code. fp16 scales a picture down that
// reaches beyond 65504.
#pragma once

#include <cstdint>

#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/windows.h"

namespace thresher::kernels {

// Channels of a group must be a multiple of this, so that steps along k never reach from one tap into another.
inline constexpr int64_t kImageChannels = 8;
inline constexpr int64_t kMostImageTaps = 1024;
// Fewer channels are filled up to so many in kBF16.
inline constexpr int64_t kPaddedChannels = 4;

// Whether products may read windows so.
inline bool SuitsImage(const Windows& windows) {
  return windows.channels % kImageChannels == 0 && windows.taps() <= kMostImageTaps;
}

// Where things lie in the image, in bytes. Dimensions: depth, height, width.
struct ImageLayout {
  int64_t size[3];     // positions
  int64_t step[3];     // of x (as it is spread) from one position to the next
  int64_t stride[3];   // positions from one window to the next
  int64_t strides[3];  // from one position to the next
  int64_t picture;

  // channels: of all groups.
  ImageLayout(RowForm form, const Windows& w, int64_t channels) {
    picture = channels * ElementBytes(form);
    for (int d = 2; d >= 0; --d) {
      // Positions between windows that cover one each are left out.
      const bool apart = w.kernel[d] == 1;
      step[d] = apart ? w.stride[d] : 1;
      stride[d] = apart ? 1 : w.stride[d];
      size[d] = (w.out[d] - 1) * stride[d] + (w.kernel[d] - 1) * w.dilation[d] + 1;
      strides[d] = picture;
      picture *= size[d];
    }
  }

  // The position of x that is position `p` in dimension d, or -1 among the zeros.
  int64_t Source(const Windows& w, int d, int64_t p) const {
    const int64_t at = p * step[d] - w.padding[d];
    return at >= 0 && at % w.spread[d] == 0 && at / w.spread[d] < w.in[d] ? at / w.spread[d] : -1;
  }
};

struct ConvertWindowsArgs {
  RowForm form = RowForm::kBF16;  // or kF16, kInt8
  Windows windows;                // of x
  int64_t batch = 0;
  int64_t channels = 0;      // of all groups; they lie side by side in x
  const float* x = nullptr;  // positions as the windows say
  float* ranges = nullptr;   // if HasRowScales(form): 2 * RangesOf()
  void* image = nullptr;     // batch * ImageLayout::picture, 16-byte aligned
  float* scale = nullptr;    // [batch], if HasRowScales(form); of kInt8 NaN for a picture with a NaN or an infinity
  int32_t* zero = nullptr;   // [batch], kInt8 only
  bool x_bf16 = false;       // of kBF16 and kInt8: x is bf16 in truth, strides count its elements
  int64_t x_channels = 0;    // of kBF16: x has that many channels alone, zeros stand for others,
  int64_t x_channel = 1;     // and they lie so many elements apart
};

// Ranges of numbers that forms with scales want first: a line of x each.
inline int64_t RangesOf(const Windows& w, int64_t batch) { return batch * w.in[0] * w.in[1]; }

// Fills ranges; part `part` of `num_parts`.
void FindRanges(const ConvertWindowsArgs& args, int part = 0, int num_parts = 1);

// Fills the image and what belongs to it.
void ConvertWindows(const ConvertWindowsArgs& args, int part = 0, int num_parts = 1);

// What the image stands for, as [batch, size..., channels] floats.
void RestoreWindows(const ConvertWindowsArgs& converted, float* x);

}  // namespace thresher::kernels
