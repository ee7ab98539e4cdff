#include "thresher/kernels/gemm_block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "thresher/kernels/block_format.h"

#define THRESHER_DOT_TARGETS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/gemm_block.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/amx_block-inl.h"
#include "thresher/kernels/block_tile-inl.h"
#include "thresher/kernels/epilogue-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

// Up to so many rows are one tile, which unpacks codes in registers; for more they are unpacked once.
constexpr int kDirectTileRows = kBlockTileRows;

// Groups of an unpacked panel that stay in L1 while rows pass by: whole blocks of any format.
constexpr size_t kUnpackedGroups = 16;

// ---- rows ----

void ConvertBlocks(const ConvertRowsArgs& args, size_t begin, size_t end) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  const size_t stride = static_cast<size_t>(BlockRowBytes(args.k));
  for (size_t i = begin; i < end; ++i) {
    const float* HWY_RESTRICT x = args.x + i * static_cast<size_t>(args.ldx);
    auto* group = reinterpret_cast<RowGroup*>(static_cast<uint8_t*>(args.rows) + i * stride);
    for (int64_t k = 0; k < args.k; k += kGroupNumbers, x += kGroupNumbers, ++group) {
      // Magnitudes compare as integers, those of infinities and NaN as the largest.
      auto most = hn::Zero(di);
      for (size_t j = 0; j < kGroupNumbers; j += lanes) {
        most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + j))));
      }
      const int32_t most_bits = hn::ReduceMax(di, most);
      const bool finite = most_bits < 0x7F800000;
      const float scale = std::bit_cast<float>(most_bits) / 127.0f;
      const float inverse = finite && scale >= std::numeric_limits<float>::min() ? 1.0f / scale : 0.0f;
      // Sums of the two halves in one: 16 codes add up to far less than 16 bits hold.
      auto sums = hn::Zero(di);
      for (size_t j = 0; j < kGroupNumbers; j += lanes) {
        auto q = hn::Zero(di);
        if (finite) q = hn::NearestInt(hn::Mul(hn::LoadU(d, x + j), hn::Set(d, inverse)));
        sums = hn::Add(sums, j < kGroupNumbers / 2 ? q : hn::ShiftLeft<16>(q));
        hn::StoreU(hn::DemoteTo(d8, q), d8, group->codes + j);
      }
      const int32_t both = hn::ReduceSum(di, sums);
      const int32_t first = static_cast<int16_t>(both & 0xFFFF);
      const int32_t second = (both - first) / 65536;
      group->scale = finite ? scale : std::numeric_limits<float>::quiet_NaN();
      group->minus_second = -second;
      group->minus_sum = -first - second;
      group->sum = group->scale * static_cast<float>(-group->minus_sum);
    }
  }
}

void RestoreBlocks(const ConvertRowsArgs& args, float* x) {
  const size_t stride = static_cast<size_t>(BlockRowBytes(args.k));
  for (size_t i = 0; i < static_cast<size_t>(args.m); ++i) {
    const auto* groups = reinterpret_cast<const RowGroup*>(static_cast<const uint8_t*>(args.rows) + i * stride);
    for (size_t k = 0; k < static_cast<size_t>(args.k); ++k) {
      const RowGroup& group = groups[k / kGroupNumbers];
      *x++ = group.scale * static_cast<float>(group.codes[k % kGroupNumbers]);
    }
  }
}

// ---- panels ----

// The result of `function` for the panels of a precision, which it takes as an example.
template <class Function>
auto ForBlockPanel(Precision precision, const Function& function) {
  switch (EncodingOf(precision)) {
    case Encoding::kQ4_0:
      return function(BlockPanel<Encoding::kQ4_0>());
    case Encoding::kQ4_1:
      return function(BlockPanel<Encoding::kQ4_1>());
    case Encoding::kQ5_0:
      return function(BlockPanel<Encoding::kQ5_0>());
    case Encoding::kQ5_1:
      return function(BlockPanel<Encoding::kQ5_1>());
    case Encoding::kQ4K:
      return function(BlockPanel<Encoding::kQ4K>());
    case Encoding::kQ5K:
      return function(BlockPanel<Encoding::kQ5K>());
    case Encoding::kQ6K:
      return function(BlockPanel<Encoding::kQ6K>());
    case Encoding::kIq4Nl:
      return function(BlockPanel<Encoding::kIq4Nl>());
    case Encoding::kMxfp4:
      return function(BlockPanel<Encoding::kMxfp4>());
    default:
      return function(BlockPanel<Encoding::kQ8_0>());
  }
}

