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
#include "thresher/kernels/precision.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// bf16, two rows of k interleaved: a 32-bit lane holds (k, j) in its lower and (k + 1, j) in its upper half, which is
// what dot-product instructions want too.
struct Bf16Panel {
  static constexpr size_t kGroup = 0;

  static HWY_INLINE size_t Bytes(size_t k) { return (k + 1) / 2 * PanelWidth() * sizeof(uint32_t); }

  template <class V>
  static HWY_INLINE V Load(TileTag d, const uint8_t* b, size_t k, size_t half, V scale) {
    (void)scale;
    const hn::RebindToUnsigned<TileTag> du;
    const auto* pairs = reinterpret_cast<const uint32_t*>(b) + (k / 2 * kPanelVectors + half) * hn::Lanes(d);
    const auto pair = hn::LoadU(du, pairs);
    return hn::BitCast(d, k % 2 == 0 ? hn::ShiftLeft<16>(pair) : hn::And(pair, hn::Set(du, 0xFFFF0000u)));
  }
};

// fp16, row after row.
struct HalfPanel {
  static constexpr size_t kGroup = 0;

  static HWY_INLINE size_t Bytes(size_t k) { return k * PanelWidth() * sizeof(uint16_t); }

  template <class V>
  static HWY_INLINE V Load(TileTag d, const uint8_t* b, size_t k, size_t half, V scale) {
    (void)scale;
    const hn::Rebind<hwy::float16_t, TileTag> dh;
    const auto* row = reinterpret_cast<const hwy::float16_t*>(b) + (k * kPanelVectors + half) * hn::Lanes(d);
    return hn::PromoteTo(d, hn::LoadU(dh, row));
  }
};

// int8, row after row. The scales of the columns are applied to the sums.
struct Int8Panel {
  static constexpr size_t kGroup = 0;

  static HWY_INLINE size_t Bytes(size_t k) { return k * PanelWidth(); }

  template <class V>
  static HWY_INLINE V Load(TileTag d, const uint8_t* b, size_t k, size_t half, V scale) {
    (void)scale;
    const hn::RebindToSigned<TileTag> di;
    const hn::Rebind<int8_t, TileTag> d8;
    const auto* row = reinterpret_cast<const int8_t*>(b) + (k * kPanelVectors + half) * hn::Lanes(d);
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, row)));
  }
};

// Signed 4-bit numbers, two rows of k to a row of bytes, the even one in the lower halves. Each group of kInt4Group rows
// is preceded by its scales in bf16, one a column.
struct Int4Panel {
  static constexpr size_t kGroup = static_cast<size_t>(kInt4Group);

  static HWY_INLINE size_t Bytes(size_t k) { return (k + 1) / 2 * PanelWidth(); }
  static HWY_INLINE size_t ScaleBytes() { return PanelWidth() * sizeof(uint16_t); }

  static HWY_INLINE hn::Vec<TileTag> Scale(TileTag d, const uint8_t* b, size_t half) {
    const hn::Rebind<hwy::bfloat16_t, TileTag> db;
    return hn::PromoteTo(d, hn::LoadU(db, reinterpret_cast<const hwy::bfloat16_t*>(b) + half * hn::Lanes(d)));
  }

  template <class V>
  static HWY_INLINE V Load(TileTag d, const uint8_t* b, size_t k, size_t half, V scale) {
    const hn::RebindToSigned<TileTag> di;
    const hn::Rebind<int8_t, TileTag> d8;
    const auto* row = reinterpret_cast<const int8_t*>(b) + (k / 2 * kPanelVectors + half) * hn::Lanes(d);
    const auto both = hn::PromoteTo(di, hn::LoadU(d8, row));
    const auto own = k % 2 == 0 ? hn::ShiftRight<28>(hn::ShiftLeft<28>(both)) : hn::ShiftRight<4>(both);
    return hn::Mul(hn::ConvertTo(d, own), scale);
  }
};

// Bytes of k rows with the scales of their groups, k being a multiple of kGroup or the last rows there are.
template <class Panel>
HWY_INLINE size_t StoredBytes(size_t k) {
  if constexpr (Panel::kGroup == 0) {
    return Panel::Bytes(k);
  } else {
    const size_t groups = (k + Panel::kGroup - 1) / Panel::kGroup;
    return groups * (Panel::ScaleBytes() + Panel::Bytes(Panel::kGroup));
  }
}

// Writes k rows of a panel, from the beginning of a group on, as floats.
template <class Panel>
HWY_NOINLINE void WidenPanel(const uint8_t* HWY_RESTRICT b, size_t k, float* HWY_RESTRICT out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const auto store = [&](size_t row, hn::Vec<TileTag> scale_a, hn::Vec<TileTag> scale_b) HWY_ATTR {
    hn::Store(Panel::Load(d, b, row, 0, scale_a), d, out + row * kPanelVectors * lanes);
    hn::Store(Panel::Load(d, b, row, 1, scale_b), d, out + (row * kPanelVectors + 1) * lanes);
  };
  while (k != 0) {
    size_t rows = k;
    auto scale_a = hn::Zero(d);
    auto scale_b = hn::Zero(d);
    if constexpr (Panel::kGroup != 0) {
      rows = std::min(k, Panel::kGroup);
      scale_a = Panel::Scale(d, b, 0);
      scale_b = Panel::Scale(d, b, 1);
      b += Panel::ScaleBytes();
    }
    size_t row = 0;
    for (; row + 2 <= rows; row += 2) {
      store(row, scale_a, scale_b);
      store(row + 1, scale_a, scale_b);
    }
    if (row < rows) store(row, scale_a, scale_b);
    b += Panel::Bytes(rows);
    out += rows * kPanelVectors * lanes;
    k -= rows;
  }
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
