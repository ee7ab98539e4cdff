// Attention over keys and values in q8_0 by products of pairs of int16, on processors that multiply twice as many of
// these as floats and have no dot products of int8 (AVX2).
//
// Nothing is lost that blocks have: queries, and weights times the scales of values, become integers of 16 bits with a
// scale for 32 numbers or 256 keys. Sums of integers are exact, so that a row has the same bits in every tile.

#if defined(THRESHER_KERNELS_PAGED_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PAGED_PAIRS_INL_H_
#undef THRESHER_KERNELS_PAGED_PAIRS_INL_H_
#else
#define THRESHER_KERNELS_PAGED_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/math-inl.h"
#include "thresher/kernels/paged_attention.h"
#include "thresher/kernels/paged_quads-inl.h"
#include "thresher/kernels/paged_rows-inl.h"

#define THRESHER_PAGED_PAIRS (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace pairs {

namespace hn = hwy::HWY_NAMESPACE;
using few_rows::Ahead;
using quads::kBytes;
using quads::kNumbers;
using quads::kScale;

inline constexpr int64_t kPairs = kNumbers / 2;
// Rows of a tile of scores, which has a vector of each, and of one of sums of values, which has two.
inline constexpr int64_t kScoreRows = 8, kSumRows = 5;
inline constexpr int kTurns = 4;  // of a loop at once, or sums were copied from register to register in each

// What rows are multiplied by, and room for it.
struct Buffers {
  int16_t* queries;  // [rows, depth / 2, 8, 2]: pairs of codes, eight times each; those of a tile's rows side by side
  float* scale;      // [rows, depth / 32]
  float* scales;     // [kChunkTokens]: of a block of values
  int32_t* bias;     // [32]: what is added to sums since codes of weights are too small
  int16_t* codes;    // [kSumRows, kChunkTokens]: of weights

  static int64_t QueryBytes(int64_t rows, int64_t depth) {
    return rows * depth * static_cast<int64_t>(8 * sizeof(int16_t)) +
           rows * (depth / kNumbers) * static_cast<int64_t>(sizeof(float));
  }
  static constexpr int64_t kValueBytes =
      kChunkTokens * static_cast<int64_t>(kSumRows * sizeof(int16_t) + sizeof(float)) +
      kNumbers * static_cast<int64_t>(sizeof(int32_t));

  Buffers(int64_t rows, int64_t depth, void* query_room, void* room)
      : queries(static_cast<int16_t*>(query_room)),
        scale(reinterpret_cast<float*>(queries + 8 * rows * depth)),
        scales(static_cast<float*>(room)),
        bias(reinterpret_cast<int32_t*>(scales + kChunkTokens)),
        codes(reinterpret_cast<int16_t*>(bias + kNumbers)) {}
};

#if THRESHER_PAGED_PAIRS

using Floats = hn::FixedTag<float, 8>;
using Ints = hn::FixedTag<int32_t, 8>;
using Shorts = hn::FixedTag<int16_t, 16>;
using Halves = hn::FixedTag<uint16_t, 8>;
using Bytes = hn::FixedTag<int8_t, 16>;
inline constexpr int64_t kLanes = 8;

// Numbers whose magnitude is below 2^15 and a half, rounded, in two vectors side by side.
HWY_INLINE hn::Vec<Shorts> Round(hn::Vec<Floats> a, hn::Vec<Floats> b) {
  // In the magic number's units the sum is whole; its bits are the number's then, but for a constant.
  const auto magic = hn::Set(Floats(), 12582912.0f);
  const auto bits = hn::BitCast(Ints(), magic);
  const auto whole = [&](hn::Vec<Floats> x) HWY_ATTR { return hn::Sub(hn::BitCast(Ints(), hn::Add(x, magic)), bits); };
  return hn::OrderedDemote2To(Shorts(), whole(a), whole(b));
}

// How many steps Scores and Sums take together.
inline int64_t Steps(int64_t rows, int64_t panels, int64_t groups) {
  const int64_t score_tiles = (rows + kScoreRows - 1) / kScoreRows, sum_tiles = (rows + kSumRows - 1) / kSumRows;
  return (score_tiles * kPanelTokens + sum_tiles * kNumbers) / kLanes * groups * panels;
}

