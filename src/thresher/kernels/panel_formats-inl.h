// Compressed forms of a packed panel, which a tile loads as floats; see FloatPanel in tile-inl.h.

#if defined(THRESHER_KERNELS_PANEL_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PANEL_FORMATS_INL_H_
#undef THRESHER_KERNELS_PANEL_FORMATS_INL_H_
#else
#define THRESHER_KERNELS_PANEL_FORMATS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// bf16, two rows of k interleaved: a 32-bit lane holds (k, j) in its lower and (k + 1, j) in its upper half, which is
// what dot-product instructions want too.
struct Bf16Panel {
  static constexpr size_t kGroup = 0;

  static HWY_INLINE size_t Bytes(size_t k) { return (k + 1) / 2 * PanelWidth() * sizeof(uint32_t); }

  static HWY_INLINE hn::Vec<TileTag> Load(TileTag d, const uint8_t* b, size_t k, size_t half) {
    const hn::RebindToUnsigned<TileTag> du;
    const auto* pairs = reinterpret_cast<const uint32_t*>(b) + (k / 2 * kPanelVectors + half) * hn::Lanes(d);
    const auto pair = hn::LoadU(du, pairs);
    return hn::BitCast(d, k % 2 == 0 ? hn::ShiftLeft<16>(pair) : hn::And(pair, hn::Set(du, 0xFFFF0000u)));
  }

#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2
  // Two bytes further ahead, lower halves lie where upper ones do: one instruction loads a number of either kind, as it
  // does a float.
  static HWY_INLINE hn::Vec<TileTag> LoadBehind(TileTag d, const uint8_t* b, size_t k, size_t half) {
    const hn::RebindToUnsigned<TileTag> du;
    const uint8_t* const pairs = b + (k / 2 * kPanelVectors + half) * hn::Lanes(d) * sizeof(uint32_t);
    const uint8_t* const from = pairs - (k % 2 == 0 ? sizeof(uint16_t) : 0);
    const auto upper = hn::BitCast(d, hn::Set(du, 0xFFFF0000u));
#if HWY_COMPILER_GCC_ACTUAL
    // Left to itself, GCC keeps two of a tile's sums on the stack.
    hn::Vec<TileTag> number;
    __asm__("vandps %1, %2, %0" : "=v"(number.raw) : "m"(*reinterpret_cast<const __m256_u*>(from)), "v"(upper.raw));
    return number;
#else
    return hn::And(upper, hn::LoadU(d, reinterpret_cast<const float*>(from)));
#endif
  }
#endif
};

// fp16, row after row.
struct HalfPanel {
  static constexpr size_t kGroup = 0;

  static HWY_INLINE size_t Bytes(size_t k) { return k * PanelWidth() * sizeof(uint16_t); }

  static HWY_INLINE hn::Vec<TileTag> Load(TileTag d, const uint8_t* b, size_t k, size_t half) {
    const hn::Rebind<uint16_t, TileTag> d16;
    return Widen<F16>(d,
                      hn::LoadU(d16, reinterpret_cast<const uint16_t*>(b) + (k * kPanelVectors + half) * hn::Lanes(d)));
  }
};

// Whether kernels of the target being compiled may meet panels for tiles of fp16.
#define THRESHER_HALF_PAIRS (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)

// fp16, two rows of k interleaved as in Bf16Panel: what tiles of fp16 want.
struct HalfPairsPanel {
  static constexpr size_t kGroup = 0;

  static HWY_INLINE size_t Bytes(size_t k) { return Bf16Panel::Bytes(k); }

  static HWY_INLINE hn::Vec<TileTag> Load(TileTag d, const uint8_t* b, size_t k, size_t half) {
    const hn::RebindToUnsigned<TileTag> du;
    const hn::Rebind<uint16_t, TileTag> d16;
    const auto pair =
        hn::LoadU(du, reinterpret_cast<const uint32_t*>(b) + (k / 2 * kPanelVectors + half) * hn::Lanes(d));
    return Widen<F16>(d, hn::TruncateTo(d16, k % 2 == 0 ? pair : hn::ShiftRight<16>(pair)));
  }
};

