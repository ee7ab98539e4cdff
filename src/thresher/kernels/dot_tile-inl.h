// The register tile of products whose operands are smaller than the sums: R rows of A times one packed panel of B.
//
// One step multiplies all that fits into 32 bits: two bf16, two int16 or four int8. B holds for each step one vector of
// such groups for either half of the panel; A's rows hold one group a step, which is broadcast. A format may take two
// steps at once and add their products before they join the sum.

#if defined(THRESHER_KERNELS_DOT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_DOT_TILE_INL_H_
#undef THRESHER_KERNELS_DOT_TILE_INL_H_
#else
#define THRESHER_KERNELS_DOT_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/bf16_rows-inl.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

using IntTag = hn::RebindToSigned<TileTag>;
using WordTag = hn::RebindToUnsigned<TileTag>;

HWY_INLINE hn::Vec<WordTag> BroadcastGroup(const uint8_t* p) {
  uint32_t group;
  std::memcpy(&group, p, sizeof(group));
  return hn::Set(WordTag(), group);
}

// `count` floats as a row of bf16, filled up to whole groups with 0.
HWY_INLINE void RowToBf16(const float* HWY_RESTRICT in, size_t count, hwy::bfloat16_t* HWY_RESTRICT row) {
  const TileTag d;
  const hn::Rebind<hwy::bfloat16_t, TileTag> db;
  const size_t lanes = hn::Lanes(d);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes) hn::StoreU(hn::DemoteTo(db, hn::LoadU(d, in + j)), db, row + j);
  if (j < count) hn::StoreN(hn::DemoteTo(db, hn::LoadN(d, in + j, count - j)), db, row + j, count - j);
  if (count % 2 != 0) row[count] = hwy::ConvertScalarTo<hwy::bfloat16_t>(0.0f);
}

// sum plus the products of pairs of int16.
template <class V16>
HWY_INLINE hn::Vec<IntTag> AddPairs(hn::Vec<WordTag> a, V16 b, hn::Vec<IntTag> sum) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && HWY_TARGET > HWY_AVX3_DL && HWY_COMPILER_GCC_ACTUAL
  // Left to itself, GCC adds the products of several steps before the sum, then spills sums for want of registers.
  decltype(sum.raw) products;
  __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(sum.raw), "=&v"(products) : "v"(a.raw), "v"(b.raw));
  return sum;
#else
  const IntTag d;
  const hn::Repartition<int16_t, IntTag> d16;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
  auto unused = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, a), b, sum, unused);
#else
  return hn::Add(sum, hn::WidenMulPairwiseAdd(d, hn::BitCast(d16, a), b));
#endif
#endif
}

