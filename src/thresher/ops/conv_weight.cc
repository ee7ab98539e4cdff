#include "thresher/ops/conv_weight.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "thresher/base/phases.h"
#include "thresher/kernels/arithmetic.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/window_image.h"

namespace thresher::ops {
namespace {

using kernels::ConvolutionParams;

// The numbers of a constant, in the order in which they lie.
Result<std::vector<float>> NumbersOf(const Value& value) {
  THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(value.constant));
  std::vector<float> numbers(static_cast<size_t>(NumElements(value.shape)));
  kernels::DecodeNumbers(StoredAs(value), value.constant.data, NumElements(value.shape), numbers.data());
  return numbers;
}

}  // namespace

bool TapStride(const View& w, int64_t* stride) {
  *stride = 0;
  int64_t expected = 0;
  for (int d = w.rank - 1; d >= 2; --d) {
    if (w.shape[d] == 1) continue;
    if (*stride == 0) {
      *stride = w.strides[d];
    } else if (w.strides[d] != expected) {
      return false;
    }
    expected = w.strides[d] * w.shape[d];
  }
  return true;
}

WeightLayout LayoutOf(const View& w, int64_t tap_stride, const ConvolutionParams& p, bool transposed) {
  WeightLayout layout;
  Weight& matrix = layout.matrix;
  matrix.k = p.k;
  matrix.n = p.n;
  matrix.taps = p.k / p.shape.channels;
  matrix.stride_tap = tap_stride;
  matrix.stride_n = w.strides[transposed ? 1 : 0];
  matrix.stride_k = w.strides[transposed ? 0 : 1];
  layout.to_group = transposed ? p.shape.channels * matrix.stride_k : p.n * matrix.stride_n;
  if (transposed) {
    // Windows over what is spread meet the taps from the last to the first.
    layout.first = (matrix.taps - 1) * tap_stride;
    matrix.stride_tap = -tap_stride;
  }
  return layout;
}

Result<TensorRef> DepthwiseWeight(ValueId id, const TensorRef& raw, const WeightLayout& layout,
                                  const ConvolutionParams& p, Lowering& lowering) {
  const Graph& graph = lowering.graph();
  const Weight& matrix = layout.matrix;
  const Dims shape = {matrix.taps, p.shape.channels, p.shape.groups, p.n};
  const Dims strides = {matrix.stride_tap, matrix.stride_k, layout.to_group, matrix.stride_n};
  if (!graph.is_constant(id)) {
    TensorRef turned = raw;
    turned.offset += layout.first;
    turned.view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), turned.view.shape);
    std::copy(strides.begin(), strides.end(), turned.view.strides);
    return lowering.Contiguous(turned);
  }
  const Value& value = graph.value(id);
  THRESHER_ASSIGN(const std::vector<float> numbers, NumbersOf(value));
  std::vector<float> turned;
  turned.reserve(numbers.size());
  for (int64_t tap = 0; tap < shape[0]; ++tap) {
    for (int64_t i = 0; i < shape[1]; ++i) {
      for (int64_t g = 0; g < shape[2]; ++g) {
        const int64_t from = layout.first + tap * strides[0] + i * strides[1] + g * strides[2];
        for (int64_t o = 0; o < shape[3]; ++o) turned.push_back(numbers[static_cast<size_t>(from + o * strides[3])]);
      }
    }
  }
  return lowering.AddConstant(DType::kF32, shape, turned);
}

Result<TensorRef> JoinGroups(const Value& value, const WeightLayout& layout, int64_t together, ConvolutionParams& p,
                             Lowering& lowering) {
  kernels::ConvolutionShape& s = p.shape;
  THRESHER_ASSIGN(const std::vector<float> numbers, NumbersOf(value));
  const Weight& matrix = layout.matrix;
  const int64_t all = s.groups, channels = s.channels, outputs = p.n;
  s.groups /= together;
  s.channels *= together;
  p.n *= together;
  p.k *= together;
  std::vector<float> joined(static_cast<size_t>(s.groups * p.n * p.k), 0.0f);
  for (int64_t group = 0; group < all; ++group) {
    const int64_t place = group % together * channels;
    for (int64_t n = 0; n < outputs; ++n) {
      const int64_t row = (group * outputs + n) * p.k + place;
      const int64_t first = layout.first + group * layout.to_group + n * matrix.stride_n;
      for (int64_t tap = 0; tap < matrix.taps; ++tap) {
        for (int64_t i = 0; i < channels; ++i) {
          const int64_t from = first + tap * matrix.stride_tap + i * matrix.stride_k;
          joined[static_cast<size_t>(row + tap * s.channels + i)] = numbers[static_cast<size_t>(from)];
        }
      }
    }
  }
  return lowering.PackedNumbers(std::move(joined), p.k, p.n, s.groups, s.precision);
}