// int8, row after row. The scales of the columns are applied to the sums.
struct Int8Panel {
  static constexpr size_t kGroup = 0;

  static HWY_INLINE size_t Bytes(size_t k) { return k * PanelWidth(); }

  static HWY_INLINE hn::Vec<TileTag> Load(TileTag d, const uint8_t* b, size_t k, size_t half) {
    const hn::RebindToSigned<TileTag> di;
    const hn::Rebind<int8_t, TileTag> d8;
    const auto* row = reinterpret_cast<const int8_t*>(b) + (k * kPanelVectors + half) * hn::Lanes(d);
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, row)));
  }
};

// Four bits, 8 more than the number they stand for. A 32-bit lane holds eight rows of k of its column: row 2 p at bit
// 4 p and row 2 p + 1 at bit 16 + 4 p, so that one shift and one mask give a pair of int16. Each group of kInt4Group
// rows is preceded by its scales in bf16, one a column. Never loaded by a tile: see WidenPanel and gemm_dot.cc.
struct Int4Panel {
  static constexpr size_t kGroup = static_cast<size_t>(kInt4Group);
  static constexpr size_t kLaneRows = 8;

  static HWY_INLINE size_t ScaleBytes() { return PanelWidth() * sizeof(uint16_t); }
  static HWY_INLINE size_t GroupBytes() { return ScaleBytes() + kGroup / kLaneRows * PanelWidth() * sizeof(uint32_t); }

  // The scales of a group, of the left or the right half.
  static HWY_INLINE hn::Vec<TileTag> Scale(TileTag d, const uint8_t* group, size_t half) {
    const hn::Rebind<hwy::bfloat16_t, TileTag> db;
    return hn::PromoteTo(d, hn::LoadU(db, reinterpret_cast<const hwy::bfloat16_t*>(group) + half * hn::Lanes(d)));
  }

  // Rows 8 i to 8 i + 7 of a group.
  static HWY_INLINE hn::Vec<hn::RebindToUnsigned<TileTag>> Lanes(const uint8_t* group, size_t i, size_t half) {
    const hn::RebindToUnsigned<TileTag> du;
    const auto* words = reinterpret_cast<const uint32_t*>(group + ScaleBytes());
    return hn::LoadU(du, words + (i * kPanelVectors + half) * hn::Lanes(du));
  }
};

// An even row as the lower and an odd row as the upper halves of pairs.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<TileTag>> Bf16Pairs(hn::Vec<TileTag> even, hn::Vec<TileTag> odd) {
#if HWY_ARCH_X86 && THRESHER_NATIVE_DOT_BF16
  const hn::RebindToUnsigned<TileTag> du;
  const hn::Rebind<hwy::bfloat16_t, TileTag> db;
  const hn::Rebind<uint16_t, TileTag> d16;
  const auto low = hn::PromoteTo(du, hn::BitCast(d16, hn::DemoteTo(db, even)));
  return hn::Or(hn::ShiftLeft<16>(hn::PromoteTo(du, hn::BitCast(d16, hn::DemoteTo(db, odd)))), low);
#else
  return hn::Or(hn::ShiftRight<16>(RoundToBf16(TileTag(), even)), RoundToBf16(TileTag(), odd));
#endif
}

// k rows of a panel of floats, ld apart, as a Bf16Panel.
inline void EncodeBf16(const float* HWY_RESTRICT in, size_t ld, size_t k, uint8_t* HWY_RESTRICT out) {
  const TileTag d;
  const hn::RebindToUnsigned<TileTag> du;
  const size_t width = PanelWidth();
  for (size_t row = 0; row < k; row += 2) {
    for (size_t j = 0; j < width; j += hn::Lanes(d)) {
      const auto odd = row + 1 < k ? hn::LoadU(d, in + (row + 1) * ld + j) : hn::Zero(d);
      hn::StoreU(Bf16Pairs(hn::LoadU(d, in + row * ld + j), odd), du,
                 reinterpret_cast<uint32_t*>(out) + row / 2 * width + j);
    }
  }
}

