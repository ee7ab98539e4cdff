// The register tile of products with weights in blocks: R rows of groups times one panel; see gemm_block.h.

#if defined(THRESHER_KERNELS_BLOCK_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_BLOCK_TILE_INL_H_
#undef THRESHER_KERNELS_BLOCK_TILE_INL_H_
#else
#define THRESHER_KERNELS_BLOCK_TILE_INL_H_
#endif

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "thresher/kernels/block_panel-inl.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// Integer sums begin with the bits of kSumBase, so that their bits, read as a float, are kSumBase + sum. Then
// sum * scale is that float times scale, less kSumBase * scale, rounded once: one instruction converts and scales.
#if HWY_NATIVE_FMA
inline constexpr float kSumBase = 12582912.0f;  // 1.5 * 2^23
#else
inline constexpr float kSumBase = 0.0f;
#endif
inline constexpr int32_t kSumBaseBits = std::bit_cast<int32_t>(kSumBase);

// Sums begin at kSumBase less 2^kShift times the sum of the row's codes: of a group, or of either half of it.
#if THRESHER_INT8_SHORT_SUMS
// Those in int16 of centred codes (Panel::kCentred) begin instead with less 16 times the sums of the codes that either
// of two neighbours gets, or 32 times in a half of a group; what is then missing of codes without a middle comes later.
enum RowStart : size_t { kStart3, kShortStart4, kMissing4, kShortStartFirst5, kShortStartSecond5, kRowStarts };
#else
enum RowStart : size_t { kStart3, kStart4, kStart7, kStartFirst5, kStartSecond5, kRowStarts };
#endif

// 32 elements of a row.
struct RowGroup {
  int8_t codes[kGroupNumbers];
  float scale;       // with 22 bits, so that kSumBase * scale is exact; NaN where an element is none or beyond 2^100
  float minus_base;  // -kSumBase * scale
  float sum;         // of what the codes stand for
  int32_t start[kRowStarts];
};
static_assert(sizeof(RowGroup) == 64);

// out = (init ? out : 0) + a * b on `rows` x PanelWidth() elements.
struct BlockTileArgs {
  const uint8_t* a;  // RowGroups, rows lda bytes apart
  size_t lda;
  const uint8_t* b;
  size_t groups;  // whole blocks
  float* out;     // rows PanelWidth() apart
  bool init;
  // Fetched into L2 meanwhile: so many lines of 64 bytes with every group.
  const uint8_t* fetch;
  size_t fetch_lines;
  // How far ahead, in bytes, panels that are multiplied side by side are fetched, and what lies behind them.
  size_t ahead;
};

// Rows of a tile: integer sums, codes and a broadcast share the registers; sums in float are needed once a group only.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
inline constexpr int kBlockTileRows = 8;
#elif HWY_ARCH_ARM_A64
inline constexpr int kBlockTileRows = 6;
#else
inline constexpr int kBlockTileRows = 4;
#endif

#undef THRESHER_BLOCK_ROWS
#define THRESHER_BLOCK_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

#if THRESHER_INT8_SHORT_SUMS
// What the integer sum of a group begins with when it gets the sums in int16, and what these begin with.
template <class Panel>
HWY_INLINE hn::Vec<IntTag> SumStart(const RowGroup& row) {
  if constexpr (Panel::kCentred ? Panel::kHasOffset : Panel::kShift != 0) {
    return hn::Set(IntTag(), row.start[Panel::kCentred ? kMissing4 : kStart3]);
  }
  return hn::Set(IntTag(), kSumBaseBits);
}
template <class Panel>
HWY_INLINE Shorts ShortStart(const RowGroup& row, size_t half) {
  const size_t place = !Panel::kHalves ? kShortStart4 : half == 0 ? kShortStartFirst5 : kShortStartSecond5;
  return hn::BitCast(ShortTag(), hn::Set(IntTag(), row.start[place]));
}
#else
// What the integer sum of a group, or of its first or second half, begins with.
template <class Panel>
HWY_INLINE hn::Vec<IntTag> SumStart(const RowGroup& row, size_t half) {
  if constexpr (Panel::kShift == 0) return hn::Set(IntTag(), kSumBaseBits);
  if constexpr (Panel::kHalves) return hn::Set(IntTag(), row.start[half == 0 ? kStartFirst5 : kStartSecond5]);
  return hn::Set(IntTag(), row.start[Panel::kShift == 7 ? kStart7 : Panel::kShift == 4 ? kStart4 : kStart3]);
}
#endif

