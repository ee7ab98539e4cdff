// Pooling and resizing (kernels/resample.h): weighted sums, or the greatest, of the positions that tables name.
#pragma once

#include <cstdint>

#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/call.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

// A thread has kLanes neighbouring channels of an output position: where more than one, 16 bytes of them.
template <int kLanes>
struct ResampleKernel {
  static constexpr int kMostThreads = 128;
  static constexpr int kLeastBlocks = 4;
  const void* x;
  void* out;
  const int32_t* starts[3];
  const int32_t* index;
  const float* weight;
  int64_t x_batch, x_strides[3], out_sizes[3];
  int64_t positions, channels;  // of the result
  DType dtype;
  bool greatest;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t groups = channels / kLanes, work = positions * groups;
    for (int64_t i = t.block() * t.width() + t.x(); i < work; i += t.num_blocks() * t.width()) {
      Position(i / groups, i % groups * kLanes);
    }
  }

 private:
  THRESHER_DEVICE void Position(int64_t position, int64_t channel) const {
    int64_t rest = position, at[3];
    THRESHER_UNROLL
    for (int d = 2; d >= 0; --d) {
      at[d] = rest % out_sizes[d];
      rest /= out_sizes[d];
    }
    const int64_t image = rest * x_batch + channel;
    float sums[kLanes];
    THRESHER_UNROLL
    for (int l = 0; l < kLanes; ++l) sums[l] = greatest ? -__builtin_huge_valf() : 0.0f;
    const int32_t last[3] = {starts[0][at[0] + 1], starts[1][at[1] + 1], starts[2][at[2] + 1]};
    for (int32_t i = starts[0][at[0]]; i < last[0]; ++i) {
      for (int32_t j = starts[1][at[1]]; j < last[1]; ++j) {
        const int64_t line = image + index[i] * x_strides[0] + index[j] * x_strides[1];
        const float of_line = weight[i] * weight[j];
        for (int32_t k = starts[2][at[2]]; k < last[2]; ++k) {
          Join(line + index[k] * x_strides[2], of_line * weight[k], sums);
        }
      }
    }
    const int64_t to = position * channels + channel;
    THRESHER_UNROLL
    for (int l = 0; l < kLanes; l += kLanes < 4 ? 1 : 4) {
      if constexpr (kLanes < 4) {
        StoreElement(out, dtype, to + l, sums[l]);
      } else {
        Floats::Store<4>(dtype, sums + l, out, to + l);
      }
    }
  }

  THRESHER_DEVICE void Join(int64_t from, float factor, float (&sums)[kLanes]) const {
    float found[kLanes];
    if constexpr (kLanes < 4) {
      THRESHER_UNROLL
      for (int l = 0; l < kLanes; ++l) found[l] = LoadElement(x, dtype, from + l);
    } else {
      uint32_t raw[4];
      LoadWords<4>(x, from / kLanes, raw);
      THRESHER_UNROLL
      for (int l = 0; l < kLanes; ++l) {
        if constexpr (kLanes == 4) {
          found[l] = FloatOf(raw[l]);
        } else {
          const uint32_t bits = raw[l / 2] >> (l % 2 * 16) & 0xffffu;
          found[l] = dtype == DType::kBF16 ? FloatOfBF16(bits) : FloatOfF16(bits);
        }
      }
    }
    THRESHER_UNROLL
    for (int l = 0; l < kLanes; ++l) {
      if (greatest) {
        // The first NaN stays.
        if (found[l] > sums[l] || found[l] != found[l]) sums[l] = found[l];
      } else {
        sums[l] = fmaf(found[l], factor, sums[l]);
      }
    }
  }
};

struct ResampleFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kResample};

  static Verdict Check(const Call& call) {
    if (Verdict verdict = Fits(call, sizeof(kernels::ResampleParams), 4); !verdict.ok()) return verdict;
    const DType x = call.views[0].dtype;
    if (IsFloat(x) && call.last().dtype == x) return {};
    return Unsupported("resample: expected x and result of one type, f32, bf16 or f16, got " + std::string(Name(x)) +
                       " and " + std::string(Name(call.last().dtype)));
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    const auto& p = call.as<kernels::ResampleParams>();
    const View& x = call.views[0];
    if (call.last().size() == 0) return launch.Nothing();
    const int64_t piece = x.dtype == DType::kF32 ? 4 : 8;
    // Few results are more threads' work.
    bool lanes = p.channels % piece == 0 && IsAligned(x.data) && IsAligned(call.last().data) &&
                 call.last().size() / piece >= kEnoughThreads;
    for (int d = 0; d + 1 < x.rank; ++d) lanes &= x.shape[d] == 1 || x.strides[d] % piece == 0;
    if (!lanes) return LaunchOf<1>(launch, call);
    if (piece == 4) return LaunchOf<4>(launch, call);
    return LaunchOf<8>(launch, call);
  }

 private:
  static constexpr int64_t kEnoughThreads = 1 << 14;

  template <int kLanes, class Launcher>
  static auto LaunchOf(Launcher&& launch, const Call& call) {
    const auto& p = call.as<kernels::ResampleParams>();
    using Kernel = ResampleKernel<kLanes>;
    Kernel kernel{};
    kernel.x = call.views[0].data;
    kernel.out = call.last().data;
    // Starts of all dimensions, then the taps of all.
    const auto* starts = call.views[1].as<const int32_t>();
    const int64_t strides[] = {p.x_d, p.x_h, p.x_w}, out[] = {p.out_d, p.out_h, p.out_w};
    kernel.index = starts + p.out_d + p.out_h + p.out_w + 3;
    kernel.weight = call.views[2].as<const float>();
    kernel.positions = p.batch;
    for (int d = 0; d < 3; ++d) {
      kernel.starts[d] = starts;
      starts += out[d] + 1;
      kernel.x_strides[d] = strides[d];
      kernel.out_sizes[d] = out[d];
      kernel.positions *= out[d];
    }
    kernel.x_batch = p.x_batch;
    kernel.channels = p.channels;
    kernel.dtype = call.views[0].dtype;
    kernel.greatest = p.greatest;
    Shape shape;
    shape.width = Kernel::kMostThreads;
    shape.blocks = AtMostBlocks(DivideUp(kernel.positions * (kernel.channels / kLanes), shape.width));
    return launch(shape, kernel);
  }
};

}  // namespace thresher::cuda
