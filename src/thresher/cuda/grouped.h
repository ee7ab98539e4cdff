// Grouped products on a device: which kernel takes which operands, and how many blocks.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/cuda/call.h"
#include "thresher/cuda/grouped_kernel.h"
#include "thresher/cuda/rows.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

struct GroupedFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kGroupedProduct};

  static Verdict Check(const Call& call) {
    if (call.params_bytes != sizeof(kernels::StoredGroupsParams)) {
      return Fits(call, sizeof(kernels::StoredGroupsParams), call.num_views);
    }
    const auto& p = call.as<kernels::StoredGroupsParams>();
    if (Verdict verdict = Fits(call, sizeof p, p.groups + kOthers); !verdict.ok()) return verdict;
    if (p.groups > kMostGroups) {
      return Unsupported("grouped_product: expected at most " + std::to_string(kMostGroups) +
                         " weights on this device, got " + std::to_string(p.groups));
    }
    const DType x = call.views[0].dtype;
    bool fits = IsFloat(x) && IsFloat(call.last().dtype);
    for (int i = 0; i < p.groups && !HasBlocks(p.encoding); ++i) {
      fits = fits && call.views[kWeights + i].dtype == x && EncodingOf(x) == p.encoding;
    }
    if (fits) return {};
    return Unsupported(
        "grouped_product: expected rows of floats, and weights of their type or in q8_0, q4_0 or q4_1 on "
        "this device, got " +
        std::string(Name(x)) + " and " + std::string(Name(p.encoding)));
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    const View &x = call.views[0], &ends = call.views[1];
    const auto& p = call.as<kernels::StoredGroupsParams>();
    if (call.last().size() == 0) return launch.Nothing();
    GroupedWork work{};
    work.x = x.data;
    work.ends = ends.data;
    work.c = call.last().data;
    work.fault = call.fault;
    work.rows = p.rows;
    work.n = p.n;
    work.k = p.k;
    work.lda = p.lda;
    work.ends_stride = ends.strides[0];
    work.groups = p.groups;
    work.ends_dtype = ends.dtype;
    work.x_dtype = x.dtype;
    work.dtype = call.last().dtype;
    work.encoding = p.encoding;
    work.block_bytes = static_cast<int32_t>(BlockBytes(p.encoding));
    const int64_t piece = 16 / static_cast<int64_t>(SizeOf(x.dtype));
    work.x_pieces = IsAligned(x.data) && p.lda % piece == 0 && p.k % piece == 0;
    work.weight_pieces = p.k % piece == 0;
    for (int i = 0; i < p.groups; ++i) {
      work.weights[i] = call.views[kWeights + i].data;
      work.weight_pieces = work.weight_pieces && IsAligned(work.weights[i]);
    }
    if (x.dtype == DType::kBF16) return LaunchHalves<Bf16>(launch, work);
    if (x.dtype == DType::kF16) return LaunchHalves<Fp16>(launch, work);
    if (IsBlocked(p.encoding)) return LaunchF32<true>(launch, work);
    return LaunchF32<false>(launch, work);
  }

 private:
  static constexpr int kWeights = 2;
  static constexpr int kOthers = 3;  // x, ends, c
  // Rows of a group, on average, from which on tiles of many rows are worth it.
  static constexpr int64_t kManyRows = 24;

  static bool HasManyRows(const GroupedWork& work) { return work.rows >= kManyRows * work.groups; }

  template <class Half, class Launcher>
  static auto LaunchHalves(Launcher&& launch, const GroupedWork& work) {
    const bool blocked = IsBlocked(work.encoding);
    if (HasManyRows(work)) {
      if (blocked) return LaunchTiles<GroupedKernel<Half, 2, 4, 2, 4, true>>(launch, work);
      return LaunchTiles<GroupedKernel<Half, 2, 4, 2, 4, false>>(launch, work);
    }
    if (blocked) return LaunchTiles<GroupedKernel<Half, 1, 2, 1, 4, true>>(launch, work);
    return LaunchTiles<GroupedKernel<Half, 1, 2, 1, 4, false>>(launch, work);
  }

  template <bool kBlocked, class Launcher>
  static auto LaunchF32(Launcher&& launch, const GroupedWork& work) {
    if (HasManyRows(work)) return LaunchTiles<GroupedF32Kernel<4, kBlocked>>(launch, work);
    return LaunchTiles<GroupedF32Kernel<1, kBlocked>>(launch, work);
  }

  template <class Kernel, class Launcher>
  static auto LaunchTiles(Launcher&& launch, const GroupedWork& work) {
    Shape shape;
    shape.width = Kernel::kMostThreads;
    shape.shared_floats = Kernel::kSharedWords;
    shape.blocks = AtMostBlocks(work.Tiles(Kernel::kRows, Kernel::kCols));
    return launch(shape, Kernel{work});
  }
};

}  // namespace thresher::cuda
