// The register tile of products with weights in blocks: R rows of groups times one panel; see gemm_block.h.

#if defined(THRESHER_KERNELS_BLOCK_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_BLOCK_TILE_INL_H_
#undef THRESHER_KERNELS_BLOCK_TILE_INL_H_
#else
#define THRESHER_KERNELS_BLOCK_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "thresher/kernels/block_panel-inl.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// 32 elements of a row.
struct RowGroup {
  int8_t codes[kGroupNumbers];
  float scale;           // NaN where one of the elements is none, or infinite
  float sum;             // of what the codes stand for
  int32_t minus_sum;     // of the codes, less than 0 for more
  int32_t minus_second;  // of the codes of the second half
};
static_assert(sizeof(RowGroup) == 48);

// out = (init ? out : 0) + a * b on `rows` x PanelWidth() elements.
struct BlockTileArgs {
  const uint8_t* a;  // RowGroups, rows lda bytes apart
  size_t lda;
  const uint8_t* b;
  size_t groups;  // whole blocks
  float* out;     // rows PanelWidth() apart
  bool init;
  // Fetched into L2 meanwhile: so many lines of 64 bytes with every group.
  const uint8_t* fetch;
  size_t fetch_lines;
};

// Rows of a tile: integer sums, codes and a broadcast share the registers; sums in float are needed once a group only.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
inline constexpr int kBlockTileRows = 8;
#elif HWY_ARCH_ARM_A64
inline constexpr int kBlockTileRows = 6;
#else
inline constexpr int kBlockTileRows = 4;
#endif

#undef THRESHER_BLOCK_ROWS
#define THRESHER_BLOCK_ROWS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

