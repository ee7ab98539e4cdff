// The device's convolutions, pooling and resizing, on the emulator, against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "cuda/stored_floats.h"
#include "kernels/float_testing.h"
#include "thresher/cuda/convolution.h"
#include "thresher/cuda/resample_kernel.h"

namespace thresher::cuda::testing {
namespace {

using kernels::Activation;
using kernels::ConvolutionParams;
using kernels::Windows;
using kernels::testing::RandomFloats;

constexpr float kGuard = 777;

struct Case {
  int64_t batch = 1, channels = 8, outputs = 8, groups = 1;  // channels and outputs: of a group
  std::vector<int64_t> in = {1, 5, 5}, kernel = {1, 3, 3}, stride = {1, 1, 1}, padding = {0, 1, 1};
  std::vector<int64_t> dilation = {1, 1, 1}, spread = {1, 1, 1};
  bool bias = true, residual = true, residual_first = false, wide = false;  // wide: the result is f32
  Activation activation = Activation::kNone;
  int64_t extra = 0;   // elements between positions
  size_t offset = 0;   // elements before the first
  float special = 0;   // put somewhere into x
  int64_t blocks = 0;  // so many at most
  bool depthwise = false;
};

std::string Text(const Case& c, DType dtype) {
  std::string text = std::string(Name(dtype)) + " N " + std::to_string(c.batch) + " C " + std::to_string(c.channels) +
                     " K " + std::to_string(c.outputs) + " G " + std::to_string(c.groups);
  for (int d = 0; d < 3; ++d) {
    const auto i = static_cast<size_t>(d);
    text += " [" + std::to_string(c.in[i]) + " " + std::to_string(c.kernel[i]) + " " + std::to_string(c.stride[i]) +
            " " + std::to_string(c.padding[i]) + " " + std::to_string(c.dilation[i]) + " " +
            std::to_string(c.spread[i]) + "]";
  }
  return text + " extra " + std::to_string(c.extra) + " offset " + std::to_string(c.offset);
}

double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kRelu6:
      return x < 0 ? 0 : x > 6 ? 6 : x;
    case Activation::kHardSwish:
      return x * std::clamp(x + 3, 0.0, 6.0) / 6;
    default:
      return x;
  }
}

ConvolutionParams ParamsOf(const Case& c) {
  ConvolutionParams p{};
  const int64_t width = c.channels * c.groups + c.extra;
  p.shape.channels = c.channels;
  p.shape.groups = c.groups;
  p.shape.activation = c.activation;
  p.shape.residual_first = c.residual_first;
  int64_t out[3], positions = 1, taps = 1;
  for (size_t d = 0; d < 3; ++d) {
    p.shape.kernel[d] = c.kernel[d];
    p.shape.stride[d] = c.stride[d];
    p.shape.padding[d] = c.padding[d];
    p.shape.dilation[d] = c.dilation[d];
    p.shape.spread[d] = c.spread[d];
    const int64_t room = (c.in[d] - 1) * c.spread[d] + 1 + 2 * c.padding[d];
    out[d] = (room - c.dilation[d] * (c.kernel[d] - 1) - 1) / c.stride[d] + 1;
    positions *= out[d];
    taps *= c.kernel[d];
  }
  p.in_d = c.in[0], p.in_h = c.in[1], p.in_w = c.in[2];
  p.out_d = out[0], p.out_h = out[1], p.out_w = out[2];
  p.x_w = width;
  p.x_h = p.in_w * p.x_w;
  p.x_d = p.in_h * p.x_h;
  p.x_batch = p.in_d * p.x_d;
  p.m = c.batch * positions;
  p.n = c.outputs;
  p.k = taps * c.channels;
  p.ldr = c.outputs * c.groups + c.extra;
  return p;
}

// Launches with so many blocks at most; 0: as many as there are.
struct FewBlocks {
  Launcher run;
  int64_t most;

  template <class Kernel>
  std::string operator()(Shape shape, const Kernel& kernel) const {
    if (most > 0) shape.blocks = std::min(shape.blocks, most);
    return run(shape, kernel);
  }
  std::string Nothing() const { return {}; }
};

