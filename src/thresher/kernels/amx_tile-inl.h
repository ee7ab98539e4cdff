// Tiles of a matrix unit (tile_unit.h) for products whose operands are smaller than the sums: up to 32 rows of A times
// one packed panel of B, with the contract of RunDotTile but for the residual.
//
// A step of a panel, 32 columns of pairs of bf16 or quads of int8, is 128 bytes: 16 steps are two tiles beside each
// other. Two tiles of rows times these two keep four tiles of sums in the unit. Rows of A hold whole pieces of 16
// steps, zeros behind their end. Between 16 and 32 rows, the two tiles of rows overlap: what they share is computed
// twice and stored twice.

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

#include "hwy/highway.h"
#include "thresher/base/isa.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/epilogue-inl.h"
#include "thresher/kernels/tile_unit.h"

// The target that isa::Isa::kAmx dispatches to.
#undef THRESHER_UNIT_TARGET
#if defined(__x86_64__) && HWY_TARGET == HWY_AVX3_ZEN4
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

// Bytes from one converted row of `bytes` bytes to the next: whole tiles, and an odd number of lines, so that the rows
// of a tile spread over all sets of L1.
constexpr size_t UnitRowStride(size_t bytes) {
  return ((bytes + kUnitRowBytes - 1) / kUnitRowBytes | 1) * kUnitRowBytes;
}

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
  // Sums in 0 to 3, rows of A in 4 and 5, B in 6 and 7.
  explicit ConfiguredTiles(size_t rows) {
    rows = std::min(rows, kUnitRows);
    TileConfig config;
    for (size_t tile = 0; tile < kUnitTiles; ++tile) {
      config.row_bytes[tile] = static_cast<uint16_t>(kUnitRowBytes);
      config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : kUnitRows);
    }
    Unit::Configure(config);
  }
  ~ConfiguredTiles() { Unit::Release(); }
  ConfiguredTiles(const ConfiguredTiles&) = delete;
  ConfiguredTiles& operator=(const ConfiguredTiles&) = delete;
};

template <class Unit, class Dot, int kC, int kA, int kB>
HWY_INLINE void UnitDot() {
  if constexpr (std::is_same_v<typename Dot::Sum, float>) {
    Unit::template DotBf16<kC, kA, kB>();
  } else {
    Unit::template DotUint8Int8<kC, kA, kB>();
  }
}

// What is left to do with the sums of a tile, if anything. The matrix unit works beside the rest of the processor: what
// becomes of the sums of one tile is done in pieces between the steps of the next one, which stores its own sums at its
// end.
struct PendingFinish {
  FinishFunction finish = nullptr;
  FinishArgs args;

  // Rows [begin, end).
  template <class Sum>
  void Run(size_t begin, size_t end) const {
    if (begin == end) return;
    FinishArgs rows = args;
    rows.sums = static_cast<const Sum*>(args.sums) + begin * PanelWidth();
    rows.to.c += begin * args.to.ldc;
    if (rows.to.residual != nullptr) rows.to.residual += begin * args.to.ldr;
    rows.to.rows = end - begin;
    if (rows.row_scale != nullptr) rows.row_scale += begin;
    if (rows.row_zero != nullptr) rows.row_zero += begin;
    finish(rows);
  }
};