// The end of a tile whose sums are float.
#undef THRESHER_DOT_STORE_AS_BF16
#undef THRESHER_DOT_END
#define THRESHER_DOT_STORE_AS_BF16(i) \
  if constexpr (i < kRows) EndRowAsBf16(rows_end, i, c##i##a, c##i##b);
#define THRESHER_DOT_END(args)                     \
  if (Dot::kNative && args.bf16) {                 \
    const TileEnd& rows_end = args;                \
    THRESHER_TILE_ROWS(THRESHER_DOT_STORE_AS_BF16) \
  } else                                           \
    THRESHER_TILE_END(args)

// Pairs of bf16; sums in float.
struct Bf16Dot {
  using Sum = float;
  using Tag = TileTag;
  static constexpr size_t kStep = 2;       // elements of k
  static constexpr size_t kLaneBytes = 4;  // of B, a column and step
  static constexpr int kMostRows = kTileRows;
  static constexpr bool kTwoSteps = false;
  static constexpr bool kNative = THRESHER_NATIVE_DOT_BF16;

  template <class V>
  static HWY_INLINE V Add(hn::Vec<WordTag> a, const uint8_t* b, V sum) {
    const Tag d;
    const hn::Repartition<hwy::bfloat16_t, Tag> db;
#if THRESHER_NATIVE_DOT_BF16
    auto unused = hn::Zero(d);
    return hn::ReorderWidenMulAccumulate(d, hn::BitCast(db, a),
                                         hn::LoadU(db, reinterpret_cast<const hwy::bfloat16_t*>(b)), sum, unused);
#else
    const WordTag du;
    (void)db;
    const auto bits = hn::LoadU(du, reinterpret_cast<const uint32_t*>(b));
    const auto high = hn::Set(du, 0xFFFF0000u);
    const auto even = hn::MulAdd(hn::BitCast(d, hn::ShiftLeft<16>(a)), hn::BitCast(d, hn::ShiftLeft<16>(bits)), sum);
    return hn::MulAdd(hn::BitCast(d, hn::And(a, high)), hn::BitCast(d, hn::And(bits, high)), even);
#endif
  }
};

#if THRESHER_INT8_QUADS

// Quads of 8 bits; sums in int32. A is unsigned on x86, as its instruction wants, and signed on Arm.
struct Int8Dot {
  using Sum = int32_t;
  using Tag = IntTag;
  static constexpr size_t kStep = 4;
  static constexpr size_t kLaneBytes = 4;
  static constexpr int kMostRows = kTileRows;
  static constexpr bool kTwoSteps = false;
  // Of A: bytes of an element, and what is subtracted from the 8-bit code 0..255 to store it.
  static constexpr size_t kRowBytes = 1;
  static constexpr int32_t kRowOffset = HWY_ARCH_X86 ? 0 : 128;
  // Whether rows are stored less their zero point, so that the sums need no correction.
  static constexpr bool kCentred = false;

  template <class V>
  static HWY_INLINE V Add(hn::Vec<WordTag> a, const uint8_t* b, V sum) {
    const Tag d;
    const hn::Repartition<int8_t, Tag> d8;
    const auto bv = hn::LoadU(d8, reinterpret_cast<const int8_t*>(b));
#if HWY_ARCH_X86
    const hn::Repartition<uint8_t, Tag> du8;
    return hn::SumOfMulQuadAccumulate(d, hn::BitCast(du8, a), bv, sum);
#elif HWY_TARGET == HWY_NEON_BF16
    (void)d;
    return V(vdotq_s32(sum.raw, hn::BitCast(d8, a).raw, bv.raw));
#else
    return hn::SumOfMulQuadAccumulate(d, hn::BitCast(d8, a), bv, sum);
#endif
  }
};

#elif THRESHER_INT8_SHORT_SUMS

// Products of uint8 and int8 added by fours in int16, then in int32. The instruction that multiplies (vpmaddubsw)
// saturates its int16, so the weights of one such four are kept small enough when they are packed (kMostShortSum). Then
// no sum leaves int16, and every one is exact.
struct Int8Dot {
  using Sum = int32_t;
  using Tag = IntTag;
  static constexpr size_t kStep = 4;
  static constexpr size_t kLaneBytes = 4;
  // Two groups of a row, their products, four vectors of B (one of them in memory where registers are few) and a vector
  // of ones share the registers with the sums.
  static constexpr int kMostRows = HWY_TARGET <= HWY_AVX3 ? 11 : 4;
  static constexpr bool kTwoSteps = true;
  static constexpr size_t kRowBytes = 1;
  static constexpr int32_t kRowOffset = 0;
  static constexpr bool kCentred = false;

  using ShortTag = hn::Repartition<int16_t, IntTag>;

  template <class V>
  static HWY_INLINE V Add(hn::Vec<WordTag> a, const uint8_t* b, V sum) {
    return Widen(Products(a, LoadB(b)), sum);
  }

  static HWY_INLINE hn::Vec<hn::Repartition<int8_t, IntTag>> LoadB(const uint8_t* b) {
    return hn::LoadU(hn::Repartition<int8_t, IntTag>(), reinterpret_cast<const int8_t*>(b));
  }

  // sum + a0 * b0 + a1 * b1.
  template <class V8, class V16, class V>
  static HWY_INLINE V AddTwo(hn::Vec<WordTag> a0, hn::Vec<WordTag> a1, V8 b0, V8 b1, V16 ones, V sum) {
#if HWY_COMPILER_GCC_ACTUAL
    // Left to itself, GCC adds the products of several rows before their sums, then spills sums for want of registers.
    decltype(sum.raw) first, second;
    __asm__(
        "vpmaddubsw %5, %3, %1\n\tvpmaddubsw %6, %4, %2\n\tvpaddw %2, %1, %1\n\tvpmaddwd %7, %1, %1\n\t"
        "vpaddd %1, %0, %0"
        : "+v"(sum.raw), "=&v"(first), "=&v"(second)
        : "v"(a0.raw), "v"(a1.raw), "v"(b0.raw), "vm"(b1.raw), "v"(ones.raw));
    return sum;
#else
    const IntTag d;
    return hn::Add(sum, hn::WidenMulPairwiseAdd(d, hn::Add(Products(a0, b0), Products(a1, b1)), ones));
#endif
  }

 private:
  template <class V8>
  static HWY_INLINE hn::Vec<ShortTag> Products(hn::Vec<WordTag> a, V8 b) {
    return hn::SatWidenMulPairwiseAdd(ShortTag(), hn::BitCast(hn::Repartition<uint8_t, IntTag>(), a), b);
  }
  template <class V>
  static HWY_INLINE V Widen(hn::Vec<ShortTag> products, V sum) {
    return hn::Add(sum, hn::WidenMulPairwiseAdd(IntTag(), products, hn::Set(ShortTag(), 1)));
  }
};

#else

// Pairs of int8 widened to int16; sums in int32.
struct Int8Dot {
  using Sum = int32_t;
  using Tag = IntTag;
  static constexpr size_t kStep = 2;
  static constexpr size_t kLaneBytes = 2;
  static constexpr int kMostRows = kTileRows;
  static constexpr bool kTwoSteps = false;
  static constexpr size_t kRowBytes = 2;
  static constexpr int32_t kRowOffset = 0;
  static constexpr bool kCentred = true;

  template <class V>
  static HWY_INLINE V Add(hn::Vec<WordTag> a, const uint8_t* b, V sum) {
    const hn::Repartition<int16_t, Tag> d16;
    const hn::Rebind<int8_t, decltype(d16)> d8;
    return AddPairs(a, hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(b))), sum);
  }
};