void CheckConvolution(const Case& c, DType dtype) {
  SCOPED_TRACE(Text(c, dtype));
  const ConvolutionParams p = ParamsOf(c);
  const Windows w = WindowsOf(p);
  const auto count = [](int64_t size) { return static_cast<size_t>(size); };
  const int64_t cols = c.outputs * c.groups, taps = w.taps();
  const DType out_dtype = c.wide ? DType::kF32 : dtype;
  const DType weight_dtype = c.depthwise ? DType::kF32 : dtype;
  // Rows of a product's weights begin at multiples of 16 bytes, unless operands are to lie anywhere.
  const int64_t ldb = c.depthwise ? p.k : c.offset == 0 ? (p.k + 7) / 8 * 8 : p.k;
  std::vector<float> pixels = RandomFloats(count(c.batch * p.x_batch - c.extra), 1);
  if (c.special != 0) pixels[pixels.size() / 2] = c.special;
  StoredFloats x(pixels, dtype, c.offset), weight(RandomFloats(count(cols * ldb), 2), weight_dtype, c.offset);
  StoredFloats bias(RandomFloats(count(cols), 3), DType::kF32);
  StoredFloats residual(RandomFloats(count(p.m * p.ldr), 4), out_dtype, c.offset);
  const std::vector<float> xs = x.values(), ws = weight.values(), bs = bias.values(), rs = residual.values();
  std::vector<float> first;
  for (const Order order : {Order::kForward, Order::kBackward}) {
    StoredFloats out(std::vector<float>(count(p.m * cols + 3), kGuard), out_dtype, c.offset);
    View views[5] = {MakeView(x.data(), dtype, {c.batch, p.in_d, p.in_h, p.in_w, c.channels * c.groups}),
                     MakeView(weight.data(), weight_dtype, {cols, ldb})};
    const int64_t strides[] = {p.x_batch, p.x_d, p.x_h, p.x_w, 1};
    std::copy_n(strides, 5, views[0].strides);
    if (c.bias) views[2] = MakeView(bias.data(), DType::kF32, {cols});
    if (c.residual) views[3] = MakeView(residual.data(), out_dtype, {p.m, p.ldr});
    views[4] = MakeView(out.data(), out_dtype, {p.m, cols});
    Call call{static_cast<uint32_t>(c.depthwise ? KernelId::kDepthwise : KernelId::kConvolution), &p, sizeof p, views,
              5};
    ASSERT_EQ(ConvolutionFamily::Check(call).problem, "");
    std::vector<float> scratch(ConvolutionFamily::ScratchBytes(call) / sizeof(float),
                               std::numeric_limits<float>::quiet_NaN());
    call.scratch = scratch.data();
    const FewBlocks launch{{order}, c.blocks};
    ASSERT_EQ(ConvolutionFamily::Launch(launch, call), "");
    const std::vector<float> found = out.values();
    for (size_t i = count(p.m * cols); i < found.size(); ++i) {
      ASSERT_EQ(found[i], StoredFloats(std::vector<float>{kGuard}, out_dtype).values()[0]) << "behind the result";
    }
    for (int64_t row = 0; row < p.m; ++row) {
      const kernels::WindowPosition position(w, row);
      for (int64_t col = 0; col < cols; ++col) {
        const int64_t group = col / c.outputs;
        double sum = c.bias ? bs[count(col)] : 0, absolute = std::abs(sum);
        for (int64_t tap = 0; tap < taps; ++tap) {
          const int64_t at[3] = {w.At(0, position.at[0], tap / (w.kernel[1] * w.kernel[2])),
                                 w.At(1, position.at[1], tap / w.kernel[2] % w.kernel[1]),
                                 w.At(2, position.at[2], tap % w.kernel[2])};
          if (at[0] < 0 || at[1] < 0 || at[2] < 0) continue;
          const int64_t pixel = position.batch * p.x_batch + at[0] * p.x_d + at[1] * p.x_h + at[2] * p.x_w;
          for (int64_t i = 0; i < c.channels; ++i) {
            const int64_t of_weight =
                c.depthwise ? (tap * c.channels + i) * cols + col : col * ldb + tap * c.channels + i;
            const double product =
                static_cast<double>(xs[count(pixel + group * c.channels + i)]) * ws[count(of_weight)];
            sum += product;
            absolute += std::abs(product);
          }
        }
        const double added = c.residual ? rs[count(row * p.ldr + col)] : 0;
        const double wanted =
            c.residual_first ? Activated(c.activation, sum + added) : Activated(c.activation, sum) + added;
        const double x_found = found[count(row * cols + col)];
        if (std::isnan(wanted)) {
          ASSERT_TRUE(std::isnan(x_found)) << row << ", " << col;
          continue;
        }
        if (std::isinf(wanted)) {
          ASSERT_EQ(x_found, wanted) << row << ", " << col;
          continue;
        }
        const double unit = out_dtype == DType::kF32 ? 1.2e-7 : out_dtype == DType::kBF16 ? 1.0 / 256 : 1.0 / 2048;
        ASSERT_NEAR(x_found, wanted, 1e-6 + 3e-7 * absolute + unit * (std::abs(wanted) + 1e-3)) << row << ", " << col;
      }
    }
    if (order == Order::kForward) first = found;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(found[i] == first[i] || (std::isnan(found[i]) && std::isnan(first[i]))) << "order of threads";
    }
  }
}

