// Tiles of a matrix unit (tile_unit.h) for products whose operands are smaller than the sums: up to 32 rows of A times
// one packed panel of B, with the contract of RunDotTile but for the residual.
//
// A step of a panel, 32 columns of pairs of bf16 or quads of int8, is 128 bytes: 16 steps are two tiles beside each
// other. Two tiles of rows times these two keep four tiles of sums in the unit. Rows of A hold whole pieces of 16
// steps, zeros behind their end. Between 16 and 32 rows, the two tiles of rows overlap: what they share is computed
// twice and stored twice. Rows stay in L1 while several panels meet them, the steps of which pass by (LoadOnce). Rows
// of windows (window_dot-inl.h) are two groups of neighbouring positions, read where they lie in the image, in as many
// runs along k as a window has pieces, by tiles that are as deep as fits a run.

#if defined(THRESHER_KERNELS_AMX_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_AMX_TILE_INL_H_
#undef THRESHER_KERNELS_AMX_TILE_INL_H_
#else
#define THRESHER_KERNELS_AMX_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "hwy/highway.h"
#include "thresher/base/cpu.h"
#include "thresher/base/isa.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/epilogue-inl.h"
#include "thresher/kernels/tile_unit.h"

// The target that isa::Isa::kAmx dispatches to, in the sources that are compiled for it.
#undef THRESHER_UNIT_TARGET
#if defined(THRESHER_INT8_TARGETS) && defined(__x86_64__) && HWY_TARGET == HWY_AVX3_DL
#define THRESHER_UNIT_TARGET 1
#elif defined(__x86_64__) && HWY_TARGET == HWY_AVX3_ZEN4
#define THRESHER_UNIT_TARGET 1
#else
#define THRESHER_UNIT_TARGET 0
#endif

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// What multiplies tiles in this target now.
HWY_INLINE isa::Tiles UnitInUse() {
#if THRESHER_UNIT_TARGET
  return isa::CurrentTiles();
#else
  return isa::Tiles::kNone;
#endif
}

inline constexpr size_t kUnitSteps = kUnitRowBytes / sizeof(uint32_t);  // of k, in one tile
inline constexpr size_t kUnitBlockRows = 2 * kUnitRows;

// Lines of a panel that one step reads.
inline constexpr size_t kUnitTurnLines = 2 * kUnitRows;

// Of tiles: a run's steps are cut into as few pieces as there can be, or one more where those would not be equal, so
// that none reaches behind the run, where anything may lie. Where neither cuts them evenly, whole tiles and a rest.
constexpr size_t UnitDepth(size_t steps) {
  if (steps == 0) return kUnitSteps;
  const size_t least = (steps + kUnitSteps - 1) / kUnitSteps;
  for (const size_t pieces : {least, least + 1}) {
    if (steps % pieces == 0) return steps / pieces;
  }
  return kUnitSteps;
}

// Bytes from one converted row of `bytes` bytes to the next: whole tiles, and an odd number of lines, so that the rows
// of a tile spread over all sets of L1.
constexpr size_t UnitRowStride(size_t bytes) {
  return ((bytes + kUnitRowBytes - 1) / kUnitRowBytes | 1) * kUnitRowBytes;
}

// Fewer rows are multiplied by vectors. A tile of up to 16 rows takes 52 cycles for 16 steps of a panel: its two
// products wait for those of the steps before. Vectors take 16 a row in int8, and give the same bits; in bf16 Intel's
// take 64.
template <class Dot>
inline constexpr size_t kLeastUnitRows = std::is_same_v<typename Dot::Sum, int32_t> ? 4 : 1;

// The bias of the columns of panels, which tiles of sums begin with: sixteen loads of a line each, or twice as many
// where it crosses lines, as a caller's may. That is moved, unless it is very long.
class BiasOnLines {
 public:
  // n: columns of the whole product.
  BiasOnLines(const float* bias, const PanelRange& range, size_t n) : bias_(bias) {
    const size_t begin = range.panel_begin * PanelWidth(), end = std::min(range.panel_end * PanelWidth(), n);
    const bool moved = bias != nullptr && reinterpret_cast<uintptr_t>(bias) % kUnitRowBytes != 0;
    if (!moved || end - begin > kMostColumns) return;
    std::copy(bias + begin, bias + end, lines_);
    bias_ = lines_;
    first_ = begin;
  }
  BiasOnLines(const BiasOnLines&) = delete;
  BiasOnLines& operator=(const BiasOnLines&) = delete;

