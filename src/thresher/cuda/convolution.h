// Convolutions on a device: which kernel takes which operands, and how many blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "thresher/cuda/call.h"
#include "thresher/cuda/convolution_kernel.h"
#include "thresher/cuda/convolution_result.h"
#include "thresher/cuda/convolution_windows.h"
#include "thresher/cuda/depthwise_kernel.h"
#include "thresher/cuda/half_tilings.h"
#include "thresher/cuda/rows.h"

namespace thresher::cuda {

// Where there are too few tiles to fill a device, blocks share the sums of a tile if these are long.
inline constexpr int64_t kLeastSplitSteps = 8;  // of each block that shares

struct ConvolutionFamily {
  static constexpr KernelId kKernels[] = {KernelId::kConvolution, KernelId::kDepthwise};

  static Verdict Check(const Call& call) {
    if (Verdict verdict = Fits(call, sizeof(kernels::ConvolutionParams), 5); !verdict.ok()) return verdict;
    if (Verdict verdict = AllFloats(call); !verdict.ok()) return verdict;
    const View *x = call.views, *weight = x + 1, *residual = x + 3, *out = x + 4;
    const bool product = call.kernel() == KernelId::kConvolution;
    const bool typed = !product || (weight->dtype == x->dtype && (out->dtype == x->dtype || out->dtype == DType::kF32));
    if (!typed || (residual->rank != 0 && residual->dtype != out->dtype)) {
      return Unsupported(std::string(Name(call.kernel())) +
                         ": expected x and weight of one type, the result of that or f32, and a residual of the "
                         "result's type, got " +
                         std::string(Name(x->dtype)) + ", " + std::string(Name(weight->dtype)) + ", " +
                         std::string(Name(out->dtype)) + " and " + std::string(Name(residual->dtype)));
    }
    return CheckWindows(call);
  }

  static size_t ScratchBytes(const Call& call) {
    if (call.kernel() == KernelId::kDepthwise) return 0;
    const ConvolutionWork work = WorkOf(call);
    if (work.splits == 1) return 0;
    return static_cast<size_t>(work.splits * work.result.rows * work.result.cols) * sizeof(float);
  }

  // What follows the sums of products, where another library has left these as the result.
  template <class Launcher>
  static auto LaunchFinish(Launcher&& launch, const Call& call) {
    ConvolutionEndKernel kernel{ConvolutionResult::Of(call.as<kernels::ConvolutionParams>(), call.views)};
    const int64_t size = kernel.result.rows * kernel.result.cols;
    Shape shape;
    shape.width = ConvolutionEndKernel::kMostThreads;
    shape.blocks = AtMostBlocks(DivideUp(kernel.result.aligned >= 4 ? size / 4 : size, shape.width));
    return launch(shape, kernel);
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    if (call.last().size() == 0) return launch.Nothing();
    if (call.kernel() == KernelId::kDepthwise) return LaunchDepthwise(launch, call);
    ConvolutionWork work = WorkOf(call);
    if (work.splits > 1) work.result.partial = static_cast<float*>(call.scratch);
    auto result = LaunchProduct(launch, call.views[0].dtype, work);
    if (work.splits == 1 || result != launch.Nothing()) return result;
    ConvolutionMergeKernel merge{work.result, work.splits};
    Shape shape;
    shape.width = ConvolutionMergeKernel::kMostThreads;
    shape.blocks = AtMostBlocks(DivideUp(work.result.rows * work.result.cols, shape.width));
    return launch(shape, merge);
  }

 private:
  template <class Half, int kRowTiles, int kColTiles, int kRowWarps, int kColWarps>
  using OfWindows = ConvolutionKernel<ConvolutionWindows, Half, kRowTiles, kColTiles, kRowWarps, kColWarps>;

