// The register tile of rows that are windows of lines of positions: rows of up to two groups times one packed panel.
//
// Rows of a group are neighbouring positions of one line, so they lie lda apart wherever the windows begin; k is cut
// into runs, one for what a window covers of each line of x (or each tap of it), which lie at the same distances for
// both groups. Runs of zeros (padding) are left out.

#if defined(THRESHER_KERNELS_WINDOW_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_WINDOW_TILE_INL_H_
#undef THRESHER_KERNELS_WINDOW_TILE_INL_H_
#else
#define THRESHER_KERNELS_WINDOW_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "thresher/base/cpu.h"
#include "thresher/kernels/panel_formats-inl.h"
#include "thresher/kernels/tile-inl.h"

#undef THRESHER_WINDOW_DECLARE
#undef THRESHER_WINDOW_ROW
#undef THRESHER_WINDOW_STEP
#undef THRESHER_WINDOW_K
#undef THRESHER_WINDOW_TURN

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

inline constexpr int kGroupRows = kTileRows / 2;

// How far ahead of its use a panel is fetched into L1.
inline constexpr size_t kFetchBytes = 4096;

// Rows of k that a panel stores as one.
template <class Panel>
inline constexpr size_t kRowsTogether =
    std::is_same_v<Panel, Bf16Panel> || std::is_same_v<Panel, HalfPairsPanel> ? 2 : 1;

// What the tiles that one panel passes fetch of the next one, in equal shares, where L2 has room for both: a panel of
// windows is long, and the first tile would wait for it.
class PanelAhead {
 public:
  // bytes: of the next panel, or 0 where there is none; turn_bytes: what a turn reads of a panel; tiles: at least one.
  PanelAhead(const uint8_t* panel, size_t bytes, size_t turn_bytes, size_t tiles)
      : from_(panel), lines_((turn_bytes / 64 + tiles - 1) / tiles) {
    if (8 * bytes <= 3 * static_cast<size_t>(Caches().l2)) end_ = panel + bytes;
  }

  // The share of a tile of so many turns.
  Fetch Next(size_t turns) {
    if (from_ >= end_) return {};
    const Fetch share{from_, lines_};
    from_ += turns * lines_ * 64;
    return share;
  }

 private:
  const uint8_t* from_;
  const uint8_t* end_ = nullptr;
  size_t lines_;
};

// Where the elements of one run begin.
struct WindowRun {
  ptrdiff_t a;  // elements behind the row's first
  size_t b;     // rows of the panel
};

// out = init + a * b, on the rows of both groups, one group behind the other, ended as TileEnd says.
struct WindowTileArgs : TileEnd {
  const float* a;    // of the first group's first row
  ptrdiff_t second;  // elements from there to the second group's first row
  size_t lda;        // from one row of a group to the next
  const void* b;     // packed panel
  const WindowRun* runs;
  size_t num_runs;
  size_t k;           // of each run; of panels that store pairs of rows, an even number
  const float* init;  // rows init_ld apart (0: one row for all), or null for zeros
  size_t init_ld = 0;
  Fetch fetch;  // beside the panel itself, in each turn of four; into L2
};

