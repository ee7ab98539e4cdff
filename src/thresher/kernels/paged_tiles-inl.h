// Attention over pages by the tiles of a matrix unit (amx_tile-inl.h).
//
// Nothing is lost that pages have. Where they are of bf16 or fp16, queries and weights are split into two such numbers,
// of which the second is what the first leaves, and both meet the same keys or values: 16 bits in bf16, 22 in fp16. Of
// sequences from PagedAttentionArgs::wide_from on there is only the first, which vectors may multiply as well.
// Where they are of q8_0, what is multiplied are the digits of paged_quads-inl.h, whose sums are exact, so that results
// have the bits that vectors give. Either way a row has the same bits in every tile.

#if defined(THRESHER_KERNELS_PAGED_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PAGED_TILES_INL_H_
#undef THRESHER_KERNELS_PAGED_TILES_INL_H_
#else
#define THRESHER_KERNELS_PAGED_TILES_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "thresher/base/half.h"
#include "thresher/kernels/amx_tile-inl.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/paged_attention.h"
#include "thresher/kernels/paged_quads-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace unit_pages {

inline constexpr int64_t kColumns = 2 * static_cast<int64_t>(kUnitRows);  // of a panel: tokens, or numbers of values
inline constexpr int64_t kStepBytes = 2 * static_cast<int64_t>(kUnitRowBytes);
inline constexpr int64_t kPiece = 2 * static_cast<int64_t>(kUnitSteps);  // numbers of 16 bits along k in one tile

constexpr int64_t WholePieces(int64_t count) { return (count + kPiece - 1) / kPiece * kPiece; }

// Fewer rows of digits are multiplied by vectors: the bits are the same, and a tile costs as much as sixteen rows.
inline constexpr int64_t kLeastDigitRows = 9;

// Rows of numbers of 16 bits that are split in two, zeros behind them up to a whole piece.
struct SplitRows {
  uint16_t* high;
  uint16_t* low;
  int64_t ld;

  static int64_t Stride(int64_t count) {
    return static_cast<int64_t>(UnitRowStride(static_cast<size_t>(count) * sizeof(uint16_t)) / sizeof(uint16_t));
  }
  static int64_t Bytes(int64_t rows, int64_t count) {
    return 2 * rows * Stride(count) * static_cast<int64_t>(sizeof(uint16_t));
  }
  SplitRows(int64_t rows, int64_t count, void* memory)
      : high(static_cast<uint16_t*>(memory)), low(high + rows * Stride(count)), ld(Stride(count)) {}
};

// Digits of up to kUnitRows rows of weights.
struct WeightRows {
  static constexpr int64_t kLow = 0, kHigh = kChunkTokens;
  static constexpr int64_t kStride = 2 * kChunkTokens + static_cast<int64_t>(kUnitRowBytes);  // an odd number of lines
  static constexpr int64_t kBytes = static_cast<int64_t>(kUnitRows) * kStride;
};

#if THRESHER_UNIT_TARGET

// From two rows of 16 numbers of 16 bits to 16 pairs.
HWY_INLINE hn::Vec<hn::FixedTag<uint16_t, 32>> Pairs(hn::Vec<hn::FixedTag<uint16_t, 32>> rows) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const hn::FixedTag<uint16_t, 32> d;
  return hn::TableLookupLanes(rows, hn::SetTableIndices(d, kOrder));
}

template <class Half>
HWY_INLINE hn::Vec<hn::FixedTag<uint16_t, 16>> NarrowHalf(hn::Vec<hn::FixedTag<float, 16>> v) {
  // The unit takes subnormal bf16 for zeros, as the processor's instruction does.
  if constexpr (std::is_same_v<Half, BF16>) {
    return hn::BitCast(hn::FixedTag<uint16_t, 16>(), hn::DemoteTo(hn::FixedTag<hwy::bfloat16_t, 16>(), v));
  } else {
    return Narrow<Half>(hn::FixedTag<float, 16>(), v);
  }
}

// 16 numbers as two of 16 bits each, the second, unless that is null, what the first leaves. kBounded: none is
// infinite.
template <class Half, bool kBounded>
HWY_INLINE void StoreSplit(hn::Vec<hn::FixedTag<float, 16>> whole, uint16_t* HWY_RESTRICT high,
                           uint16_t* HWY_RESTRICT low) {
  const hn::FixedTag<float, 16> d;
  const hn::FixedTag<uint16_t, 16> d16;
  const auto first = NarrowHalf<Half>(whole);
  hn::StoreU(first, d16, high);
  if (low == nullptr) return;
  const auto back = Widen<Half>(d, first);
  auto rest = hn::Sub(whole, back);
  if constexpr (!kBounded) rest = hn::IfThenElseZero(hn::IsFinite(back), rest);
  hn::StoreU(NarrowHalf<Half>(rest), d16, low);
}