template <class Panel, int R>
HWY_NOINLINE void RunBlockTile(const BlockTileArgs& args) {
  static_assert(R <= 8);
  const TileTag d;
  const IntTag di;
  const size_t lanes = hn::Lanes(d);
  const size_t lda = args.lda;
  const uint8_t* HWY_RESTRICT a = args.a;
  const uint8_t* HWY_RESTRICT b = args.b;
  const uint8_t* HWY_RESTRICT block = b;
  const uint8_t* fetched = args.fetch;

#define THRESHER_BLOCK_DECLARE(r)                                                \
  auto c##r##a = hn::Zero(d), c##r##b = hn::Zero(d);                             \
  if constexpr (r < R) {                                                         \
    if (args.init) {                                                             \
      c##r##a = hn::Load(d, args.out + size_t{r} * kPanelVectors * lanes);       \
      c##r##b = hn::Load(d, args.out + (size_t{r} * kPanelVectors + 1) * lanes); \
    }                                                                            \
  }
  THRESHER_BLOCK_ROWS(THRESHER_BLOCK_DECLARE)

  for (size_t g = 0; g < args.groups; ++g) {
    if constexpr (Panel::kSuper) {
      if (g % Panel::kBlockGroups == 0) {
        block = b;
        b += Panel::BlockHeader();
      }
    }
    for (size_t line = 0; line < args.fetch_lines; ++line) __builtin_prefetch(fetched + 64 * line, 0, 2);
    fetched += 64 * args.fetch_lines;

#define THRESHER_BLOCK_ROW(r) reinterpret_cast<const RowGroup*>(a + size_t{r} * lda)
    // Sums begin with what the codes are too large by.
#define THRESHER_BLOCK_START(r)                                                               \
  auto s##r##a = hn::Zero(di), s##r##b = hn::Zero(di);                                        \
  if constexpr (r < R && Panel::kShift != 0) {                                                \
    const RowGroup* const row = THRESHER_BLOCK_ROW(r);                                        \
    const int32_t sum = Panel::kHalves ? row->minus_sum - row->minus_second : row->minus_sum; \
    s##r##a = s##r##b = hn::ShiftLeft<Panel::kShift>(hn::Set(di, sum));                       \
  }
    THRESHER_BLOCK_ROWS(THRESHER_BLOCK_START)

#define THRESHER_BLOCK_STEP(r)                                   \
  if constexpr (r < R) {                                         \
    const uint8_t* const codes = a + size_t{r} * lda + pair * 8; \
    const auto a0 = BroadcastGroup(codes);                       \
    const auto a1 = BroadcastGroup(codes + 4);                   \
    s##r##a = AddCodes<Panel::kWide>(w0a, w1a, a0, a1, s##r##a); \
    s##r##b = AddCodes<Panel::kWide>(w0b, w1b, a0, a1, s##r##b); \
  }
#define THRESHER_BLOCK_PAIR(pair_value)                   \
  {                                                       \
    constexpr size_t pair = pair_value;                   \
    const auto w0a = Panel::template Quad<pair, 0>(b, 0); \
    const auto w1a = Panel::template Quad<pair, 1>(b, 0); \
    const auto w0b = Panel::template Quad<pair, 0>(b, 1); \
    const auto w1b = Panel::template Quad<pair, 1>(b, 1); \
    THRESHER_BLOCK_ROWS(THRESHER_BLOCK_STEP)              \
  }
#define THRESHER_BLOCK_SCALE(r)                                                        \
  if constexpr (r < R) {                                                               \
    const auto scale = hn::Set(d, THRESHER_BLOCK_ROW(r)->scale);                       \
    c##r##a = hn::MulAdd(hn::ConvertTo(d, s##r##a), hn::Mul(scale_a, scale), c##r##a); \
    c##r##b = hn::MulAdd(hn::ConvertTo(d, s##r##b), hn::Mul(scale_b, scale), c##r##b); \
  }
#define THRESHER_BLOCK_SECOND(r)                                                                        \
  if constexpr (r < R) {                                                                                \
    s##r##a = s##r##b = hn::ShiftLeft<Panel::kShift>(hn::Set(di, THRESHER_BLOCK_ROW(r)->minus_second)); \
  }
#define THRESHER_BLOCK_OFFSET(r)                             \
  if constexpr (r < R) {                                     \
    const auto sum = hn::Set(d, THRESHER_BLOCK_ROW(r)->sum); \
    c##r##a = hn::MulAdd(offset_a, sum, c##r##a);            \
    c##r##b = hn::MulAdd(offset_b, sum, c##r##b);            \
  }
    THRESHER_BLOCK_PAIR(0)
    THRESHER_BLOCK_PAIR(1)
    if constexpr (Panel::kHalves) {
      const auto scale_a = Panel::Scale(block, b, 0, 0), scale_b = Panel::Scale(block, b, 1, 0);
      THRESHER_BLOCK_ROWS(THRESHER_BLOCK_SCALE)
      THRESHER_BLOCK_ROWS(THRESHER_BLOCK_SECOND)
    }
    THRESHER_BLOCK_PAIR(2)
    THRESHER_BLOCK_PAIR(3) {
      constexpr size_t part = Panel::kHalves ? 1 : 0;
      const auto scale_a = Panel::Scale(block, b, 0, part), scale_b = Panel::Scale(block, b, 1, part);
      THRESHER_BLOCK_ROWS(THRESHER_BLOCK_SCALE)
    }
    if constexpr (Panel::kHasOffset) {
      const auto offset_a = Panel::Offset(block, b, 0), offset_b = Panel::Offset(block, b, 1);
      THRESHER_BLOCK_ROWS(THRESHER_BLOCK_OFFSET)
    }
    a += sizeof(RowGroup);
    b += Panel::GroupBytes();
  }

#define THRESHER_BLOCK_STORE(r)                                                \
  if constexpr (r < R) {                                                       \
    hn::Store(c##r##a, d, args.out + size_t{r} * kPanelVectors * lanes);       \
    hn::Store(c##r##b, d, args.out + (size_t{r} * kPanelVectors + 1) * lanes); \
  }
  THRESHER_BLOCK_ROWS(THRESHER_BLOCK_STORE)
#undef THRESHER_BLOCK_DECLARE
#undef THRESHER_BLOCK_ROW
#undef THRESHER_BLOCK_START
#undef THRESHER_BLOCK_STEP
#undef THRESHER_BLOCK_PAIR
#undef THRESHER_BLOCK_SCALE
#undef THRESHER_BLOCK_SECOND
#undef THRESHER_BLOCK_OFFSET
#undef THRESHER_BLOCK_STORE
}

using BlockTileFunction = void (*)(const BlockTileArgs&);

template <class Panel, size_t... I>
constexpr BlockTileFunction BlockTileAt(size_t index, std::index_sequence<I...>) {
  constexpr BlockTileFunction table[] = {&RunBlockTile<Panel, static_cast<int>(I) + 1>...};
  return table[index];
}

// 1 <= rows <= kMostRows.
template <class Panel, int kMostRows>
HWY_INLINE BlockTileFunction BlockTileForRows(size_t rows) {
  return BlockTileAt<Panel>(rows - 1, std::make_index_sequence<static_cast<size_t>(kMostRows)>());
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
