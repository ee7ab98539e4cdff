// Layer norm and RMS norm.
#pragma once

#include <cmath>
#include <cstdint>

#include "thresher/cuda/call.h"
#include "thresher/cuda/rows.h"
#include "thresher/kernels/kernel_params.h"
#include "thresher/kernels/norm.h"

namespace thresher::cuda {

using kernels::NormArgs;

// kItems > 0: a thread holds its elements, x() and every width()-th after it; 0: it reads them again for each pass.
template <bool kOneWarp, int kItems>
struct NormKernel {
  static constexpr int kMostThreads = kMostRowThreads<kOneWarp>;
  NormArgs args;
  bool rms;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachRow<kOneWarp>(t, args.rows, [&](int64_t row) {
      if constexpr (kItems > 0) {
        Held(t, row);
      } else {
        Reread(t, row);
      }
    });
  }

 private:
  struct Scaling {
    float mean;
    float factor;
    float correction;
  };

  // The mean, rounded to a float, is off by up to half a unit in its last place, which counts where all elements share
  // a large offset. The second pass finds by how much, and both its sums are corrected.
  template <class T>
  THRESHER_DEVICE Scaling ScalingOf(T& t, float mean, float first, float second) const {
    const float count = static_cast<float>(args.cols);
    const float correction = rms ? 0.0f : ReduceRow<kOneWarp, Sum>(t, first) / count;
    const float variance = ReduceRow<kOneWarp, Sum>(t, second) / count - correction * correction;
    const float factor = 1.0f / sqrtf(variance + args.eps);
    return {mean, factor, correction * factor};
  }

  template <class T>
  THRESHER_DEVICE float MeanOf(T& t, float total) const {
    return rms ? 0.0f : ReduceRow<kOneWarp, Sum>(t, total) / static_cast<float>(args.cols);
  }

  THRESHER_DEVICE void Store(float* out, int64_t col, float v, const Scaling& s) const {
    const float weight = args.weight == nullptr ? 1.0f : args.weight[col];
    const float bias = args.bias == nullptr ? 0.0f : args.bias[col];
    out[col] = ((v - s.mean) * s.factor - s.correction) * weight + bias;
  }

  template <class T>
  THRESHER_DEVICE void Held(T& t, int64_t row) const {
    const float* x = args.x + row * args.row_stride;
    const float* residual = args.residual == nullptr ? nullptr : args.residual + row * args.residual_row_stride;
    float* sum = args.sum == nullptr ? nullptr : args.sum + row * args.sum_row_stride;
    float held[kItems];
    float total = 0.0f;
    THRESHER_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int64_t col = t.x() + int64_t{i} * t.width();
      held[i] = 0.0f;
      if (col >= args.cols) continue;
      held[i] = residual == nullptr ? x[col] : x[col] + residual[col];
      if (sum != nullptr) sum[col] = held[i];
      total += held[i];
    }
    const float mean = MeanOf(t, total);
    float first = 0.0f, second = 0.0f;
    THRESHER_UNROLL
    for (int i = 0; i < kItems; ++i) {
      if (t.x() + int64_t{i} * t.width() >= args.cols) continue;
      const float difference = held[i] - mean;
      first += difference;
      second += difference * difference;
    }
    const Scaling scaling = ScalingOf(t, mean, first, second);
    float* out = args.out + row * args.out_row_stride;
    THRESHER_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int64_t col = t.x() + int64_t{i} * t.width();
      if (col < args.cols) Store(out, col, held[i], scaling);
    }
  }

  // A thread reads back only what it wrote itself.
  template <class T>
  THRESHER_DEVICE void Reread(T& t, int64_t row) const {
    const float* x = args.x + row * args.row_stride;
    float* out = args.out + row * args.out_row_stride;
    const float* from = x;
    float total = 0.0f;
    if (args.residual == nullptr) {
      for (int64_t col = t.x(); col < args.cols; col += t.width()) total += x[col];
    } else {
      const float* residual = args.residual + row * args.residual_row_stride;
      float* sum = args.sum == nullptr ? out : args.sum + row * args.sum_row_stride;
      for (int64_t col = t.x(); col < args.cols; col += t.width()) {
        sum[col] = x[col] + residual[col];
        total += sum[col];
      }
      from = sum;
    }
    const float mean = MeanOf(t, total);
    float first = 0.0f, second = 0.0f;
    for (int64_t col = t.x(); col < args.cols; col += t.width()) {
      const float difference = from[col] - mean;
      first += difference;
      second += difference * difference;
    }
    const Scaling scaling = ScalingOf(t, mean, first, second);
    for (int64_t col = t.x(); col < args.cols; col += t.width()) Store(out, col, from[col], scaling);
  }
};

// `rms`: RMS norm. rows, cols > 0.
template <class Launch>
auto LaunchNorm(Launch&& launch, const NormArgs& norm, bool rms) {
  return LaunchRows<NormKernel>(launch, norm.rows, norm.cols, norm, rms);
}

struct NormFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kLayerNorm, KernelId::kRmsNorm};

  static Verdict Check(const Call& call) {
    const Verdict verdict = Fits(call, sizeof(kernels::NormParams), 6);
    return verdict.ok() ? AllF32(call) : verdict;
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    const NormArgs args = kernels::ArgsOf(call.as<kernels::NormParams>(), call.views);
    if (args.rows == 0 || args.cols == 0) return launch.Nothing();
    return LaunchNorm(launch, args, call.kernel() == KernelId::kRmsNorm);
  }
};

}  // namespace thresher::cuda
