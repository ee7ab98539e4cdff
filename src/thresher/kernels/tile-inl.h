// The register tile that GEMM and attention share: R rows of A times one packed panel of B, in registers.
//
// A panel holds kPanelVectors vectors of columns, row k after row k - 1. In what form its elements are stored is the
// business of a panel format (FloatPanel here, the others in panel_formats-inl.h), which loads them as floats. SVE
// vectors cannot form arrays, so the accumulators are variables c0a, c0b (row 0, left and right vector), c1a ...,
// declared and used by macros; rows beyond R cost nothing because the compiler drops them.

#if defined(THRESHER_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_TILE_INL_H_
#undef THRESHER_KERNELS_TILE_INL_H_
#else
#define THRESHER_KERNELS_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "hwy/highway.h"
#include "thresher/base/cpu.h"
#include "thresher/kernels/math-inl.h"

#undef THRESHER_TILE_ROWS
#undef THRESHER_TILE_DECLARE
#undef THRESHER_TILE_STEP
#undef THRESHER_TILE_STEP1
#undef THRESHER_TILE_RESIDUAL
#undef THRESHER_TILE_PART_OF_RESIDUAL
#undef THRESHER_TILE_BOUND
#undef THRESHER_TILE_STORE
#undef THRESHER_TILE_STORE_PART
#undef THRESHER_TILE_END
#undef THRESHER_TILE_DISTANCE
#undef THRESHER_TILE_KEEP_DISTANCES

#define THRESHER_TILE_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)

// sum += x * y. Left to itself, GCC picks the forms of the instruction that overwrite a factor, then copies and spills
// accumulators; naming the form keeps each accumulator in its register.
#undef THRESHER_TILE_FMA
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && HWY_COMPILER_GCC_ACTUAL
#define THRESHER_TILE_FMA(x, y, sum) __asm__("vfmadd231ps %2, %1, %0" : "+v"((sum).raw) : "v"((x).raw), "v"((y).raw))
#else
#define THRESHER_TILE_FMA(x, y, sum) (sum) = hn::MulAdd(x, y, sum)
#endif

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using TileTag = hn::ScalableTag<float>;

inline constexpr int kPanelVectors = 2;

// The accumulators, one panel row and one broadcast fill the register file: 16 registers before AVX-512, 32 after and
// on Arm.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
inline constexpr int kTileRows = 14;
#elif HWY_ARCH_ARM_A64
inline constexpr int kTileRows = 12;
#else
inline constexpr int kTileRows = 6;
#endif

// Whether the elements of one column lie, for a whole tile of rows, in the same few sets of L1: a cache of 8 or 12 ways
// repeats its sets every 4 KiB.
HWY_INLINE bool RowsShareSets(size_t lda) { return kTileRows > 8 && lda * sizeof(float) % 4096 == 0; }

HWY_INLINE size_t PanelWidth() { return kPanelVectors * hn::Lanes(TileTag()); }

// Upper bound of PanelWidth() for buffers on the stack.
inline constexpr size_t kMaxPanelWidth = kPanelVectors * hn::MaxLanes(TileTag());

// Elements stored as floats: (k, j) lies at k * PanelWidth() + j.
struct FloatPanel {
  static constexpr size_t kGroup = 0;  // rows along k that share scales; 0: there are no scales

  // Bytes of k rows (a multiple of what the format stores together).
  static HWY_INLINE size_t Bytes(size_t k) { return k * PanelWidth() * sizeof(float); }

  // Row k of the left (half 0) or the right (half 1) vector of columns.
  static HWY_INLINE hn::Vec<TileTag> Load(TileTag d, const uint8_t* b, size_t k, size_t half) {
    return hn::Load(d, reinterpret_cast<const float*>(b) + (k * kPanelVectors + half) * hn::Lanes(d));
  }
};

// Whether a panel's rows but the first are loaded faster if what lies in front of them may be read, too.
template <class Panel>
inline constexpr bool kHasLoadBehind = requires(const uint8_t* b) { Panel::LoadBehind(TileTag(), b, 0, 0); };