// The same into a HalfPairsPanel.
inline void EncodeF16Pairs(const float* HWY_RESTRICT in, size_t ld, size_t k, uint8_t* HWY_RESTRICT out) {
  const TileTag d;
  const hn::RebindToUnsigned<TileTag> du;
  const size_t width = PanelWidth();
  for (size_t row = 0; row < k; row += 2) {
    for (size_t j = 0; j < width; j += hn::Lanes(d)) {
      const auto even = hn::PromoteTo(du, Narrow<F16>(d, hn::LoadU(d, in + row * ld + j)));
      auto odd = hn::Zero(du);
      if (row + 1 < k) odd = hn::PromoteTo(du, Narrow<F16>(d, hn::LoadU(d, in + (row + 1) * ld + j)));
      hn::StoreU(hn::Or(hn::ShiftLeft<16>(odd), even), du, reinterpret_cast<uint32_t*>(out) + row / 2 * width + j);
    }
  }
}

// Bytes of k rows with the scales of their groups, k being a multiple of kGroup or the last rows there are.
template <class Panel>
HWY_INLINE size_t StoredBytes(size_t k) {
  if constexpr (Panel::kGroup == 0) {
    return Panel::Bytes(k);
  } else {
    return (k + Panel::kGroup - 1) / Panel::kGroup * Panel::GroupBytes();
  }
}

// Writes k rows of a panel, from the beginning of a group on, as floats.
template <class Panel>
HWY_INLINE void WidenPanel(const uint8_t* HWY_RESTRICT b, size_t k, float* HWY_RESTRICT out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const auto store = [&](size_t row) HWY_ATTR {
    hn::Store(Panel::Load(d, b, row, 0), d, out + row * kPanelVectors * lanes);
    hn::Store(Panel::Load(d, b, row, 1), d, out + (row * kPanelVectors + 1) * lanes);
  };
  size_t row = 0;
  for (; row + 2 <= k; row += 2) {
    store(row);
    store(row + 1);
  }
  if (row < k) store(row);
}

template <>
HWY_INLINE void WidenPanel<Int4Panel>(const uint8_t* HWY_RESTRICT b, size_t k, float* HWY_RESTRICT out) {
  const TileTag d;
  const hn::RebindToUnsigned<TileTag> du;
  const hn::RebindToSigned<TileTag> di;
  const size_t lanes = hn::Lanes(d);
  const auto flip = hn::Set(du, 0x88888888u);  // turns "8 more" into two's complement
  for (; k != 0; b += Int4Panel::GroupBytes()) {
    const size_t rows = std::min(k, Int4Panel::kGroup);
    for (size_t half = 0; half < kPanelVectors; ++half) {
      const auto scale = Int4Panel::Scale(d, b, half);
      float* HWY_RESTRICT column = out + half * lanes;
      for (size_t row = 0; row < rows; row += Int4Panel::kLaneRows) {
        const auto numbers = hn::Xor(Int4Panel::Lanes(b, row / Int4Panel::kLaneRows, half), flip);
        const size_t count = std::min(Int4Panel::kLaneRows, rows - row);
        for (size_t i = 0; i < count; ++i) {
          // The number's sign moves to the lane's sign.
          const int shift = static_cast<int>(28 - (i / 2 * 4 + i % 2 * 16));
          const auto number = hn::ShiftRight<28>(hn::BitCast(di, hn::ShiftLeftSame(numbers, shift)));
          hn::Store(hn::Mul(hn::ConvertTo(d, number), scale), d, column + (row + i) * kPanelVectors * lanes);
        }
      }
    }
    out += rows * kPanelVectors * lanes;
    k -= rows;
  }
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
