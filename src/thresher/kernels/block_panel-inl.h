// Weights in blocks, laid out as panels, and how their codes are multiplied; see gemm_block.h.

#if defined(THRESHER_KERNELS_BLOCK_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_BLOCK_PANEL_INL_H_
#undef THRESHER_KERNELS_BLOCK_PANEL_INL_H_
#else
#define THRESHER_KERNELS_BLOCK_PANEL_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "thresher/base/encoding.h"
#include "thresher/base/half.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

using CodeTag = hn::Repartition<uint8_t, IntTag>;
using Codes = hn::Vec<CodeTag>;

// Four codes a lane are multiplied at a time, and always two such quads.
inline constexpr size_t kGroupPairs = 4;

// Whether the instruction that multiplies wants one factor unsigned and sums in int32: then all codes are.
#define THRESHER_UNSIGNED_CODES (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL)

#if THRESHER_INT8_SHORT_SUMS

using ShortTag = hn::Repartition<int16_t, IntTag>;
using Shorts = hn::Vec<ShortTag>;

// sum + w * a, in sums of two products; kFirst: there is no sum yet.
template <bool kFirst>
HWY_INLINE Shorts AddProducts(Codes w, hn::Vec<WordTag> a, Shorts sum) {
  const hn::Repartition<int8_t, IntTag> d8;
#if HWY_COMPILER_GCC_ACTUAL
  // Left to itself, GCC adds the products of several quads before the sum, then spills sums for want of registers.
  if constexpr (!kFirst) {
    Shorts products;
    __asm__("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(sum.raw), "=&v"(products.raw) : "v"(w.raw), "v"(a.raw));
    return sum;
  }
#endif
  const auto products = hn::SatWidenMulPairwiseAdd(ShortTag(), w, hn::BitCast(d8, a));
  return kFirst ? products : hn::Add(sum, products);
}

HWY_INLINE hn::Vec<IntTag> AddSums(Shorts products, hn::Vec<IntTag> sum) {
  const auto ones = hn::Set(ShortTag(), 1);
#if HWY_COMPILER_GCC_ACTUAL
  __asm__("vpmaddwd %2, %1, %1\n\tvpaddd %1, %0, %0" : "+v"(sum.raw), "+v"(products.raw) : "v"(ones.raw));
  return sum;
#else
  return hn::Add(sum, hn::WidenMulPairwiseAdd(IntTag(), products, ones));
#endif
}

HWY_INLINE Codes Magnitudes(Codes w) {
  return hn::BitCast(CodeTag(), hn::Abs(hn::BitCast(hn::Repartition<int8_t, IntTag>(), w)));
}

// sum + w * a, where w has 8 bits and a sign: |w| times a with w's sign, so that two products are at most 2 * 128 *
// 127, which fits into int16.
HWY_INLINE hn::Vec<IntTag> AddWideCodes(Codes codes, Codes magnitudes, hn::Vec<WordTag> a, hn::Vec<IntTag> sum) {
  const hn::Repartition<int8_t, IntTag> d8;
  const auto w = hn::BitCast(d8, codes);
#if HWY_TARGET == HWY_AVX2
  const hn::Vec<decltype(d8)> turned{_mm256_sign_epi8(hn::BitCast(d8, a).raw, w.raw)};
#else
  const auto turned = hn::MaskedSubOr(hn::BitCast(d8, a), hn::Lt(w, hn::Zero(d8)), hn::Zero(d8), hn::BitCast(d8, a));
#endif
  return AddSums(hn::SatWidenMulPairwiseAdd(ShortTag(), magnitudes, turned), sum);
}

#else

// sum + w0 * a0 + w1 * a1. Where they are not unsigned, wide codes have 8 bits and a sign; all others fit into 6 bits.
HWY_INLINE hn::Vec<IntTag> AddCodes(Codes w0, Codes w1, hn::Vec<WordTag> a0, hn::Vec<WordTag> a1, hn::Vec<IntTag> sum) {
  const IntTag d;
  const hn::Repartition<int8_t, IntTag> d8;
#if THRESHER_UNSIGNED_CODES
  sum = hn::SumOfMulQuadAccumulate(d, w0, hn::BitCast(d8, a0), sum);
  return hn::SumOfMulQuadAccumulate(d, w1, hn::BitCast(d8, a1), sum);
#elif HWY_TARGET == HWY_NEON_BF16
  (void)d;
  const auto half = vdotq_s32(sum.raw, hn::BitCast(d8, w0).raw, hn::BitCast(d8, a0).raw);
  return hn::Vec<IntTag>(vdotq_s32(half, hn::BitCast(d8, w1).raw, hn::BitCast(d8, a1).raw));
#else
  sum = hn::SumOfMulQuadAccumulate(d, hn::BitCast(d8, w0), hn::BitCast(d8, a0), sum);
  return hn::SumOfMulQuadAccumulate(d, hn::BitCast(d8, w1), hn::BitCast(d8, a1), sum);
#endif
}

#endif

// Loads of one value a column, of the left or the right half, from values of a whole panel.

HWY_INLINE hn::Vec<TileTag> HalvesAt(const uint8_t* values, size_t half) {
  const TileTag d;
  const hn::Rebind<uint16_t, TileTag> d16;
  return Widen<F16>(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(values) + half * hn::Lanes(d)));
}