// Zeros behind `count` numbers, a multiple of 16, up to a whole piece.
HWY_INLINE void PadSplit(int64_t count, uint16_t* HWY_RESTRICT high, uint16_t* HWY_RESTRICT low) {
  const hn::FixedTag<uint16_t, 16> d16;
  if (count == WholePieces(count)) return;
  hn::StoreU(hn::Zero(d16), d16, high + count);
  if (low != nullptr) hn::StoreU(hn::Zero(d16), d16, low + count);
}

// x[0, count) times `factor`, `count` a multiple of 16.
template <class Half>
HWY_INLINE void Split(const float* HWY_RESTRICT x, int64_t count, float factor, uint16_t* HWY_RESTRICT high,
                      uint16_t* HWY_RESTRICT low) {
  const hn::FixedTag<float, 16> d;
  const auto f = hn::Set(d, factor);
  for (int64_t i = 0; i < count; i += 16) {
    StoreSplit<Half, false>(hn::Mul(hn::LoadU(d, x + i), f), high + i, low == nullptr ? nullptr : low + i);
  }
  PadSplit(count, high, low);
}

// Where softmax stores the weights of keys [from, end), both multiples of 16, times `factor`: they are at most 1, or
// NaN, which both numbers are then. kOnce: there is no second one.
template <class Half, bool kOnce>
struct SplitWeights {
  static constexpr bool kForBf16 = kOnce && std::is_same_v<Half, BF16>;

  uint16_t* high;
  uint16_t* low;
  int64_t from;
  int64_t end;
  float factor;

  HWY_INLINE void Store(int64_t key, hn::Vec<hn::FixedTag<float, 16>> weights) const {
    if (key < from || key >= end) return;
    const auto whole =
        std::is_same_v<Half, BF16> ? weights : hn::Mul(weights, hn::Set(hn::FixedTag<float, 16>(), factor));
    StoreSplit<Half, true>(whole, high + (key - from), kOnce ? nullptr : low + (key - from));
  }
  HWY_INLINE void Pad() const { PadSplit(end - from, high, kOnce ? nullptr : low); }
};

// The power of two that brings a row below 2^15, where two numbers of fp16 hold 22 bits of its largest one.
inline float F16Factor(const float* HWY_RESTRICT x, int64_t count) {
  const hn::FixedTag<float, 16> d;
  auto most = hn::Zero(d);
  for (int64_t i = 0; i < count; i += 16) most = hn::Max(most, hn::Abs(hn::LoadU(d, x + i)));
  const float largest = hn::ReduceMax(d, most);
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  return std::ldexp(1.0f, std::clamp(14 - std::ilogb(largest), -120, 100));
}
inline constexpr float kF16WeightFactor = 16384;  // of fp16 weights, which are at most 1

HWY_INLINE void Scale(float* HWY_RESTRICT x, int64_t count, float factor) {
  const hn::FixedTag<float, 16> d;
  for (int64_t i = 0; i < count; i += 16) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, factor)), d, x + i);
}

inline constexpr int64_t kPackedStep = 4;  // numbers of a head, or tokens, that are packed with a step of Ahead
inline constexpr int64_t kPieceSteps = 2;  // of Ahead with the products of a piece of few rows

// How many steps PackKeys and PackValues take together, and MultiplyFew of so many numbers of queries and of weights.
inline int64_t Steps(int64_t panels, int64_t depth, int64_t few) {
  const int64_t columns = (depth + kColumns - 1) / kColumns, pieces = (panels + 1) / 2;
  return pieces * (depth / kPackedStep) + panels * (kPanelTokens / kPackedStep) * columns +
         few * 2 * kPieceSteps * pieces * columns;
}

