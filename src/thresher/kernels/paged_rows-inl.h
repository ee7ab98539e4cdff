// Attention of few rows over pages: keys and values are multiplied as they are read, since so few rows do not
// repay turning them into a panel first. Each sum has the order of a panel's, and so its bits.

#if defined(THRESHER_KERNELS_PAGED_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PAGED_ROWS_INL_H_
#undef THRESHER_KERNELS_PAGED_ROWS_INL_H_
#else
#define THRESHER_KERNELS_PAGED_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "thresher/base/cpu.h"
#include "thresher/base/encoding.h"
#include "thresher/base/half.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/paged_attention.h"
#include "thresher/kernels/paged_work.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace few_rows {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, static_cast<size_t>(kPanelTokens)>;
using Vec = hn::Vec<Tag>;

// Calls visit(std::integral_constant<int64_t, i>()) for each i below kCount.
template <int64_t kCount, int64_t kFirst = 0, class Visit>
HWY_INLINE void Unrolled(const Visit& visit) {
  if constexpr (kFirst < kCount) {
    visit(std::integral_constant<int64_t, kFirst>());
    Unrolled<kCount, kFirst + 1>(visit);
  }
}

inline constexpr int kMostRows = 8;

// Vectors whose sums are in registers at a time: enough that none waits for its last multiply-add, as far as there are
// registers.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64
constexpr int Vectors(int rows) { return rows <= 6 ? 4 : 2; }
#else
constexpr int Vectors(int rows) { return rows <= 3 ? 4 : rows <= 6 ? 2 : 1; }
#endif

HWY_INLINE Vec Load(Tag d, const float* p) { return hn::LoadU(d, p); }
template <class Half>
HWY_INLINE Vec Load(Tag d, const Half* p) {
  return Widen<Half>(d, hn::LoadU(hn::Rebind<uint16_t, Tag>(), reinterpret_cast<const uint16_t*>(p)));
}

// The scales of values in blocks, 0 behind the last, to the end of its panel.
inline void UnpackScales(const paged::ValueBlocks& blocks, float* HWY_RESTRICT scales) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t key = 0; key < blocks.all(); key += lanes) {
    const Vec all = Load(d, reinterpret_cast<const F16*>(blocks.at(key)) + key % kPanelTokens);
    const auto known = hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(blocks.keys - key, 0)));
    hn::StoreU(hn::IfThenElseZero(known, all), d, scales + key);
  }
}

// Codes of keys times scales, as floats, of tokens side by side. With 4 bits each byte has two of them.
template <Encoding kEncoding>
HWY_INLINE Vec Codes(Tag d, const uint8_t* HWY_RESTRICT codes, bool upper, Vec scale) {
  const hn::Rebind<int32_t, Tag> di;
  if constexpr (kEncoding == Encoding::kQ8_0) {
    const hn::Rebind<int8_t, Tag> d8;
    return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(codes)))), scale);
  } else {
    const hn::Rebind<uint8_t, Tag> d8;
    const auto both = hn::PromoteTo(di, hn::LoadU(d8, codes));
    const auto code = upper ? hn::ShiftRight<4>(both) : hn::And(both, hn::Set(di, 15));
    return hn::Mul(hn::ConvertTo(d, hn::Sub(code, hn::Set(di, 8))), scale);
  }
}

