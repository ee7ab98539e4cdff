// Attention over keys and values in q8_0 by dot products of four int8, on processors with vectors of 64 bytes.
//
// Nothing is lost that blocks have: queries, and weights times the scales of values, become integers of 16 bits with a
// scale for 32 numbers or 256 keys, and are multiplied in two digits of 8. Sums of integers are exact, so that a row
// has the same bits in every tile. Values are multiplied where they lie.

#if defined(THRESHER_KERNELS_PAGED_QUADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PAGED_QUADS_INL_H_
#undef THRESHER_KERNELS_PAGED_QUADS_INL_H_
#else
#define THRESHER_KERNELS_PAGED_QUADS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/paged_attention.h"
#include "thresher/kernels/paged_rows-inl.h"

#define THRESHER_PAGED_QUADS (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL)

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace quads {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kNumbers = BlockNumbers(Encoding::kQ8_0), kBytes = BlockBytes(Encoding::kQ8_0);
inline constexpr int64_t kScale = 2;  // bytes before the codes of a block
inline constexpr int64_t kQuadBytes = kQuadTokens * kNumbers;
// Rows of a tile of scores, which has two vectors of each, and of one of sums of values, which has four.
inline constexpr int64_t kScoreRows = 8, kSumRows = 4;

// What rows are multiplied by, and room for it.
struct Buffers {
  int8_t* high;     // [rows, depth]: digits of queries, 256 to 1
  int8_t* low;      // [rows, depth]
  int32_t* bias;    // [rows, depth / 32, 2]: sums begin with what codes of keys are too large by
  float* scale;     // [rows, depth / 32]
  uint8_t* values;  // [kChunkTokens / 4, 32, 4]: codes of 32 numbers of four tokens side by side, for tiles
  float* scales;    // [kChunkTokens] of those
  uint8_t* digits;  // [kSumRows, 2, kChunkTokens]: of weights, low and high

  static int64_t QueryBytes(int64_t rows, int64_t depth) {
    return 2 * rows * depth + rows * (depth / kNumbers) * static_cast<int64_t>(2 * sizeof(int32_t) + sizeof(float));
  }
  static constexpr int64_t kValueBytes = kChunkTokens * (kNumbers + static_cast<int64_t>(sizeof(float)) + 2 * kSumRows);

  Buffers(int64_t rows, int64_t depth, void* queries, void* room)
      : high(static_cast<int8_t*>(queries)),
        low(high + rows * depth),
        bias(reinterpret_cast<int32_t*>(low + rows * depth)),
        scale(reinterpret_cast<float*>(bias + 2 * rows * (depth / kNumbers))),
        values(static_cast<uint8_t*>(room)),
        scales(reinterpret_cast<float*>(values + kChunkTokens * kNumbers)),
        digits(reinterpret_cast<uint8_t*>(scales + kChunkTokens)) {}
};

#if THRESHER_PAGED_QUADS

using few_rows::Ahead;
using few_rows::Unrolled;
using Floats = hn::FixedTag<float, 16>;
using Ints = hn::FixedTag<int32_t, 16>;
using Bytes = hn::FixedTag<uint8_t, 64>;
using Signed = hn::FixedTag<int8_t, 64>;

HWY_INLINE hn::Vec<Ints> Group(const void* p) {
  int32_t group;
  std::memcpy(&group, p, sizeof(group));
  return hn::Set(Ints(), group);
}

// The largest of numbers that are not negative, by their bits: those of NaN are behind all others.
HWY_INLINE float MostOf(hn::Vec<hn::RebindToUnsigned<Floats>> bits) {
  return hwy::BitCastScalar<float>(hn::ReduceMax(hn::RebindToUnsigned<Floats>(), bits));
}

// Queries [rows, depth] in digits: q is close to (256 high + low) scale.
inline void Digits(const float* HWY_RESTRICT q, int64_t rows, int64_t depth, const Buffers& to) {
  constexpr float kMost = 127 * 256 + 127;
  const Floats d;
  const Ints di;
  const hn::RebindToUnsigned<Floats> du;
  const hn::FixedTag<uint8_t, 16> d8;
  for (int64_t i = 0; i < rows * (depth / kNumbers); ++i) {
    const hn::Vec<Floats> x[2] = {hn::LoadU(d, q + i * kNumbers), hn::LoadU(d, q + i * kNumbers + 16)};
    const float most = MostOf(hn::Max(hn::BitCast(du, hn::Abs(x[0])), hn::BitCast(du, hn::Abs(x[1]))));
    const bool number = most <= std::numeric_limits<float>::max();
    const bool some = number && most > std::numeric_limits<float>::min() * kMost;
    const auto factor = hn::Set(d, some ? kMost / most : 0.0f);
    to.scale[i] = !number ? std::numeric_limits<float>::quiet_NaN() : some ? most / kMost : 0.0f;
    auto high_sum = hn::Zero(di), low_sum = hn::Zero(di);
    for (int half = 0; half < 2; ++half) {
      const auto code = some ? hn::NearestInt(hn::Mul(x[half], factor)) : hn::Zero(di);
      const auto high = hn::ShiftRight<8>(hn::Add(code, hn::Set(di, 128))), low = hn::Sub(code, hn::ShiftLeft<8>(high));
      high_sum = hn::Add(high_sum, high);
      low_sum = hn::Add(low_sum, low);
      const int64_t at = i * kNumbers + 16 * half;
      hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, high)), d8, reinterpret_cast<uint8_t*>(to.high + at));
      hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, low)), d8, reinterpret_cast<uint8_t*>(to.low + at));
    }
    to.bias[2 * i] = -128 * hn::ReduceSum(di, high_sum);
    to.bias[2 * i + 1] = -128 * hn::ReduceSum(di, low_sum);
  }
}