// kTwo: two tiles of rows. `pending` is done meanwhile. A residual is not added here.
template <class Unit, class Dot, bool kTwo>
HWY_NOINLINE void MultiplyUnitTile(const DotTileArgs& args, size_t rows, PendingFinish& pending) {
  static_assert(Dot::kLaneBytes == sizeof(uint32_t));
  constexpr size_t kStepBytes = 2 * kUnitRowBytes;
  const size_t second = kTwo ? rows - kUnitRows : 0;
  const size_t lda = args.lda;

  if (args.init == nullptr) {
    Unit::template Zero<0>();
    Unit::template Zero<1>();
    if constexpr (kTwo) {
      Unit::template Zero<2>();
      Unit::template Zero<3>();
    }
  } else {
    const uint8_t* init = static_cast<const uint8_t*>(args.init);
    const size_t stride = args.init_ld * sizeof(uint32_t);
    Unit::template Load<0>(init, stride);
    Unit::template Load<1>(init + kUnitRowBytes, stride);
    if constexpr (kTwo) {
      Unit::template Load<2>(init + second * stride, stride);
      Unit::template Load<3>(init + second * stride + kUnitRowBytes, stride);
    }
  }

  const auto multiply = [&](const uint8_t* a, const uint8_t* b) HWY_ATTR {
    Unit::template Load<6>(b, kStepBytes);
    Unit::template Load<4>(a, lda);
    UnitDot<Unit, Dot, 0, 4, 6>();
    Unit::template Load<7>(b + kUnitRowBytes, kStepBytes);
    UnitDot<Unit, Dot, 1, 4, 7>();
    if constexpr (kTwo) {
      Unit::template Load<5>(a + second * lda, lda);
      UnitDot<Unit, Dot, 2, 5, 6>();
      UnitDot<Unit, Dot, 3, 5, 7>();
    }
  };
  const uint8_t* a = args.a;
  const uint8_t* b = args.b;
  const uint8_t* fetched = args.fetch.from;
  const size_t lines = args.fetch.lines;
  size_t steps = args.steps;
  // Rows of what is pending that a step does, so that all are done with the last one.
  const size_t most_done = pending.finish == nullptr ? 0 : pending.args.to.rows;
  const size_t share = most_done / std::max<size_t>(steps / kUnitSteps, 1) + 1;
  size_t done = 0;
  for (; steps >= kUnitSteps; steps -= kUnitSteps) {
    for (size_t line = 0; line < lines; ++line) __builtin_prefetch(fetched + 64 * line, 0, 2);
    multiply(a, b);
    const size_t end = std::min(done + share, most_done);
    pending.template Run<typename Dot::Sum>(done, end);
    done = end;
    a += kUnitRowBytes;
    b += kUnitSteps * kStepBytes;
    fetched += 64 * lines;
  }
  if (steps != 0) {
    // What lies behind the panel may be anything, and 0 times anything is not always 0.
    alignas(64) uint8_t padded[kUnitSteps * kStepBytes];
    std::memcpy(padded, b, steps * kStepBytes);
    std::memset(padded + steps * kStepBytes, 0, (kUnitSteps - steps) * kStepBytes);
    multiply(a, padded);
  }
  pending.template Run<typename Dot::Sum>(done, most_done);
  pending.finish = nullptr;

  uint8_t* out = static_cast<uint8_t*>(args.out);
  const size_t stride = args.out_ld * sizeof(uint32_t);
  Unit::template Store<0>(out, stride);
  Unit::template Store<1>(out + kUnitRowBytes, stride);
  if constexpr (kTwo) {
    Unit::template Store<2>(out + second * stride, stride);
    Unit::template Store<3>(out + second * stride + kUnitRowBytes, stride);
  }
}

// Up to 16 rows when the tiles are configured for so many, else 16 to 32.
template <class Unit, class Dot>
HWY_INLINE void RunUnitTile(const DotTileArgs& args, size_t rows, PendingFinish& pending) {
  (rows <= kUnitRows ? &MultiplyUnitTile<Unit, Dot, false> : &MultiplyUnitTile<Unit, Dot, true>)(args, rows, pending);
}

template <class Unit, class DotType>
class UnitTiles {
 public:
  using Dot = DotType;
  static constexpr size_t kMostRows = kUnitBlockRows;
  explicit UnitTiles(size_t rows) : tiles_(rows) {}
  ~UnitTiles() {
    if (pending_.finish != nullptr) pending_.template Run<typename Dot::Sum>(0, pending_.args.to.rows);
  }
  void Run(const DotTileArgs& tile, size_t rows) { RunUnitTile<Unit, Dot>(tile, rows, pending_); }
  // Soon: while the next tile is multiplied, or when this object ends. What the arguments point to must last.
  void Finish(FinishFunction finish, const FinishArgs& args) {
    pending_.finish = finish;
    pending_.args = args;
  }

 private:
  ConfiguredTiles<Unit> tiles_;
  PendingFinish pending_;
};

#endif  // THRESHER_UNIT_TARGET

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