Result<TensorRef> PadWeight(const Value& value, const WeightLayout& layout, ConvolutionParams& p, Lowering& lowering) {
  constexpr int64_t kChannels = kernels::kPaddedChannels;
  kernels::ConvolutionShape& s = p.shape;
  THRESHER_ASSIGN(const std::vector<float> numbers, NumbersOf(value));
  const Weight& matrix = layout.matrix;
  const int64_t channels = s.channels;
  s.x_channels = channels;
  s.channels = kChannels;
  p.k = matrix.taps * kChannels;
  std::vector<float> filled(static_cast<size_t>(p.n * p.k), 0.0f);
  for (int64_t n = 0; n < p.n; ++n) {
    for (int64_t tap = 0; tap < matrix.taps; ++tap) {
      for (int64_t i = 0; i < channels; ++i) {
        const int64_t from = layout.first + n * matrix.stride_n + tap * matrix.stride_tap + i * matrix.stride_k;
        filled[static_cast<size_t>(n * p.k + tap * kChannels + i)] = numbers[static_cast<size_t>(from)];
      }
    }
  }
  return lowering.PackedNumbers(std::move(filled), p.k, p.n, 1, s.precision);
}

Result<TensorRef> PhaseWeight(const Value& value, const WeightLayout& layout, ConvolutionParams& p,
                              Lowering& lowering) {
  kernels::ConvolutionShape& s = p.shape;
  THRESHER_ASSIGN(const std::vector<float> numbers, NumbersOf(value));
  const Weight& matrix = layout.matrix;
  const int64_t channels = s.channels, outputs = p.n;
  int64_t kernel[3], stride[3], taps[3], phases = 1;
  for (int d = 0; d < 3; ++d) {
    kernel[d] = s.kernel[d], stride[d] = s.spread[d];
    taps[d] = PhaseTaps(kernel[d], stride[d]);
    phases *= stride[d];
  }
  const int64_t all = taps[0] * taps[1] * taps[2];
  const int64_t in[] = {p.in_d, p.in_h, p.in_w}, batch = p.m / (p.out_d * p.out_h * p.out_w);
  int64_t* const out[] = {&p.out_d, &p.out_h, &p.out_w};
  for (int d = 0; d < 3; ++d) {
    s.kernel[d] = taps[d];
    s.spread[d] = 1;
    s.padding[d] = taps[d] - 1;
    *out[d] = in[d] + taps[d] - 1;
  }
  p.m = batch * p.out_d * p.out_h * p.out_w;
  p.n = outputs * phases;
  p.k = all * channels;
  std::vector<float> made(static_cast<size_t>(p.n * p.k), 0.0f);
  // Windows over what is spread meet taps from the last to the first: tap j of a phase is `stride j` behind its first.
  for (int64_t phase = 0; phase < phases; ++phase) {
    const int64_t at[] = {phase / (stride[1] * stride[2]), phase / stride[2] % stride[1], phase % stride[2]};
    for (int64_t j = 0; j < all; ++j) {
      const int64_t tap[] = {j / (taps[1] * taps[2]), j / taps[2] % taps[1], j % taps[2]};
      int64_t from = 0;
      bool some = true;
      for (int d = 0; d < 3; ++d) {
        const int64_t place = kernel[d] - 1 - (stride[d] * (taps[d] - 1 - tap[d]) + at[d]);
        some &= place >= 0;
        from = from * kernel[d] + place;
      }
      if (!some) continue;
      for (int64_t n = 0; n < outputs; ++n) {
        const int64_t first = layout.first + n * matrix.stride_n + from * matrix.stride_tap;
        float* const to = made.data() + (phase * outputs + n) * p.k + j * channels;
        for (int64_t i = 0; i < channels; ++i) to[i] = numbers[static_cast<size_t>(first + i * matrix.stride_k)];
      }
    }
  }
  return lowering.PackedNumbers(std::move(made), p.k, p.n, 1, s.precision);
}

Result<TensorRef> RepeatedBias(const Value& value, int64_t times, Lowering& lowering) {
  THRESHER_ASSIGN(const std::vector<float> numbers, NumbersOf(value));
  std::vector<float> all;
  for (int64_t i = 0; i < times; ++i) all.insert(all.end(), numbers.begin(), numbers.end());
  const Dims shape = {static_cast<int64_t>(all.size())};
  return lowering.AddConstant(DType::kF32, shape, all);
}

}  // namespace thresher::ops