  // As PanelBias.
  const float* OfPanel(size_t column, size_t columns, float* padded) const {
    return PanelBias(bias_, column - first_, columns, padded);
  }

 private:
  static constexpr size_t kMostColumns = 4096;
  const float* bias_;
  size_t first_ = 0;
  alignas(kUnitRowBytes) float lines_[kMostColumns];
};

// Where a run of steps begins, in bytes.
struct StepRun {
  ptrdiff_t a;  // behind each row's first
  size_t b;     // behind the panel's first
};

// What multiplies a tile of rows by a panel: up to kMostRows rows, while an object of this type lives.
template <class DotType>
struct VectorTiles {
  using Dot = DotType;
  static constexpr size_t kMostRows = Dot::kMostRows;
  explicit VectorTiles(size_t) {}
  void Run(const DotTileArgs& tile, size_t rows) { DotTileForRows<Dot>(rows)(tile); }
};

#if THRESHER_UNIT_TARGET

// Tiles configured for products of `rows` rows, or of 16 to 32 at a time, as long as this lives. Only then does the
// thread have a state of tiles to be kept when it is interrupted.
template <class Unit>
class ConfiguredTiles {
 public:
  // Sums in 0 to 3, rows of A in 4 and 5, of `depth` bytes, and what they meet of B in 6 and 7.
  explicit ConfiguredTiles(size_t rows, size_t depth = kUnitRowBytes) {
    rows = std::min(rows, kUnitRows);
    TileConfig config;
    for (size_t tile = 0; tile < kUnitTiles; ++tile) {
      const bool left = tile == 4 || tile == 5;
      config.row_bytes[tile] = static_cast<uint16_t>(left ? depth : kUnitRowBytes);
      config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : depth / sizeof(uint32_t));
    }
    Unit::Configure(config);
  }
  ~ConfiguredTiles() { Unit::Release(); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;
};

// Pairs of fp16, of HalfPairsPanel; sums in float.
struct F16Dot {
  using Sum = float;
  static constexpr size_t kStep = 2;
  static constexpr size_t kLaneBytes = 4;
};

template <class Unit, class Dot, int kC, int kA, int kB>
HWY_INLINE void UnitDot() {
  if constexpr (std::is_same_v<Dot, F16Dot>) {
    Unit::template DotF16<kC, kA, kB>();
  } else if constexpr (std::is_same_v<typename Dot::Sum, float>) {
    Unit::template DotBf16<kC, kA, kB>();
  } else {
    Unit::template DotUint8Int8<kC, kA, kB>();
  }
}

// What the last tiles of a product fetch of what is read after it, in `turns` steps of their loops: as evenly as whole
// lines can be, and as much as a product reads before it fetches for itself.
class LinesAhead {
 public:
  LinesAhead(std::span<const std::byte> ahead, size_t turns)
      : from_(reinterpret_cast<const uint8_t*>(ahead.data())),
        left_(std::min((ahead.size() + 63) / 64, static_cast<size_t>(Caches().l2) / 8 / 64)),
        lines_(std::min((left_ + turns - 1) / std::max<size_t>(turns, 1), kUnitTurnLines)) {}

  // Those of a tile of so many turns.
  Fetch Next(size_t turns) {
    if (left_ == 0) return {};
    const Fetch own{from_, lines_};
    const size_t fetched = std::min(left_, turns * lines_);
    from_ += fetched * 64;
    left_ -= fetched;
    return own;
  }

 private:
  const uint8_t* from_;
  size_t left_;
  size_t lines_;  // of a turn
};

// What is left to do with the sums of a tile, if anything. The matrix unit works beside the rest of the processor: what
// becomes of the sums of one tile is done in pieces between the steps of the next one, which stores its own sums at its
// end. Members are set and moved on one by one: a copy of all at once would be a wide load of what narrow stores wrote,
// which waits until every store before them, those of a tile's sums too, has reached L1.
struct PendingFinish {
  FinishFunction finish = nullptr;
  FinishArgs args;  // of the rows that are left

  size_t rows() const { return finish == nullptr ? 0 : args.to.rows; }

  // The next `count` rows.
  template <class Sum>
  void Run(size_t count) {
    if (count == 0) return;
    const size_t left = args.to.rows - count;
    args.to.rows = count;
    if constexpr (std::is_same_v<Sum, float>) {
      if (args.row_scale != nullptr) Scale();
    }
    finish(args);
    args.to.rows = left;
    if (left == 0) finish = nullptr;
    args.sums = static_cast<const Sum*>(args.sums) + count * PanelWidth();
    if (args.gate != nullptr) args.gate += count * PanelWidth();
    args.to.c += count * args.to.ldc;
    if (args.to.residual != nullptr) args.to.residual += count * args.to.ldr;
    if (args.row_scale != nullptr) args.row_scale += count;
    if (args.row_zero != nullptr) args.row_zero += count;
  }