// What the integer sum of a group stands for, but for the scale of its weights.
HWY_INLINE hn::Vec<TileTag> ScaledSum(hn::Vec<IntTag> sum, const RowGroup& row) {
  const TileTag d;
#if HWY_NATIVE_FMA
  return hn::MulAdd(hn::BitCast(d, sum), hn::Set(d, row.scale), hn::Set(d, row.minus_base));
#else
  return hn::Mul(hn::ConvertTo(d, sum), hn::Set(d, row.scale));
#endif
}

// kTogether panels, `panel_bytes` apart, a group of each in turn; their results stand one behind the other. Each is a
// stream, of which it fetches what comes next. 0: one panel, and what `args` says is fetched.
template <class Panel, int R, int kTogether>
HWY_INLINE void RunBlockTile(const BlockTileArgs& args, size_t panel_bytes) {
  constexpr bool kStreams = kTogether != 0;
  // A panel's rows are slots behind those of the panel before it. One row takes panels in twos, and what is loaded of
  // its groups serves both.
  constexpr int kInTurn = R == 1 && kTogether > 1 ? 2 : 1;
  constexpr int kTurns = kStreams ? kTogether / kInTurn : 1;
  constexpr int kSlots = R * kInTurn * kTurns;
  static_assert(kSlots <= 8 && kTurns <= 4 && kTogether % kInTurn == 0);
  const TileTag d;
  const IntTag di;
  const size_t lanes = hn::Lanes(d);
  const size_t lda = args.lda;
  [[maybe_unused]] const size_t ahead = args.ahead;
  const uint8_t* HWY_RESTRICT a = args.a;
  const uint8_t* HWY_RESTRICT first_b = args.b;
  const uint8_t* HWY_RESTRICT first_block = first_b;
  const uint8_t* fetched = args.fetch;
  // Of few rows fetching would take a fifth of all instructions if their number were not known.
  const size_t all_lines = (Panel::GroupBytes() + 63) / 64;
  const bool fetches_all = args.fetch_lines == all_lines;
  const auto base = hn::Set(di, kSumBaseBits);

#define THRESHER_BLOCK_DECLARE(r) auto c##r##a = hn::Zero(d), c##r##b = hn::Zero(d);
#define THRESHER_BLOCK_LOAD(r)                                            \
  if constexpr (r < kSlots) {                                             \
    c##r##a = hn::Load(d, out + size_t{r} * kPanelVectors * lanes);       \
    c##r##b = hn::Load(d, out + (size_t{r} * kPanelVectors + 1) * lanes); \
  }
#define THRESHER_BLOCK_STORE(r)                                           \
  if constexpr (r < kSlots) {                                             \
    hn::Store(c##r##a, d, out + size_t{r} * kPanelVectors * lanes);       \
    hn::Store(c##r##b, d, out + (size_t{r} * kPanelVectors + 1) * lanes); \
  }
  THRESHER_BLOCK_ROWS(THRESHER_BLOCK_DECLARE)
  float* const out = args.out;
  if (args.init) {
    THRESHER_BLOCK_ROWS(THRESHER_BLOCK_LOAD)
  }

  for (size_t g = 0; g < args.groups; ++g) {
    if constexpr (Panel::kSuper) {
      if (g % Panel::kBlockGroups == 0) {
        first_block = first_b;
        first_b += Panel::BlockHeader();
      }
    }
    if constexpr (!kStreams) {
      if (fetches_all) {
        for (size_t line = 0; line < all_lines; ++line) __builtin_prefetch(fetched + 64 * line, 0, 2);
        fetched += 64 * all_lines;
      } else {
        for (size_t line = args.fetch_lines; line != 0; --line, fetched += 64) __builtin_prefetch(fetched, 0, 2);
      }
    }
    const auto multiply = [&](auto turn) HWY_ATTR __attribute__((always_inline)) {
      constexpr int kFirst = decltype(turn)::value * R * kInTurn, kEnd = kFirst + R * kInTurn;
      const size_t apart = size_t{decltype(turn)::value * kInTurn} * panel_bytes;
      const uint8_t* HWY_RESTRICT b = first_b + apart;
      const uint8_t* HWY_RESTRICT block = first_block + apart;
      // Of the panel beside it, if there is one; its own else, which is not used.
      constexpr bool kBeside = kInTurn == 2;
      const size_t next = kBeside ? panel_bytes : 0;
      [[maybe_unused]] const uint8_t* HWY_RESTRICT next_b = b + next;
      [[maybe_unused]] const uint8_t* HWY_RESTRICT next_block = block + next;

#define THRESHER_BLOCK_ROW(r) reinterpret_cast<const RowGroup*>(a + size_t{r % R} * lda)
#define THRESHER_BLOCK_SUMS(r) auto s##r##a = base, s##r##b = base;
      THRESHER_BLOCK_ROWS(THRESHER_BLOCK_SUMS)

      // A pair of quads fetches its share: all lines at once are more than can be under way, and products wait. Left to
      // itself, the compiler moves them all to the front.
#define THRESHER_BLOCK_FETCH(pair)                                                                              \
  if constexpr (kStreams) {                                                                                     \
    __asm__ volatile("" ::: "memory");                                                                          \
    for (size_t line = all_lines * (pair) / kGroupPairs; line < all_lines * (pair + 1) / kGroupPairs; ++line) { \
      __builtin_prefetch(b + ahead + 64 * line, 0, 3);                                                          \
      if constexpr (kBeside) __builtin_prefetch(next_b + ahead + 64 * line, 0, 3);                              \
    }                                                                                                           \
  }
#if THRESHER_INT8_SHORT_SUMS
      // Products of wide codes are widened at once, others when all of a group, or of a half of it, are added up: only
      // then does its sum need a register.
#define THRESHER_BLOCK_SHORTS(r) auto h##r##a = hn::Zero(ShortTag()), h##r##b = hn::Zero(ShortTag());
      THRESHER_BLOCK_ROWS(THRESHER_BLOCK_SHORTS)
#define THRESHER_BLOCK_START(r) \
  if constexpr (r >= kFirst && r < kEnd) h##r##a = h##r##b = ShortStart<Panel>(*THRESHER_BLOCK_ROW(r), half);
#define THRESHER_BLOCK_STEP(r)                                                                                     \
  if constexpr (r >= kFirst && r < kEnd) {                                                                         \
    const auto av = BroadcastGroup(a + size_t{r % R} * lda + quad * 4);                                            \
    if constexpr (Panel::kWide) {                                                                                  \
      s##r##a = AddWideCodes(r - kFirst < R ? wa : wc, r - kFirst < R ? magnitudes_a : magnitudes_c, av, s##r##a); \
      s##r##b = AddWideCodes(r - kFirst < R ? wb : wd, r - kFirst < R ? magnitudes_b : magnitudes_d, av, s##r##b); \
    } else {                                                                                                       \
      h##r##a = AddProducts<kStarts>(r - kFirst < R ? wa : wc, av, h##r##a);                                       \
      h##r##b = AddProducts<kStarts>(r - kFirst < R ? wb : wd, av, h##r##b);                                       \
    }                                                                                                              \
  }
#define THRESHER_BLOCK_QUAD(pair, odd)                                                                 \
  {                                                                                                    \
    constexpr size_t quad = 2 * pair + odd, kPart = Panel::kHalves ? 4 : 8;                            \
    constexpr bool kStarts = quad == 0 && !Panel::kCentred;                                            \
    const auto wa = Panel::template Quad<pair, odd>(b, 0), wb = Panel::template Quad<pair, odd>(b, 1); \
    [[maybe_unused]] const auto magnitudes_a = Magnitudes(wa), magnitudes_b = Magnitudes(wb);          \
    [[maybe_unused]] const auto wc = kBeside ? Panel::template Quad<pair, odd>(next_b, 0) : wa,        \
                                wd = kBeside ? Panel::template Quad<pair, odd>(next_b, 1) : wb;        \
    [[maybe_unused]] const auto magnitudes_c = kBeside ? Magnitudes(wc) : magnitudes_a,                \
                                magnitudes_d = kBeside ? Magnitudes(wd) : magnitudes_b;                \
    if constexpr (Panel::kCentred && quad % kPart == 0) {                                              \
      constexpr size_t half = quad / kPart;                                                            \
      THRESHER_BLOCK_ROWS(THRESHER_BLOCK_START)                                                        \
    }                                                                                                  \
    THRESHER_BLOCK_ROWS(THRESHER_BLOCK_STEP)                                                           \
  }
#define THRESHER_BLOCK_PAIR(pair) {THRESHER_BLOCK_FETCH(pair) THRESHER_BLOCK_QUAD(pair, 0) THRESHER_BLOCK_QUAD(pair, 1)}
#define THRESHER_BLOCK_WHOLE(r)                                 \
  if constexpr (r >= kFirst && r < kEnd && !Panel::kWide) {     \
    const auto start = SumStart<Panel>(*THRESHER_BLOCK_ROW(r)); \
    s##r##a = AddSums(h##r##a, start);                          \
    s##r##b = AddSums(h##r##b, start);                          \
  }
#else
#define THRESHER_BLOCK_START(r) \
  if constexpr (r >= kFirst && r < kEnd) s##r##a = s##r##b = SumStart<Panel>(*THRESHER_BLOCK_ROW(r), half);
#define THRESHER_BLOCK_STEP(r)                                                                   \
  if constexpr (r >= kFirst && r < kEnd) {                                                       \
    const uint8_t* const codes = a + size_t{r % R} * lda + pair * 8;                             \
    const auto a0 = BroadcastGroup(codes);                                                       \
    const auto a1 = BroadcastGroup(codes + 4);                                                   \
    s##r##a = AddCodes(r - kFirst < R ? w0a : w0c, r - kFirst < R ? w1a : w1c, a0, a1, s##r##a); \
    s##r##b = AddCodes(r - kFirst < R ? w0b : w0d, r - kFirst < R ? w1b : w1d, a0, a1, s##r##b); \
  }
#define THRESHER_BLOCK_PAIR(pair_value)                                                         \
  {                                                                                             \
    constexpr size_t pair = pair_value;                                                         \
    THRESHER_BLOCK_FETCH(pair_value)                                                            \
    if constexpr (Panel::kShift != 0 && (pair == 0 || (Panel::kHalves && pair == 2))) {         \
      constexpr size_t half = pair / 2;                                                         \
      THRESHER_BLOCK_ROWS(THRESHER_BLOCK_START)                                                 \
    }                                                                                           \
    const auto w0a = Panel::template Quad<pair, 0>(b, 0);                                       \
    const auto w1a = Panel::template Quad<pair, 1>(b, 0);                                       \
    const auto w0b = Panel::template Quad<pair, 0>(b, 1);                                       \
    const auto w1b = Panel::template Quad<pair, 1>(b, 1);                                       \
    [[maybe_unused]] const auto w0c = kBeside ? Panel::template Quad<pair, 0>(next_b, 0) : w0a; \
    [[maybe_unused]] const auto w1c = kBeside ? Panel::template Quad<pair, 1>(next_b, 0) : w1a; \
    [[maybe_unused]] const auto w0d = kBeside ? Panel::template Quad<pair, 0>(next_b, 1) : w0b; \
    [[maybe_unused]] const auto w1d = kBeside ? Panel::template Quad<pair, 1>(next_b, 1) : w1b; \
    THRESHER_BLOCK_ROWS(THRESHER_BLOCK_STEP)                                                    \
  }
#define THRESHER_BLOCK_WHOLE(r)
#endif
#define THRESHER_BLOCK_SCALE(r)                                                                                    \
  if constexpr (r >= kFirst && r < kEnd) {                                                                         \
    c##r##a = hn::MulAdd(ScaledSum(s##r##a, *THRESHER_BLOCK_ROW(r)), r - kFirst < R ? scale_a : scale_c, c##r##a); \
    c##r##b = hn::MulAdd(ScaledSum(s##r##b, *THRESHER_BLOCK_ROW(r)), r - kFirst < R ? scale_b : scale_d, c##r##b); \
  }
#define THRESHER_BLOCK_OFFSET(r)                                              \
  if constexpr (r >= kFirst && r < kEnd) {                                    \
    const auto sum = hn::Set(d, THRESHER_BLOCK_ROW(r)->sum);                  \
    c##r##a = hn::MulAdd(r - kFirst < R ? offset_a : offset_c, sum, c##r##a); \
    c##r##b = hn::MulAdd(r - kFirst < R ? offset_b : offset_d, sum, c##r##b); \
  }
      THRESHER_BLOCK_PAIR(0)
      THRESHER_BLOCK_PAIR(1)
      if constexpr (Panel::kHalves) {
        THRESHER_BLOCK_ROWS(THRESHER_BLOCK_WHOLE)
        const auto scale_a = Panel::Scale(block, b, 0, 0), scale_b = Panel::Scale(block, b, 1, 0);
        [[maybe_unused]] const auto scale_c = kBeside ? Panel::Scale(next_block, next_b, 0, 0) : scale_a,
                                    scale_d = kBeside ? Panel::Scale(next_block, next_b, 1, 0) : scale_b;
        THRESHER_BLOCK_ROWS(THRESHER_BLOCK_SCALE)
      }
      THRESHER_BLOCK_PAIR(2)
      THRESHER_BLOCK_PAIR(3) {
        constexpr size_t part = Panel::kHalves ? 1 : 0;
        THRESHER_BLOCK_ROWS(THRESHER_BLOCK_WHOLE)
        const auto scale_a = Panel::Scale(block, b, 0, part), scale_b = Panel::Scale(block, b, 1, part);
        [[maybe_unused]] const auto scale_c = kBeside ? Panel::Scale(next_block, next_b, 0, part) : scale_a,
                                    scale_d = kBeside ? Panel::Scale(next_block, next_b, 1, part) : scale_b;
        THRESHER_BLOCK_ROWS(THRESHER_BLOCK_SCALE)
      }
      if constexpr (Panel::kHasOffset) {
        const auto offset_a = Panel::Offset(block, b, 0), offset_b = Panel::Offset(block, b, 1);
        [[maybe_unused]] const auto offset_c = kBeside ? Panel::Offset(next_block, next_b, 0) : offset_a,
                                    offset_d = kBeside ? Panel::Offset(next_block, next_b, 1) : offset_b;
        THRESHER_BLOCK_ROWS(THRESHER_BLOCK_OFFSET)
      }
    };
    multiply(std::integral_constant<int, 0>());
    if constexpr (kTurns > 1) multiply(std::integral_constant<int, 1>());
    if constexpr (kTurns > 2) multiply(std::integral_constant<int, 2>());
    if constexpr (kTurns > 3) multiply(std::integral_constant<int, 3>());
    a += sizeof(RowGroup);
    first_b += Panel::GroupBytes();
  }
  THRESHER_BLOCK_ROWS(THRESHER_BLOCK_STORE)
#undef THRESHER_BLOCK_DECLARE
#undef THRESHER_BLOCK_LOAD
#undef THRESHER_BLOCK_ROW
#undef THRESHER_BLOCK_SUMS
#undef THRESHER_BLOCK_START
#undef THRESHER_BLOCK_SHORTS
#undef THRESHER_BLOCK_STEP
#undef THRESHER_BLOCK_FETCH
#undef THRESHER_BLOCK_WHOLE
#undef THRESHER_BLOCK_QUAD
#undef THRESHER_BLOCK_PAIR
#undef THRESHER_BLOCK_SCALE
#undef THRESHER_BLOCK_OFFSET
#undef THRESHER_BLOCK_STORE
}

template <class Panel, int R>
HWY_NOINLINE void RunOneBlockTile(const BlockTileArgs& args) {
  RunBlockTile<Panel, R, 0>(args, 0);
}

template <class Panel, int R, int kTogether>
HWY_NOINLINE void RunBlockStreams(const BlockTileArgs& args, size_t panel_bytes) {
  RunBlockTile<Panel, R, kTogether>(args, panel_bytes);
}

template <class Panel, int kLeastRows, size_t... I>
HWY_INLINE auto BlockTileAt(size_t index, std::index_sequence<I...>) {
  static constexpr void (*kTable[])(const BlockTileArgs&) = {
      &RunOneBlockTile<Panel, static_cast<int>(I) + kLeastRows>...};
  return kTable[index];
}

// Of kLeastRows <= rows <= kMostRows.
template <class Panel, int kLeastRows, int kMostRows>
HWY_INLINE auto BlockTileForRows(size_t rows) {
  return BlockTileAt<Panel, kLeastRows>(rows - size_t{kLeastRows},
                                        std::make_index_sequence<size_t{kMostRows - kLeastRows + 1}>());
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