// Queries [rows, depth] as codes: q is close to them times scale.
inline void Digits(const float* HWY_RESTRICT q, int64_t rows, int64_t depth, const Buffers& to) {
  constexpr float kMost = 32767;
  const Floats d;
  const int64_t groups = depth / kNumbers;
  few_rows::ForTiles<kScoreRows>(rows, [&](auto number, int64_t first) HWY_ATTR {
    constexpr int kRows = decltype(number)::value;
    int16_t* const tile = to.queries + 8 * first * depth;
    for (int64_t i = 0; i < kRows * groups; ++i) {
      const int64_t row = i / groups, group = i % groups;
      const float* const x = q + (first + row) * depth + group * kNumbers;
      auto most_of = hn::Zero(d);
      for (int64_t j = 0; j < kNumbers; j += kLanes) most_of = MaxNan(d, most_of, hn::Abs(hn::LoadU(d, x + j)));
      const float most = hn::ReduceMax(d, most_of);
      const bool is_number = hn::AllFalse(d, hn::IsNaN(most_of)) && std::isfinite(most);
      const bool some = is_number && most > std::numeric_limits<float>::min() * kMost;
      const auto factor = hn::Set(d, some ? kMost / most : 0.0f);
      to.scale[first * groups + i] = !is_number ? std::numeric_limits<float>::quiet_NaN() : some ? most / kMost : 0.0f;
      alignas(32) int16_t codes[kNumbers];
      for (int64_t j = 0; j < kNumbers; j += 2 * kLanes) {
        const auto a = hn::Mul(hn::LoadU(d, x + j), factor), b = hn::Mul(hn::LoadU(d, x + j + kLanes), factor);
        hn::Store(Round(a, b), Shorts(), codes + j);
      }
      for (int64_t pair = 0; pair < kPairs; ++pair) {
        const auto both = BroadcastGroup(reinterpret_cast<const uint8_t*>(codes + 2 * pair));
        hn::StoreU(hn::BitCast(Shorts(), both), Shorts(), tile + ((group * kPairs + pair) * kRows + row) * 2 * kLanes);
      }
    }
  });
}

// sum plus the products of pairs, half of which are in memory.
HWY_INLINE hn::Vec<Ints> AddPairsAt(hn::Vec<Shorts> a, const int16_t* b, hn::Vec<Ints> sum) {
#if HWY_COMPILER_GCC_ACTUAL
  // As AddPairs does, and without a load of its own.
  decltype(sum.raw) products;
  __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0"
          : "+x"(sum.raw), "=&x"(products)
          : "x"(a.raw), "m"(*reinterpret_cast<const decltype(a.raw)*>(b)));
  return sum;
#else
  return hn::Add(sum, hn::WidenMulPairwiseAdd(Ints(), a, hn::LoadU(Shorts(), b)));
#endif
}

// sum + x, before what is added next.
HWY_INLINE hn::Vec<Shorts> AddInOrder(hn::Vec<Shorts> sum, hn::Vec<Shorts> x) {
  sum = hn::Add(sum, x);
#if HWY_COMPILER_GCC_ACTUAL
  __asm__("" : "+x"(sum.raw));
#endif
  return sum;
}

// Eight codes each of two rows side by side, as pairs.
HWY_INLINE hn::Vec<Shorts> Pairs(const uint8_t* first, const uint8_t* second) {
  const hn::FixedTag<int8_t, 8> d8;
  const Bytes d;
  const auto a = hn::ZeroExtendVector(d, hn::LoadU(d8, reinterpret_cast<const int8_t*>(first)));
  const auto b = hn::ZeroExtendVector(d, hn::LoadU(d8, reinterpret_cast<const int8_t*>(second)));
  return hn::PromoteTo(Shorts(), hn::InterleaveLower(d, a, b));
}