 private:
  // Finish scales integers only. The sums are where a tile has stored them.
  void Scale() const {
    const TileTag d;
    float* sums = const_cast<float*>(static_cast<const float*>(args.sums));
    for (size_t i = 0; i < args.to.rows; ++i) {
      const auto scale = hn::Set(d, args.row_scale[i]);
      for (size_t j = 0; j < PanelWidth(); j += hn::Lanes(d), sums += hn::Lanes(d)) {
        hn::StoreU(hn::Mul(hn::LoadU(d, sums), scale), d, sums);
      }
    }
  }
};

// out = init + a * b of one tile of `rows` rows, or of two.
struct UnitTileArgs {
  const uint8_t* a;  // rows lda bytes apart
  size_t lda;
  ptrdiff_t second;   // bytes from the first tile's rows to the second's
  size_t second_row;  // rows of the result from the first tile's to the second's
  size_t rows;        // as the tiles are configured
  const uint8_t* b;
  const StepRun* runs;
  size_t num_runs;
  size_t steps;      // of each run
  size_t depth;      // steps of a tile, as the tiles are configured
  bool padded;       // whether rows have zeros behind each run, up to whole tiles; else it is anything
  const void* init;  // Sum, rows init_ld elements apart (0: one row for all), or null for zeros
  size_t init_ld;
  // Lines that are fetched with each piece of steps, and from where: apart, since two numbers side by side may be
  // copied by one load, which would wait for all stores before theirs, tiles' too.
  size_t fetch_lines;
  void* out;
  size_t out_ld;
  const uint8_t* fetch;
};

// kTwo: two tiles of rows. kHalf: only the left half of the panel, the right one is padding; what `out` has of it is
// left as it was. `pending` is done meanwhile. A residual is not added here.
template <class Unit, class Dot, bool kTwo, bool kHalf>
HWY_NOINLINE void MultiplyUnitTile(const UnitTileArgs& args, PendingFinish& pending) {
  static_assert(Dot::kLaneBytes == sizeof(uint32_t));
  constexpr size_t kStepBytes = 2 * kUnitRowBytes;
  const size_t lda = args.lda;

  if (args.init == nullptr) {
    Unit::template Zero<0>();
    if constexpr (!kHalf) Unit::template Zero<1>();
    if constexpr (kTwo) Unit::template Zero<2>();
    if constexpr (kTwo && !kHalf) Unit::template Zero<3>();
  } else {
    const uint8_t* init = static_cast<const uint8_t*>(args.init);
    const size_t stride = args.init_ld * sizeof(uint32_t);
    const uint8_t* second = init + args.second_row * stride;
    Unit::template Load<0>(init, stride);
    if constexpr (!kHalf) Unit::template Load<1>(init + kUnitRowBytes, stride);
    if constexpr (kTwo) Unit::template Load<2>(second, stride);
    if constexpr (kTwo && !kHalf) Unit::template Load<3>(second + kUnitRowBytes, stride);
  }

  const auto multiply = [](const uint8_t* a, ptrdiff_t second, size_t ld, const uint8_t* b) HWY_ATTR {
    Unit::template LoadOnce<6>(b, kStepBytes);
    Unit::template Load<4>(a, ld);
    UnitDot<Unit, Dot, 0, 4, 6>();
    if constexpr (kTwo) {
      Unit::template Load<5>(a + second, ld);
      UnitDot<Unit, Dot, 2, 5, 6>();
    }
    if constexpr (!kHalf) {
      Unit::template LoadOnce<7>(b + kUnitRowBytes, kStepBytes);
      UnitDot<Unit, Dot, 1, 4, 7>();
      if constexpr (kTwo) UnitDot<Unit, Dot, 3, 5, 7>();
    }
  };
  const uint8_t* fetched = args.fetch;
  const size_t lines = args.fetch_lines;
  const size_t depth = args.depth, pieces = args.steps / depth, rest = args.steps % depth;
  // Rows of what is pending that a step does, so that all are done with the last one.
  size_t left = pending.rows();
  const size_t share = left / std::max<size_t>(args.num_runs * pieces, 1) + 1;
  for (const StepRun* run = args.runs; run != args.runs + args.num_runs; ++run) {
    const uint8_t* a = args.a + run->a;
    const uint8_t* b = args.b + run->b;
    for (size_t piece = 0; piece < pieces; ++piece) {
      for (size_t line = 0; line < lines; ++line) __builtin_prefetch(fetched + 64 * line, 0, 2);
      multiply(a, args.second, lda, b);
      const size_t count = std::min(share, left);
      pending.template Run<typename Dot::Sum>(count);
      left -= count;
      a += depth * sizeof(uint32_t);
      b += depth * kStepBytes;
      fetched += 64 * lines;
    }
    if (rest == 0) continue;
    // What lies behind the run may be anything, and 0 times anything is not always 0.
    alignas(64) uint8_t padded[kUnitSteps * kStepBytes];
    std::memcpy(padded, b, rest * kStepBytes);
    std::memset(padded + rest * kStepBytes, 0, (depth - rest) * kStepBytes);
    if (args.padded) {
      multiply(a, args.second, lda, padded);
      continue;
    }
    alignas(64) uint8_t rows[kUnitBlockRows * kUnitRowBytes];
    const hn::FixedTag<uint32_t, kUnitSteps> d;
    const auto there = hn::FirstN(d, rest);
    for (size_t i = 0; i < (kTwo ? 2 : 1) * args.rows; ++i) {
      const uint8_t* from = i < args.rows ? a + i * lda : a + args.second + (i - args.rows) * lda;
      const auto some = hn::MaskedLoad(there, d, reinterpret_cast<const uint32_t*>(from));
      hn::Store(some, d, reinterpret_cast<uint32_t*>(rows + i * kUnitRowBytes));
    }
    multiply(rows, static_cast<ptrdiff_t>(args.rows * kUnitRowBytes), kUnitRowBytes, padded);
  }
  pending.template Run<typename Dot::Sum>(left);

  uint8_t* out = static_cast<uint8_t*>(args.out);
  const size_t stride = args.out_ld * sizeof(uint32_t);
  uint8_t* second = out + args.second_row * stride;
  Unit::template Store<0>(out, stride);
  if constexpr (!kHalf) Unit::template Store<1>(out + kUnitRowBytes, stride);
  if constexpr (kTwo) Unit::template Store<2>(second, stride);
  if constexpr (kTwo && !kHalf) Unit::template Store<3>(second + kUnitRowBytes, stride);
}