// A row that is not the first, as Panel::Load().
template <class Panel>
HWY_INLINE hn::Vec<TileTag> LoadBehind(TileTag d, const uint8_t* b, size_t k, size_t half) {
  if constexpr (kHasLoadBehind<Panel>) {
    return Panel::LoadBehind(d, b, k, half);
  } else {
    return Panel::Load(d, b, k, half);
  }
}

// Whether a tile writes a panel as floats while it reads it.
template <class Panel>
inline constexpr bool kWritesFloats = false;

// What a tile fetches meanwhile: so many lines of 64 bytes in each turn of its loop. A tile of several runs fetches for
// each of them, as far apart as the runs.
struct Fetch {
  const uint8_t* from = nullptr;
  size_t lines = 0;
  bool into_l1 = false;          // else into L2
  const uint8_t* end = nullptr;  // of several tiles: what lies from here on is not fetched
};

// Between which results are kept, by an activation that does nothing else.
struct Bounds {
  bool any = false;
  float least = 0.0f, greatest = 0.0f;
};

// What becomes of a tile's sums. Sums in int32 are stored as they are, all of them.
struct TileEnd {
  void* out;  // rows out_ld elements apart
  size_t out_ld;
  const float* residual;  // is added: rows residual_ld apart, or null; may be out
  size_t residual_ld;
  bool residual_first = false;  // before they are kept within bounds
  Bounds bounds = {};
  bool fetches = false;                                 // what of out and residual is not in L1
  size_t columns = std::numeric_limits<size_t>::max();  // of the tile's, the first of which are stored
  // Whether these are rows of bf16 (bf16_rows-inl.h), pointers and distances in pairs.
  bool bf16 = false;
  bool residual_bf16 = false;  // only where `bf16`

  // Sums stay what they are: they wait for more.
  HWY_INLINE void KeepSums(void* to, size_t ld) {
    out = to;
    out_ld = ld;
    residual = nullptr;
    residual_ld = 0;
    residual_first = fetches = bounds.any = bf16 = residual_bf16 = false;
    columns = std::numeric_limits<size_t>::max();
  }
};

// The stores come at once at a tile's end, more lines than the processor can have under way: a tile fetches them, and
// the residual's, row by row while it multiplies.
class ResultLines {
 public:
  // Of `rows` rows of a tile that has `turns` turns to fetch them in; those that have none are fetched now. A second
  // panel's lie `second` floats behind the first's.
  HWY_INLINE ResultLines(const TileEnd& end, size_t rows, size_t turns, size_t second = 0)
      : rows_(end.fetches ? rows : 0), second_(second) {
    out_ = static_cast<const float*>(end.out);
    residual_ = end.residual;
    out_ld_ = end.out_ld;
    residual_ld_ = end.residual_ld;
    while (rows_ > turns) Turn();
  }
  HWY_INLINE size_t rows() const { return rows_; }
  HWY_INLINE void Turn() {
    if (rows_ == 0) return;
    --rows_;
    __builtin_prefetch(out_, 1, 3);
    __builtin_prefetch(out_ + kLine, 1, 3);
    if (second_ != 0) {
      __builtin_prefetch(out_ + second_, 1, 3);
      __builtin_prefetch(out_ + second_ + kLine, 1, 3);
    }
    out_ += out_ld_;
    if (residual_ == nullptr) return;
    __builtin_prefetch(residual_, 0, 3);
    __builtin_prefetch(residual_ + kLine, 0, 3);
    if (second_ != 0) {
      __builtin_prefetch(residual_ + second_, 0, 3);
      __builtin_prefetch(residual_ + second_ + kLine, 0, 3);
    }
    residual_ += residual_ld_;
  }

 private:
  static constexpr size_t kLine = 64 / sizeof(float);
  size_t rows_;
  const size_t second_;
  const float* out_;
  const float* residual_;
  size_t out_ld_, residual_ld_;
};