template <class T>
HWY_INLINE hn::Vec<TileTag> BytesAt(const uint8_t* values, size_t half) {
  const TileTag d;
  const IntTag di;
  const hn::Rebind<T, IntTag> d8;
  return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const T*>(values) + half * hn::Lanes(d))));
}

HWY_INLINE hn::Vec<WordTag> WordsAt(const uint8_t* words, size_t index, size_t half) {
  const WordTag d;
  return hn::LoadU(d, reinterpret_cast<const uint32_t*>(words) + (index * kPanelVectors + half) * hn::Lanes(d));
}

// A panel of one format: for every block the floats of 256 numbers, if it has such, then for every group of 32 rows of
// k its scales and offsets, and its codes.
template <Encoding E>
struct BlockPanel {
  static constexpr bool kSuper = BlockNumbers(E) != kGroupNumbers;
  static constexpr size_t kBlockGroups = static_cast<size_t>(BlockNumbers(E)) / kGroupNumbers;
  static constexpr bool kHasOffset =
      E == Encoding::kQ4_1 || E == Encoding::kQ5_1 || E == Encoding::kQ4K || E == Encoding::kQ5K;
  static constexpr bool kHalves = E == Encoding::kQ6K;  // whether the halves of a group have scales of their own
  static constexpr bool kTable = E == Encoding::kIq4Nl || E == Encoding::kMxfp4;
  static constexpr int kBits = E == Encoding::kQ8_0                                                  ? 8
                               : E == Encoding::kQ6K                                                 ? 6
                               : E == Encoding::kQ5_0 || E == Encoding::kQ5_1 || E == Encoding::kQ5K ? 5
                                                                                                     : 4;
  static constexpr bool kWide = E == Encoding::kQ8_0 || E == Encoding::kIq4Nl;
  // Codes are 2 to the power of kShift more than the levels they stand for; 0: they are the levels.
  static constexpr int kShift = kWide                                           ? (THRESHER_UNSIGNED_CODES ? 7 : 0)
                                : E == Encoding::kQ4_0                          ? 3
                                : E == Encoding::kQ5_0 || E == Encoding::kMxfp4 ? 4
                                : E == Encoding::kQ6K                           ? 5
                                                                                : 0;
  // Where products add up in int16, whether those of codes less the middle of their range do: 16 of a sum of 5 bits are
  // at most 16 * 16 * 127, 8 of 6 bits 8 * 32 * 127. Sums of 4 bits fit in as they are.
  static constexpr bool kCentred = THRESHER_INT8_SHORT_SUMS && !kWide && (kBits > 4 || kTable);
  // Whether unpacking codes takes so long that it is done once for many rows.
  static constexpr bool kUnpacks = kBits != 8;

  static HWY_INLINE size_t BlockHeader() { return kSuper ? (kHasOffset ? 2 : 1) * sizeof(uint16_t) * PanelWidth() : 0; }
  static HWY_INLINE size_t GroupHeader() {
    if (E == Encoding::kMxfp4) return PanelWidth();
    return (kSuper ? 2 : kHasOffset ? 4 : 2) * PanelWidth();
  }
  static HWY_INLINE size_t GroupBytes() { return GroupHeader() + static_cast<size_t>(kBits) * 4 * PanelWidth(); }
  static HWY_INLINE size_t Bytes(size_t groups) {
    return groups / kBlockGroups * BlockHeader() + groups * GroupBytes();
  }

  // Scale of a half (kHalves) of a group and offset of a group; `block` is where its block begins.
  static HWY_INLINE hn::Vec<TileTag> Scale(const uint8_t* block, const uint8_t* group, size_t half, size_t part) {
    if constexpr (E == Encoding::kMxfp4) {
      const TileTag d;
      const IntTag di;
      const hn::Rebind<uint8_t, IntTag> d8;
      const auto exponent = hn::PromoteTo(di, hn::LoadU(d8, group + half * hn::Lanes(d)));
      const auto normal = hn::ShiftLeft<23>(hn::Sub(exponent, hn::Set(di, 1)));
      const auto small =
          hn::IfThenElse(hn::Eq(exponent, hn::Zero(di)), hn::Set(di, 0x00200000), hn::Set(di, 0x00400000));
      return hn::BitCast(d, hn::IfThenElse(hn::Lt(exponent, hn::Set(di, 2)), small, normal));
    } else if constexpr (E == Encoding::kQ6K) {
      return hn::Mul(HalvesAt(block, half), BytesAt<int8_t>(group + part * PanelWidth(), half));
    } else if constexpr (kSuper) {
      return hn::Mul(HalvesAt(block, half), BytesAt<uint8_t>(group, half));
    } else {
      return HalvesAt(group, half);
    }
  }
  static HWY_INLINE hn::Vec<TileTag> Offset(const uint8_t* block, const uint8_t* group, size_t half) {
    if constexpr (kSuper) {
      return hn::Neg(hn::Mul(HalvesAt(block + 2 * PanelWidth(), half), BytesAt<uint8_t>(group + PanelWidth(), half)));
    } else {
      return HalvesAt(group + 2 * PanelWidth(), half);
    }
  }