// Scores of kRows rows and eight keys of a panel, from key `column` on.
template <int kRows>
HWY_INLINE void ScoreVector(const uint8_t* HWY_RESTRICT panel, int64_t column, int64_t groups,
                            const int16_t* HWY_RESTRICT queries, const float* HWY_RESTRICT scale,
                            float* HWY_RESTRICT scores, int64_t scores_ld, Ahead& ahead) {
  const Floats d;
  for (int64_t group = 0; group < groups; ++group, panel += kBytes * kPanelTokens) {
    const uint8_t* HWY_RESTRICT codes = panel + kScale * kPanelTokens + column;
    hn::Vec<Ints> sums[kRows];
    for (int r = 0; r < kRows; ++r) sums[r] = hn::Zero(Ints());
    for (int64_t i = 0; i < kPairs; i += kTurns) {
      for (int turn = 0; turn < kTurns; ++turn, codes += 2 * kPanelTokens, queries += kRows * 2 * kLanes) {
        const auto keys = Pairs(codes, codes + kPanelTokens);
        for (int r = 0; r < kRows; ++r) sums[r] = AddPairsAt(keys, queries + r * 2 * kLanes, sums[r]);
      }
    }
    ahead.Step();
    const auto key_scale = Widen<F16>(d, hn::LoadU(Halves(), reinterpret_cast<const uint16_t*>(panel) + column));
    for (int r = 0; r < kRows; ++r) {
      float* const to = scores + r * scores_ld;
      const auto both = hn::Mul(key_scale, hn::Set(d, scale[r * groups + group]));
      const auto sum = hn::ConvertTo(d, sums[r]);
      hn::StoreU(group == 0 ? hn::Mul(sum, both) : hn::MulAdd(sum, both, hn::LoadU(d, to)), d, to);
    }
  }
}

template <int kRows>
HWY_NOINLINE void ScoreRows(const uint8_t* const* panels, int64_t count, int64_t groups, const int16_t* queries,
                            const float* scale, float* HWY_RESTRICT scores, int64_t scores_ld, Ahead& ahead) {
  for (int64_t panel = 0; panel < count; ++panel) {
    for (int64_t column = 0; column < kPanelTokens; column += kLanes, scores += kLanes) {
      ScoreVector<kRows>(panels[panel], column, groups, queries, scale, scores, scores_ld, ahead);
    }
  }
}

// Scores of all rows and the keys of `count` panels.
inline void Scores(const uint8_t* const* panels, int64_t count, int64_t rows, int64_t depth, const Buffers& b,
                   float* scores, int64_t scores_ld, Ahead& ahead) {
  const int64_t groups = depth / kNumbers;
  few_rows::ForTiles<kScoreRows>(rows, [&](auto number, int64_t row) HWY_ATTR {
    ScoreRows<decltype(number)::value>(panels, count, groups, b.queries + 8 * row * depth, b.scale + row * groups,
                                       scores + row * scores_ld, scores_ld, ahead);
  });
}

// Weights times scales, which are not negative, as codes: close to (code + 2^15) times what is returned.
HWY_INLINE float WeightCodes(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT scales, int64_t keys,
                             int16_t* HWY_RESTRICT codes) {
  constexpr float kMost = 65535;
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  const auto product = [&](int64_t t) HWY_ATTR { return hn::Mul(hn::LoadU(d, weights + t), hn::LoadU(d, scales + t)); };
  // As integers their bits are in the order of the numbers, and those of NaN behind all of them.
  auto most_of = hn::Zero(du);
  for (int64_t t = 0; t < keys; t += kLanes) {
    most_of = hn::Max(most_of, hn::BitCast(du, hn::Abs(product(t))));
  }
  const float most = hwy::BitCastScalar<float>(hn::ReduceMax(du, most_of));
  const bool some = most > std::numeric_limits<float>::min() * kMost;
  const auto factor = hn::Set(d, some ? kMost / most : 0.0f), zero = hn::Set(d, -32768.0f);
  for (int64_t t = 0; t < keys; t += 2 * kLanes) {
    const auto a = hn::MulAdd(product(t), factor, zero), b = hn::MulAdd(product(t + kLanes), factor, zero);
    hn::StoreU(Round(a, b), Shorts(), codes + t);
  }
  return some ? most / kMost : most == most ? 0.0f : most;
}

// What two neighbours of eight in either of two vectors add up to.
HWY_INLINE hn::Vec<Ints> AddNeighbours(hn::Vec<Ints> first, hn::Vec<Ints> second) {
  return hn::Add(hn::ConcatEven(Ints(), second, first), hn::ConcatOdd(Ints(), second, first));
}

