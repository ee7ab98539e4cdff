// Scaled dot-product attention on a device: which kernel takes which operands, and how many blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "thresher/cuda/attention_f32_kernel.h"
#include "thresher/cuda/attention_kernel.h"
#include "thresher/cuda/attention_result.h"
#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/call.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

// With fewer blocks than this a device has processors left, so tiles of fewer rows are worth their more reading.
inline constexpr int64_t kEnoughBlocks = 128;
inline constexpr int kWidestHead = 256;
// Keys are split among blocks where one block would read more of them one after another.
inline constexpr int64_t kFewKeys = 128;

using WideTiling = Tiling<1, 4, 1, 64>;     // 64 rows
using NarrowTiling = Tiling<1, 1, 4, 128>;  // 16 rows, whose keys four warps share
using TallTiling = Tiling<2, 4, 1, 64>;     // 128 rows

// The tiling with less in registers and shared memory where heads are wide.
template <class Tiles, int kDepth>
struct TilingOf {
  using Type = Tiles;
};
template <int kRowTiles, int kRowWarps>
struct TilingOf<Tiling<kRowTiles, kRowWarps, 1, 64>, 256> {
  using Type = Tiling<1, kRowWarps, 1, 16>;
};
template <>
struct TilingOf<TallTiling, 128> {
  using Type = Tiling<1, 8, 1, 64>;
};
template <>
struct TilingOf<NarrowTiling, 256> {
  using Type = Tiling<1, 1, 4, 64>;
};
template <class Tiles, int kDepth>
using TilingFor = typename TilingOf<Tiles, kDepth>::Type;

// launch(shape, kernel) with the kernel for halves that fits the widths, of a tiling.
template <class Half, class Tiles, class Source, class Launch>
auto LaunchHalves(Launch&& launch, const Source& source) {
  const auto with = [&]<int kDepth>() {
    using Kernel = AttentionKernel<Source, Half, kDepth, TilingFor<Tiles, kDepth>>;
    const int64_t places = source.Places(Kernel::kRows);
    return launch(Kernel::ShapeOf(AtMostBlocks(places)), Kernel{source, places});
  };
  const int depth = std::max(source.depth, source.width);
  if (depth <= 32) return with.template operator()<32>();
  if (depth <= 64) return with.template operator()<64>();
  if (depth <= 128) return with.template operator()<128>();
  return with.template operator()<256>();
}

template <class Source, class Launch>
auto LaunchF32(Launch&& launch, const Source& source) {
  const auto with = [&]<int kDepth>() {
    using Kernel = AttentionF32Kernel<Source, kDepth>;
    const int64_t places = source.Places(Kernel::kRows);
    return launch(Kernel::ShapeOf(AtMostBlocks(places)), Kernel{source, places});
  };
  const int depth = std::max(source.depth, source.width);
  if (depth <= 32) return with.template operator()<32>();
  if (depth <= 64) return with.template operator()<64>();
  if (depth <= 128) return with.template operator()<128>();
  return with.template operator()<256>();
}

// How many blocks share the keys of a tile of rows.
inline int SplitsFor(int64_t places, int64_t keys) {
  if (places >= kEnoughBlocks || keys < 2 * kFewKeys) return 1;
  return static_cast<int>(std::min(DivideUp(2 * kEnoughBlocks, std::max<int64_t>(places, 1)), keys / kFewKeys));
}

template <class Source>
size_t PartialBytes(const Source& source) {
  if (source.partials.splits == 1) return 0;
  const int64_t floats = source.partials.splits * source.partials.rows * (source.width + 2);
  return static_cast<size_t>(floats) * sizeof(float);
}

struct SdpaFamily {
  static constexpr KernelId kKernels[] = {KernelId::kSdpa};

