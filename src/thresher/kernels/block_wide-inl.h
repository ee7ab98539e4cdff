// Weights in blocks as the pairs of bf16 that a matrix unit multiplies (amx_tile-inl.h); see GemmDotArgs::wide_from.

#if defined(THRESHER_KERNELS_BLOCK_WIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_BLOCK_WIDE_INL_H_
#undef THRESHER_KERNELS_BLOCK_WIDE_INL_H_
#else
#define THRESHER_KERNELS_BLOCK_WIDE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "thresher/kernels/amx_tile-inl.h"
#include "thresher/kernels/block_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

#if THRESHER_UNIT_TARGET

static_assert(THRESHER_UNSIGNED_CODES);

// Bytes of a panel of k rows as pairs of bf16.
HWY_INLINE size_t WidePanelBytes(size_t k) { return k * PanelWidth() * sizeof(uint16_t); }

// Codes become floats by their place in one: those of kCodeBase + code are kCodeBase's with the code in bits 15 to 22.
inline constexpr float kCodeBase = 256.0f;
inline constexpr uint32_t kCodeBaseBits = 0x43800000u, kCodeBits = 0xFFu << 15;

// Any NaN as one that stays one when half a unit of bf16's last place is added to its bits.
HWY_INLINE hn::Vec<TileTag> QuietNaN(hn::Vec<TileTag> v) {
  return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(TileTag(), hn::Set(WordTag(), 0x7FC00000u)), v);
}

// Stores four rows of k of 16 columns, two vectors of pairs; a number is code * scale + base, rounded to the nearest.
HWY_INLINE void StorePairs(Codes quad, hn::Vec<TileTag> scale, hn::Vec<TileTag> base, uint32_t* HWY_RESTRICT out) {
  const TileTag d;
  const WordTag dw;
  const hn::Repartition<uint16_t, WordTag> d16;
  const auto words = hn::BitCast(dw, quad);
  const auto mask = hn::Set(dw, kCodeBits), based = hn::Set(dw, kCodeBaseBits), half = hn::Set(dw, 0x8000u);
  const auto rounded = [&](hn::Vec<WordTag> moved) HWY_ATTR {
    const auto number = hn::BitCast(d, hn::OrAnd(based, moved, mask));
    return hn::Add(hn::BitCast(dw, hn::MulAdd(number, scale, base)), half);
  };
  const auto pair = [&](hn::Vec<WordTag> low, hn::Vec<WordTag> high) HWY_ATTR {
    return hn::BitCast(dw, hn::OddEven(hn::BitCast(d16, high), hn::BitCast(d16, hn::ShiftRight<16>(low))));
  };
  hn::StoreU(pair(rounded(hn::ShiftLeft<15>(words)), rounded(hn::ShiftLeft<7>(words))), dw, out);
  hn::StoreU(pair(rounded(hn::ShiftRight<1>(words)), rounded(hn::ShiftRight<9>(words))), dw, out + PanelWidth());
}

// Widens `groups` groups, whole blocks, from `packed` on: 16 rows of pairs each.
template <class Panel>
HWY_NOINLINE void Widen(const uint8_t* HWY_RESTRICT packed, size_t groups, uint32_t* HWY_RESTRICT out) {
  const TileTag d;
  const uint8_t* block = packed;
  constexpr float kLess = kCodeBase + static_cast<float>(Panel::kShift == 0 ? 0 : 1 << Panel::kShift);
  for (size_t g = 0; g < groups; ++g, packed += Panel::GroupBytes(), out += kGroupNumbers / 2 * PanelWidth()) {
    if (Panel::kSuper && g % Panel::kBlockGroups == 0) {
      block = packed;
      packed += Panel::BlockHeader();
    }
    for (size_t half = 0; half < kPanelVectors; ++half) {
      uint32_t* const to = out + half * hn::Lanes(d);
      const auto scale_of = [&](size_t part) HWY_ATTR { return QuietNaN(Panel::Scale(block, packed, half, part)); };
      const auto scale = scale_of(0), later = Panel::kHalves ? scale_of(1) : scale;
      auto base = hn::Mul(scale, hn::Set(d, -kLess));
      if constexpr (Panel::kHasOffset) base = QuietNaN(hn::Add(base, Panel::Offset(block, packed, half)));
      const auto later_base = Panel::kHalves ? hn::Mul(later, hn::Set(d, -kLess)) : base;
      ForQuads<Panel>(packed, half, [&](size_t quad, Codes codes) HWY_ATTR {
        StorePairs(codes, quad < 4 ? scale : later, quad < 4 ? base : later_base, to + quad * 2 * PanelWidth());
      });
    }
  }
}

#endif  // THRESHER_UNIT_TARGET

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