// The numbers [column, column + lanes) of the values of token `first + i` of a panel, 0 <= i < kQuadTokens; `first` is
// a multiple of that.
template <class T>
HWY_INLINE Vec Values(Tag d, const uint8_t* HWY_RESTRICT panel, int64_t first, int64_t i, int64_t column,
                      int64_t depth) {
  if constexpr (paged::kInBlocks<T>) {
    constexpr Encoding kEncoding = T::encoding;
    constexpr int64_t kNumbers = BlockNumbers(kEncoding), kCodes = paged::CodesOfBlock(kEncoding);
    const uint8_t* const block = panel + paged::BlocksAt(kEncoding, column / kNumbers);
    const int64_t number = column % kNumbers;
    uint16_t scale;
    std::memcpy(&scale, block + paged::ScaleAt(first + i), sizeof(scale));
    const Vec factor = Widen<F16>(d, hn::Set(hn::Rebind<uint16_t, Tag>(), scale));
    // A lane has the code of each of the four tokens.
    const hn::Rebind<int32_t, Tag> di;
    const uint8_t* const codes = block + paged::ValueCodes(kEncoding, first).at(number % kCodes);
    const auto words = hn::LoadU(di, reinterpret_cast<const int32_t*>(codes));
    const int shift = 8 * static_cast<int>(i);
    if constexpr (kEncoding == Encoding::kQ8_0) {
      const auto code = hn::ShiftRight<24>(hn::ShiftLeftSame(words, 24 - shift));
      return hn::Mul(hn::ConvertTo(d, code), factor);
    } else {
      const auto code = hn::And(hn::ShiftRightSame(words, shift + (number >= kCodes ? 4 : 0)), hn::Set(di, 15));
      return hn::Mul(hn::ConvertTo(d, hn::Sub(code, hn::Set(di, 8))), factor);
    }
  } else {
    return Load(d, reinterpret_cast<const T*>(panel) + (first + i) * depth + column);
  }
}

// Asks memory for panels of keys and their values that are wanted next, a few lines with each step of other work, so
// that it is never idle. What is counted along lies in memory: a step is several turns of a loop, or a loop of few
// instructions would wait for it.
class Ahead {
 public:
  static constexpr int64_t kTurns = 4;

  // `bytes` of each of at most kChunkTokens / kPanelTokens panels and of the values behind it; `steps` of
  // them take all. few: beside so few rows that memory is what they wait for.
  Ahead(const uint8_t* const* panels, int64_t count, int64_t values, int64_t bytes, int64_t steps, bool few)
      : into_l1_(few && HWY_TARGET <= HWY_AVX3 && !IsIntel() && !IsZen4()),
        share_(steps > 0 ? (2 * count * ((bytes + kLine - 1) / kLine) * kWhole + steps - 1) / steps : 0) {
    for (int64_t p = 0; p < count; ++p) Append(panels[p], bytes);
    for (int64_t p = 0; p < count; ++p) Append(panels[p] + values, bytes);
  }

  HWY_INLINE void Step() {
    due_ += share_;
    if (due_ >= kWhole) into_l1_ ? Ask<3>() : Ask<2>();
  }

 private:
  static constexpr int64_t kLine = 64, kWhole = 256;
  // For all lines that are due.
  template <int kLocality>
  HWY_INLINE void Ask() {
    const uint8_t* line = line_;
    int64_t due = due_;
    for (; due >= kWhole; due -= kWhole, line += kLine) {
      if (line >= stop_) {
        if (run_ == runs_end_) break;
        line = runs_[run_].begin;
        stop_ = runs_[run_++].end;
      }
      __builtin_prefetch(line, 0, kLocality);
    }
    line_ = line;
    due_ = due;
  }

  // Panels of a page lie side by side: few ends, none of which a processor foresees.
  void Append(const uint8_t* from, int64_t bytes) {
    if (runs_end_ > 0 && runs_[runs_end_ - 1].end == from) {
      runs_[runs_end_ - 1].end += bytes;
    } else {
      runs_[runs_end_++] = {from, from + bytes};
    }
  }

  struct Run {
    const uint8_t* begin;
    const uint8_t* end;
  };
  Run runs_[2 * kChunkTokens / kPanelTokens];
  // Zen 5 waits less for what it asked L1 for than L2. Zen 4, whose L1 has few lines under way, twice as long.
  bool into_l1_;
  int64_t share_, due_ = 0;  // lines of a step, and those to be asked for, times kWhole
  int64_t run_ = 0, runs_end_ = 0;
  const uint8_t* line_ = nullptr;
  const uint8_t* stop_ = nullptr;
};