template <class Unit, class DotType>
class UnitTiles {
 public:
  using Dot = DotType;
  static constexpr size_t kMostRows = kUnitBlockRows;
  // depth: steps of a tile.
  explicit UnitTiles(size_t rows, size_t depth = kUnitSteps) : tiles_(rows, depth * sizeof(uint32_t)), depth_(depth) {}
  ~UnitTiles() { pending_.template Run<typename Dot::Sum>(pending_.rows()); }
  // Up to 16 rows when the tiles are configured for so many, else 16 to 32. half: without the right half of the panel.
  void Run(const DotTileArgs& tile, size_t rows, bool half = false) {
    constexpr StepRun kAll{0, 0};
    const size_t second = rows <= kUnitRows ? 0 : rows - kUnitRows;
    Run({tile.a, tile.lda, static_cast<ptrdiff_t>(second * tile.lda), second, std::min(rows, kUnitRows), tile.b, &kAll,
         1, tile.steps, depth_, tile.padded, tile.init, tile.init_ld, tile.fetch.lines, tile.out, tile.out_ld,
         tile.fetch.from},
        rows > kUnitRows, half);
  }
  // One tile of rows, or two.
  void Run(const UnitTileArgs& args, bool two, bool half = false) {
    if (half) {
      (two ? &MultiplyUnitTile<Unit, Dot, true, true> : &MultiplyUnitTile<Unit, Dot, false, true>)(args, pending_);
    } else {
      (two ? &MultiplyUnitTile<Unit, Dot, true, false> : &MultiplyUnitTile<Unit, Dot, false, false>)(args, pending_);
    }
  }
  // What is to be done with the sums of the tile that ran last, and what with, which is to be set: soon, while the next
  // tile is multiplied, or when this object ends. What the arguments point to must last.
  FinishArgs& Finish(FinishFunction finish) {
    pending_.finish = finish;
    return pending_.args;
  }

 private:
  ConfiguredTiles<Unit> tiles_;
  const size_t depth_;
  PendingFinish pending_;
};

#endif  // THRESHER_UNIT_TARGET

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