size_t PanelStride(Precision precision, size_t k) {
  const size_t bytes =
      ForBlockPanel(precision, [&](auto panel) HWY_ATTR { return decltype(panel)::Bytes(k / kGroupNumbers); });
  return (bytes + 63) / 64 * 64;
}

// Calls f(block, group, index) for the groups of a panel, whose block begins at `block`.
template <class Panel, class F>
void ForGroups(uint8_t* panel, size_t groups, const F& f) {
  uint8_t* block = panel;
  for (size_t g = 0; g < groups; ++g) {
    if (Panel::kSuper && g % Panel::kBlockGroups == 0) {
      block = panel;
      panel += Panel::BlockHeader();
    }
    f(block, panel, g);
    panel += Panel::GroupBytes();
  }
}

void PackRange(Precision precision, const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end) {
  const Encoding encoding = EncodingOf(precision);
  const size_t k = static_cast<size_t>(weight.k);
  const size_t n = static_cast<size_t>(weight.n);
  const size_t width = PanelWidth();
  const size_t stride = PanelStride(precision, k);
  ForBlockPanel(precision, [&](auto example) HWY_ATTR {
    using Panel = decltype(example);
    for (size_t p = panel_begin; p < panel_end; ++p) {
      uint8_t* const panel = packed + p * stride;
      const size_t column = p * width;
      const size_t columns = std::min(width, n - column);
      if (columns < width) std::memset(panel, 0, stride);
      ForGroups<Panel>(panel, k / kGroupNumbers, [&](uint8_t* block, uint8_t* group, size_t g) {
        for (size_t j = 0; j < columns; ++j) {
          const auto* row = static_cast<const uint8_t*>(weight.At(0, static_cast<int64_t>(column + j)));
          Panel::Store(ReadGroup(encoding, row, static_cast<int64_t>(g)), j, block, group);
        }
      });
    }
  });
}

void UnpackRange(Precision precision, const uint8_t* packed, size_t k, size_t n, float* b) {
  const TileTag d;
  const size_t width = PanelWidth();
  const size_t stride = PanelStride(precision, k);
  ForBlockPanel(precision, [&](auto example) HWY_ATTR {
    using Panel = decltype(example);
    using To = Unpacked<Panel>;
    constexpr int kLess = Panel::kShift == 0 ? 0 : 1 << Panel::kShift;
    alignas(64) uint8_t group[(3 * sizeof(float) + kGroupNumbers) * kMaxPanelWidth * Panel::kBlockGroups];
    for (size_t column = 0; column < n; column += width) {
      const uint8_t* const panel = packed + column / width * stride;
      for (size_t g = 0; g < k / kGroupNumbers; ++g) {
        const size_t first = g / Panel::kBlockGroups * Panel::kBlockGroups;
        Unpack<Panel>(panel + Panel::Bytes(first), Panel::kBlockGroups, group);
        const uint8_t* const at = group + (g - first) * To::GroupBytes();
        for (size_t j = 0; j < std::min(width, n - column); ++j) {
          for (size_t i = 0; i < kGroupNumbers; ++i) {
            const size_t part = Panel::kHalves ? i / 16 : 0;
            const uint8_t code = at[To::GroupHeader() + (i / 4 * width + j) * 4 + i % 4];
            const int level = (Panel::kWide && kLess == 0 ? static_cast<int>(static_cast<int8_t>(code)) : code) - kLess;
            float number = To::FloatsAt(at, part, 0)[j] * static_cast<float>(level);
            if (Panel::kHasOffset) number += To::FloatsAt(at, To::kFloats - 1, 0)[j];
            b[(g * kGroupNumbers + i) * n + column + j] = number;
          }
        }
      }
    }
    (void)d;
  });
}

