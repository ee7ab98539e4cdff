// A few rows of int16 times one panel of 4-bit numbers; see gemm_dot.h.

#if defined(THRESHER_KERNELS_INT4_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_INT4_TILE_INL_H_
#undef THRESHER_KERNELS_INT4_TILE_INL_H_
#else
#define THRESHER_KERNELS_INT4_TILE_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "hwy/highway.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/panel_formats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// A row of k elements as int16 codes, padded to whole groups, then for each group its scale (float) and what the sum of
// its products is too large by, because the weights' codes are 8 too large (int32_t).
struct Int4Rows {
  static constexpr size_t kGroup = Int4Panel::kGroup;

  static HWY_INLINE size_t Groups(size_t k) { return (k + kGroup - 1) / kGroup; }
  static HWY_INLINE size_t Bytes(size_t k) {
    return Groups(k) * (kGroup * sizeof(int16_t) + sizeof(float) + sizeof(int32_t));
  }
  static HWY_INLINE size_t ScaleOffset(size_t k) { return Groups(k) * kGroup * sizeof(int16_t); }

  static HWY_INLINE void Convert(const float* HWY_RESTRICT x, size_t k, uint8_t* HWY_RESTRICT row) {
    const TileTag d;
    const IntTag di;
    const hn::Rebind<int16_t, IntTag> d16;
    const size_t lanes = hn::Lanes(d);
    auto* codes = reinterpret_cast<int16_t*>(row);
    auto* scales = reinterpret_cast<float*>(row + ScaleOffset(k));
    auto* excess = reinterpret_cast<int32_t*>(scales + Groups(k));
    for (size_t g = 0; g < Groups(k); ++g) {
      const size_t begin = g * kGroup;
      const size_t count = std::min(kGroup, k - begin);
      auto max = hn::Zero(d);
      auto odd = hn::Zero(d);
      for (size_t j = 0; j < count; j += lanes) {
        const auto v = hn::LoadN(d, x + begin + j, std::min(lanes, count - j));
        max = hn::Max(max, hn::Abs(v));
        odd = hn::MulAdd(v, hn::Zero(d), odd);
      }
      const bool finite = hn::ReduceSum(d, odd) == 0.0f;
      const float scale = hn::ReduceMax(d, max) / 32767.0f;
      const float inverse = finite && scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
      auto sum = hn::Zero(di);
      for (size_t j = 0; j < kGroup; j += lanes) {
        const size_t left = count > j ? std::min(lanes, count - j) : 0;
        auto q = hn::Zero(di);
        if (finite && left != 0) {
          q = hn::NearestInt(hn::Mul(hn::LoadN(d, x + begin + j, left), hn::Set(d, inverse)));
        }
        sum = hn::Add(sum, q);
        hn::StoreN(hn::DemoteTo(d16, q), d16, codes + begin + j, std::min(lanes, kGroup - j));
      }
      scales[g] = finite ? scale : std::numeric_limits<float>::quiet_NaN();
      excess[g] = 8 * hn::ReduceSum(di, sum);
    }
  }

  static HWY_INLINE float Restore(const uint8_t* row, size_t k, size_t j) {
    const auto* scales = reinterpret_cast<const float*>(row + ScaleOffset(k));
    return scales[j / kGroup] * static_cast<float>(reinterpret_cast<const int16_t*>(row)[j]);
  }
};

inline constexpr int kInt4TileRows = 4;