// Keys of 32 tokens, `second` those of the latter 16 or null, as a panel of pairs along the head.
inline void PackKeys(const uint16_t* HWY_RESTRICT first, const uint16_t* HWY_RESTRICT second, int64_t depth,
                     uint16_t* HWY_RESTRICT panel, few_rows::Ahead& ahead) {
  const hn::FixedTag<uint16_t, 32> d;
  for (int64_t i = 0; i < depth; i += 2, panel += 2 * kColumns) {
    if (i % kPackedStep == 0) ahead.Step();
    hn::Store(Pairs(hn::LoadU(d, first + i * kPanelTokens)), d, panel);
    hn::Store(second == nullptr ? hn::Zero(d) : Pairs(hn::LoadU(d, second + i * kPanelTokens)), d, panel + kColumns);
  }
  std::memset(panel, 0, static_cast<size_t>((WholePieces(depth) - depth) / 2 * kStepBytes));
}

// Values [column, column + 32) of 16 tokens, of which there are `count`, as eight steps of a panel of pairs of tokens;
// `rows` null: zeros.
inline void PackValues(const uint16_t* HWY_RESTRICT rows, int64_t depth, int64_t column, int64_t count,
                       uint16_t* HWY_RESTRICT panel, few_rows::Ahead& ahead) {
  const hn::FixedTag<uint16_t, 32> d;
  const hn::FixedTag<uint16_t, 16> half;
  if (rows == nullptr) {
    std::memset(panel, 0, static_cast<size_t>(kPanelTokens / 2 * kStepBytes));
    return;
  }
  for (int64_t t = 0; t < kPanelTokens; t += 2, panel += 2 * kColumns) {
    if (t % kPackedStep == 0) ahead.Step();
    for (int64_t j = 0; j < kColumns; j += 16) {
      const uint16_t* const at = rows + t * depth + column + j;
      const bool some = column + j < depth;
      const auto even = some && t < count ? hn::LoadU(half, at) : hn::Zero(half);
      const auto odd = some && t + 1 < count ? hn::LoadU(half, at + depth) : hn::Zero(half);
      hn::Store(Pairs(hn::Combine(d, odd, even)), d, panel + 2 * j);
    }
  }
}

// out = a * panel, for `count` numbers along k; `once`: of rows that were not split.
template <class Tiles>
void Multiply(Tiles& unit, const SplitRows& a, bool once, int64_t rows, int64_t count, const uint16_t* panel,
              float* out, int64_t out_ld) {
  const StepRun runs[] = {{0, 0}, {(a.low - a.high) * static_cast<ptrdiff_t>(sizeof(uint16_t)), 0}};
  const RowTiles tiles(static_cast<size_t>(rows), Tiles::kMostRows);
  UnitTileArgs tile{};
  tile.a = reinterpret_cast<const uint8_t*>(a.high);
  tile.lda = static_cast<size_t>(a.ld) * sizeof(uint16_t);
  tile.b = reinterpret_cast<const uint8_t*>(panel);
  tile.runs = runs;
  tile.num_runs = once ? 1 : 2;
  tile.steps = static_cast<size_t>(WholePieces(count) / 2);
  tile.depth = kUnitSteps;
  tile.padded = true;
  tile.out_ld = static_cast<size_t>(out_ld);
  for (size_t t = 0; t < tiles.count; ++t) {
    const size_t height = tiles.Height(t);
    tile.rows = std::min(height, kUnitRows);
    tile.second_row = height - tile.rows;
    tile.second = static_cast<ptrdiff_t>(tile.second_row * tile.lda);
    tile.out = out;
    unit.Run(tile, height > kUnitRows);
    tile.a += height * tile.lda;
    out += height * tile.out_ld;
  }
}

// The same by vectors, of rows that were not split.
template <class Dot>
void Multiply(VectorTiles<Dot>& vectors, const SplitRows& a, int64_t rows, int64_t count, const uint16_t* panel,
              float* out, int64_t out_ld) {
  const RowTiles tiles(static_cast<size_t>(rows), Dot::kMostRows);
  DotTileArgs tile{};
  tile.a = reinterpret_cast<const uint8_t*>(a.high);
  tile.lda = static_cast<size_t>(a.ld) * sizeof(uint16_t);
  tile.b = reinterpret_cast<const uint8_t*>(panel);
  tile.steps = static_cast<size_t>(count + 1) / 2;
  tile.KeepSums(out, static_cast<size_t>(out_ld));
  tile.fetch = {tile.b, 1, true};  // it is there already
  for (size_t t = 0; t < tiles.count; ++t) {
    const size_t height = tiles.Height(t);
    vectors.Run(tile, height);
    tile.a += height * tile.lda;
    tile.out = static_cast<float*>(tile.out) + height * tile.out_ld;
  }
}