#endif

// What a tile computes: out = init + a * b, ended as TileEnd says.
struct DotTileArgs : TileEnd {
  const uint8_t* a;  // rows lda bytes apart
  size_t lda;
  const uint8_t* b;
  size_t steps;
  const void* init;  // Sum, rows init_ld elements apart (0: one row for all), or null for zeros
  size_t init_ld;
  Fetch fetch;
  bool padded = true;  // whether rows have zeros behind the steps, up to a whole tile of a matrix unit
};

// Of the pairs of turns, how many at first have more to fetch than a line of panels each, into L2.
HWY_INLINE size_t OtherTurns(const Fetch& fetch, const ResultLines& result) {
  return fetch.lines != 1 || fetch.into_l1 ? std::numeric_limits<size_t>::max() : (result.rows() + 1) / 2;
}

// Two steps of all rows: step(i) with u of 0 and 1, or two_steps(i) where two belong together, of the panel at `b`,
// which goes on.
#undef THRESHER_DOT_PANEL_TURN
#define THRESHER_DOT_PANEL_TURN(step, two_steps)                \
  if constexpr (Dot::kTwoSteps) {                               \
    const auto ones = hn::Set(typename Dot::ShortTag(), 1);     \
    const auto b0a = Dot::LoadB(b);                             \
    [[maybe_unused]] const auto b0b = Dot::LoadB(b + half);     \
    const auto b1a = Dot::LoadB(b + 2 * half);                  \
    [[maybe_unused]] const auto b1b = Dot::LoadB(b + 3 * half); \
    THRESHER_TILE_ROWS(two_steps)                               \
  } else {                                                      \
    {                                                           \
      constexpr size_t u = 0;                                   \
      THRESHER_TILE_ROWS(step)                                  \
    }                                                           \
    {                                                           \
      constexpr size_t u = 1;                                   \
      THRESHER_TILE_ROWS(step)                                  \
    }                                                           \
  }                                                             \
  b += 4 * half;