// ---- products ----

size_t ScratchBytes(const GemmDotArgs& args) {
  const size_t width = PanelWidth();
  const size_t strip = static_cast<size_t>(std::min<int64_t>(args.m, kMostBlockRows)) * width * sizeof(float);
  return strip + kUnpackedGroups * (3 * sizeof(float) + kGroupNumbers) * width;
}

// What many rows meet: panels that are unpacked first, where that takes long.
template <class Panel>
using ManyRowsPanel = std::conditional_t<Panel::kUnpacks, Unpacked<Panel>, Panel>;

// What multiplies tiles of up to kMostRows rows, in registers.
template <class Panel>
struct VectorBlockTiles {
  static constexpr size_t kMostRows = kBlockTileRows;
  explicit VectorBlockTiles(size_t) {}
  static void Run(const BlockTileArgs& tile, size_t rows) { BlockTileForRows<Panel, kBlockTileRows>(rows)(tile); }
};

// Rows [begin, end) times a panel, which is unpacked once for all of them if kUnpack.
template <class Panel, bool kUnpack, class Tiles>
void MultiplyPanel(const GemmDotArgs& args, const uint8_t* panel, size_t column, size_t begin, size_t end, float* strip,
                   uint8_t* unpacked, Tiles& multiplier) {
  const size_t all = static_cast<size_t>(args.k) / kGroupNumbers;
  const size_t width = PanelWidth();
  const size_t columns = std::min(width, static_cast<size_t>(args.n) - column);
  const RowTiles tiles(end - begin, Tiles::kMostRows);
  const size_t step = tiles.count == 1 && !kUnpack ? all : kUnpackedGroups;
  BlockTileArgs tile;
  tile.lda = static_cast<size_t>(BlockRowBytes(args.k));
  constexpr size_t kAhead = 4096;  // of a single tile: where the processor, which fetches by pages, would begin anew
  for (size_t g = 0; g < all; g += step) {
    tile.groups = std::min(step, all - g);
    tile.b = panel + Panel::Bytes(g);
    tile.init = g != 0;
    if constexpr (kUnpack) {
      Unpack<Panel>(tile.b, tile.groups, unpacked);
      tile.b = unpacked;
    }
    // Several tiles fetch what is multiplied after this block: each its share.
    const size_t lines = (Panel::GroupBytes() + 63) / 64;
    tile.fetch_lines = (lines + tiles.count - 1) / tiles.count;
    const size_t share = tile.groups * tile.fetch_lines * 64;
    size_t row = begin;
    for (size_t t = 0; t < tiles.count; ++t) {
      const size_t height = tiles.Height(t);
      tile.fetch = tiles.count == 1 && !kUnpack ? tile.b + kAhead : panel + Panel::Bytes(g + tile.groups) + t * share;
      if (g + tile.groups == all) FetchResult(ResultAt(args, row, column, height, columns));
      tile.a = static_cast<const uint8_t*>(args.rows) + row * tile.lda + g * sizeof(RowGroup);
      tile.out = strip + (row - begin) * width;
      multiplier.Run(tile, height);
      row += height;
    }
  }
}