  // Quad 2 * pair + odd of a group.
  template <int pair, int odd>
  static HWY_INLINE Codes Quad(const uint8_t* group, size_t half) {
    const WordTag d;
    const CodeTag d8;
    const uint8_t* const words = group + GroupHeader();
    if constexpr (kBits == 8) return hn::BitCast(d8, WordsAt(words, 2 * pair + odd, half));
    auto nibbles = WordsAt(words, pair, half);
    if constexpr (odd != 0) nibbles = hn::ShiftRight<4>(nibbles);
    auto codes = hn::And(nibbles, hn::Set(d, 0x0F0F0F0Fu));
    if constexpr (kTable) return hn::TableLookupBytes(hn::LoadDup128(d8, Levels()), hn::BitCast(d8, codes));
    if constexpr (kBits == 5) {
      constexpr int quad = 2 * pair + odd;
      const auto bits = WordsAt(words, 4, half);
      const auto moved =
          quad < 4 ? hn::ShiftLeft < quad<4 ? 4 - quad : 0>(bits) : hn::ShiftRight < quad<4 ? 0 : quad - 4>(bits);
      codes = hn::OrAnd(codes, moved, hn::Set(d, 0x10101010u));
    } else if constexpr (kBits == 6) {
      constexpr int place = 2 * (2 * (pair % 2) + odd);
      const auto bits = WordsAt(words, 4 + pair / 2, half);
      const auto moved =
          place < 4 ? hn::ShiftLeft < place<4 ? 4 - place : 0>(bits) : hn::ShiftRight < place<4 ? 0 : place - 4>(bits);
      codes = hn::OrAnd(codes, moved, hn::Set(d, 0x30303030u));
    }
    return hn::BitCast(d8, codes);
  }

  // What column `column` of the panel has in a group, as it stands there.
  static void Store(const BlockGroup& from, size_t column, uint8_t* block, uint8_t* group) {
    const size_t width = PanelWidth();
    const auto store16 = [](uint8_t* to, uint16_t bits) { std::memcpy(to, &bits, sizeof(bits)); };
    if constexpr (E == Encoding::kMxfp4) {
      group[column] = from.exponent;
    } else if constexpr (kSuper) {
      store16(block + 2 * column, from.scale);
      if (kHasOffset) store16(block + 2 * (width + column), from.offset);
      group[column] = from.factor[0];
      group[width + column] = from.factor[1];
    } else {
      store16(group + 2 * column, from.scale);
      if (kHasOffset) store16(group + 2 * (width + column), from.offset);
    }
    uint32_t quads[8];
    std::memcpy(quads, from.codes, sizeof(quads));
    const auto store = [&](size_t index, uint32_t word) {
      std::memcpy(group + GroupHeader() + (index * width + column) * sizeof(word), &word, sizeof(word));
    };
    if constexpr (kBits == 8) {
      for (size_t q = 0; q < 8; ++q) store(q, kShift == 0 ? quads[q] : quads[q] ^ 0x80808080u);
    } else {
      for (size_t pair = 0; pair < kGroupPairs; ++pair) {
        store(pair, (quads[2 * pair] & 0x0F0F0F0Fu) | (quads[2 * pair + 1] & 0x0F0F0F0Fu) << 4);
      }
    }
    if constexpr (kBits == 5) {
      uint32_t word = 0;
      for (size_t q = 0; q < 8; ++q) word |= (quads[q] >> 4 & 0x01010101u) << q;
      store(4, word);
    } else if constexpr (kBits == 6) {
      for (size_t h = 0; h < 2; ++h) {
        uint32_t word = 0;
        for (size_t q = 0; q < 4; ++q) word |= (quads[4 * h + q] >> 4 & 0x03030303u) << (2 * q);
        store(4 + h, word);
      }
    }
  }