// kMultiplied: of the vectors of the panel, those that hold more than padding; what the others sum up is not computed.
template <class Dot, int kRows, int kMultiplied>
HWY_NOINLINE void RunDotTile(const DotTileArgs& args) {
  const typename Dot::Tag d;
  using V = hn::Vec<typename Dot::Tag>;
  using Sum = typename Dot::Sum;
  const size_t lanes = hn::Lanes(d);
  const size_t half = lanes * Dot::kLaneBytes;
  size_t lda = args.lda;
  size_t lda2 = 2 * lda;
  const uint8_t* HWY_RESTRICT b = args.b;
  const Fetch fetch = args.fetch;
  const uint8_t* fetched = fetch.from;
  const uint8_t* HWY_RESTRICT a0 = args.a;
  const uint8_t* HWY_RESTRICT a1 = a0 + 3 * lda;
  const uint8_t* HWY_RESTRICT a2 = a1 + 3 * lda;
  const uint8_t* HWY_RESTRICT a3 = a2 + 3 * lda;
  const uint8_t* HWY_RESTRICT a4 = a3 + 3 * lda;
  const Sum* init = static_cast<const Sum*>(args.init);

#define THRESHER_DOT_DECLARE(i)                                \
  V c##i##a = hn::Zero(d);                                     \
  V c##i##b = hn::Zero(d);                                     \
  if constexpr (i < kRows) {                                   \
    if (init != nullptr) {                                     \
      c##i##a = hn::LoadU(d, init + i * args.init_ld);         \
      c##i##b = hn::LoadU(d, init + i * args.init_ld + lanes); \
    }                                                          \
  }
  THRESHER_TILE_ROWS(THRESHER_DOT_DECLARE)

#define THRESHER_DOT_STEP(i)                                                              \
  if constexpr (i < kRows) {                                                              \
    const uint8_t* p = i < 3 ? a0 : i < 6 ? a1 : i < 9 ? a2 : i < 12 ? a3 : a4;           \
    const auto av = BroadcastGroup(p + THRESHER_TILE_DISTANCE(i) + u * sizeof(uint32_t)); \
    c##i##a = Dot::Add(av, b + 2 * u * half, c##i##a);                                    \
    if constexpr (kMultiplied > 1) {                                                      \
      c##i##b = Dot::Add(av, b + (2 * u + 1) * half, c##i##b);                            \
    }                                                                                     \
  }

#define THRESHER_DOT_TWO_STEPS(i)                                               \
  if constexpr (i < kRows) {                                                    \
    const uint8_t* p = i < 3 ? a0 : i < 6 ? a1 : i < 9 ? a2 : i < 12 ? a3 : a4; \
    const auto first = BroadcastGroup(p + THRESHER_TILE_DISTANCE(i));           \
    const auto second = BroadcastGroup(p + THRESHER_TILE_DISTANCE(i) + 4);      \
    c##i##a = Dot::AddTwo(first, second, b0a, b1a, ones, c##i##a);              \
    if constexpr (kMultiplied > 1) {                                            \
      c##i##b = Dot::AddTwo(first, second, b0b, b1b, ones, c##i##b);            \
    }                                                                           \
  }

#define THRESHER_DOT_TURN()                                            \
  {                                                                    \
    THRESHER_DOT_PANEL_TURN(THRESHER_DOT_STEP, THRESHER_DOT_TWO_STEPS) \
    a0 += 8, a1 += 8, a2 += 8, a3 += 8, a4 += 8;                       \
  }

  size_t steps = args.steps;
  ResultLines result(args, kRows, steps / 2);
  const auto fetch_lines = [&]() HWY_ATTR {
    result.Turn();
    FetchLines(fetch, fetched);
    fetched += 64 * fetch.lines;
  };
  if constexpr (kTwoTurns<kRows, 1>) {
    size_t others = OtherTurns(fetch, result);
    for (; steps >= 4; steps -= 4) {
      THRESHER_TILE_KEEP_DISTANCES(lda, lda2)
      if (others != 0) {
        --others;
        fetch_lines();
        fetch_lines();
      } else {
        FetchTwoLines(fetched);
        fetched += 128;
      }
      THRESHER_DOT_TURN()
      THRESHER_DOT_TURN()
    }
    HWY_ASSUME(steps < 4);
  }
  for (; steps >= 2; steps -= 2) {
    fetch_lines();
    THRESHER_DOT_TURN()
  }
  if (steps != 0) {
    constexpr size_t u = 0;
    THRESHER_TILE_ROWS(THRESHER_DOT_STEP)
  }

  constexpr int kVectors = kPanelVectors;
  if constexpr (std::is_same_v<Sum, float>) {
    THRESHER_DOT_END(args)
  } else {
    const TileEnd& end = args;
    Sum* const out = static_cast<Sum*>(end.out);
    THRESHER_TILE_ROWS(THRESHER_TILE_STORE)
  }
#undef THRESHER_DOT_DECLARE
#undef THRESHER_DOT_STEP
#undef THRESHER_DOT_TWO_STEPS
#undef THRESHER_DOT_TURN
}

using DotTileFunction = void (*)(const DotTileArgs&);

template <class Dot, int kMultiplied, size_t... I>
constexpr DotTileFunction DotTileAt(size_t index, std::index_sequence<I...>) {
  constexpr DotTileFunction table[] = {&RunDotTile<Dot, static_cast<int>(I) + 1, kMultiplied>...};
  return table[index];
}

// 1 <= rows <= Dot::kMostRows.
template <class Dot, int kMultiplied = kPanelVectors>
HWY_INLINE DotTileFunction DotTileForRows(size_t rows) {
  HWY_ASSUME(rows >= 1 && rows <= static_cast<size_t>(Dot::kMostRows));
  return DotTileAt<Dot, kMultiplied>(rows - 1, std::make_index_sequence<static_cast<size_t>(Dot::kMostRows)>());
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
