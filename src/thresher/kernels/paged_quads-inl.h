// Attention over keys and values in q8_0 by dot products of four int8, on processors with vectors of 64 bytes.
//
// Nothing is lost that blocks have: queries, and weights times the scales of values, become integers of 16 bits with a
// scale for 32 numbers or 256 keys, and are multiplied in two digits of 8. Sums of integers are exact, so that a row
// has the same bits in every tile.

#if defined(THRESHER_KERNELS_PAGED_QUADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PAGED_QUADS_INL_H_
#undef THRESHER_KERNELS_PAGED_QUADS_INL_H_
#else
#define THRESHER_KERNELS_PAGED_QUADS_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/math-inl.h"
#include "thresher/kernels/paged_attention.h"

#define THRESHER_PAGED_QUADS (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL)

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace quads {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kNumbers = BlockNumbers(Encoding::kQ8_0), kBytes = BlockBytes(Encoding::kQ8_0);
inline constexpr int64_t kScale = 2;     // bytes before the codes of a block
inline constexpr int64_t kMostRows = 4;  // of a tile

// What rows are multiplied by, and room for it.
struct Buffers {
  int8_t* high;     // [rows, depth]: digits of queries, 256 to 1
  int8_t* low;      // [rows, depth]
  int32_t* bias;    // [rows, depth / 32, 2]: sums begin with what codes of keys are too large by
  float* scale;     // [rows, depth / 32]
  uint8_t* values;  // [kChunkTokens / 4, 2, 16, 4]: codes of 32 numbers of four tokens side by side
  float* scales;    // [kChunkTokens] of those
  uint8_t* digits;  // [kMostRows, 2, kChunkTokens]: of weights, low and high

  static int64_t QueryBytes(int64_t rows, int64_t depth) {
    return 2 * rows * depth + rows * (depth / kNumbers) * static_cast<int64_t>(2 * sizeof(int32_t) + sizeof(float));
  }
  static constexpr int64_t kValueBytes =
      kChunkTokens * (kNumbers + static_cast<int64_t>(sizeof(float)) + 2 * kMostRows);

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

using Floats = hn::FixedTag<float, 16>;
using Ints = hn::FixedTag<int32_t, 16>;
using Bytes = hn::FixedTag<uint8_t, 64>;
using Signed = hn::FixedTag<int8_t, 64>;

HWY_INLINE hn::Vec<Ints> Group(const void* p) {
  int32_t group;
  std::memcpy(&group, p, sizeof(group));
  return hn::Set(Ints(), group);
}

// Queries [rows, depth] in digits: q is close to (256 high + low) scale.
inline void Digits(const float* HWY_RESTRICT q, int64_t rows, int64_t depth, const Buffers& to) {
  constexpr float kMost = 127 * 256 + 127;
  const int64_t groups = depth / kNumbers;
  for (int64_t i = 0; i < rows * groups; ++i) {
    const float* const x = q + i * kNumbers;
    float most = 0;
    for (int64_t j = 0; j < kNumbers; ++j) most = std::max(most, std::abs(x[j]));
    bool number = true;
    for (int64_t j = 0; j < kNumbers; ++j) number &= std::isfinite(x[j]);
    const bool some = number && most > std::numeric_limits<float>::min() * kMost;
    const float factor = some ? kMost / most : 0.0f;
    to.scale[i] = !number ? std::numeric_limits<float>::quiet_NaN() : some ? most / kMost : 0.0f;
    int32_t high_sum = 0, low_sum = 0;
    for (int64_t j = 0; j < kNumbers; ++j) {
      const int32_t code = some ? static_cast<int32_t>(std::nearbyint(x[j] * factor)) : 0;
      const int32_t high = (code + 128) >> 8, low = code - high * 256;
      to.high[i * kNumbers + j] = static_cast<int8_t>(high);
      to.low[i * kNumbers + j] = static_cast<int8_t>(low);
      high_sum += high;
      low_sum += low;
    }
    to.bias[2 * i] = -128 * high_sum;
    to.bias[2 * i + 1] = -128 * low_sum;
  }
}

// Sums of digits, scaled: the scores of 16 keys, or what one more group adds to them.
HWY_INLINE void AddScores(hn::Vec<Ints> high, hn::Vec<Ints> low, hn::Vec<Floats> key_scale, float scale, bool first,
                          float* HWY_RESTRICT to) {
  const Floats d;
  const auto sum = hn::ConvertTo(d, hn::Add(hn::ShiftLeft<8>(high), low));
  const auto both = hn::Mul(key_scale, hn::Set(d, scale));
  hn::StoreU(first ? hn::Mul(sum, both) : hn::MulAdd(sum, both, hn::LoadU(d, to)), d, to);
}

template <int kRows>
HWY_INLINE void ScoreRows(const hn::Vec<Bytes> (&keys)[8], hn::Vec<Floats> key_scale, int64_t depth, int64_t group,
                          int64_t row, const Buffers& b, float* HWY_RESTRICT scores, int64_t scores_ld) {
  const Floats d;
  const Signed ds;
  const int64_t groups = depth / kNumbers;
  hn::Vec<Ints> high[kRows], low[kRows];
  for (int r = 0; r < kRows; ++r) {
    const int32_t* const bias = b.bias + 2 * ((row + r) * groups + group);
    high[r] = hn::Set(Ints(), bias[0]);
    low[r] = hn::Set(Ints(), bias[1]);
  }
  for (int i = 0; i < 8; ++i) {
    for (int r = 0; r < kRows; ++r) {
      const int64_t at = (row + r) * depth + group * kNumbers + 4 * i;
      high[r] = hn::SumOfMulQuadAccumulate(Ints(), keys[i], hn::BitCast(ds, Group(b.high + at)), high[r]);
      low[r] = hn::SumOfMulQuadAccumulate(Ints(), keys[i], hn::BitCast(ds, Group(b.low + at)), low[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    AddScores(high[r], low[r], key_scale, b.scale[(row + r) * groups + group], group == 0,
              scores + (row + r) * scores_ld);
  }
}

// The bytes of four numbers of 16 tokens, become those of 16 tokens of four numbers; `order` is KeyOrder().
HWY_INLINE auto KeyOrder() {
  alignas(64) static constexpr uint8_t kOrder[64] = {0,  16, 32, 48, 1,  17, 33, 49, 2,  18, 34, 50, 3,  19, 35, 51,
                                                     4,  20, 36, 52, 5,  21, 37, 53, 6,  22, 38, 54, 7,  23, 39, 55,
                                                     8,  24, 40, 56, 9,  25, 41, 57, 10, 26, 42, 58, 11, 27, 43, 59,
                                                     12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63};
  return hn::SetTableIndices(Bytes(), kOrder);
}

// Codes of a block of 16 tokens, 128 too large: quad `i` of all of them. And their scales.
template <class Order>
HWY_INLINE hn::Vec<Bytes> KeyQuads(const uint8_t* block, int i, Order order) {
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
  const auto order = KeyOrder();
  for (int i = 0; i < 8; ++i) hn::Store(KeyQuads(block, i, order), Bytes(), quads + i * stride);
  hn::Store(KeyScales(block), Floats(), scales);
}

// Scores of all rows and the 16 keys of a panel.
inline void Scores(const uint8_t* HWY_RESTRICT panel, int64_t rows, int64_t depth, const Buffers& b, float* scores,
                   int64_t scores_ld) {
  const auto order = KeyOrder();
  for (int64_t group = 0; group < depth / kNumbers; ++group, panel += kBytes * kPanelTokens) {
    const auto scale = KeyScales(panel);
    hn::Vec<Bytes> keys[8];
    for (int i = 0; i < 8; ++i) keys[i] = KeyQuads(panel, i, order);
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) ScoreRows<4>(keys, scale, depth, group, row, b, scores, scores_ld);
    if (rows - row == 3) ScoreRows<3>(keys, scale, depth, group, row, b, scores, scores_ld);
    if (rows - row == 2) ScoreRows<2>(keys, scale, depth, group, row, b, scores, scores_ld);
    if (rows - row == 1) ScoreRows<1>(keys, scale, depth, group, row, b, scores, scores_ld);
  }
}

// Codes and scales of block `group` of a panel's 16 rows of values. Scales behind row `count` are 0.
inline void UnpackValues(const uint8_t* HWY_RESTRICT rows, int64_t row_bytes, int64_t group, int64_t count,
                         uint8_t* HWY_RESTRICT values, float* HWY_RESTRICT scales) {
  const hn::FixedTag<uint8_t, 32> d8;
  const hn::FixedTag<uint16_t, 16> d16;
  const uint8_t* from = rows + group * kBytes;
  const auto row = hn::Iota(Ints(), 0);
  const auto offsets = hn::Mul(row, hn::Set(Ints(), static_cast<int32_t>(row_bytes)));
  const auto words = hn::GatherOffset(Ints(), reinterpret_cast<const int32_t*>(from), offsets);
  const auto known = hn::Lt(row, hn::Set(Ints(), static_cast<int32_t>(count)));
  const auto halves = hn::TruncateTo(d16, hn::BitCast(hn::FixedTag<uint32_t, 16>(), hn::IfThenElseZero(known, words)));
  hn::StoreU(Widen<F16>(Floats(), halves), Floats(), scales);
  from += kScale;
  for (int64_t t = 0; t < kPanelTokens; t += 4, from += 4 * row_bytes, values += 128) {
    const auto a = hn::LoadU(d8, from), b = hn::LoadU(d8, from + row_bytes);
    const auto c = hn::LoadU(d8, from + 2 * row_bytes), e = hn::LoadU(d8, from + 3 * row_bytes);
    const auto ab = hn::BitCast(d16, hn::InterleaveLower(d8, a, b)),
               ce = hn::BitCast(d16, hn::InterleaveLower(d8, c, e));
    hn::StoreU(hn::BitCast(d8, hn::InterleaveLower(d16, ab, ce)), d8, values);
    hn::StoreU(hn::BitCast(d8, hn::InterleaveUpper(d16, ab, ce)), d8, values + 32);
    const auto fg = hn::BitCast(d16, hn::InterleaveUpper(d8, a, b)),
               hi = hn::BitCast(d16, hn::InterleaveUpper(d8, c, e));
    hn::StoreU(hn::BitCast(d8, hn::InterleaveLower(d16, fg, hi)), d8, values + 64);
    hn::StoreU(hn::BitCast(d8, hn::InterleaveUpper(d16, fg, hi)), d8, values + 96);
  }
}

// Weights times scales as digits: close to (256 high + low) times what is returned.
HWY_INLINE float WeightDigits(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT scales, int64_t keys,
                              uint8_t* HWY_RESTRICT low, uint8_t* HWY_RESTRICT high) {
  constexpr float kMost = 65535;
  const Floats d;
  const hn::FixedTag<uint8_t, 16> d8;
  const hn::FixedTag<uint32_t, 16> d32;
  auto most_of = hn::Zero(d);
  for (int64_t t = 0; t < keys; t += 16) {
    most_of = MaxNan(d, most_of, hn::Mul(hn::LoadU(d, weights + t), hn::LoadU(d, scales + t)));
  }
  const float most = hn::ReduceMax(d, most_of);
  const bool number = hn::AllFalse(d, hn::IsNaN(most_of));
  const bool some = number && most > std::numeric_limits<float>::min() * kMost;
  const auto factor = hn::Set(d, some ? kMost / most : 0.0f);
  for (int64_t t = 0; t < keys; t += 16) {
    const auto product = hn::Mul(hn::Mul(hn::LoadU(d, weights + t), hn::LoadU(d, scales + t)), factor);
    const auto code = hn::BitCast(d32, hn::NearestInt(product));
    hn::StoreU(hn::TruncateTo(d8, code), d8, low + t);
    hn::StoreU(hn::TruncateTo(d8, hn::ShiftRight<8>(code)), d8, high + t);
  }
  return number ? some ? most / kMost : 0.0f : std::numeric_limits<float>::quiet_NaN();
}

// Sums of digits times `factor`, in the places of the numbers of either half of a step of values.
HWY_INLINE void PlaceSums(hn::Vec<Ints> high, hn::Vec<Ints> low, float factor, int half, float* HWY_RESTRICT to) {
  constexpr int64_t kPlaces[2][4] = {{0, 16, 4, 20}, {8, 24, 12, 28}};  // of four numbers, as UnpackValues puts them
  const Floats d;
  alignas(64) float numbers[16];
  const auto sum = hn::MulAdd(hn::ConvertTo(d, high), hn::Set(d, 256.0f), hn::ConvertTo(d, low));
  hn::Store(hn::Mul(sum, hn::Set(d, factor)), d, numbers);
  for (int i = 0; i < 4; ++i) std::memcpy(to + kPlaces[half][i], numbers + 4 * i, 4 * sizeof(float));
}

template <int kRows>
HWY_INLINE void SumRows(const Buffers& b, int64_t keys, const float (&factors)[kMostRows], float* HWY_RESTRICT sums,
                        int64_t sums_ld) {
  const Floats d;
  const Bytes d8;
  const Signed ds;
  hn::Vec<Ints> low[kRows][2], high[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int half = 0; half < 2; ++half) low[r][half] = high[r][half] = hn::Zero(Ints());
  }
  for (int64_t t = 0; t < keys; t += 4) {
    const hn::Vec<Signed> value[2] = {hn::BitCast(ds, hn::LoadU(d8, b.values + 32 * t)),
                                      hn::BitCast(ds, hn::LoadU(d8, b.values + 32 * t + 64))};
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* const digits = b.digits + r * 2 * kChunkTokens + t;
      const auto l = hn::BitCast(d8, Group(digits)), h = hn::BitCast(d8, Group(digits + kChunkTokens));
      for (int half = 0; half < 2; ++half) {
        low[r][half] = hn::SumOfMulQuadAccumulate(Ints(), l, value[half], low[r][half]);
        high[r][half] = hn::SumOfMulQuadAccumulate(Ints(), h, value[half], high[r][half]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int half = 0; half < 2; ++half) PlaceSums(high[r][half], low[r][half], factors[r], half, sums + r * sums_ld);
  }
}

// Sums of the values that UnpackValues has put into the buffers, weighted; calls step() for each row.
template <class Step>
void Sums(const Buffers& b, const float* weights, int64_t weights_ld, int64_t rows, int64_t keys, float* sums,
          int64_t sums_ld, const Step& step) {
  const int64_t all = (keys + kPanelTokens - 1) / kPanelTokens * kPanelTokens;
  for (int64_t row = 0; row < rows; row += kMostRows) {
    const int64_t count = std::min(rows - row, kMostRows);
    float factors[kMostRows] = {};
    for (int64_t r = 0; r < count; ++r) {
      uint8_t* const digits = b.digits + r * 2 * kChunkTokens;
      factors[r] = WeightDigits(weights + (row + r) * weights_ld, b.scales, all, digits, digits + kChunkTokens);
      step();
    }
    float* const to = sums + row * sums_ld;
    if (count == 4) SumRows<4>(b, all, factors, to, sums_ld);
    if (count == 3) SumRows<3>(b, all, factors, to, sums_ld);
    if (count == 2) SumRows<2>(b, all, factors, to, sums_ld);
    if (count == 1) SumRows<1>(b, all, factors, to, sums_ld);
  }
}

#endif  // THRESHER_PAGED_QUADS

}  // namespace quads
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
