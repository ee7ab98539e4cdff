// The register tile of two panels: up to six rows of A times two packed panels of floats, side by side.
//
// Where there are 32 registers, 6 x 4 vectors of sums want 34 instructions for 24 multiply-adds, and 14 x 2
// (tile-inl.h) 44 for 28. Alone on a core both keep its multiply-adds busy; beside another hardware thread, which takes
// every other cycle's instructions, those few decide.

#if defined(THRESHER_KERNELS_WIDE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_WIDE_TILE_INL_H_
#undef THRESHER_KERNELS_WIDE_TILE_INL_H_
#else
#define THRESHER_KERNELS_WIDE_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "thresher/base/cpu.h"
#include "thresher/kernels/tile-inl.h"

#undef THRESHER_WIDE_ROWS
#undef THRESHER_WIDE_DECLARE
#undef THRESHER_WIDE_STEP
#undef THRESHER_WIDE_K
#undef THRESHER_WIDE_TURN
#undef THRESHER_WIDE_REST
#undef THRESHER_WIDE_BOUND
#undef THRESHER_WIDE_RESIDUAL
#undef THRESHER_WIDE_STORE
#undef THRESHER_WIDE_END

#define THRESHER_WIDE_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5)

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

inline constexpr int kWideTileRows = 6;

// Whether there are registers enough.
inline constexpr bool kHasWideTiles = kTileRows >= 14;

// Whether products of many rows take two panels at once. Intel's cores and Zen 5 were measured; Zen 4, whose
// multiply-adds take two cycles, was not.
HWY_INLINE bool TakesTwoPanels() { return kHasWideTiles && !IsZen4(); }

// Where the second panel of a tile lies. What it begins with and what is added to it lie PanelWidth() behind the first
// panel's, as its results do unless they are sums.
struct SecondPanel {
  size_t b;            // bytes behind the first
  size_t out;          // floats behind the first's results or sums
  size_t fetched = 0;  // bytes from what the tile fetches of one panel to that of another, or 0
};

// The sums of row i: c##i##a and b of the first panel, c and d of the second.
#define THRESHER_WIDE_DECLARE(i)                         \
  V c##i##a = hn::Zero(d), c##i##b = c##i##a;            \
  V c##i##c = c##i##a, c##i##d = c##i##a;                \
  if constexpr (i < kRows) {                             \
    if (args.init != nullptr) {                          \
      const float* const init = args.init + i * init_ld; \
      c##i##a = hn::LoadU(d, init);                      \
      c##i##b = hn::LoadU(d, init + lanes);              \
      c##i##c = hn::LoadU(d, init + width);              \
      c##i##d = hn::LoadU(d, init + width + lanes);      \
    }                                                    \
  }