template <int kRows, int kVectors>
struct Sums {
  HWY_INLINE Sums() {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) of[r][v] = hn::Zero(Tag());
    }
  }
  // Adds the products of one number a row, `ld` apart, and the vectors x.
  HWY_INLINE void Add(const float* HWY_RESTRICT a, int64_t ld, const Vec (&x)[kVectors]) {
    for (int r = 0; r < kRows; ++r) {
      const Vec number = hn::Set(Tag(), a[r * ld]);
      for (int v = 0; v < kVectors; ++v) of[r][v] = hn::MulAdd(number, x[v], of[r][v]);
    }
  }
  HWY_INLINE void Store(float* HWY_RESTRICT out, int64_t out_ld) const {
    const Tag d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) hn::StoreU(of[r][v], d, out + r * out_ld + v * lanes);
    }
  }

  Vec of[kRows][kVectors];
};

// A vector of keys: where its panel begins, and its first token there.
struct KeyVector {
  const uint8_t* panel;
  int64_t token;
};

// Scores of kVectors vectors of keys.
template <class T, int kRows, int kVectors>
HWY_INLINE void ScoreVectors(const KeyVector* HWY_RESTRICT keys, const float* HWY_RESTRICT q, int64_t depth,
                             float* HWY_RESTRICT scores, int64_t scores_ld, Ahead& ahead) {
  const Tag d;
  KeyVector at[kVectors];
  for (int v = 0; v < kVectors; ++v) at[v] = keys[v];
  Sums<kRows, kVectors> sums;
  const auto add = [&](int64_t i, const Vec(&x)[kVectors]) HWY_ATTR {
    sums.Add(q + i, depth, x);
    if (i % Ahead::kTurns == 0) ahead.Step();
  };
  Vec x[kVectors];
  if constexpr (paged::kInBlocks<T>) {
    constexpr int64_t kNumbers = BlockNumbers(T::encoding), kCodes = paged::CodesOfBlock(T::encoding);
    for (int64_t begin = 0; begin < depth; begin += kNumbers) {
      Vec scale[kVectors];
      for (int v = 0; v < kVectors; ++v) scale[v] = Load(d, reinterpret_cast<const F16*>(at[v].panel) + at[v].token);
      for (int64_t i = 0; i < kNumbers; ++i) {
        for (int v = 0; v < kVectors; ++v) {
          const uint8_t* const codes = at[v].panel + paged::KeyCodes(at[v].token).at(i % kCodes);
          x[v] = Codes<T::encoding>(d, codes, i >= kCodes, scale[v]);
        }
        add(begin + i, x);
      }
      for (int v = 0; v < kVectors; ++v) at[v].panel += paged::BlocksAt(T::encoding, 1);
    }
  } else {
    const T* from[kVectors];
    for (int v = 0; v < kVectors; ++v) from[v] = reinterpret_cast<const T*>(at[v].panel) + at[v].token;
    for (int64_t i = 0; i < depth; ++i) {
      for (int v = 0; v < kVectors; ++v) x[v] = Load(d, from[v] + i * kPanelTokens);
      add(i, x);
    }
  }
  sums.Store(scores, scores_ld);
}

// Scores of `count` panels of keys.
template <class T, int kRows>
HWY_NOINLINE void Scores(const uint8_t* const* panels, int64_t count, const float* q, int64_t depth, float* scores,
                         int64_t scores_ld, Ahead& ahead) {
  constexpr int kMost = Vectors(kRows);
  const auto lanes = static_cast<int64_t>(hn::Lanes(Tag()));
  KeyVector keys[kChunkTokens];
  int64_t left = 0;
  for (int64_t at = 0; at < count * kPanelTokens; at += lanes) {
    keys[left++] = {panels[at / kPanelTokens], at % kPanelTokens};
  }
  const KeyVector* next = keys;
  const auto step = [&](auto vectors) HWY_ATTR {
    ScoreVectors<T, kRows, decltype(vectors)::value>(next, q, depth, scores, scores_ld, ahead);
    next += vectors;
    scores += vectors * lanes;
  };
  for (; left >= kMost; left -= kMost) step(std::integral_constant<int, kMost>());
  if (kMost > 2 && left >= 2) step(std::integral_constant<int, 2>());
  if (left % 2 != 0) step(std::integral_constant<int, 1>());
}

