// Tiles of a matrix unit (tile_unit.h) for products with weights in blocks: up to 32 rows of groups times one panel,
// with the contract and the bits of RunBlockTile (block_tile-inl.h).
//
// The codes of a group, 32 columns of 8 quads, are two tiles beside each other; a row's 32 codes are a row of a tile.
// Sums in int32 of one group, or of half of one where halves have scales of their own, leave the unit through L1 and
// join the sums in float, by vectors, while the unit multiplies the next.

#if defined(THRESHER_KERNELS_AMX_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_AMX_BLOCK_INL_H_
#undef THRESHER_KERNELS_AMX_BLOCK_INL_H_
#else
#define THRESHER_KERNELS_AMX_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "thresher/kernels/amx_tile-inl.h"
#include "thresher/kernels/block_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

#if THRESHER_UNIT_TARGET

static_assert(THRESHER_UNSIGNED_CODES);

// As long as this lives, tiles are configured for products of up to `rows` rows by panels like `Panel`.
template <class Unit, class Panel>
class UnitBlockTiles {
 public:
  static constexpr size_t kMostRows = kUnitBlockRows;

  explicit UnitBlockTiles(size_t rows) : tiles_(std::min(rows, kUnitRows), kDepth) {}

  void Run(const BlockTileArgs& args, size_t rows) {
    (rows > kUnitRows ? &UnitBlockTiles::Multiply<true> : &UnitBlockTiles::Multiply<false>)(args, rows);
  }

 private:
  static constexpr size_t kParts = Panel::kHalves ? 2 : 1;
  static constexpr size_t kDepth = kGroupNumbers / kParts;  // bytes of a row that one product takes
  static constexpr size_t kWidth = 2 * kUnitRows;

  // What part `part` of a group adds to the sums in float.
  struct Part {
    const uint8_t* a;      // the group in the first row
    const uint8_t* block;  // of the panel
    const uint8_t* b;
    size_t part;
    const int32_t* sums;
    bool init;
  };

  template <bool kTwo>
  HWY_NOINLINE static void Multiply(const BlockTileArgs& args, size_t rows) {
    constexpr size_t kQuadBytes = kWidth * sizeof(uint32_t);
    const size_t second = kTwo ? rows - kUnitRows : 0;
    const uint8_t* a = args.a;
    const uint8_t* b = args.b;
    const uint8_t* block = b;
    const uint8_t* fetched = args.fetch;
    alignas(64) int32_t sums[2][kUnitBlockRows * kWidth];
    size_t turn = 0;
    Part waiting{};
    for (size_t g = 0; g < args.groups; ++g) {
      if constexpr (Panel::kSuper) {
        if (g % Panel::kBlockGroups == 0) {
          block = b;
          b += Panel::BlockHeader();
        }
      }
      for (size_t line = 0; line < args.fetch_lines; ++line) __builtin_prefetch(fetched + 64 * line, 0, 2);
      fetched += 64 * args.fetch_lines;
      for (size_t part = 0; part < kParts; ++part) {
        const uint8_t* const rows_a = a + part * kDepth;
        const uint8_t* const codes = b + Panel::GroupHeader() + part * (kDepth / 4) * kQuadBytes;
        Unit::template Zero<0>();
        Unit::template Zero<1>();
        Unit::template Load<6>(codes, kQuadBytes);
        Unit::template Load<4>(rows_a, args.lda);
        Unit::template DotInt8Uint8<0, 4, 6>();
        Unit::template Load<7>(codes + kUnitRowBytes, kQuadBytes);
        Unit::template DotInt8Uint8<1, 4, 7>();
        const size_t first = kTwo ? rows / 2 : rows;
        if (waiting.sums != nullptr) Join(args, 0, first, waiting);
        if constexpr (kTwo) {
          Unit::template Zero<2>();
          Unit::template Zero<3>();
          Unit::template Load<5>(rows_a + second * args.lda, args.lda);
          Unit::template DotInt8Uint8<2, 5, 6>();
          Unit::template DotInt8Uint8<3, 5, 7>();
          if (waiting.sums != nullptr) Join(args, first, rows, waiting);
        }
        int32_t* const to = sums[turn];
        turn ^= 1;
        Unit::template Store<0>(to, kQuadBytes);
        Unit::template Store<1>(to + kUnitRows, kQuadBytes);
        if constexpr (kTwo) {
          Unit::template Store<2>(to + second * kWidth, kQuadBytes);
          Unit::template Store<3>(to + second * kWidth + kUnitRows, kQuadBytes);
        }
        waiting = {a, block, b, part, to, args.init || g + part != 0};
      }
      a += sizeof(RowGroup);
      b += Panel::GroupBytes();
    }
    if (waiting.sums != nullptr) Join(args, 0, rows, waiting);
  }

  // The steps of RunBlockTile, in its order, for rows [begin, end).
  static HWY_INLINE void Join(const BlockTileArgs& args, size_t begin, size_t end, const Part& part) {
    const TileTag d;
    const IntTag di;
    const size_t lanes = hn::Lanes(d);
    const auto scale_a = Panel::Scale(part.block, part.b, 0, part.part);
    const auto scale_b = Panel::Scale(part.block, part.b, 1, part.part);
    auto offset_a = hn::Zero(d), offset_b = hn::Zero(d);
    if constexpr (Panel::kHasOffset) {
      offset_a = Panel::Offset(part.block, part.b, 0);
      offset_b = Panel::Offset(part.block, part.b, 1);
    }
    // What is stored might change what is read again from memory, for all the compiler knows.
    const bool init = part.init;
    const size_t lda = args.lda;
    const uint8_t* a = part.a + begin * lda;
    const int32_t* HWY_RESTRICT sums = part.sums + begin * kWidth;
    float* HWY_RESTRICT out = args.out + begin * kWidth;
    for (size_t r = begin; r < end; ++r, a += lda, sums += kWidth, out += kWidth) {
      const auto* const group = reinterpret_cast<const RowGroup*>(a);
      const auto start = SumStart<Panel>(*group, part.part);
      const auto sum_a = hn::Add(hn::Load(di, sums), start), sum_b = hn::Add(hn::Load(di, sums + lanes), start);
      auto out_a = init ? hn::Load(d, out) : hn::Zero(d);
      auto out_b = init ? hn::Load(d, out + lanes) : hn::Zero(d);
      out_a = hn::MulAdd(ScaledSum(sum_a, *group), scale_a, out_a);
      out_b = hn::MulAdd(ScaledSum(sum_b, *group), scale_b, out_b);
      if constexpr (Panel::kHasOffset) {
        const auto sum = hn::Set(d, group->sum);
        out_a = hn::MulAdd(offset_a, sum, out_a);
        out_b = hn::MulAdd(offset_b, sum, out_b);
      }
      hn::Store(out_a, d, out);
      hn::Store(out_b, d, out + lanes);
    }
  }

  ConfiguredTiles<Unit> tiles_;
};

#endif  // THRESHER_UNIT_TARGET

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