// The same of rows that fit one tile, with steps of Ahead: nothing else asks memory meanwhile.
template <class Unit, class Dot>
HWY_NOINLINE void MultiplyFew(const SplitRows& a, bool once, int64_t count, const uint16_t* panel, float* out,
                              int64_t out_ld, few_rows::Ahead& ahead) {
  const size_t lda = static_cast<size_t>(a.ld) * sizeof(uint16_t), ldc = static_cast<size_t>(out_ld) * sizeof(float);
  Unit::template Zero<0>();
  Unit::template Zero<1>();
  for (const uint16_t* rows : {a.high, a.low}) {
    if (once && rows == a.low) break;
    const uint16_t* columns = panel;
    for (int64_t k = 0; k < count; k += kPiece, rows += kPiece, columns += kPiece * kColumns) {
      Unit::template Load<4>(rows, lda);
      Unit::template Load<6>(columns, kStepBytes);
      UnitDot<Unit, Dot, 0, 4, 6>();
      Unit::template Load<7>(columns + kUnitRowBytes / sizeof(uint16_t), kStepBytes);
      UnitDot<Unit, Dot, 1, 4, 7>();
      for (int64_t i = 0; i < kPieceSteps; ++i) ahead.Step();
    }
  }
  Unit::template Store<0>(out, ldc);
  Unit::template Store<1>(out + kUnitRows, ldc);
}

// The sums of rows in two digits times a panel's 32 columns: high and low, of either half of the columns.
struct DigitSums {
  alignas(64) int32_t of[2][2][kUnitRows][kUnitRows];
};

// Starts all four from zero.
template <class Unit>
HWY_INLINE void ZeroDigits() {
  Unit::template Zero<0>();
  Unit::template Zero<1>();
  Unit::template Zero<2>();
  Unit::template Zero<3>();
}

// Adds the products of both digits of rows by a tile of each half of the columns, kStepBytes a step.
template <class Unit, bool kSignedRows>
HWY_INLINE void AddDigits(const void* high, const void* low, int64_t row_bytes, const uint8_t* columns) {
  const auto stride = static_cast<size_t>(row_bytes);
  Unit::template Load<6>(columns, kStepBytes);
  Unit::template Load<4>(high, stride);
  Unit::template Load<7>(columns + kUnitRowBytes, kStepBytes);
  Unit::template Load<5>(low, stride);
  if constexpr (kSignedRows) {
    Unit::template DotInt8Uint8<0, 4, 6>();
    Unit::template DotInt8Uint8<1, 4, 7>();
    Unit::template DotInt8Uint8<2, 5, 6>();
    Unit::template DotInt8Uint8<3, 5, 7>();
  } else {
    Unit::template DotUint8Int8<0, 4, 6>();
    Unit::template DotUint8Int8<1, 4, 7>();
    Unit::template DotUint8Int8<2, 5, 6>();
    Unit::template DotUint8Int8<3, 5, 7>();
  }
}

template <class Unit>
HWY_INLINE void StoreDigits(DigitSums& sums) {
  Unit::template Store<0>(sums.of[0][0], kUnitRowBytes);
  Unit::template Store<1>(sums.of[0][1], kUnitRowBytes);
  Unit::template Store<2>(sums.of[1][0], kUnitRowBytes);
  Unit::template Store<3>(sums.of[1][1], kUnitRowBytes);
}

// Sums of keys' codes that await their scales: rows [from, to) of a tile, the first being row `row`.
struct WaitingScores {
  const DigitSums* sums = nullptr;
  int64_t row = 0, from = 0, to = 0, group = 0;

  // As quads::ScoreRows ends, of each of the `halves` halves.
  HWY_INLINE void Finish(const quads::Buffers& b, int64_t groups, const float (&key_scales)[kColumns], int64_t halves,
                         float* HWY_RESTRICT scores, int64_t scores_ld) const {
    for (int64_t r = from; r < to; ++r) {
      const int64_t at = (row + r) * groups + group;
      for (int64_t half = 0; half < halves; ++half) {
        const auto high =
            hn::Add(hn::Load(quads::Ints(), sums->of[0][half][r]), hn::Set(quads::Ints(), b.bias[2 * at]));
        const auto low =
            hn::Add(hn::Load(quads::Ints(), sums->of[1][half][r]), hn::Set(quads::Ints(), b.bias[2 * at + 1]));
        const auto scale = hn::LoadU(quads::Floats(), key_scales + half * kPanelTokens);
        float* const to = scores + (row + r) * scores_ld + half * kPanelTokens;
        const auto before = hn::LoadU(quads::Floats(), to);
        hn::StoreU(quads::AddScores(high, low, scale, b.scale[at], group == 0, before), quads::Floats(), to);
      }
    }
  }
};