// Sums of kVectors vectors of values side by side, weighted, of the keys [begin, end) of a chunk.
template <class T, int kRows, int kVectors>
HWY_INLINE void SumVectors(const uint8_t* const* panels, int64_t values, int64_t depth, int64_t begin, int64_t end,
                           int64_t column, const float* HWY_RESTRICT weights, int64_t weights_ld,
                           float* HWY_RESTRICT out, int64_t out_ld, Ahead& ahead) {
  const Tag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  Sums<kRows, kVectors> sums;
  for (int64_t key = begin; key < end;) {
    const uint8_t* HWY_RESTRICT panel = panels[key / kPanelTokens] + values;
    const int64_t stop = std::min(end, key + kPanelTokens);  // begin is a panel's
    const auto add = [&](int64_t at_key, const auto& values_at) HWY_ATTR {
      Vec x[kVectors];
      for (int v = 0; v < kVectors; ++v) x[v] = values_at(column + v * lanes);
      sums.Add(weights + at_key, weights_ld, x);
      if (at_key % Ahead::kTurns == 0) ahead.Step();
    };
    if constexpr (paged::kInBlocks<T>) {
      const auto of_token = [&](int64_t first, auto i) HWY_ATTR {
        add(first + i, [&](int64_t at) HWY_ATTR { return Values<T>(d, panel, first % kPanelTokens, i, at, depth); });
      };
      // Four at a time, so that what they share is loaded once.
      for (; stop - key >= kQuadTokens; key += kQuadTokens) {
        Unrolled<kQuadTokens>([&](auto i) HWY_ATTR { of_token(key, i); });
      }
      for (; key < stop; ++key) of_token(key / kQuadTokens * kQuadTokens, key % kQuadTokens);
    } else {
      const T* HWY_RESTRICT row = reinterpret_cast<const T*>(panel);
      for (; key < stop; ++key, row += depth) {
        add(key, [&](int64_t at) HWY_ATTR { return Load(d, row + at); });
      }
    }
  }
  sums.Store(out + column, out_ld);
}

// Sums of all values, which lie `values` bytes behind their panels of keys, weighted.
template <class T, int kRows>
HWY_NOINLINE void WeightedSums(const uint8_t* const* panels, int64_t values, int64_t depth, int64_t begin, int64_t end,
                               const float* weights, int64_t weights_ld, float* out, int64_t out_ld, Ahead& ahead) {
  constexpr int kMost = Vectors(kRows);
  const auto lanes = static_cast<int64_t>(hn::Lanes(Tag()));
  int64_t column = 0;
  const auto sum = [&](auto vectors) HWY_ATTR {
    SumVectors<T, kRows, decltype(vectors)::value>(panels, values, depth, begin, end, column, weights, weights_ld, out,
                                                   out_ld, ahead);
  };
  for (; depth - column >= kMost * lanes; column += kMost * lanes) sum(std::integral_constant<int, kMost>());
  for (; column < depth; column += lanes) sum(std::integral_constant<int, 1>());
}

// How many steps Scores and WeightedSums take together.
inline int64_t Steps(int rows, int64_t panels, int64_t keys, int64_t depth) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(Tag()));
  const auto steps = [](int64_t turns) { return (turns + Ahead::kTurns - 1) / Ahead::kTurns; };
  return panels * kPanelTokens / lanes / Vectors(rows) * steps(depth) +
         std::max<int64_t>(depth / lanes / Vectors(rows), 1) * steps(keys);
}

// Calls visit(std::integral_constant<int, rows>), 1 <= rows <= kMostRows.
template <int kRows = kMostRows, class Visit>
HWY_INLINE void ForRows(int64_t rows, const Visit& visit) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return ForRows<kRows - 1>(rows, visit);
  }
  visit(std::integral_constant<int, kRows>());
}

// Calls visit(std::integral_constant<int, count>(), first) for tiles of at most kMost rows and about the same height.
template <int64_t kMost, class Visit>
HWY_INLINE void ForTiles(int64_t rows, const Visit& visit) {
  int64_t tiles = (rows + kMost - 1) / kMost;
  for (int64_t row = 0; tiles > 0; --tiles) {
    const int64_t count = (rows - row + tiles - 1) / tiles;
    ForRows<kMost>(count, [&](auto number) HWY_ATTR { visit(number, row); });
    row += count;
  }
}

}  // namespace few_rows
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