template <int R>
HWY_NOINLINE void RunInt4Tile(const uint8_t* HWY_RESTRICT rows, size_t k, const uint8_t* HWY_RESTRICT b,
                              float* HWY_RESTRICT out) {
  const TileTag d;
  const IntTag di;
  const WordTag du;
  const hn::Repartition<int16_t, IntTag> d16;
  const size_t lanes = hn::Lanes(d);
  const size_t stride = Int4Rows::Bytes(k);
  const size_t groups = Int4Rows::Groups(k);
  const auto mask = hn::Set(du, 0x000F000Fu);
  const auto* scales = reinterpret_cast<const float*>(rows + Int4Rows::ScaleOffset(k));
  const auto* excess = reinterpret_cast<const int32_t*>(scales + groups);

#define THRESHER_INT4_ROWS(X) X(0) X(1) X(2) X(3)
#define THRESHER_INT4_DECLARE(r) auto c##r##a = hn::Zero(d), c##r##b = hn::Zero(d);
  THRESHER_INT4_ROWS(THRESHER_INT4_DECLARE)
  for (size_t g = 0; g < groups; ++g, b += Int4Panel::GroupBytes()) {
#define THRESHER_INT4_START(r)                                                                                      \
  auto s##r##a = hn::Zero(di), s##r##b = hn::Zero(di);                                                              \
  if constexpr (r < R) {                                                                                            \
    s##r##a = s##r##b =                                                                                             \
        hn::Set(di, -*reinterpret_cast<const int32_t*>(reinterpret_cast<const uint8_t*>(excess + g) + r * stride)); \
  }
    THRESHER_INT4_ROWS(THRESHER_INT4_START)
    for (size_t i = 0; i < Int4Panel::kGroup / Int4Panel::kLaneRows; ++i) {
      const auto left = Int4Panel::Lanes(b, i, 0);
      const auto right = Int4Panel::Lanes(b, i, 1);
      const uint8_t* HWY_RESTRICT codes = rows + (g * Int4Panel::kGroup + i * Int4Panel::kLaneRows) * sizeof(int16_t);
#define THRESHER_INT4_STEP(r)                                                 \
  if constexpr (r < R) {                                                      \
    const auto a = BroadcastGroup(codes + r * stride + p * sizeof(uint32_t)); \
    s##r##a = AddPairs(a, hn::BitCast(d16, wa), s##r##a);                     \
    s##r##b = AddPairs(a, hn::BitCast(d16, wb), s##r##b);                     \
  }
#define THRESHER_INT4_PAIR(p_value)                              \
  {                                                              \
    constexpr int p = p_value;                                   \
    const auto wa = hn::And(hn::ShiftRight<4 * p>(left), mask);  \
    const auto wb = hn::And(hn::ShiftRight<4 * p>(right), mask); \
    THRESHER_INT4_ROWS(THRESHER_INT4_STEP)                       \
  }
      THRESHER_INT4_PAIR(0)
      THRESHER_INT4_PAIR(1)
      THRESHER_INT4_PAIR(2)
      THRESHER_INT4_PAIR(3)
    }
    const auto scale_a = Int4Panel::Scale(d, b, 0);
    const auto scale_b = Int4Panel::Scale(d, b, 1);
#define THRESHER_INT4_FINISH(r)                                                                                 \
  if constexpr (r < R) {                                                                                        \
    const auto scale =                                                                                          \
        hn::Set(d, *reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(scales + g) + r * stride)); \
    c##r##a = hn::MulAdd(hn::ConvertTo(d, s##r##a), hn::Mul(scale_a, scale), c##r##a);                          \
    c##r##b = hn::MulAdd(hn::ConvertTo(d, s##r##b), hn::Mul(scale_b, scale), c##r##b);                          \
  }
    THRESHER_INT4_ROWS(THRESHER_INT4_FINISH)
  }
#define THRESHER_INT4_STORE(r)                                            \
  if constexpr (r < R) {                                                  \
    hn::Store(c##r##a, d, out + size_t{r} * kPanelVectors * lanes);       \
    hn::Store(c##r##b, d, out + (size_t{r} * kPanelVectors + 1) * lanes); \
  }
  THRESHER_INT4_ROWS(THRESHER_INT4_STORE)
#undef THRESHER_INT4_ROWS
#undef THRESHER_INT4_DECLARE
#undef THRESHER_INT4_START
#undef THRESHER_INT4_STEP
#undef THRESHER_INT4_PAIR
#undef THRESHER_INT4_FINISH
#undef THRESHER_INT4_STORE
}

using Int4TileFunction = void (*)(const uint8_t*, size_t, const uint8_t*, float*);

template <size_t... I>
constexpr Int4TileFunction Int4TileAt(size_t index, std::index_sequence<I...>) {
  constexpr Int4TileFunction table[] = {&RunInt4Tile<static_cast<int>(I) + 1>...};
  return table[index];
}

// 1 <= rows <= kInt4TileRows.
HWY_INLINE Int4TileFunction Int4TileForRows(size_t rows) {
  return Int4TileAt(rows - 1, std::make_index_sequence<static_cast<size_t>(kInt4TileRows)>());
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