  // What does not depend on where operands lie is the same when the plan is made.
  static ConvolutionWork WorkOf(const Call& call) {
    const auto& p = call.as<kernels::ConvolutionParams>();
    const View &x = call.views[0], &weight = call.views[1];
    ConvolutionWork work{};
    work.windows = ConvolutionWindows::Of(p);
    work.result = ConvolutionResult::Of(p, call.views);
    work.x = x.data;
    work.weight = weight.data;
    work.ldb = weight.strides[0];
    work.n = static_cast<int32_t>(p.n);
    work.groups = static_cast<int32_t>(p.shape.groups);
    work.splits = 1;
    const bool halves = x.dtype != DType::kF32;
    const int64_t piece = halves ? 8 : 4;
    work.x_pieces = IsAligned(x.data) && p.shape.channels % piece == 0;
    for (int d = 0; d + 1 < x.rank; ++d) work.x_pieces &= x.shape[d] == 1 || x.strides[d] % piece == 0;
    work.weight_pieces = IsAligned(weight.data) && work.ldb % piece == 0;
    int64_t tiles, steps;
    if (halves) {
      const HalfTiling tiling = HalfTilingOf(work);
      if (tiling != kNarrowTiling && tiling != kSmallTiling) return work;
      tiles = TilesOf(work, tiling);
      steps = DivideUp(p.k, kHalfStep);
    } else {
      tiles = work.Tiles(ConvolutionF32Kernel::kRows, ConvolutionF32Kernel::kCols);
      steps = DivideUp(p.k, ConvolutionF32Kernel::kStep);
    }
    if (tiles < kEnoughTiles) {
      const int64_t wanted = std::min(DivideUp(2 * kEnoughTiles, tiles), steps / kLeastSplitSteps);
      work.splits = static_cast<int32_t>(std::max<int64_t>(wanted, 1));
    }
    return work;
  }

  template <class Launcher>
  static auto LaunchProduct(Launcher&& launch, DType dtype, const ConvolutionWork& work) {
    if (dtype == DType::kBF16) return LaunchHalfTiles<OfWindows, Bf16>(launch, work);
    if (dtype == DType::kF16) return LaunchHalfTiles<OfWindows, Fp16>(launch, work);
    return LaunchTiles<ConvolutionF32Kernel>(launch, work);
  }

  template <class Launcher>
  static auto LaunchDepthwise(Launcher&& launch, const Call& call) {
    const auto& p = call.as<kernels::ConvolutionParams>();
    const View& x = call.views[0];
    const int64_t piece = x.dtype == DType::kF32 ? 4 : 8;
    bool lanes = p.n == 1 && p.shape.channels == 1 && p.shape.groups % piece == 0 && IsAligned(x.data);
    for (int d = 0; d + 1 < x.rank; ++d) lanes &= x.shape[d] == 1 || x.strides[d] % piece == 0;
    if (!lanes) return LaunchDepthwiseOf<1>(launch, call);
    if (piece == 4) return LaunchDepthwiseOf<4>(launch, call);
    return LaunchDepthwiseOf<8>(launch, call);
  }

  template <int kLanes, class Launcher>
  static auto LaunchDepthwiseOf(Launcher&& launch, const Call& call) {
    const auto& p = call.as<kernels::ConvolutionParams>();
    using Kernel = DepthwiseKernel<kLanes>;
    Kernel kernel{};
    kernel.windows = ConvolutionWindows::Of(p);
    kernel.result = ConvolutionResult::Of(p, call.views);
    kernel.x = call.views[0].data;
    kernel.weight = call.views[1].data;
    kernel.x_dtype = call.views[0].dtype;
    kernel.weight_dtype = call.views[1].dtype;
    kernel.taps = static_cast<int32_t>(WindowsOf(p).taps());
    kernel.group_inputs = static_cast<int32_t>(p.shape.channels);
    kernel.group_outputs = Divisor::By(p.n);
    const int64_t groups = kernel.result.cols / kLanes, runs = DivideUp(p.out_w, kDepthwisePositions);
    kernel.lane_groups = groups;
    kernel.line_runs = runs;
    kernel.work = p.m / p.out_w * runs * groups;
    Shape shape;
    shape.width = Kernel::kMostThreads;
    shape.blocks = AtMostBlocks(DivideUp(kernel.work, shape.width));
    return launch(shape, kernel);
  }
};

}  // namespace thresher::cuda