template <class Panel, class ManyRows>
void MultiplyTiles(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  const size_t n = static_cast<size_t>(args.n);
  const size_t k = static_cast<size_t>(args.k);
  const size_t width = PanelWidth();
  const size_t stride = PanelStride(args.precision, k);
  const size_t rows = range.row_end - range.row_begin;
  const FinishFunction finish = FinishFor<float>(args.activation);
  const size_t most_rows = BlockRows(args.blocking, static_cast<size_t>(BlockRowBytes(args.k)));
  const size_t row_blocks = (rows + most_rows - 1) / most_rows;
  auto* const strip = static_cast<float*>(scratch);
  auto* const unpacked =
      reinterpret_cast<uint8_t*>(strip + static_cast<size_t>(std::min<int64_t>(args.m, kMostBlockRows)) * width);
  alignas(64) float padded_bias[kMaxPanelWidth];
  for (size_t block = 0; block < row_blocks; ++block) {
    const size_t begin = range.row_begin + rows * block / row_blocks;
    const size_t end = range.row_begin + rows * (block + 1) / row_blocks;
    const bool many = end - begin > static_cast<size_t>(kDirectTileRows);
    VectorBlockTiles<Panel> few_rows(end - begin);
    std::optional<ManyRows> many_rows;
    if (many) many_rows.emplace(std::min(end - begin, ManyRows::kMostRows));
    for (size_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
      const uint8_t* const b = static_cast<const uint8_t*>(args.packed_b) + panel * stride;
      const size_t column = panel * width;
      if (many) {
        MultiplyPanel<Panel, Panel::kUnpacks>(args, b, column, begin, end, strip, unpacked, *many_rows);
      } else {
        MultiplyPanel<Panel, false>(args, b, column, begin, end, strip, unpacked, few_rows);
      }
      FinishArgs finished{};
      finished.sums = strip;
      finished.residual_first = args.residual_first;
      const size_t columns = std::min(width, n - column);
      finished.bias = PanelBias(args.bias, column, columns, padded_bias);
      finished.to = ResultAt(args, begin, column, end - begin, columns);
      finish(finished);
    }
  }
}

template <class Panel>
void MultiplyRange(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  using Many = ManyRowsPanel<Panel>;
#if THRESHER_UNIT_TARGET
  if (UnitInUse() == isa::Tiles::kInstructions) {
    return MultiplyTiles<Panel, UnitBlockTiles<AmxUnit, Many>>(args, scratch, range);
  }
  if (UnitInUse() == isa::Tiles::kPlain) {
    return MultiplyTiles<Panel, UnitBlockTiles<PlainUnit, Many>>(args, scratch, range);
  }
#endif
  MultiplyTiles<Panel, VectorBlockTiles<Many>>(args, scratch, range);
}

void RunProduct(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  ForBlockPanel(args.precision, [&](auto panel) HWY_ATTR { MultiplyRange<decltype(panel)>(args, scratch, range); });
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(ConvertBlocks);
HWY_EXPORT(RestoreBlocks);
HWY_EXPORT(PanelStride);
HWY_EXPORT(PackRange);
HWY_EXPORT(UnpackRange);
HWY_EXPORT(ScratchBytes);
HWY_EXPORT(RunProduct);

}  // namespace

int64_t BlockRowBytes(int64_t k) { return k / kGroupNumbers * 48; }

void ConvertRowsToBlocks(const ConvertRowsArgs& args, int64_t begin, int64_t end) {
  if (begin < end) HWY_DYNAMIC_DISPATCH(ConvertBlocks)(args, static_cast<size_t>(begin), static_cast<size_t>(end));
}

void RestoreBlockRows(const ConvertRowsArgs& converted, float* x) { HWY_DYNAMIC_DISPATCH(RestoreBlocks)(converted, x); }

size_t BlockPanelStride(Precision precision, size_t k) { return HWY_DYNAMIC_DISPATCH(PanelStride)(precision, k); }

void PackBlocks(Precision precision, const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end) {
  HWY_DYNAMIC_DISPATCH(PackRange)(precision, weight, packed, panel_begin, panel_end);
}

void UnpackBlocks(Precision precision, const uint8_t* packed, size_t k, size_t n, float* b) {
  HWY_DYNAMIC_DISPATCH(UnpackRange)(precision, packed, k, n, b);
}

size_t GemmBlockScratchBytes(const GemmDotArgs& args) { return HWY_DYNAMIC_DISPATCH(ScratchBytes)(args); }

void GemmBlock(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  HWY_DYNAMIC_DISPATCH(RunProduct)(args, scratch, range);
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
