// Copies between any strides, of elements of any type, and tensors joined along one dimension: several copies at once.
// What is moved is the largest unit that divides every row on both sides, of 1 to 16 bytes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "thresher/base/view.h"
#include "thresher/cuda/call.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/stored.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

inline constexpr int kCopyWidth = 256;
inline constexpr int kCopyItems = 4;  // units that a thread has on their way
// So many copies share a launch.
inline constexpr int kMostParts = 8;

// A unit of so many bytes.
template <int kBytes>
struct UnitOf {
  using Type = Words<kBytes / 4>;
};
template <>
struct UnitOf<2> {
  using Type = uint16_t;
};
template <>
struct UnitOf<1> {
  using Type = uint8_t;
};

struct CopyPart {
  Elements<2> elements;  // operand 0: from, operand 1: to; in units
  const void* from;
  void* to;
  int64_t end;  // the block behind its last one
};

template <int kBytes, bool kWide>
struct CopyKernel {
  using Unit = typename UnitOf<kBytes>::Type;
  static constexpr int kMostThreads = kCopyWidth;
  int32_t num_parts;
  CopyPart parts[kMostParts];

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t tile = int64_t{t.width()} * kCopyItems;
    for (int64_t block = t.block(); block < parts[num_parts - 1].end; block += t.num_blocks()) {
      int p = 0;
      while (block >= parts[p].end) ++p;
      const CopyPart& part = parts[p];
      const int64_t base = (block - (p == 0 ? 0 : parts[p - 1].end)) * tile + t.x();
      Unit units[kCopyItems];
      THRESHER_UNROLL
      for (int i = 0; i < kCopyItems; ++i) {
        const int64_t at = base + int64_t{i} * t.width();
        if (at >= part.elements.size) continue;
        units[i] = static_cast<const Unit*>(part.from)[part.elements.template OffsetOf<kWide>(at, 0)];
      }
      THRESHER_UNROLL
      for (int i = 0; i < kCopyItems; ++i) {
        const int64_t at = base + int64_t{i} * t.width();
        if (at >= part.elements.size) continue;
        static_cast<Unit*>(part.to)[part.elements.template OffsetOf<kWide>(at, 1)] = units[i];
      }
    }
  }
};

// from and to as windows on units of `bytes`; false where rows or addresses do not allow it.
inline bool InUnits(int bytes, const View& from, const View& to, CopyPart& part) {
  const auto size = static_cast<int64_t>(SizeOf(from.dtype));
  if (size > bytes) return false;
  const View* const views[] = {&from, &to};
  kernels::Loop<2> loop;
  for (int d = 0; d < from.rank; ++d) {
    const int64_t strides[] = {from.strides[d], to.strides[d]};
    loop.Push(from.shape[d], strides);
  }
  loop.Collapse();
  const int last = loop.rank - 1;
  const int64_t count = bytes / size;
  if (count > 1) {
    if (loop.shape[last] % count != 0) return false;
    for (int i = 0; i < 2; ++i) {
      if (loop.strides[i][last] != 1 || reinterpret_cast<uintptr_t>(views[i]->data) % static_cast<uint64_t>(bytes) != 0)
        return false;
      for (int d = 0; d < last; ++d) {
        if (loop.strides[i][d] % count != 0) return false;
        loop.strides[i][d] /= count;
      }
    }
    loop.shape[last] /= count;
  }
  part.elements = ElementsOf(loop);
  part.from = from.data;
  part.to = to.data;
  return true;
}

template <int kBytes, class Launch>
auto LaunchCopyUnits(Launch&& launch, CopyPart* parts, int count) {
  Shape shape;
  shape.width = kCopyWidth;
  bool wide = false;
  int64_t blocks = 0;
  for (int p = 0; p < count; ++p) {
    blocks += DivideUp(parts[p].elements.size, int64_t{shape.width} * kCopyItems);
    parts[p].end = blocks;
    wide = wide || parts[p].elements.size > kMostNarrowRuns;
  }
  shape.blocks = AtMostBlocks(blocks);
  const auto start = [&](auto kernel) {
    kernel.num_parts = count;
    std::copy_n(parts, count, kernel.parts);
    return launch(shape, kernel);
  };
  return wide ? start(CopyKernel<kBytes, true>{}) : start(CopyKernel<kBytes, false>{});
}

// to[i] = from[i] for up to kMostParts pairs, none of which is empty: one type, one shape in a pair, any strides on
// both sides, no overlap.
template <class Launch>
auto LaunchCopies(Launch&& launch, const View* from, const View* to, int count) {
  CopyPart parts[kMostParts];
  const auto in_units = [&](int bytes) {
    for (int p = 0; p < count; ++p) {
      if (!InUnits(bytes, from[p], to[p], parts[p])) return false;
    }
    return true;
  };
  if (in_units(16)) return LaunchCopyUnits<16>(launch, parts, count);
  if (in_units(8)) return LaunchCopyUnits<8>(launch, parts, count);
  if (in_units(4)) return LaunchCopyUnits<4>(launch, parts, count);
  if (in_units(2)) return LaunchCopyUnits<2>(launch, parts, count);
  in_units(1);
  return LaunchCopyUnits<1>(launch, parts, count);
}

template <class Launch>
auto LaunchCopy(Launch&& launch, const View& from, const View& to) {
  return LaunchCopies(launch, &from, &to, 1);
}

struct CopyFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kCopy, KernelId::kCat};

  static Verdict Check(const Call& call) {
    if (call.kernel() == KernelId::kCopy) return Fits(call, sizeof(NoParams), 2);
    return Fits(call, sizeof(NoParams), std::max(call.num_views / 2 * 2, 2));
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    View from[kMostParts], to[kMostParts];
    auto result = launch.Nothing();
    int count = 0;
    const int parts = call.num_views / 2;
    for (int p = 0; p < parts; ++p) {
      if (call.views[p].size() != 0) {
        from[count] = call.views[p];
        to[count] = call.views[parts + p];
        ++count;
      }
      if (count < kMostParts && !(count > 0 && p + 1 == parts)) continue;
      result = LaunchCopies(launch, from, to, count);
      if (result != launch.Nothing()) return result;
      count = 0;
    }
    return result;
  }
};

}  // namespace thresher::cuda