// quads::Scores of 32 tokens, `second` those of the latter 16 or null. Sums get their scales while the unit multiplies
// the next rows.
template <class Unit>
void DigitScores(const uint8_t* HWY_RESTRICT first, const uint8_t* HWY_RESTRICT second, int64_t rows, int64_t depth,
                 const quads::Buffers& b, float* scores, int64_t scores_ld) {
  alignas(64) uint8_t codes[quads::kNumbers / 4 * kStepBytes] = {};
  alignas(64) float scales[kColumns] = {};
  DigitSums sums[2];
  const int64_t groups = depth / quads::kNumbers, halves = second == nullptr ? 1 : 2;
  const int64_t height = std::min(rows, static_cast<int64_t>(kUnitRows));
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t half = 0; half < halves; ++half) {
      const uint8_t* const panel = (half == 0 ? first : second) + group * quads::kBytes * kPanelTokens;
      quads::UnpackKeys(panel, kStepBytes, codes + half * static_cast<int64_t>(kUnitRowBytes),
                        scales + half * kPanelTokens);
    }
    WaitingScores waiting;
    int64_t turn = 0;
    for (int64_t row = 0; row < rows; row += height, turn ^= 1) {
      const int64_t begin =
          std::min(row, rows - height);  // what the last tile shares with the one before is done twice
      const int64_t at = begin * depth + group * quads::kNumbers;
      ZeroDigits<Unit>();
      AddDigits<Unit, true>(b.high + at, b.low + at, depth, codes);
      if (waiting.sums != nullptr) waiting.Finish(b, groups, scales, halves, scores, scores_ld);
      StoreDigits<Unit>(sums[turn]);
      waiting = {&sums[turn], begin, row - begin, height, group};
    }
    waiting.Finish(b, groups, scales, halves, scores, scores_ld);
  }
}

// quads::Sums by tiles, which take the codes of several panels side by side. `digits` has room for WeightRows.
template <class Unit>
void DigitValues(const paged::ValueBlocks& blocks, const quads::Buffers& b, const float* weights, int64_t weights_ld,
                 int64_t rows, float* sums, int64_t sums_ld, uint8_t* digits, few_rows::Ahead& ahead) {
  constexpr int64_t kKeys = kUnitRowBytes;  // in one tile
  const int64_t keys = blocks.keys, all = blocks.all();
  const int64_t whole = (keys + kKeys - 1) / kKeys * kKeys;  // what happens to lie behind the values meets digits of 0
  for (int64_t key = 0; key < keys; key += kPanelTokens) {
    std::memcpy(b.values + key * quads::kNumbers, blocks.codes(key), size_t{kPanelTokens * quads::kNumbers});
  }
  const int64_t height = std::min(rows, static_cast<int64_t>(kUnitRows));
  DigitSums found;
  for (int64_t row = 0; row < rows; row += height) {
    const int64_t begin = std::min(row, rows - height);
    float factors[kUnitRows];
    for (int64_t r = 0; r < height; ++r) {
      uint8_t* const to = digits + r * WeightRows::kStride;
      factors[r] = quads::WeightDigits(weights + (begin + r) * weights_ld, b.scales, all, to + WeightRows::kLow,
                                       to + WeightRows::kHigh);
      ahead.Step();
    }
    ZeroDigits<Unit>();
    for (int64_t key = 0; key < whole; key += kKeys) {
      AddDigits<Unit, false>(digits + WeightRows::kHigh + key, digits + WeightRows::kLow + key, WeightRows::kStride,
                             b.values + key * quads::kNumbers);
    }
    StoreDigits<Unit>(found);
    for (int64_t r = 0; r < height; ++r) {
      for (int half = 0; half < 2; ++half) {
        quads::StoreSums(hn::Load(quads::Ints(), found.of[0][half][r]), hn::Load(quads::Ints(), found.of[1][half][r]),
                         factors[r], sums + (begin + r) * sums_ld + half * static_cast<int64_t>(kUnitRows));
      }
    }
  }
}

#endif  // THRESHER_UNIT_TARGET

}  // namespace unit_pages
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
