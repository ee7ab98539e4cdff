// Copies between any strides, and casts between floats of 32 and of 16 bits (bf16).
#pragma once

#include <cstdint>
#include <string>

#include "thresher/base/view.h"
#include "thresher/cuda/call.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/pointwise_kernel.h"
#include "thresher/cuda/rows.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

// The bits of an element.
template <class Bits>
struct Same {
  using From = Bits;
  using To = Bits;
  THRESHER_DEVICE static To Of(From bits) { return bits; }
};

struct WidenBf16 {
  using From = uint16_t;
  using To = uint32_t;
  THRESHER_DEVICE static To Of(From bits) { return static_cast<To>(bits) << 16; }
};

// As ToBF16 of base/half.h.
struct RoundToBf16 {
  using From = uint32_t;
  using To = uint16_t;
  THRESHER_DEVICE static To Of(From bits) {
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<To>((bits >> 16) | 0x40u);
    return static_cast<To>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
};

inline constexpr int kCopyWidth = 256;

// kOneDimension, Index: as Elements::OffsetOf wants them.
template <class Convert, bool kOneDimension, class Index>
struct CopyKernel {
  static constexpr int kMostThreads = kCopyWidth;
  Elements<2> elements;
  const typename Convert::From* from;
  typename Convert::To* to;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t tile = int64_t{t.width()} * kItems;
    for (int64_t base = t.block() * tile; base < elements.size; base += t.num_blocks() * tile) {
      THRESHER_UNROLL
      for (int i = 0; i < kItems; ++i) {
        const int64_t at = base + int64_t{i} * t.width() + t.x();
        if (at >= elements.size) continue;
        to[elements.template OffsetOf<kOneDimension, Index>(at, 1)] =
            Convert::Of(from[elements.template OffsetOf<kOneDimension, Index>(at, 0)]);
      }
    }
  }
};

// to = from, which is not empty: one shape, any strides on both sides, no overlap.
template <class Convert, class Launch>
auto LaunchCopy(Launch&& launch, const View& from, const View& to) {
  const View operands[] = {from, to};
  const Elements<2> elements = ElementsOf<2>(operands, 2);
  Shape shape;
  shape.width = kCopyWidth;
  shape.blocks = AtMostBlocks(DivideUp(elements.size, int64_t{shape.width} * kItems));
  return ForLayout(elements, [&]<bool kOneDimension, class Index>() {
    return launch(shape, CopyKernel<Convert, kOneDimension, Index>{elements, from.as<const typename Convert::From>(),
                                                                   to.as<typename Convert::To>()});
  });
}

// The same with elements of any type; both have one.
template <class Launch>
auto LaunchCopy(Launch&& launch, const View& from, const View& to) {
  switch (SizeOf(from.dtype)) {
    case 1:
      return LaunchCopy<Same<uint8_t>>(launch, from, to);
    case 2:
      return LaunchCopy<Same<uint16_t>>(launch, from, to);
    case 4:
      return LaunchCopy<Same<uint32_t>>(launch, from, to);
    default:
      return LaunchCopy<Same<uint64_t>>(launch, from, to);
  }
}

inline bool CanCast(DType from, DType to) {
  return (from == DType::kF32 && to == DType::kBF16) || (from == DType::kBF16 && to == DType::kF32);
}

template <class Launch>
auto LaunchCast(Launch&& launch, const View& from, const View& to) {
  if (to.dtype == DType::kBF16) return LaunchCopy<RoundToBf16>(launch, from, to);
  return LaunchCopy<WidenBf16>(launch, from, to);
}

struct CopyFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kCopy, KernelId::kCast};

  static Verdict Check(const Call& call) {
    Verdict verdict = Fits(call, sizeof(NoParams), 2);
    if (!verdict.ok() || call.kernel() == KernelId::kCopy) return verdict;
    if (CanCast(call.views[0].dtype, call.views[1].dtype)) return {};
    return Unsupported("cast: expected f32 to bf16 or back on this device, got " +
                       std::string(Name(call.views[0].dtype)) + " to " + std::string(Name(call.views[1].dtype)));
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    if (call.last().size() == 0) return launch.Nothing();
    if (call.kernel() == KernelId::kCopy) return LaunchCopy(launch, call.views[0], call.views[1]);
    return LaunchCast(launch, call.views[0], call.views[1]);
  }
};

}  // namespace thresher::cuda
