// Weights as they are stored, laid out as panels.

#if defined(THRESHER_KERNELS_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PACK_INL_H_
#undef THRESHER_KERNELS_PACK_INL_H_
#else
#define THRESHER_KERNELS_PACK_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/tile-inl.h"
#include "thresher/kernels/transpose-inl.h"
#include "thresher/kernels/weight.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// Numbers of any stored type as floats, which is exact.
template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const float* HWY_RESTRICT from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const hwy::bfloat16_t* HWY_RESTRICT from) {
  return Widen<BF16>(d, hn::LoadU(hn::Rebind<uint16_t, D>(), reinterpret_cast<const uint16_t*>(from)));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadFloats(D d, const hwy::float16_t* HWY_RESTRICT from) {
  return Widen<F16>(d, hn::LoadU(hn::Rebind<uint16_t, D>(), reinterpret_cast<const uint16_t*>(from)));
}
HWY_INLINE float ToFloat(float x) { return x; }
HWY_INLINE float ToFloat(hwy::bfloat16_t x) { return hwy::F32FromBF16(x); }
HWY_INLINE float ToFloat(hwy::float16_t x) { return hwy::F32FromF16(x); }

// Transposes a 4 x 4 block: out[i * out_ld + j] = in[j * in_ld + i].
template <class T>
HWY_INLINE void Transpose4x4(const T* HWY_RESTRICT in, size_t in_ld, float* HWY_RESTRICT out, size_t out_ld) {
  const hn::FixedTag<float, 4> d;
  StoreTransposed4x4(d, LoadFloats(d, in), LoadFloats(d, in + in_ld), LoadFloats(d, in + 2 * in_ld),
                     LoadFloats(d, in + 3 * in_ld), out, static_cast<ptrdiff_t>(out_ld));
}

// Packs columns [0, columns) of b[i * stride_k + j * stride_n] into one panel of floats, filling up with zeros.
template <class T>
inline void PackPanel(const T* HWY_RESTRICT b, size_t k, size_t columns, ptrdiff_t stride_k, ptrdiff_t stride_n,
                      float* HWY_RESTRICT panel) {
  const TileTag d;
  const size_t width = PanelWidth();
  const size_t lanes = hn::Lanes(d);
  size_t done = 0;  // columns packed by the fast paths
  if (stride_n == 1 && columns == width) {
    for (size_t i = 0; i < k; ++i) {
      const T* row = b + static_cast<ptrdiff_t>(i) * stride_k;
      const auto left = LoadFloats(d, row);
      const auto right = LoadFloats(d, row + lanes);
      hn::Store(left, d, panel + i * width);
      hn::Store(right, d, panel + i * width + lanes);
    }
    return;
  }
  // The vectors that are not full; the columns are stored over them. Zeros stored one by one took longer than columns.
  for (size_t j = columns / lanes * lanes; j < width; j += lanes) {
    for (size_t i = 0; i < k; ++i) hn::Store(hn::Zero(d), d, panel + i * width + j);
  }
  if (stride_k == 1 && stride_n > 0) {
    const size_t ld = static_cast<size_t>(stride_n);
    for (; done + 4 <= columns; done += 4) {
      const T* in = b + done * ld;
      size_t i = 0;
      for (; i + 4 <= k; i += 4) Transpose4x4(in + i, ld, panel + i * width + done, width);
      for (; i < k; ++i) {
        for (size_t j = 0; j < 4; ++j) panel[i * width + done + j] = ToFloat(in[i + j * ld]);
      }
    }
  }
  if (done == columns) return;
  for (size_t i = 0; i < k; ++i) {
    float* out = panel + i * width;
    const T* in = b + static_cast<ptrdiff_t>(i) * stride_k;
    for (size_t j = done; j < columns; ++j) out[j] = ToFloat(in[static_cast<ptrdiff_t>(j) * stride_n]);
  }
}

// Panel `index` of a weight, as floats.
inline void PackPanel(const Weight& weight, size_t index, float* HWY_RESTRICT panel) {
  if (weight.taps > 1) {
    const size_t rows = static_cast<size_t>(weight.k / weight.taps);
    for (int64_t tap = 0; tap < weight.taps; ++tap) {
      PackPanel(weight.Tap(tap), index, panel + static_cast<size_t>(tap) * rows * PanelWidth());
    }
    return;
  }
  const size_t column = index * PanelWidth();
  const size_t columns = std::min(PanelWidth(), static_cast<size_t>(weight.n) - column);
  const size_t k = static_cast<size_t>(weight.k);
  const ptrdiff_t stride_k = static_cast<ptrdiff_t>(weight.stride_k);
  const ptrdiff_t stride_n = static_cast<ptrdiff_t>(weight.stride_n);
  const void* const b = weight.At(0, static_cast<int64_t>(column));
  switch (weight.encoding) {
    case Encoding::kF32:
      return PackPanel(static_cast<const float*>(b), k, columns, stride_k, stride_n, panel);
    case Encoding::kBf16:
      return PackPanel(static_cast<const hwy::bfloat16_t*>(b), k, columns, stride_k, stride_n, panel);
    case Encoding::kF16:
      return PackPanel(static_cast<const hwy::float16_t*>(b), k, columns, stride_k, stride_n, panel);
    default:
      return;  // blocks are packed by gemm_block.cc
  }
}

// Panel `index` of a weight in bf16 as a Bf16Panel: the same bits, which instructions that round to bf16 would not
// always keep (x86's have no subnormal numbers).
inline void PackBf16Pairs(const Weight& weight, size_t index, uint32_t* HWY_RESTRICT panel) {
  const size_t width = PanelWidth();
  const size_t column = index * width;
  const size_t columns = std::min(width, static_cast<size_t>(weight.n) - column);
  const size_t k = static_cast<size_t>(weight.k);
  const ptrdiff_t stride_k = static_cast<ptrdiff_t>(weight.stride_k);
  const ptrdiff_t stride_n = static_cast<ptrdiff_t>(weight.stride_n);
  const auto* const b = static_cast<const uint16_t*>(weight.At(0, static_cast<int64_t>(column)));
  size_t row = 0;
  if (stride_n == 1 && columns == width) {
    const hn::RebindToUnsigned<TileTag> du;
    const hn::Rebind<uint16_t, TileTag> d16;
    for (; row + 2 <= k; row += 2) {
      const uint16_t* const even = b + static_cast<ptrdiff_t>(row) * stride_k;
      for (size_t j = 0; j < width; j += hn::Lanes(du)) {
        const auto low = hn::PromoteTo(du, hn::LoadU(d16, even + j));
        const auto high = hn::PromoteTo(du, hn::LoadU(d16, even + stride_k + j));
        hn::StoreU(hn::Or(hn::ShiftLeft<16>(high), low), du, panel + row / 2 * width + j);
      }
    }
  } else if (stride_k == 1 && stride_n % 2 == 0 && reinterpret_cast<uintptr_t>(b) % sizeof(float) == 0) {
    // Pairs lie as pairs, and are moved as if they were floats.
    row = k / 2 * 2;
    PackPanel(reinterpret_cast<const float*>(b), k / 2, columns, 1, stride_n / 2, reinterpret_cast<float*>(panel));
  }
  for (; row < k; row += 2) {
    const uint16_t* const even = b + static_cast<ptrdiff_t>(row) * stride_k;
    for (size_t j = 0; j < width; ++j) {
      uint32_t pair = 0;
      if (j < columns) {
        const ptrdiff_t at = static_cast<ptrdiff_t>(j) * stride_n;
        pair = even[at];
        if (row + 1 < k) pair |= uint32_t{even[stride_k + at]} << 16;
      }
      panel[row / 2 * width + j] = pair;
    }
  }
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