 private:
  // What the 16 codes of a table are multiplied as.
  static const uint8_t* Levels() {
    alignas(16) static constexpr auto table = [] {
      struct {
        uint8_t levels[16];
      } made{};
      constexpr int kIq4Nl[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
      constexpr int kMxfp4[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
      for (int i = 0; i < 16; ++i) {
        const int level = E == Encoding::kIq4Nl ? kIq4Nl[i] : kMxfp4[i];
        made.levels[i] = static_cast<uint8_t>(level + (kShift == 0 ? 0 : 1 << kShift));
      }
      return made;
    }();
    return table.levels;
  }
};

// The same, unpacked: for every group its scales and offsets as floats, then codes one a byte.
template <int shift, bool centred, bool wide, bool halves, bool has_offset>
struct UnpackedPanel {
  static constexpr int kShift = shift;
  static constexpr bool kCentred = centred;
  static constexpr bool kWide = wide;
  static constexpr bool kHalves = halves;
  static constexpr bool kHasOffset = has_offset;
  static constexpr bool kSuper = false;
  static constexpr size_t kBlockGroups = 1;
  static constexpr size_t kFloats = (kHalves ? 2 : 1) + (kHasOffset ? 1 : 0);

  static HWY_INLINE size_t BlockHeader() { return 0; }
  static HWY_INLINE size_t GroupHeader() { return kFloats * PanelWidth() * sizeof(float); }
  static HWY_INLINE size_t GroupBytes() { return GroupHeader() + kGroupNumbers * PanelWidth(); }

  static HWY_INLINE float* FloatsAt(const uint8_t* group, size_t index, size_t half) {
    const size_t at = (index * kPanelVectors + half) * hn::Lanes(TileTag());
    return reinterpret_cast<float*>(const_cast<uint8_t*>(group)) + at;
  }
  static HWY_INLINE hn::Vec<TileTag> Scale(const uint8_t*, const uint8_t* group, size_t half, size_t part) {
    return hn::LoadU(TileTag(), FloatsAt(group, part, half));
  }
  static HWY_INLINE hn::Vec<TileTag> Offset(const uint8_t*, const uint8_t* group, size_t half) {
    return hn::LoadU(TileTag(), FloatsAt(group, kFloats - 1, half));
  }
  template <int pair, int odd>
  static HWY_INLINE Codes Quad(const uint8_t* group, size_t half) {
    return hn::BitCast(CodeTag(), WordsAt(group + GroupHeader(), 2 * pair + odd, half));
  }
};

template <class Packed>
using Unpacked = UnpackedPanel<Packed::kShift, Packed::kCentred, Packed::kWide, Packed::kHalves, Packed::kHasOffset>;

// Calls f(quad, codes) for the eight quads of a half of a group.
template <class Panel, class F>
HWY_INLINE void ForQuads(const uint8_t* group, size_t half, const F& f) {
  f(0, Panel::template Quad<0, 0>(group, half));
  f(1, Panel::template Quad<0, 1>(group, half));
  f(2, Panel::template Quad<1, 0>(group, half));
  f(3, Panel::template Quad<1, 1>(group, half));
  f(4, Panel::template Quad<2, 0>(group, half));
  f(5, Panel::template Quad<2, 1>(group, half));
  f(6, Panel::template Quad<3, 0>(group, half));
  f(7, Panel::template Quad<3, 1>(group, half));
}

// Unpacks `groups` groups, whole blocks, from `packed` on.
template <class Packed>
HWY_NOINLINE void Unpack(const uint8_t* HWY_RESTRICT packed, size_t groups, uint8_t* HWY_RESTRICT out) {
  using To = Unpacked<Packed>;
  const TileTag d;
  const WordTag dw;
  const size_t lanes = hn::Lanes(d);
  const uint8_t* block = packed;
  for (size_t g = 0; g < groups; ++g, packed += Packed::GroupBytes(), out += To::GroupBytes()) {
    if (Packed::kSuper && g % Packed::kBlockGroups == 0) {
      block = packed;
      packed += Packed::BlockHeader();
    }
    for (size_t half = 0; half < kPanelVectors; ++half) {
      hn::StoreU(Packed::Scale(block, packed, half, 0), d, To::FloatsAt(out, 0, half));
      if constexpr (Packed::kHalves) hn::StoreU(Packed::Scale(block, packed, half, 1), d, To::FloatsAt(out, 1, half));
      if constexpr (Packed::kHasOffset) {
        hn::StoreU(Packed::Offset(block, packed, half), d, To::FloatsAt(out, To::kFloats - 1, half));
      }
      auto* const words = reinterpret_cast<uint32_t*>(out + To::GroupHeader()) + half * lanes;
      const size_t next = kPanelVectors * lanes;
      ForQuads<Packed>(packed, half, [&](size_t quad, Codes codes) HWY_ATTR {
        hn::StoreU(hn::BitCast(dw, codes), dw, words + quad * next);
      });
    }
  }
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