// Sums of digits, scaled, are the scores of 16 keys, or what one more group adds to them.
HWY_INLINE hn::Vec<Floats> AddScores(hn::Vec<Ints> high, hn::Vec<Ints> low, hn::Vec<Floats> key_scale, float scale,
                                     bool first, hn::Vec<Floats> scores) {
  const Floats d;
  const auto sum = hn::ConvertTo(d, hn::Add(hn::ShiftLeft<8>(high), low));
  const auto both = hn::Mul(key_scale, hn::Set(d, scale));
  return first ? hn::Mul(sum, both) : hn::MulAdd(sum, both, scores);
}

// Four rows of 16 bytes become 16 groups of four: numbers of keys, tokens of values.
HWY_INLINE auto QuadOrder() {
  alignas(64) static constexpr uint8_t kOrder[64] = {0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51,
                                                     4,  20, 36, 52, 5,  21, 37, 53, 6,  22, 38, 54, 7,  23, 39, 55,
                                                     8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58, 11, 27, 43, 59,
                                                     12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
  return hn::SetTableIndices(Bytes(), kOrder);
}

// Codes of a block of 16 tokens, 128 too large: quad `i` of all of them. And their scales.
template <class Order>
HWY_INLINE hn::Vec<Bytes> KeyQuads(const uint8_t* block, int64_t i, Order order) {
  const uint8_t* const codes = block + kScale * kPanelTokens + 64 * i;
  return hn::Xor(hn::TableLookupLanes(hn::LoadU(Bytes(), codes), order), hn::Set(Bytes(), uint8_t{0x80}));
}
HWY_INLINE hn::Vec<Floats> KeyScales(const uint8_t* block) {
  const auto halves = hn::LoadU(hn::FixedTag<uint16_t, 16>(), reinterpret_cast<const uint16_t*>(block));
  return Widen<F16>(Floats(), halves);
}

// All quads of such a block, `stride` bytes apart.
inline void UnpackKeys(const uint8_t* HWY_RESTRICT block, int64_t stride, uint8_t* HWY_RESTRICT quads,
                       float* HWY_RESTRICT scales) {
  const auto order = QuadOrder();
  for (int i = 0; i < 8; ++i) hn::Store(KeyQuads(block, i, order), Bytes(), quads + i * stride);
  hn::Store(KeyScales(block), Floats(), scales);
}

// Scores of kRows rows, from row `row` on, and the keys of a panel.
template <int kRows, class Order>
HWY_INLINE void ScoreRows(const uint8_t* HWY_RESTRICT panel, Order order, int64_t depth, int64_t row, const Buffers& b,
                          float* HWY_RESTRICT scores, int64_t scores_ld, Ahead& ahead) {
  const Floats d;
  const Signed ds;
  const int64_t groups = depth / kNumbers;
  const int8_t* HWY_RESTRICT first = b.high + row * depth;
  const int8_t* HWY_RESTRICT second = b.low + row * depth;
  const int32_t* HWY_RESTRICT bias = b.bias + 2 * row * groups;
  const float* HWY_RESTRICT scale = b.scale + row * groups;
  hn::Vec<Floats> of[kRows];
  for (int64_t group = 0; group < groups; ++group, panel += kBytes * kPanelTokens) {
    hn::Vec<Ints> high[kRows], low[kRows];
    for (int r = 0; r < kRows; ++r) {
      high[r] = hn::Set(Ints(), bias[2 * (r * groups + group)]);
      low[r] = hn::Set(Ints(), bias[2 * (r * groups + group) + 1]);
    }
    // All turns at once, or sums were copied from register to register in each.
    Unrolled<kNumbers / 4>([&](auto i) HWY_ATTR {
      const auto keys = KeyQuads(panel, i, order);
      for (int r = 0; r < kRows; ++r) {
        const int64_t at = r * depth + group * kNumbers + 4 * i;
        high[r] = hn::SumOfMulQuadAccumulate(Ints(), keys, hn::BitCast(ds, Group(first + at)), high[r]);
        low[r] = hn::SumOfMulQuadAccumulate(Ints(), keys, hn::BitCast(ds, Group(second + at)), low[r]);
      }
    });
    ahead.Step();
    const auto key_scale = KeyScales(panel);
    if (group == 0) {
      for (int r = 0; r < kRows; ++r) {
        of[r] = AddScores(high[r], low[r], key_scale, scale[r * groups], true, hn::Zero(d));
      }
    } else {
      for (int r = 0; r < kRows; ++r) {
        of[r] = AddScores(high[r], low[r], key_scale, scale[r * groups + group], false, of[r]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) hn::StoreU(of[r], d, scores + (row + r) * scores_ld);
}

// Scores of all rows and the keys of `count` panels.
inline void Scores(const uint8_t* const* panels, int64_t count, int64_t rows, int64_t depth, const Buffers& b,
                   float* scores, int64_t scores_ld, Ahead& ahead) {
  const auto order = QuadOrder();
  few_rows::ForTiles<kScoreRows>(rows, [&](auto number, int64_t row) HWY_ATTR {
    for (int64_t panel = 0; panel < count; ++panel) {
      ScoreRows<decltype(number)::value>(panels[panel], order, depth, row, b, scores + panel * kPanelTokens, scores_ld,
                                         ahead);
    }
  });
}

// Weights times scales, which are not negative, as digits: close to (256 high + low) times what is returned. There is
// room for, and zeros become of, what lacks of 64.
HWY_INLINE float WeightDigits(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT scales, int64_t keys,
                              uint8_t* HWY_RESTRICT low, uint8_t* HWY_RESTRICT high) {
  constexpr float kMost = 65535;
  constexpr int64_t kStep = 64;
  const Floats d;
  const hn::RebindToUnsigned<Floats> du;
  alignas(64) float products[kChunkTokens];
  auto most_of = hn::Zero(du);
  for (int64_t t = 0; t < keys; t += 16) {
    const auto product = hn::Mul(hn::LoadU(d, weights + t), hn::LoadU(d, scales + t));
    most_of = hn::Max(most_of, hn::BitCast(du, product));
    hn::Store(product, d, products + t);
  }
  for (int64_t t = keys; t % kStep != 0; t += 16) hn::Store(hn::Zero(d), d, products + t);
  const float most = MostOf(most_of);
  const bool number = most <= std::numeric_limits<float>::max();
  const bool some = number && most > std::numeric_limits<float>::min() * kMost;
  // In the magic number's units the sum is whole, and the lower half of its bits the code.
  const auto factor = hn::Set(d, some ? kMost / most : 0.0f), magic = hn::Set(d, 8388608.0f);
  const auto code = [&](int64_t t)
                        HWY_ATTR { return hn::BitCast(Bytes(), hn::MulAdd(hn::Load(d, products + t), factor, magic)); };
  // The lowest bytes of the codes of 32 tokens, then those above them.
  alignas(64) static constexpr auto kOrder = [] {
    struct {
      uint8_t at[64];
    } order{};
    for (int t = 0; t < 32; ++t) {
      order.at[t] = static_cast<uint8_t>(4 * t);
      order.at[32 + t] = static_cast<uint8_t>(4 * t + 1);
    }
    return order;
  }();
  const auto order = hn::SetTableIndices(Bytes(), kOrder.at);
  for (int64_t t = 0; t < keys; t += kStep) {
    const auto first = hn::TwoTablesLookupLanes(Bytes(), code(t), code(t + 16), order);
    const auto second = hn::TwoTablesLookupLanes(Bytes(), code(t + 32), code(t + 48), order);
    hn::StoreU(hn::ConcatLowerLower(Bytes(), second, first), Bytes(), low + t);
    hn::StoreU(hn::ConcatUpperUpper(Bytes(), second, first), Bytes(), high + t);
  }
  return number ? some ? most / kMost : 0.0f : std::numeric_limits<float>::quiet_NaN();
}

// Sums of digits of 16 numbers, times `factor`.
HWY_INLINE void StoreSums(hn::Vec<Ints> high, hn::Vec<Ints> low, float factor, float* HWY_RESTRICT to) {
  const Floats d;
  const auto sum = hn::MulAdd(hn::ConvertTo(d, high), hn::Set(d, 256.0f), hn::ConvertTo(d, low));
  hn::StoreU(hn::Mul(sum, hn::Set(d, factor)), d, to);
}

// Sums of values times kRows rows of digits.
template <int kRows>
HWY_INLINE void SumRows(const paged::ValueBlocks& blocks, const Buffers& b, const float* factors,
                        float* HWY_RESTRICT sums, int64_t sums_ld, Ahead& ahead) {
  const Bytes d8;
  const Signed ds;
  // By unrolled loops alone, or sums went through memory in each turn.
  constexpr int64_t kSums = 2 * kRows;
  hn::Vec<Ints> low[kSums], high[kSums];
  Unrolled<kSums>([&](auto i) HWY_ATTR { low[i] = high[i] = hn::Zero(Ints()); });
  for (int64_t key = 0; key < blocks.keys; key += kPanelTokens) {
    const uint8_t* HWY_RESTRICT codes = blocks.codes(key);
    Unrolled<kPanelTokens / 4>([&](auto quad) HWY_ATTR {
      const auto first = hn::BitCast(ds, hn::LoadU(d8, codes + kQuadBytes * quad));
      const auto second = hn::BitCast(ds, hn::LoadU(d8, codes + kQuadBytes * quad + kQuadBytes / 2));
      Unrolled<kRows>([&](auto r) HWY_ATTR {
        const uint8_t* const digits = b.digits + r * 2 * kChunkTokens + key + 4 * quad;
        const auto l = hn::BitCast(d8, Group(digits)), h = hn::BitCast(d8, Group(digits + kChunkTokens));
        low[2 * r] = hn::SumOfMulQuadAccumulate(Ints(), l, first, low[2 * r]);
        low[2 * r + 1] = hn::SumOfMulQuadAccumulate(Ints(), l, second, low[2 * r + 1]);
        high[2 * r] = hn::SumOfMulQuadAccumulate(Ints(), h, first, high[2 * r]);
        high[2 * r + 1] = hn::SumOfMulQuadAccumulate(Ints(), h, second, high[2 * r + 1]);
      });
    });
    ahead.Step();
  }
  Unrolled<kSums>([&](auto i)
                      HWY_ATTR { StoreSums(high[i], low[i], factors[i / 2], sums + i / 2 * sums_ld + i % 2 * 16); });
}

// Sums of values, weighted, whose scales the buffers hold.
inline void Sums(const paged::ValueBlocks& blocks, const Buffers& b, const float* weights, int64_t weights_ld,
                 int64_t rows, float* sums, int64_t sums_ld, Ahead& ahead) {
  few_rows::ForTiles<kSumRows>(rows, [&](auto number, int64_t row) HWY_ATTR {
    constexpr int kRows = decltype(number)::value;
    float factors[kRows];
    for (int r = 0; r < kRows; ++r) {
      uint8_t* const digits = b.digits + r * 2 * kChunkTokens;
      factors[r] =
          WeightDigits(weights + (row + r) * weights_ld, b.scales, blocks.all(), digits, digits + kChunkTokens);
    }
    SumRows<kRows>(blocks, b, factors, sums + row * sums_ld, sums_ld, ahead);
  });
}

// How many steps Scores, and Sums of all groups, take together.
inline int64_t Steps(int64_t rows, int64_t panels, int64_t groups) {
  const int64_t tiles = (rows + kScoreRows - 1) / kScoreRows + (rows + kSumRows - 1) / kSumRows;
  return tiles * groups * panels;
}

#endif  // THRESHER_PAGED_QUADS

}  // namespace quads
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