TEST(ConvolutionKernel, TypesAndOddSizes) {
  for (const DType dtype : kTypes) {
    CheckConvolution({}, dtype);
    CheckConvolution({.batch = 2, .channels = 16, .outputs = 9, .in = {1, 7, 6}, .stride = {1, 2, 2}}, dtype);
    CheckConvolution({.channels = 3,
                      .outputs = 40,
                      .in = {1, 9, 8},
                      .kernel = {1, 7, 7},
                      .stride = {1, 2, 2},
                      .padding = {0, 3, 3},
                      .activation = Activation::kRelu},
                     dtype);
    CheckConvolution(
        {.channels = 8, .outputs = 33, .kernel = {1, 1, 1}, .stride = {1, 2, 2}, .padding = {0, 0, 0}, .wide = true},
        dtype);
    CheckConvolution({.channels = 5, .outputs = 7, .offset = 1}, dtype);
    CheckConvolution({.channels = 8, .outputs = 8, .extra = 8}, dtype);
    CheckConvolution({.channels = 8, .outputs = 8, .extra = 3}, dtype);
  }
}

TEST(ConvolutionKernel, WindowsOfEveryKind) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    CheckConvolution({.batch = 2, .in = {3, 4, 5}, .kernel = {2, 3, 2}, .padding = {1, 0, 1}}, dtype);
    CheckConvolution({.in = {1, 9, 7}, .padding = {0, 2, 2}, .dilation = {1, 2, 2}}, dtype);
    CheckConvolution({.in = {1, 4, 5}, .padding = {0, 1, 1}, .spread = {1, 2, 2}}, dtype);  // transposed
    CheckConvolution({.in = {1, 1, 40}, .kernel = {1, 1, 5}, .padding = {0, 0, 2}}, dtype);
    CheckConvolution({.channels = 16, .outputs = 24, .groups = 3}, dtype);
    CheckConvolution({.channels = 6, .outputs = 5, .groups = 2}, dtype);
  }
}

TEST(ConvolutionKernel, WhatFollowsTheSum) {
  for (const Activation activation :
       {Activation::kRelu, Activation::kGelu, Activation::kSilu, Activation::kRelu6, Activation::kHardSwish}) {
    for (const bool first : {false, true}) {
      CheckConvolution({.in = {1, 3, 3}, .residual_first = first, .activation = activation}, DType::kBF16);
      CheckConvolution({.in = {1, 3, 3}, .bias = false, .residual_first = first, .activation = activation},
                       DType::kF32);
    }
  }
  CheckConvolution({.in = {1, 3, 3}, .residual = false}, DType::kF16);
}