#define THRESHER_WIDE_STEP(i)                                                  \
  if constexpr (i < kRows) {                                                   \
    const V av = hn::Set(d, (i < 3 ? a0 : a1)[THRESHER_TILE_DISTANCE(i) + u]); \
    THRESHER_TILE_FMA(av, ba, c##i##a);                                        \
    THRESHER_TILE_FMA(av, bb, c##i##b);                                        \
    THRESHER_TILE_FMA(av, bc, c##i##c);                                        \
    THRESHER_TILE_FMA(av, bd, c##i##d);                                        \
  }
// Row u of k: rows at a0 and a1 (three each), panels at b0 and b1.
#define THRESHER_WIDE_K(u_value)                                                    \
  {                                                                                 \
    constexpr size_t u = u_value;                                                   \
    const V ba = FloatPanel::Load(d, b0, u, 0), bb = FloatPanel::Load(d, b0, u, 1); \
    const V bc = FloatPanel::Load(d, b1, u, 0), bd = FloatPanel::Load(d, b1, u, 1); \
    THRESHER_WIDE_ROWS(THRESHER_WIDE_STEP)                                          \
  }
#define THRESHER_WIDE_TURN()    \
  {                             \
    THRESHER_WIDE_K(0)          \
    THRESHER_WIDE_K(1)          \
    THRESHER_WIDE_K(2)          \
    THRESHER_WIDE_K(3)          \
    a0 += 4, a1 += 4;           \
    b0 += FloatPanel::Bytes(4); \
    b1 += FloatPanel::Bytes(4); \
  }
// One row of k, where fewer than a turn's are left.
#define THRESHER_WIDE_REST()    \
  {                             \
    THRESHER_WIDE_K(0)          \
    ++a0, ++a1;                 \
    b0 += FloatPanel::Bytes(1); \
    b1 += FloatPanel::Bytes(1); \
  }
#define THRESHER_WIDE_BOUND(i)                                 \
  if constexpr (i < kRows) {                                   \
    c##i##a = AtMost(d, greatest, AtLeast(d, least, c##i##a)); \
    c##i##b = AtMost(d, greatest, AtLeast(d, least, c##i##b)); \
    c##i##c = AtMost(d, greatest, AtLeast(d, least, c##i##c)); \
    c##i##d = AtMost(d, greatest, AtLeast(d, least, c##i##d)); \
  }
#define THRESHER_WIDE_RESIDUAL(i)                                  \
  if constexpr (i < kRows) {                                       \
    const float* const row = args.residual + i * args.residual_ld; \
    c##i##a = hn::Add(c##i##a, hn::LoadU(d, row));                 \
    c##i##b = hn::Add(c##i##b, hn::LoadU(d, row + lanes));         \
    c##i##c = hn::Add(c##i##c, hn::LoadU(d, row + width));         \
    c##i##d = hn::Add(c##i##d, hn::LoadU(d, row + width + lanes)); \
  }
#define THRESHER_WIDE_STORE(i)                                          \
  if constexpr (i < kRows) {                                            \
    float* const row = static_cast<float*>(args.out) + i * args.out_ld; \
    hn::StoreU(c##i##a, d, row);                                        \
    hn::StoreU(c##i##b, d, row + lanes);                                \
    hn::StoreU(c##i##c, d, row + second.out);                           \
    hn::StoreU(c##i##d, d, row + second.out + lanes);                   \
  }
// As THRESHER_TILE_END; all columns are stored.
#define THRESHER_WIDE_END()                              \
  {                                                      \
    const V least = hn::Set(d, args.bounds.least);       \
    const V greatest = hn::Set(d, args.bounds.greatest); \
    if (args.bounds.any && !args.residual_first) {       \
      THRESHER_WIDE_ROWS(THRESHER_WIDE_BOUND)            \
    }                                                    \
    if (args.residual != nullptr) {                      \
      THRESHER_WIDE_ROWS(THRESHER_WIDE_RESIDUAL)         \
    }                                                    \
    if (args.bounds.any && args.residual_first) {        \
      THRESHER_WIDE_ROWS(THRESHER_WIDE_BOUND)            \
    }                                                    \
    THRESHER_WIDE_ROWS(THRESHER_WIDE_STORE)              \
  }

struct WideTileArgs : TileArgs {
  SecondPanel second;
};

// What RunTile does, on two panels of floats.
template <int kRows>
HWY_NOINLINE void RunWideTile(const WideTileArgs& given) {
  static_assert(kRows <= kWideTileRows);
  const TileTag d;
  using V = hn::Vec<TileTag>;
  const size_t lanes = hn::Lanes(d);
  const size_t width = PanelWidth();
  WideTileArgs args = given;
  const uint8_t* fetched = args.fetch.from;
  for (size_t tile = 0; tile < given.tiles; ++tile) {
    __asm__("" : "+m"(args));  // as in RunTile
    size_t lda = args.lda;
    size_t lda2 = 2 * lda;
    const Fetch fetch = args.fetch;
    const SecondPanel second = args.second;
    const size_t init_ld = args.init_ld;
    const float* HWY_RESTRICT a0 = args.a;
    const float* HWY_RESTRICT a1 = a0 + 3 * lda;
    const uint8_t* HWY_RESTRICT b0 = static_cast<const uint8_t*>(args.b);
    const uint8_t* HWY_RESTRICT b1 = b0 + second.b;
    THRESHER_WIDE_ROWS(THRESHER_WIDE_DECLARE)
    ResultLines result(args.fetched, kRows, args.k / 4, width);
    size_t k = args.k;
    for (; k >= 4; k -= 4) {
      THRESHER_TILE_KEEP_DISTANCES(lda, lda2)
      result.Turn();
      FetchLines(fetch, fetched);
      if (second.fetched != 0) FetchLines(fetch, fetched + second.fetched);
      fetched += 64 * fetch.lines;
      THRESHER_WIDE_TURN()
    }
    for (; k > 0; --k) THRESHER_WIDE_REST()
    THRESHER_WIDE_END()
    if (fetched >= args.fetch.end) fetched = static_cast<const uint8_t*>(args.b);
    args.NextTile(kRows);
  }
}

using WideTileFunction = void (*)(const WideTileArgs&);

template <size_t... I>
constexpr WideTileFunction WideTileAt(size_t index, std::index_sequence<I...>) {
  constexpr WideTileFunction table[] = {&RunWideTile<static_cast<int>(I) + 1>...};
  return table[index];
}

// 1 <= rows <= kWideTileRows.
HWY_INLINE WideTileFunction WideTileForRows(size_t rows) {
  return WideTileAt(rows - 1, std::make_index_sequence<size_t{kWideTileRows}>());
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