// What a tile computes: out = init + a * b, ended as TileEnd says. Several tiles follow one another: each has the rows
// behind those of the one before.
struct TileArgs : TileEnd {
  const float* a;  // rows lda apart
  size_t lda;
  const void* b;  // packed panel
  size_t k;
  const float* init;  // rows init_ld apart (0: one row for all, such as a bias), or null for zeros
  size_t init_ld;
  Fetch fetch;
  float* floats = nullptr;  // if kWritesFloats: where, as a FloatPanel
  size_t tiles = 1;         // a call for each would take some steps of k more
  TileEnd fetched =
      {};  // lines that are used soon: of this end, of what becomes of sums that wait, of the tile after it

  // Moves on to the tile behind this one of `rows` rows.
  HWY_INLINE void NextTile(size_t rows) {
    a += rows * lda;
    if (init != nullptr) init += rows * init_ld;
    Move(*this, rows);
    if (fetched.fetches) Move(fetched, rows);
  }

 private:
  static HWY_INLINE void Move(TileEnd& end, size_t rows) {
    end.out = static_cast<float*>(end.out) + rows * end.out_ld;
    if (end.residual != nullptr) end.residual += rows * end.residual_ld;
  }
};

// The end of a tile of kRows rows and kVectors vectors of sums in float.
#define THRESHER_TILE_RESIDUAL(i)                                                                                 \
  if constexpr (i < kRows) {                                                                                      \
    c##i##a = hn::Add(c##i##a, hn::LoadU(d, residual + i * end.residual_ld));                                     \
    if constexpr (kVectors > 1) c##i##b = hn::Add(c##i##b, hn::LoadU(d, residual + i * end.residual_ld + lanes)); \
  }
#define THRESHER_TILE_PART_OF_RESIDUAL(i)                                                      \
  if constexpr (i < kRows) {                                                                   \
    c##i##a = hn::Add(c##i##a, hn::LoadN(d, residual + i * end.residual_ld, left));            \
    if constexpr (kVectors > 1)                                                                \
      c##i##b = hn::Add(c##i##b, hn::LoadN(d, residual + i * end.residual_ld + lanes, right)); \
  }
#define THRESHER_TILE_BOUND(i)                                                             \
  if constexpr (i < kRows) {                                                               \
    c##i##a = AtMost(d, greatest, AtLeast(d, least, c##i##a));                             \
    if constexpr (kVectors > 1) c##i##b = AtMost(d, greatest, AtLeast(d, least, c##i##b)); \
  }
