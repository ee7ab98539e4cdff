// Attention of few rows over pages of floats: keys and values are multiplied as they are read, since so few rows do not
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
#include <type_traits>

#include "hwy/highway.h"
#include "thresher/base/half.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/paged_attention.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace few_rows {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::CappedTag<float, static_cast<size_t>(kPanelTokens)>;
using Vec = hn::Vec<Tag>;

#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_ARCH_ARM_A64
inline constexpr int kMostRows = 8;
#else
inline constexpr int kMostRows = 4;
#endif

// Vectors whose sums are in registers at a time: enough that none waits for its last multiply-add, as far as there are
// registers.
constexpr int Vectors(int rows) { return 4 * rows <= 3 * kMostRows ? 4 : 2; }

HWY_INLINE Vec Load(Tag d, const float* p) { return hn::LoadU(d, p); }
template <class Half>
HWY_INLINE Vec Load(Tag d, const Half* p) {
  return Widen<Half>(d, hn::LoadU(hn::Rebind<uint16_t, Tag>(), reinterpret_cast<const uint16_t*>(p)));
}

// Asks memory for panels of keys and their values that are wanted next, a few lines with each step of other work, so
// that it is never idle.
class Ahead {
 public:
  // `bytes`, whole lines, of each of at most kChunkTokens / kPanelTokens panels and of the values behind it; `steps` of
  // them take all.
  Ahead(const uint8_t* const* panels, int64_t count, int64_t values, int64_t bytes, int64_t steps)
      : bytes_(bytes), share_(steps > 0 ? (2 * count * bytes / kLine + steps - 1) / steps : 0) {
    for (int64_t p = 0; p < count; ++p) parts_[parts_end_++] = panels[p];
    for (int64_t p = 0; p < count; ++p) parts_[parts_end_++] = panels[p] + values;
  }

  HWY_INLINE void Step() {
    for (int64_t i = 0; i < share_; ++i) {
      if (line_ == stop_) {
        if (part_ == parts_end_) return;
        line_ = parts_[part_++];
        stop_ = line_ + bytes_;
      }
      __builtin_prefetch(line_, 0, 2);
      line_ += kLine;
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  const uint8_t* parts_[2 * kChunkTokens / kPanelTokens];
  int64_t bytes_, share_;
  int64_t part_ = 0, parts_end_ = 0;
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

// Scores of kVectors vectors of keys side by side, each from keys[v] on.
template <class T, int kRows, int kVectors>
HWY_INLINE void ScoreVectors(const T* const* HWY_RESTRICT keys, const float* HWY_RESTRICT q, int64_t depth,
                             float* HWY_RESTRICT scores, int64_t scores_ld, Ahead& ahead) {
  const T* at[kVectors];
  for (int v = 0; v < kVectors; ++v) at[v] = keys[v];
  Sums<kRows, kVectors> sums;
  for (int64_t i = 0; i < depth; ++i) {
    Vec x[kVectors];
    for (int v = 0; v < kVectors; ++v) x[v] = Load(Tag(), at[v] + i * kPanelTokens);
    sums.Add(q + i, depth, x);
    ahead.Step();
  }
  sums.Store(scores, scores_ld);
}

// Scores of `count` panels, each from panels[p] on, which are [depth][kPanelTokens].
template <class T, int kRows>
HWY_NOINLINE void Scores(const uint8_t* const* panels, int64_t count, const float* q, int64_t depth, float* scores,
                         int64_t scores_ld, Ahead& ahead) {
  constexpr int kMost = Vectors(kRows);
  const auto lanes = static_cast<int64_t>(hn::Lanes(Tag()));
  const T* keys[kChunkTokens];
  int64_t left = 0;
  for (int64_t at = 0; at < count * kPanelTokens; at += lanes) {
    keys[left++] = reinterpret_cast<const T*>(panels[at / kPanelTokens]) + at % kPanelTokens;
  }
  const T* const* next = keys;
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
    const T* HWY_RESTRICT row = reinterpret_cast<const T*>(panels[key / kPanelTokens] + values) + column;
    const int64_t stop = std::min(end, key + kPanelTokens);  // begin is a panel's
    for (; key < stop; ++key, row += depth) {
      Vec x[kVectors];
      for (int v = 0; v < kVectors; ++v) x[v] = Load(d, row + v * lanes);
      sums.Add(weights + key, weights_ld, x);
      ahead.Step();
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
  return panels * kPanelTokens / lanes / Vectors(rows) * depth +
         keys * std::max<int64_t>(depth / lanes / Vectors(rows), 1);
}

// Calls visit(std::integral_constant<int, rows>), 1 <= rows <= kMostRows.
template <int kRows = kMostRows, class Visit>
HWY_INLINE void ForRows(int64_t rows, const Visit& visit) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return ForRows<kRows - 1>(rows, visit);
  }
  visit(std::integral_constant<int, kRows>());
}

}  // namespace few_rows
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