template <class Panel, int G1, int G2, int kVectors>
HWY_NOINLINE void RunWindowTile(const WindowTileArgs& args) {
  static_assert(G1 <= kGroupRows && G2 <= G1 && kVectors <= kPanelVectors);
  constexpr int kRows = G1 + G2;
  const TileTag d;
  using V = hn::Vec<TileTag>;
  const size_t lanes = hn::Lanes(d);
  size_t lda = args.lda;
  size_t lda2 = 2 * lda;
#define THRESHER_WINDOW_DECLARE(i)                                      \
  V c##i##a = hn::Zero(d);                                              \
  V c##i##b = hn::Zero(d);                                              \
  if constexpr (i < kRows) {                                            \
    if (args.init != nullptr) {                                         \
      const float* const init = args.init + i * args.init_ld;           \
      c##i##a = hn::LoadU(d, init);                                     \
      if constexpr (kVectors > 1) c##i##b = hn::LoadU(d, init + lanes); \
    }                                                                   \
  }
  THRESHER_TILE_ROWS(THRESHER_WINDOW_DECLARE)

  // Three rows a pointer, as in RunTile.
#define THRESHER_WINDOW_ROW(i) \
  (i < G1 ? (i < 3   ? p0      \
             : i < 6 ? p1      \
                     : p2)     \
          : (i - G1 < 3   ? q0 \
             : i - G1 < 6 ? q1 \
                          : q2))[THRESHER_TILE_DISTANCE(i < G1 ? i : i - G1) + u]
#define THRESHER_WINDOW_STEP(i)                                     \
  if constexpr (i < kRows) {                                        \
    const V av = hn::Set(d, THRESHER_WINDOW_ROW(i));                \
    THRESHER_TILE_FMA(av, ba, c##i##a);                             \
    if constexpr (kVectors > 1) THRESHER_TILE_FMA(av, bb, c##i##b); \
  }
#define THRESHER_WINDOW_K(u_value)                            \
  {                                                           \
    constexpr size_t u = u_value;                             \
    const V ba = Panel::Load(d, b, u, 0);                     \
    const V bb = kVectors > 1 ? Panel::Load(d, b, u, 1) : ba; \
    THRESHER_TILE_ROWS(THRESHER_WINDOW_STEP)                  \
  }
#define THRESHER_WINDOW_TURN() \
  {                            \
    THRESHER_WINDOW_K(0)       \
    THRESHER_WINDOW_K(1)       \
    THRESHER_WINDOW_K(2)       \
    THRESHER_WINDOW_K(3)       \
    p0 += 4, p1 += 4, p2 += 4; \
    q0 += 4, q1 += 4, q2 += 4; \
    b += Panel::Bytes(4);      \
  }
  ResultLines result(args, kRows, args.num_runs * (args.k / 4));
  const uint8_t* fetched = args.fetch.from;
  const size_t fetched_lines = args.fetch.lines;
  for (const WindowRun* run = args.runs; run != args.runs + args.num_runs; ++run) {
    const uint8_t* HWY_RESTRICT b = static_cast<const uint8_t*>(args.b) + Panel::Bytes(run->b);
    const float* HWY_RESTRICT p0 = args.a + run->a;
    const float* HWY_RESTRICT p1 = p0 + 3 * lda;
    const float* HWY_RESTRICT p2 = p1 + 3 * lda;
    const float* HWY_RESTRICT q0 = p0 + args.second;
    const float* HWY_RESTRICT q1 = q0 + 3 * lda;
    const float* HWY_RESTRICT q2 = q1 + 3 * lda;
    size_t k = args.k;
    const auto fetch_lines = [&]() HWY_ATTR {
      for (size_t line = 0; line < Panel::Bytes(4); line += 64) __builtin_prefetch(b + kFetchBytes + line, 0, 3);
      for (size_t line = 0; line < fetched_lines; ++line, fetched += 64) __builtin_prefetch(fetched, 0, 2);
    };
    if constexpr (kTwoTurns<kRows, 1>) {
      for (; k >= 8; k -= 8) {
        THRESHER_TILE_KEEP_DISTANCES(lda, lda2)
        if (result.rows() != 0) {
          result.Turn();
          result.Turn();
        }
        fetch_lines();
        THRESHER_WINDOW_TURN()
        fetch_lines();
        THRESHER_WINDOW_TURN()
      }
      HWY_ASSUME(k < 8);
    }
    for (; k >= 4; k -= 4) {
      result.Turn();
      fetch_lines();
      THRESHER_WINDOW_TURN()
    }
    if constexpr (kRowsTogether<Panel> == 2) {
      if (k > 0) {
        THRESHER_WINDOW_K(0)
        THRESHER_WINDOW_K(1)
      }
    } else {
      for (; k > 0; --k) {
        THRESHER_WINDOW_K(0)
        ++p0, ++p1, ++p2;
        ++q0, ++q1, ++q2;
        b += Panel::Bytes(1);
      }
    }
  }

  THRESHER_TILE_END(args)
}

using WindowTileFunction = void (*)(const WindowTileArgs&);

// Entries of the table below: each height of the first group alone, with one that is a row shorter, with its like.
constexpr int FirstRows(size_t entry) { return static_cast<int>(entry / 3) + 1; }
constexpr int SecondRows(size_t entry) { return entry % 3 == 0 ? 0 : static_cast<int>(entry / 3 + entry % 3) - 1; }

template <class Panel, int kVectors, size_t... I>
WindowTileFunction WindowTileAt(size_t entry, std::index_sequence<I...>) {
  static constexpr WindowTileFunction table[] = {&RunWindowTile<Panel, FirstRows(I), SecondRows(I), kVectors>...};
  return table[entry];
}

// 1 <= first <= kGroupRows; second is 0, first - 1 or first.
template <class Panel, int kVectors = kPanelVectors>
HWY_INLINE WindowTileFunction WindowTileFor(size_t first, size_t second) {
  const size_t kind = second == 0 ? 0 : second == first ? 2 : 1;
  return WindowTileAt<Panel, kVectors>((first - 1) * 3 + kind, std::make_index_sequence<size_t{3} * kGroupRows>());
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