// Long sums of few positions are shared by blocks; many positions get tiles of more rows.
TEST(ConvolutionKernel, SplitSumsAndEveryTiling) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    CheckConvolution({.channels = 136, .outputs = 70, .in = {1, 3, 3}, .activation = Activation::kRelu}, dtype);
    CheckConvolution({.channels = 72, .outputs = 20, .in = {1, 3, 2}, .residual_first = true}, dtype);
  }
  CheckConvolution(
      {.batch = 2, .outputs = 40, .in = {1, 91, 90}, .kernel = {1, 1, 1}, .stride = {1, 1, 1}, .padding = {0, 0, 0}},
      DType::kBF16);
  CheckConvolution({.batch = 1, .outputs = 130, .in = {1, 92, 91}, .kernel = {1, 1, 1}, .padding = {0, 0, 0}},
                   DType::kBF16);
}

TEST(ConvolutionKernel, NotANumberStaysWhereItIsSeen) {
  for (const float special : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    CheckConvolution({.special = special}, DType::kBF16);
    CheckConvolution({.special = special}, DType::kF32);
    CheckConvolution({.channels = 1, .outputs = 1, .groups = 16, .special = special, .depthwise = true}, DType::kBF16);
  }
}

TEST(ConvolutionKernel, FewBlocksWalkOverAllTiles) {
  CheckConvolution({.outputs = 70, .in = {1, 12, 13}, .blocks = 2}, DType::kBF16);
  CheckConvolution({.outputs = 70, .in = {1, 12, 13}, .blocks = 2}, DType::kF32);
}

TEST(DepthwiseKernel, TypesAndOddSizes) {
  for (const DType dtype : kTypes) {
    const Case each{.channels = 1, .outputs = 1, .groups = 16, .depthwise = true};
    CheckConvolution(each, dtype);
    Case c = each;
    c.groups = 13;  // one channel at a time
    c.stride = {1, 2, 2};
    CheckConvolution(c, dtype);
    c = each;
    c.batch = 2;
    c.in = {1, 6, 11};
    c.kernel = {1, 5, 5};
    c.padding = {0, 2, 2};
    c.activation = Activation::kHardSwish;
    CheckConvolution(c, dtype);
    c = each;
    c.extra = 8;
    c.wide = true;
    CheckConvolution(c, dtype);
    c.extra = 3;
    c.offset = 1;
    CheckConvolution(c, dtype);
    c = each;
    c.spread = {1, 2, 2};
    CheckConvolution(c, dtype);
    c = each;
    c.channels = 2, c.outputs = 4, c.groups = 3;
    c.blocks = 1;
    CheckConvolution(c, dtype);
  }
}

// ---- Pooling and resizing ----