// Sums of kRows rows of codes times 8 numbers of all values, and, if kBias, of the codes of those: what is added to
// each sum. Four tokens of a number lie side by side: two pairs, each with a sum of its own.
template <int kRows, bool kBias>
HWY_INLINE void SumColumns(const paged::ValueBlocks& blocks, int64_t column, const Buffers& b, const float* factors,
                           float* HWY_RESTRICT sums, int64_t sums_ld, Ahead& ahead) {
  // As far as there are tokens the sums of every fourth one fit.
  static_assert(kChunkTokens / 4 * -128 >= std::numeric_limits<int16_t>::min());
  constexpr int64_t kQuad = kQuadTokens;
  const Floats d;
  const Shorts d16;
  const hn::Repartition<uint64_t, Shorts> d64;
  hn::Vec<Ints> of[kRows][2];
  for (int r = 0; r < kRows; ++r) of[r][0] = of[r][1] = hn::Zero(Ints());
  hn::Vec<Shorts> all[2] = {hn::Zero(d16), hn::Zero(d16)};
  for (int64_t key = 0; key < blocks.keys; key += kPanelTokens) {
    const int8_t* HWY_RESTRICT from = reinterpret_cast<const int8_t*>(blocks.codes(key)) + column * kQuad;
    const int16_t* HWY_RESTRICT codes = b.codes + key;
    for (int quad = 0; quad < static_cast<int>(kPanelTokens / kQuad); ++quad, from += kQuad * kNumbers) {
      const auto left = hn::PromoteTo(d16, hn::LoadU(Bytes(), from));
      const auto right = hn::PromoteTo(d16, hn::LoadU(Bytes(), from + kQuad * kLanes / 2));
      if constexpr (kBias) {
        all[0] = AddInOrder(all[0], left);
        all[1] = AddInOrder(all[1], right);
      }
      for (int r = 0; r < kRows; ++r) {
        uint64_t four;
        std::memcpy(&four, codes + r * kChunkTokens + kQuad * quad, sizeof(four));
        const auto weights = hn::BitCast(WordTag(), hn::Set(d64, four));
        of[r][0] = AddPairs(weights, left, of[r][0]);
        of[r][1] = AddPairs(weights, right, of[r][1]);
      }
    }
    ahead.Step();
  }
  int32_t* const bias = b.bias + column;
  if constexpr (kBias) {
    const auto ones = hn::Set(d16, int16_t{1});
    const auto whole =
        AddNeighbours(hn::WidenMulPairwiseAdd(Ints(), all[0], ones), hn::WidenMulPairwiseAdd(Ints(), all[1], ones));
    hn::StoreU(hn::ShiftLeft<15>(whole), Ints(), bias);
  }
  const auto more = hn::LoadU(Ints(), bias);
  for (int r = 0; r < kRows; ++r) {
    const auto sum = hn::ConvertTo(d, hn::Add(AddNeighbours(of[r][0], of[r][1]), more));
    hn::StoreU(hn::Mul(sum, hn::Set(d, factors[r])), d, sums + r * sums_ld + column);
  }
}

template <int kRows>
HWY_NOINLINE void SumRows(const paged::ValueBlocks& blocks, bool first, const Buffers& b, const float* weights,
                          int64_t weights_ld, float* HWY_RESTRICT sums, int64_t sums_ld, Ahead& ahead) {
  float factors[kRows];
  for (int r = 0; r < kRows; ++r) {
    factors[r] = WeightCodes(weights + r * weights_ld, b.scales, blocks.all(), b.codes + r * kChunkTokens);
  }
  for (int64_t column = 0; column < kNumbers; column += kLanes) {
    first ? SumColumns<kRows, true>(blocks, column, b, factors, sums, sums_ld, ahead)
          : SumColumns<kRows, false>(blocks, column, b, factors, sums, sums_ld, ahead);
  }
}

// Sums of the values of a block of numbers, weighted. Weights behind the last key are 0, to the end of its panel.
inline void Sums(const paged::ValueBlocks& blocks, const Buffers& b, const float* weights, int64_t weights_ld,
                 int64_t rows, float* sums, int64_t sums_ld, Ahead& ahead) {
  few_rows::UnpackScales(blocks, b.scales);
  few_rows::ForTiles<kSumRows>(rows, [&](auto number, int64_t row) HWY_ATTR {
    SumRows<decltype(number)::value>(blocks, row == 0, b, weights + row * weights_ld, weights_ld, sums + row * sums_ld,
                                     sums_ld, ahead);
  });
}

#endif  // THRESHER_PAGED_PAIRS

}  // namespace pairs
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