  static Verdict Check(const Call& call) {
    if (Verdict verdict = Fits(call, sizeof(kernels::SdpaParams), 5); !verdict.ok()) return verdict;
    const View *q = call.views, *k = q + 1, *v = q + 2, *mask = q + 3, *out = q + 4;
    const bool one_type = k->dtype == q->dtype && v->dtype == q->dtype && out->dtype == q->dtype;
    if (!IsFloat(q->dtype) || !one_type) {
      return Unsupported("sdpa: expected q, k, v and result of one type, f32, bf16 or f16, got " +
                         std::string(Name(q->dtype)) + ", " + std::string(Name(k->dtype)) + ", " +
                         std::string(Name(v->dtype)) + " and " + std::string(Name(out->dtype)));
    }
    const bool masked = call.as<kernels::SdpaParams>().masked;
    if (masked && mask->dtype != DType::kBool && !IsFloat(mask->dtype)) {
      return Unsupported("sdpa: expected a mask of bool, f32, bf16 or f16, got " + std::string(Name(mask->dtype)));
    }
    if (std::max(q->shape[3], v->shape[3]) > kWidestHead) {
      return Unsupported("sdpa: expected heads of at most " + std::to_string(kWidestHead) +
                         " elements on this device, got " + std::to_string(std::max(q->shape[3], v->shape[3])));
    }
    // Rows of one head of keys are counted in 32 bits.
    constexpr int64_t kMost = INT32_MAX / 2;
    const int64_t group = k->shape[1] == 0 ? 1 : q->shape[1] / k->shape[1];
    if (q->shape[2] > kMost / std::max<int64_t>(group, 1) || k->shape[2] > kMost) {
      return Unsupported("sdpa: expected at most 2^30 queries and keys of a head on this device, got " +
                         std::to_string(q->shape[2] * group) + " and " + std::to_string(k->shape[2]));
    }
    return {};
  }

  static size_t ScratchBytes(const Call& call) { return PartialBytes(SourceOf(call)); }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    if (call.last().size() == 0) return launch.Nothing();
    const SdpaSource source = SourceOf(call);
    auto result = LaunchRows(launch, source);
    if (source.partials.splits == 1 || result != launch.Nothing()) return result;
    return LaunchMerge(launch, source);
  }

  static SdpaSource SourceOf(const Call& call) {
    const auto& p = call.as<kernels::SdpaParams>();
    const View *q = call.views, *k = q + 1, *v = q + 2, *mask = q + 3, *out = q + 4;
    SdpaSource s{};
    s.q = RowsOfView(*q);
    s.k = RowsOfView(*k);
    s.v = RowsOfView(*v);
    s.out = RowsOfView(*out);
    if (p.masked) {
      s.mask = mask->data;
      s.mask_dtype = mask->dtype;
      s.mask_bytes = static_cast<int>(SizeOf(mask->dtype));
      std::copy_n(mask->strides, 3, s.mask_strides);
      s.repeats_mask = mask->strides[3] == 0 || mask->shape[3] == 1;
      s.mask_pairs = !s.repeats_mask && mask->shape[3] % 2 == 0 &&
                     reinterpret_cast<uintptr_t>(mask->data) % (2 * s.mask_bytes) == 0;
      s.mask_pieces = !s.repeats_mask && mask->shape[3] * s.mask_bytes % 16 == 0 && IsAligned(mask->data);
      for (const int64_t stride : s.mask_strides) {
        s.mask_pairs &= stride % 2 == 0;
        s.mask_pieces &= stride * s.mask_bytes % 16 == 0;
      }
    }
    s.scores = Scores::Of(p.scale, 0, p.masked && mask->dtype != DType::kBool);
    s.batches = q->shape[0];
    s.heads = static_cast<int>(k->shape[1]);
    s.group = s.heads == 0 ? 1 : static_cast<int>(q->shape[1] / k->shape[1]);
    s.queries = static_cast<int>(q->shape[2]);
    s.keys = static_cast<int>(k->shape[2]);
    s.depth = static_cast<int>(q->shape[3]);
    s.width = static_cast<int>(v->shape[3]);
    s.causal = p.causal;
    s.partials.data = static_cast<float*>(call.scratch);
    s.partials.rows = s.batches * s.heads * s.queries * s.group;
    s.partials.splits = 1;
    const int64_t places = s.Places(NarrowTiling::kRows);
    s.partials.splits = SplitsFor(places, s.keys);
    return s;
  }

 private:
  template <class Launcher>
  static auto LaunchRows(Launcher&& launch, const SdpaSource& source) {
    switch (source.q.dtype) {
      case DType::kBF16:
        return LaunchTiles<Bf16>(launch, source);
      case DType::kF16:
        return LaunchTiles<Fp16>(launch, source);
      default:
        return LaunchF32(launch, source);
    }
  }

  template <class Half, class Launcher>
  static auto LaunchTiles(Launcher&& launch, const SdpaSource& source) {
    const int tall = TallTiling::kRows, rows = source.queries * source.group;
    const bool fills = rows % tall == 0 || rows % tall > tall / 2 || rows > 4 * tall;
    if (fills && source.Places(tall) >= kEnoughBlocks) return LaunchHalves<Half, TallTiling>(launch, source);
    if (source.Places(WideTiling::kRows) >= kEnoughBlocks) return LaunchHalves<Half, WideTiling>(launch, source);
    return LaunchHalves<Half, NarrowTiling>(launch, source);
  }
};

}  // namespace thresher::cuda