// Windows of `kernel` positions at every `stride`, each weighing by its number.
void CheckResample(DType dtype, int64_t channels, int64_t batch, bool greatest, int64_t extra, float special) {
  SCOPED_TRACE(std::string(Name(dtype)) + " C " + std::to_string(channels) + " extra " + std::to_string(extra));
  const int64_t in[] = {2, 7, 6}, out[] = {2, 3, 3};
  kernels::ResampleParams p{};
  p.batch = batch, p.channels = channels, p.greatest = greatest;
  p.x_w = channels + extra, p.x_h = in[2] * p.x_w, p.x_d = in[1] * p.x_h, p.x_batch = in[0] * p.x_d;
  p.out_d = out[0], p.out_h = out[1], p.out_w = out[2];
  std::vector<int32_t> table, index;
  std::vector<float> weights;
  for (int d = 0; d < 3; ++d) {
    for (int64_t i = 0; i < out[d]; ++i) {
      table.push_back(static_cast<int32_t>(index.size()));
      for (int64_t at = d == 0 ? i : 2 * i; at < std::min(in[d], d == 0 ? i + 1 : 2 * i + 3); ++at) {
        index.push_back(static_cast<int32_t>(at));
        weights.push_back(0.25f + 0.5f * static_cast<float>(at));
      }
    }
    table.push_back(static_cast<int32_t>(index.size()));
  }
  const std::vector<int32_t> starts = table;
  table.insert(table.end(), index.begin(), index.end());
  std::vector<float> pixels = RandomFloats(static_cast<size_t>(batch * p.x_batch - extra), 1);
  if (special != 0) pixels[pixels.size() / 2] = special;
  StoredFloats x(pixels, dtype);
  const std::vector<float> xs = x.values();
  const int64_t positions = batch * out[0] * out[1] * out[2];
  std::vector<float> first;
  for (const Order order : {Order::kForward, Order::kBackward}) {
    StoredFloats y(std::vector<float>(static_cast<size_t>(positions * channels), kGuard), dtype);
    View views[4] = {MakeView(x.data(), dtype, {batch, in[0], in[1], in[2], channels}),
                     MakeView(table.data(), DType::kI32, {static_cast<int64_t>(table.size())}),
                     MakeView(weights.data(), DType::kF32, {static_cast<int64_t>(weights.size())}),
                     MakeView(y.data(), dtype, {batch, out[0], out[1], out[2], channels})};
    const int64_t strides[] = {p.x_batch, p.x_d, p.x_h, p.x_w, 1};
    std::copy_n(strides, 5, views[0].strides);
    const Call call{static_cast<uint32_t>(KernelId::kResample), &p, sizeof p, views, 4};
    ASSERT_EQ(ResampleFamily::Check(call).problem, "");
    ASSERT_EQ(ResampleFamily::Launch(Launcher{order}, call), "");
    const std::vector<float> found = y.values();
    for (int64_t i = 0; i < positions * channels; ++i) {
      const int64_t position = i / channels;
      const int64_t at[] = {position / (out[1] * out[2]) % out[0], position / out[2] % out[1], position % out[2]};
      double wanted = greatest ? -std::numeric_limits<double>::infinity() : 0;
      const int64_t begin[] = {0, out[0] + 1, out[0] + out[1] + 2};
      const auto of = [&](int d, int64_t k) { return starts[static_cast<size_t>(begin[d] + at[d] + k)]; };
      for (int32_t a = of(0, 0); a < of(0, 1); ++a) {
        for (int32_t b = of(1, 0); b < of(1, 1); ++b) {
          for (int32_t c = of(2, 0); c < of(2, 1); ++c) {
            const auto n = [](int32_t number) { return static_cast<size_t>(number); };
            const double pixel =
                xs[static_cast<size_t>(position / (out[0] * out[1] * out[2]) * p.x_batch + index[n(a)] * p.x_d +
                                       index[n(b)] * p.x_h + index[n(c)] * p.x_w + i % channels)];
            if (greatest) {
              wanted = std::isnan(pixel) || std::isnan(wanted) ? std::nan("") : std::max(wanted, pixel);
            } else {
              wanted += pixel * weights[n(a)] * weights[n(b)] * weights[n(c)];
            }
          }
        }
      }
      const float value = found[static_cast<size_t>(i)];
      if (std::isnan(wanted)) {
        ASSERT_TRUE(std::isnan(value)) << i;
      } else {
        const double unit = dtype == DType::kF32 ? 1e-6 : dtype == DType::kBF16 ? 1.0 / 256 : 1.0 / 2048;
        ASSERT_NEAR(value, wanted, unit * (std::abs(wanted) + 1)) << i;
      }
    }
    if (order == Order::kForward) first = found;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(found[i] == first[i] || (std::isnan(found[i]) && std::isnan(first[i])));
    }
  }
}

TEST(ResampleKernel, TypesSizesAndNotANumber) {
  for (const DType dtype : kTypes) {
    for (const bool greatest : {false, true}) {
      CheckResample(dtype, 5, 2, greatest, 0, 0);
      CheckResample(dtype, 8, 1, greatest, 3, std::numeric_limits<float>::quiet_NaN());
      CheckResample(dtype, 1024, 8, greatest, 0, 0);  // 16 bytes a thread
    }
  }
}

}  // namespace
}  // namespace thresher::cuda::testing