#define THRESHER_TILE_STORE(i)                                                        \
  if constexpr (i < kRows) {                                                          \
    hn::StoreU(c##i##a, d, out + i * end.out_ld);                                     \
    if constexpr (kVectors > 1) hn::StoreU(c##i##b, d, out + i * end.out_ld + lanes); \
  }
#define THRESHER_TILE_STORE_PART(i)                                                          \
  if constexpr (i < kRows) {                                                                 \
    hn::StoreN(c##i##a, d, out + i * end.out_ld, left);                                      \
    if constexpr (kVectors > 1) hn::StoreN(c##i##b, d, out + i * end.out_ld + lanes, right); \
  }
#define THRESHER_TILE_END(args)                                            \
  {                                                                        \
    const TileEnd& end = args;                                             \
    const bool whole = end.columns >= kVectors * lanes;                    \
    const size_t left = std::min(end.columns, lanes);                      \
    const size_t right = whole ? lanes : end.columns - left;               \
    const V least = hn::Set(d, end.bounds.least);                          \
    const V greatest = hn::Set(d, end.bounds.greatest);                    \
    if (end.bounds.any && !end.residual_first) {                           \
      THRESHER_TILE_ROWS(THRESHER_TILE_BOUND)                              \
    }                                                                      \
    if (const float* const residual = end.residual; residual != nullptr) { \
      if (whole) {                                                         \
        THRESHER_TILE_ROWS(THRESHER_TILE_RESIDUAL)                         \
      } else {                                                             \
        THRESHER_TILE_ROWS(THRESHER_TILE_PART_OF_RESIDUAL)                 \
      }                                                                    \
    }                                                                      \
    if (end.bounds.any && end.residual_first) {                            \
      THRESHER_TILE_ROWS(THRESHER_TILE_BOUND)                              \
    }                                                                      \
    float* const out = static_cast<float*>(end.out);                       \
    if (whole) {                                                           \
      THRESHER_TILE_ROWS(THRESHER_TILE_STORE)                              \
    } else {                                                               \
      THRESHER_TILE_ROWS(THRESHER_TILE_STORE_PART)                         \
    }                                                                      \
  }

// Zen 4 lets tall tiles wait for what they fetched into L2; tiles of few rows are held up by fetching into L1.
constexpr bool MayFetchIntoL1(size_t rows) { return rows > 8; }

HWY_INLINE void FetchLines(const Fetch& fetch, const uint8_t* from) {
  for (size_t line = 0; line < fetch.lines; ++line) {
    if (fetch.into_l1) {
      __builtin_prefetch(from + 64 * line, 0, 3);
    } else {
      __builtin_prefetch(from + 64 * line, 0, 2);
    }
  }
}

// Whether a tile takes two turns of four steps at once. Where a core is shared with another hardware thread, and gets
// its instructions every other cycle, a tile of few registers waits for them: each beside the multiply-adds counts.
template <int kRows, int S>
inline constexpr bool kTwoTurns = S == 1 && kRows <= 6;

// Of `turns` turns, how many come before them: those that have more to fetch than a line of panels, into L2 (the
// results of two rows each), `least`, and what is left over of pairs.
HWY_INLINE size_t SingleTurns(const Fetch& fetch, const ResultLines& result, size_t turns, size_t least) {
  if (fetch.lines != 1 || fetch.into_l1) return turns;
  const size_t more = std::min(std::max((result.rows() + 1) / 2, least), turns);
  return more + (turns - more) % 2;
}

HWY_INLINE void FetchTwoLines(const uint8_t* from) {
  __builtin_prefetch(from, 0, 2);
  __builtin_prefetch(from + 64, 0, 2);
}

// How far row i lies behind the pointer that it shares with up to two others.
#define THRESHER_TILE_DISTANCE(i) ((i) % 3 == 0 ? 0 : (i) % 3 == 1 ? lda : lda2)
// Left to itself, the compiler keeps sums of these distances and offsets, which fill registers and the stack, instead
// of writing both into instructions.
#define THRESHER_TILE_KEEP_DISTANCES(lda, lda2) __asm__("" : "+r"(lda), "+r"(lda2));

// S > 1 splits k into S runs, each with accumulators of its own: that hides the latency of the multiply-adds when R
// alone is too small, and reads the panel as S streams, because one stream does not use all of a core's memory
// bandwidth. A tile of one vector is for a last panel whose columns fill no more: it leaves the other vector alone.
template <class Panel, int kRows, int S, int kVectors = kPanelVectors>
HWY_NOINLINE void RunTile(const TileArgs& given) {
  static_assert(kRows * S <= 14 && kVectors <= kPanelVectors);
  static_assert(!kWritesFloats<Panel> || (S == 1 && kVectors == kPanelVectors));
  const TileTag d;
  using V = hn::Vec<TileTag>;
  const size_t lanes = hn::Lanes(d);
  TileArgs args = given;
  const uint8_t* fetched = args.fetch.from;
  for (size_t tile = 0; tile < given.tiles; ++tile) {
    // Left to itself, the compiler works out before the first tile what every tile needs, and keeps it on the stack.
    __asm__("" : "+m"(args));
    size_t lda = args.lda;
    size_t lda2 = 2 * lda;
    const Fetch fetch = args.fetch;
    const uint8_t* HWY_RESTRICT b = static_cast<const uint8_t*>(args.b);
    float* HWY_RESTRICT floats = args.floats;
    // Three rows a pointer: base, base + lda and base + 2 * lda are one addressing mode each.
    const float* HWY_RESTRICT a0 = args.a;
    const float* HWY_RESTRICT a1 = a0 + 3 * lda;
    const float* HWY_RESTRICT a2 = a1 + 3 * lda;
    const float* HWY_RESTRICT a3 = a2 + 3 * lda;
    const float* HWY_RESTRICT a4 = a3 + 3 * lda;
    // Elements and bytes from one run to the next; what is left over after the last one comes at the end.
    const size_t run = S > 1 ? args.k / S / 4 * 4 : args.k;
    const size_t run_bytes = S > 1 ? Panel::Bytes(run) : 0;

#define THRESHER_TILE_DECLARE(i)                                                                \
  V c##i##a = hn::Zero(d);                                                                      \
  V c##i##b = hn::Zero(d);                                                                      \
  if constexpr (i < kRows) {                                                                    \
    if (args.init != nullptr) {                                                                 \
      c##i##a = hn::LoadU(d, args.init + i * args.init_ld);                                     \
      if constexpr (kVectors > 1) c##i##b = hn::LoadU(d, args.init + i * args.init_ld + lanes); \
    }                                                                                           \
  }
    THRESHER_TILE_ROWS(THRESHER_TILE_DECLARE)

    // Accumulator i belongs to row i % kRows and to run i / kRows.
#define THRESHER_TILE_STEP(i)                                                                                       \
  if constexpr (i < kRows * S) {                                                                                    \
    constexpr int r = i % kRows;                                                                                    \
    constexpr int s = i / kRows;                                                                                    \
    const float* p = r < 3 ? a0 : r < 6 ? a1 : r < 9 ? a2 : r < 12 ? a3 : a4;                                       \
    const V av = hn::Set(d, p[THRESHER_TILE_DISTANCE(r) + s * run + u]);                                            \
    THRESHER_TILE_FMA(av, (s == 0 ? b0a : s == 1 ? b1a : s == 2 ? b2a : b3a), c##i##a);                             \
    if constexpr (kVectors > 1) THRESHER_TILE_FMA(av, (s == 0 ? b0b : s == 1 ? b1b : s == 2 ? b2b : b3b), c##i##b); \
  }
#define THRESHER_TILE_K(Load, u_value)                                            \
  {                                                                               \
    constexpr size_t u = u_value;                                                 \
    const V b0a = Load(d, b, u, 0);                                               \
    const V b0b = kVectors > 1 ? Load(d, b, u, 1) : b0a;                          \
    const V b1a = S > 1 ? Load(d, b + run_bytes, u, 0) : b0a;                     \
    const V b1b = S > 1 && kVectors > 1 ? Load(d, b + run_bytes, u, 1) : b0b;     \
    const V b2a = S > 2 ? Load(d, b + 2 * run_bytes, u, 0) : b0a;                 \
    const V b2b = S > 2 && kVectors > 1 ? Load(d, b + 2 * run_bytes, u, 1) : b0b; \
    const V b3a = S > 3 ? Load(d, b + 3 * run_bytes, u, 0) : b0a;                 \
    const V b3b = S > 3 && kVectors > 1 ? Load(d, b + 3 * run_bytes, u, 1) : b0b; \
    if constexpr (kWritesFloats<Panel>) {                                         \
      hn::Store(b0a, d, floats + u * kPanelVectors * lanes);                      \
      hn::Store(b0b, d, floats + (u * kPanelVectors + 1) * lanes);                \
    }                                                                             \
    THRESHER_TILE_ROWS(THRESHER_TILE_STEP)                                        \
  }
#define THRESHER_TILE_STEP1(i)                                                \
  if constexpr (i < kRows) {                                                  \
    const float* p = i < 3 ? a0 : i < 6 ? a1 : i < 9 ? a2 : i < 12 ? a3 : a4; \
    const V av = hn::Set(d, p[static_cast<size_t>(i % 3) * lda]);             \
    THRESHER_TILE_FMA(av, b0a, c##i##a);                                      \
    if constexpr (kVectors > 1) THRESHER_TILE_FMA(av, b0b, c##i##b);          \
  }

#define THRESHER_TILE_TURN(Load)                                                     \
  {                                                                                  \
    THRESHER_TILE_K(Load, 0)                                                         \
    THRESHER_TILE_K(Load, 1)                                                         \
    THRESHER_TILE_K(Load, 2)                                                         \
    THRESHER_TILE_K(Load, 3)                                                         \
    a0 += 4;                                                                         \
    a1 += 4;                                                                         \
    a2 += 4;                                                                         \
    a3 += 4;                                                                         \
    a4 += 4;                                                                         \
    b += Panel::Bytes(4);                                                            \
    if constexpr (kWritesFloats<Panel>) floats += size_t{4} * kPanelVectors * lanes; \
  }
    ResultLines result(args.fetched, kRows, args.k / S / 4);
    const auto fetch_lines = [&]() HWY_ATTR {
      result.Turn();
      if constexpr (kTwoTurns<kRows, S>) result.Turn();
      for (size_t s = 0; s < S; ++s) FetchLines(fetch, fetched + s * run_bytes);
      fetched += 64 * fetch.lines;
    };
    size_t k = run;
    // The turns before those that are taken two at once.
    size_t single = run / 4;
    if constexpr (kTwoTurns<kRows, S>) single = SingleTurns(fetch, result, single, kHasLoadBehind<Panel> ? 1 : 0);
    for (; single > 0; --single, k -= 4) {
      if constexpr (kTwoTurns<kRows, S>) THRESHER_TILE_KEEP_DISTANCES(lda, lda2)
      fetch_lines();
      THRESHER_TILE_TURN(Panel::Load)
    }
    if constexpr (kTwoTurns<kRows, S>) {
      for (; k >= 8; k -= 8) {
        THRESHER_TILE_KEEP_DISTANCES(lda, lda2)
        FetchTwoLines(fetched);
        fetched += 128;
        THRESHER_TILE_TURN(LoadBehind<Panel>)
        THRESHER_TILE_TURN(LoadBehind<Panel>)
      }
    }
    HWY_ASSUME(k < 4);
    if constexpr (S > 1) {
      a0 += (S - 1) * run;
      a1 += (S - 1) * run;
      a2 += (S - 1) * run;
      b += (S - 1) * run_bytes;
      k = args.k - S * run;
    }
    for (size_t j = 0; j < k; ++j) {
      const V b0a = Panel::Load(d, b, j, 0);
      const V b0b = kVectors > 1 ? Panel::Load(d, b, j, 1) : b0a;
      if constexpr (kWritesFloats<Panel>) {
        hn::Store(b0a, d, floats + j * kPanelVectors * lanes);
        hn::Store(b0b, d, floats + (j * kPanelVectors + 1) * lanes);
      }
      THRESHER_TILE_ROWS(THRESHER_TILE_STEP1)
      ++a0, ++a1, ++a2, ++a3, ++a4;
    }
#undef THRESHER_TILE_TURN
#undef THRESHER_TILE_K

    // The sums of the other sets join those of set 0. Only rows below 3 are ever split.
    if constexpr (kRows == 1 && S == 4) {
      c0a = hn::Add(hn::Add(c0a, c1a), hn::Add(c2a, c3a));
      c0b = hn::Add(hn::Add(c0b, c1b), hn::Add(c2b, c3b));
    } else if constexpr (kRows == 2 && S == 2) {
      c0a = hn::Add(c0a, c2a);
      c0b = hn::Add(c0b, c2b);
      c1a = hn::Add(c1a, c3a);
      c1b = hn::Add(c1b, c3b);
    } else if constexpr (kRows == 3 && S == 2) {
      c0a = hn::Add(c0a, c3a);
      c0b = hn::Add(c0b, c3b);
      c1a = hn::Add(c1a, c4a);
      c1b = hn::Add(c1b, c4b);
      c2a = hn::Add(c2a, c5a);
      c2b = hn::Add(c2b, c5b);
    } else {
      static_assert(S == 1);
    }

    THRESHER_TILE_END(args)
    if (fetched >= args.fetch.end) fetched = static_cast<const uint8_t*>(args.b);
    args.NextTile(kRows);
  }
}

using TileFunction = void (*)(const TileArgs&);

// Into how many runs a tile of `rows` rows splits k.
constexpr int RunsFor(size_t rows) {
  if (rows == 1) return 4;
  return rows <= 3 ? 2 : 1;
}

template <class Panel, int kVectors, size_t... I>
constexpr TileFunction TileAt(size_t index, std::index_sequence<I...>) {
  constexpr TileFunction table[] = {&RunTile<Panel, static_cast<int>(I) + 1, RunsFor(I + 1), kVectors>...};
  return table[index];
}

// 1 <= rows <= kMostRows.
template <class Panel = FloatPanel, int kMostRows = kTileRows, int kVectors = kPanelVectors>
HWY_INLINE TileFunction TileForRows(size_t rows) {
  return TileAt<Panel, kVectors>(rows - 1, std::make_index_sequence<static_cast<size_t>(kMostRows)>());
}

// The first of several tiles as RowTiles cuts them, which writes its panel as floats for those after it, while it
// multiplies: the stores cost nothing there.
template <class Panel>
struct Written : Panel {};
template <class Panel>
inline constexpr bool kWritesFloats<Written<Panel>> = true;

inline constexpr int kLeastFirstTile = kTileRows / 2 + 1;

template <class Panel, size_t... I>
constexpr TileFunction WritingTileAt(size_t index, std::index_sequence<I...>) {
  constexpr TileFunction table[] = {&RunTile<Written<Panel>, kLeastFirstTile + static_cast<int>(I), 1>...};
  return table[index];
}

// kLeastFirstTile <= rows <= kTileRows.
template <class Panel>
HWY_INLINE TileFunction WritingTileForRows(size_t rows) {
  static_assert(RunsFor(kLeastFirstTile) == 1);
  constexpr auto kHeights = size_t{kTileRows} - size_t{kLeastFirstTile} + 1;
  return WritingTileAt<Panel>(rows - static_cast<size_t>(kLeastFirstTile), std::make_index_sequence<kHeights>());
}

// Cuts `rows` rows into tiles of nearly equal height, at most `most`: with two accumulators a row, a tile of one or two
// rows left over would wait for its own multiply-adds, whereas one row less in some tiles costs nothing.
struct RowTiles {
  explicit RowTiles(size_t rows, size_t most = static_cast<size_t>(kTileRows))
      : count((rows + most - 1) / most), height(count == 0 ? 0 : rows / count), taller(rows - height * count) {}
  size_t Height(size_t tile) const { return tile < taller ? height + 1 : height; }
  // The tiles from this one on that are as high.
  size_t Alike(size_t tile) const { return (tile < taller ? taller : count) - tile; }
  size_t count;
  size_t height;
  size_t taller;  // the first so many tiles have one row more
};

// What one tile of several fetches, which read the same block of `bytes` in `turns` turns of their loop each: its share
// of the block after it, but no more than a line for every line it reads.
HWY_INLINE Fetch FetchShare(const RowTiles& tiles, size_t tile, const uint8_t* block, size_t bytes, size_t turns,
                            const uint8_t* next) {
  const size_t read = bytes / std::max<size_t>(turns, 1) / 64;
  const size_t count = std::max<size_t>(tiles.count, 1);
  const size_t lines = std::max<size_t>((read + count - 1) / count, 1);
  const size_t done = tile * turns * lines * 64;
  return {done < bytes ? next + done : block, lines, MayFetchIntoL1(tiles.Height(tile)), next + bytes};
}

// What a tile fetches that is the only one to read its block, as it is stored: what it will read a little later. Where
// memory sets the pace of few rows, Zen 4 does that better by itself, as far as its window of instructions spans enough
// bytes; it is helped a little where there are several runs to follow. Intel's cores want the lines in L1 from two rows
// on (Sapphire Rapids, 8 rows of int8 from L3: 28.6 GB/s of the 30.4 it reads; fetched into L2 26.5, left alone 24.5).
HWY_INLINE Fetch FetchAlone(size_t rows, size_t runs, const uint8_t* block, size_t bytes, size_t turns,
                            const uint8_t* next) {
  constexpr bool kWideWindow = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;
  constexpr size_t kFewRows = kWideWindow ? 5 : 3;
  constexpr size_t kDistance = 8192;
  const size_t lines = bytes / std::max<size_t>(turns, 1) / 64;
  if (runs > 1) return {next, kWideWindow || rows == 1 ? size_t{1} : size_t{4}, false};
  if (IsIntel()) return rows == 1 ? Fetch{} : Fetch{block + kDistance / 2, lines, true};
  if (rows <= kFewRows) return {};
  return {block + kDistance, lines, false};
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
