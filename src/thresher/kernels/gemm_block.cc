#include "thresher/kernels/gemm_block.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

#include "thresher/base/cpu.h"
#include "thresher/kernels/block_format.h"

#define THRESHER_INT8_TARGETS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/gemm_block.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/amx_block-inl.h"
#include "thresher/kernels/block_tile-inl.h"
#include "thresher/kernels/block_wide-inl.h"
#include "thresher/kernels/epilogue-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

// Up to so many rows are one tile, which unpacks codes in registers; for more they are unpacked once.
constexpr int kDirectTileRows = kBlockTileRows;

// Up to so many rows are multiplied sooner than weights are read. They pass several panels side by side, each a stream
// of its own from memory: one alone does not fill a core's memory channel.
constexpr int kStreamRows = 2;
// Processors with nothing better than SSE2 take one: their vectors are too slow for memory to matter, and code for them
// is four times as long as for others.
constexpr int kStreams = HWY_TARGET == HWY_SSE2 ? 1 : 4;

// How weights come from memory for few rows. Distances are bytes between what is multiplied and what is asked for.
struct Reading {
  int streams = kStreams;                           // panels side by side, of up to kStreamRows rows
  size_t stream_ahead[kStreamRows] = {1024, 1024};  // for one row, two ...
  // For a single tile of more: where the processor, which fetches by pages, would begin anew.
  size_t tile_ahead = 4096;
};

Reading ReadingHere() {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // Zen 4 reads up to twice as much when its own prefetchers do the work: they follow two streams as far ahead as
  // memory is away, provided that L1 asks for lines in their order, shortly before they are used. Lines that L1 asks
  // for where they would have to be asked for otherwise wait in its 24 buffers for all of memory's latency.
  if (IsZen4()) return {2, {320, 512}, 8192};
#endif
  return {};
}

#if THRESHER_UNIT_TARGET
// Of rows of bf16: rows that pass by widened panels, and panels that both kinds of rows pass by in turn.
constexpr size_t kWideLeastRows = 128;
constexpr size_t kWideMostRows = 1024;
constexpr size_t kPanelsForBoth = 8;
#endif

// What is kept in L2 between two passes, at most: panels that were widened, sums that wait for those of another
// product.
constexpr size_t kMostKeptBytes = size_t{256} * 1024;

// Groups of a panel that stay in L1 while rows pass by, at most: whole blocks of any format.
constexpr size_t kMostGroups = 32;

// ---- rows ----

// The bits of 2^100: kSumBase times the scale of what is much larger is not finite.
constexpr int32_t kMostFinite = (127 + 100) << 23;

// Groups are converted four at a time, so that a vector holds what is one number of each.
constexpr size_t kQuad = 4;

using GroupTag = hn::CappedTag<float, kGroupNumbers / 2>;
using QuadTag = hn::FixedTag<float, kQuad>;
using QuadIntTag = hn::FixedTag<int32_t, kQuad>;
using QuadShorts = hn::Vec<hn::FixedTag<int16_t, 2 * kQuad>>;

// The largest magnitudes of four groups as bits, which compare as integers: those of infinities and NaN are the
// largest.
HWY_INLINE hn::Vec<QuadIntTag> MostOfGroups(const float* const (&x)[kQuad]) {
  const GroupTag d;
  const hn::RebindToSigned<GroupTag> di;
  const hn::RepartitionToWide<decltype(di)> dw;
  const QuadIntTag d4;
  const auto most_of = [&](size_t group) HWY_ATTR {
    auto most = hn::BitCast(di, hn::Abs(hn::LoadU(d, x[group])));
    for (size_t j = hn::Lanes(d); j < kGroupNumbers; j += hn::Lanes(d)) {
      most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(d, x[group] + j))));
    }
    return most;
  };
  const auto most_of_two = [&](size_t group) HWY_ATTR {
    const auto left = most_of(group), right = most_of(group + 1);
    return hn::BitCast(dw, hn::Max(hn::InterleaveLower(di, left, right), hn::InterleaveUpper(di, left, right)));
  };
  const auto left = most_of_two(0), right = most_of_two(2);
  HWY_ALIGN int32_t lanes[kGroupNumbers / 2];
  hn::Store(hn::Max(hn::BitCast(di, hn::InterleaveLower(dw, left, right)),
                    hn::BitCast(di, hn::InterleaveUpper(dw, left, right))),
            di, lanes);
  auto most = hn::Load(d4, lanes);
  for (size_t j = kQuad; j < hn::Lanes(di); j += kQuad) most = hn::Max(most, hn::Load(d4, lanes + j));
  return most;
}

// Of 16 codes of each of four groups: the sums of those that are first or second of four, and of the others, as two
// int16 of a lane, from the sums of neighbours.
HWY_INLINE QuadShorts SumsOfCodes(QuadShorts s0, QuadShorts s1, QuadShorts s2, QuadShorts s3) {
  const hn::FixedTag<int16_t, 2 * kQuad> d;
  const QuadIntTag d4;
  const hn::FixedTag<int64_t, kQuad / 2> d2;
  const auto two = [&](QuadShorts left, QuadShorts right) HWY_ATTR {
    const auto a = hn::BitCast(d4, left), b = hn::BitCast(d4, right);
    return hn::Add(hn::BitCast(d, hn::InterleaveLower(d4, a, b)), hn::BitCast(d, hn::InterleaveUpper(d4, a, b)));
  };
  const auto a = hn::BitCast(d2, two(s0, s1)), b = hn::BitCast(d2, two(s2, s3));
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d2, a, b)), hn::BitCast(d, hn::InterleaveUpper(d2, a, b)));
}

// Stores lane i of each, one behind the other, `offset` bytes into group i.
HWY_INLINE void StoreNumbers(hn::Vec<QuadTag> a, hn::Vec<QuadTag> b, hn::Vec<QuadTag> c, hn::Vec<QuadTag> e,
                             RowGroup* const (&group)[kQuad], size_t offset) {
  const QuadTag d;
  const auto at = [&](size_t i) { return reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(group[i]) + offset); };
  const auto ab = hn::InterleaveLower(d, a, b), ce = hn::InterleaveLower(d, c, e);
  hn::StoreU(hn::ConcatLowerLower(d, ce, ab), d, at(0));
  hn::StoreU(hn::ConcatUpperUpper(d, ce, ab), d, at(1));
  const auto ab_upper = hn::InterleaveUpper(d, a, b), ce_upper = hn::InterleaveUpper(d, c, e);
  hn::StoreU(hn::ConcatLowerLower(d, ce_upper, ab_upper), d, at(2));
  hn::StoreU(hn::ConcatUpperUpper(d, ce_upper, ab_upper), d, at(3));
}

// Converts four groups from x on, or fewer, the last of them more than once.
HWY_INLINE void ConvertGroups(const float* HWY_RESTRICT first_x, size_t count, RowGroup* HWY_RESTRICT first_group) {
  const GroupTag d;
  const hn::RebindToUnsigned<GroupTag> du;
  const hn::Rebind<uint8_t, GroupTag> d8;
  const QuadTag d4;
  const QuadIntTag di4;
  const hn::FixedTag<int8_t, 16> d16;
  const hn::FixedTag<int16_t, 2 * kQuad> ds;
  const size_t at[kQuad] = {0, std::min<size_t>(1, count - 1), std::min<size_t>(2, count - 1), count - 1};
  const float* const x[kQuad] = {first_x, first_x + at[1] * kGroupNumbers, first_x + at[2] * kGroupNumbers,
                                 first_x + at[3] * kGroupNumbers};
  RowGroup* const group[kQuad] = {first_group, first_group + at[1], first_group + at[2], first_group + at[3]};

  const auto most = MostOfGroups(x);
  const auto finite = hn::RebindMask(d4, hn::Le(most, hn::Set(di4, kMostFinite)));
  // kSumBase has 2 bits, which leaves 22 to the scale for an exact product.
  const auto number = hn::Mul(hn::BitCast(d4, most), hn::Set(d4, 1.0f / 127.0f));
  const auto rounded = hn::BitCast(d4, hn::And(hn::BitCast(di4, number), hn::Set(di4, -4)));
  const auto scale = hn::IfThenElse(finite, rounded, hn::Set(d4, std::numeric_limits<float>::quiet_NaN()));
  const auto normal = hn::Ge(rounded, hn::Set(d4, std::numeric_limits<float>::min()));
  HWY_ALIGN float inverse[kQuad];
  hn::Store(hn::IfThenElseZero(hn::And(finite, normal), hn::Div(hn::Set(d4, 1.0f), rounded)), d4, inverse);

  const auto convert = [&](size_t i) HWY_ATTR {
    for (size_t j = 0; j < kGroupNumbers; j += hn::Lanes(d)) {
      const auto q = hn::MulAdd(hn::LoadU(d, x[i] + j), hn::Set(d, inverse[i]), hn::Set(d, kRoundingMagic));
      hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, q)), d8, reinterpret_cast<uint8_t*>(group[i]->codes) + j);
    }
  };
  const auto sums_of_two = [&](size_t i, size_t half) HWY_ATTR {
    const auto codes = hn::LoadU(d16, group[i]->codes + half * kGroupNumbers / 2);
    return hn::SatWidenMulPairwiseAdd(ds, hn::Set(hn::RebindToUnsigned<decltype(d16)>(), 1), codes);
  };
  for (size_t i = 0; i < kQuad; ++i) convert(i);
  const auto sums_of = [&](size_t half) HWY_ATTR {
    return SumsOfCodes(sums_of_two(0, half), sums_of_two(1, half), sums_of_two(2, half), sums_of_two(3, half));
  };
  const auto first = sums_of(0), second = sums_of(1);
  const auto both = hn::Add(first, second);
  const auto whole = [&](QuadShorts sums) HWY_ATTR { return hn::WidenMulPairwiseAdd(di4, sums, hn::Set(ds, 1)); };
  const auto sum = whole(both);
  const auto base = hn::Set(di4, kSumBaseBits);
  const auto less = [&](hn::Vec<QuadIntTag> shifted) HWY_ATTR { return hn::BitCast(d4, hn::Sub(base, shifted)); };
#if THRESHER_INT8_SHORT_SUMS
  const auto minus = [&](QuadShorts shifted) HWY_ATTR { return hn::BitCast(d4, hn::Neg(shifted)); };
  const auto start4 = minus(hn::ShiftLeft<4>(both)), last = hn::BitCast(d4, hn::Add(base, hn::ShiftLeft<4>(sum)));
  const auto first5 = minus(hn::ShiftLeft<5>(first)), second5 = minus(hn::ShiftLeft<5>(second));
  static_assert(kShortStart4 == 1 && kMissing4 == 2 && kShortStartFirst5 == 3 && kShortStartSecond5 == 4);
#else
  const auto start4 = less(hn::ShiftLeft<4>(sum)), last = less(hn::ShiftLeft<7>(sum));
  const auto first5 = less(hn::ShiftLeft<5>(whole(first))), second5 = less(hn::ShiftLeft<5>(whole(second)));
  static_assert(kStart4 == 1 && kStart7 == 2 && kStartFirst5 == 3 && kStartSecond5 == 4);
#endif
  static_assert(kStart3 == 0);
  StoreNumbers(scale, hn::Mul(scale, hn::Set(d4, -kSumBase)), hn::Mul(scale, hn::ConvertTo(d4, sum)),
               less(hn::ShiftLeft<3>(sum)), group, offsetof(RowGroup, scale));
  StoreNumbers(start4, last, first5, second5, group, offsetof(RowGroup, start) + sizeof(int32_t));
}

// The first of m rows that is multiplied as bf16; m: none is.
size_t WideFrom(int64_t wide_from, int64_t m) {
  return static_cast<size_t>(UnitInUse() == isa::Tiles::kNone ? m : std::clamp<int64_t>(wide_from, 0, m));
}

HWY_INLINE void ConvertRow(const float* HWY_RESTRICT x, size_t groups, RowGroup* HWY_RESTRICT row) {
  for (size_t g = 0; g < groups; g += kQuad) {
    ConvertGroups(x + g * kGroupNumbers, std::min(kQuad, groups - g), row + g);
  }
}

void ConvertBlocks(const ConvertRowsArgs& args, size_t begin, size_t end) {
  const size_t stride = static_cast<size_t>(BlockRowBytes(args.k));
  const size_t groups = static_cast<size_t>(args.k) / kGroupNumbers;
  for (size_t i = begin; i < end; ++i) {
    auto* const row = reinterpret_cast<RowGroup*>(static_cast<uint8_t*>(args.rows) + i * stride);
    ConvertRow(args.x + i * static_cast<size_t>(args.ldx), groups, row);
  }
}

void RestoreBlocks(const ConvertRowsArgs& args, float* x) {
  const size_t stride = static_cast<size_t>(BlockRowBytes(args.k));
  const size_t wide = WideFrom(args.wide_from, args.m);
  for (size_t i = 0; i < static_cast<size_t>(args.m); ++i) {
    const uint8_t* const row = static_cast<const uint8_t*>(args.rows) + i * stride;
    if (i >= wide) {
      const auto* const numbers = reinterpret_cast<const hwy::bfloat16_t*>(row);
      for (size_t k = 0; k < static_cast<size_t>(args.k); ++k) *x++ = hwy::F32FromBF16(numbers[k]);
      continue;
    }
    const auto* groups = reinterpret_cast<const RowGroup*>(row);
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

// Rows whose sums wait: of one panel, or few of several.
size_t StripRows(const GemmDotArgs& args) {
  return static_cast<size_t>(std::clamp<int64_t>(args.m, int64_t{kStreams} * kStreamRows, kMostBlockRows));
}

size_t KeptBytes() { return std::min(static_cast<size_t>(Caches().l2) / 8, kMostKeptBytes); }

#if THRESHER_UNIT_TARGET
// That lie side by side in packed_b.
size_t Products(const GemmDotArgs& args) { return args.gate == Gate::kNone ? 1 : 2; }

// Panels, of each product, that are widened at a time: they stay in L2 while rows pass by.
size_t WidePanels(size_t k, size_t products) {
  return std::max<size_t>(KeptBytes() / (WidePanelBytes(k) * products), 1);
}
#endif

// Of products of widened panels: first the panels, then what a tile of such a product has.
size_t WideScratchBytes(const GemmDotArgs& args) {
#if THRESHER_UNIT_TARGET
  const size_t width = PanelWidth(), k = static_cast<size_t>(args.k);
  if (WideFrom(args.wide_from, args.m) == static_cast<size_t>(args.m)) return 0;
  const size_t panels = (static_cast<size_t>(args.n) + width - 1) / width, products = Products(args);
  const size_t wide = std::min(panels, WidePanels(k, products)) * products;
  return wide * WidePanelBytes(k) + (1 + kGateRun) * kUnitBlockRows * width * sizeof(float);
#else
  (void)args;
  return 0;
#endif
}

// Panels of a product with a gate that stay together: whole groups of what may be stored as rows in blocks, and an even
// number, which pass as streams (MultiplyStreams()) without being moved.
size_t PanelsTogether() { return std::max<size_t>(kGroupNumbers / PanelWidth(), 2); }

// Rows and panels of a product with a gate whose sums, of both products, wait in L2 until they meet.
struct GatedPiece {
  explicit GatedPiece(const GemmDotArgs& args) {
    const size_t width = PanelWidth();
    const size_t panels_of_n = (static_cast<size_t>(args.n) + width - 1) / width;
    rows = std::min(static_cast<size_t>(args.m), BlockRows(args.blocking, static_cast<size_t>(BlockRowBytes(args.k))));
    const size_t fitting = KeptBytes() / (2 * rows * width * sizeof(float));
    panels = std::min(panels_of_n, std::max(fitting / PanelsTogether(), size_t{1}) * PanelsTogether());
    sums = rows * panels * width;
  }
  size_t rows;
  size_t panels;
  size_t sums;  // of one product
};

size_t ScratchBytes(const GemmDotArgs& args) {
  const size_t width = PanelWidth();
  const size_t gated = args.gate == Gate::kNone ? 0 : 2 * GatedPiece(args).sums * sizeof(float);
  const size_t exact = (StripRows(args) * sizeof(float) + kMostGroups * (3 * sizeof(float) + kGroupNumbers)) * width;
  return std::max(gated + exact, WideScratchBytes(args));
}

// How many of `all` groups of `bytes` bytes rows meet at a time, each time about as many: whole blocks that fit L1
// beside the rows of a tile and of the next one.
size_t GroupsAtATime(size_t all, size_t bytes, size_t block_groups) {
  const size_t fitting =
      static_cast<size_t>(Caches().l1) / 8 * 7 / (bytes + size_t{2} * kBlockTileRows * sizeof(RowGroup));
  const size_t most = std::clamp(fitting / block_groups * block_groups, block_groups, kMostGroups);
  const size_t times = std::max<size_t>((all + most - 1) / most, 1);
  const size_t blocks = all / block_groups;
  return (blocks + times - 1) / times * block_groups;
}

// What many rows meet: panels that are unpacked first, where that takes long.
template <class Panel>
using ManyRowsPanel = std::conditional_t<Panel::kUnpacks, Unpacked<Panel>, Panel>;

// The least rows of a tile where more than one tile's are cut into equal ones, or into some with a row less.
constexpr int kLeastRowsOfSeveral = (kBlockTileRows + 1) / 2;

// What multiplies tiles of kLeastRows to kMostRows rows, in registers.
template <class Panel, int kLeastRows>
struct VectorBlockTiles {
  static constexpr size_t kMostRows = kBlockTileRows;
  explicit VectorBlockTiles(size_t) {}
  static void Run(const BlockTileArgs& tile, size_t rows) {
    BlockTileForRows<Panel, kLeastRows, kBlockTileRows>(rows)(tile);
  }
};

// Sums that are the result of a whole panel: of few rows, Finish would take a tenth of a short product's time.
void CopySums(const float* HWY_RESTRICT sums, const TileResult& to) {
  const TileTag d;
  for (size_t i = 0; i < to.rows; ++i) {
    for (size_t j = 0; j < to.columns; j += hn::Lanes(d)) {
      hn::StoreU(hn::Load(d, sums + i * to.columns + j), d, to.c + i * to.ldc + j);
    }
  }
}

// Rows [begin, end), a tile of them, times the panels of the range, which are moved to begin and end at an even one, as
// those of other parts are: a panel that is left alone would be read as a single stream. Calls finish(panel, row, rows,
// sums) for each panel while its sums are in L1.
template <class Panel, class Finish>
void MultiplyStreams(const GemmDotArgs& args, const PanelRange& range, size_t begin, size_t end, float* strip,
                     const Finish& finish) {
  const size_t width = PanelWidth(), stride = PanelStride(args.precision, static_cast<size_t>(args.k));
  const size_t all = (static_cast<size_t>(args.n) + width - 1) / width, rows = end - begin;
  const size_t first_panel = range.panel_begin / 2 * 2;
  const size_t panels = (range.panel_end == all ? all : range.panel_end / 2 * 2) - first_panel;
  const Reading reading = ReadingHere();
  const size_t together = static_cast<size_t>(reading.streams), turns = panels / together;
  const auto* const packed = static_cast<const uint8_t*>(args.packed_b);
  BlockTileArgs tile{};
  tile.lda = static_cast<size_t>(BlockRowBytes(args.k));
  tile.a = static_cast<const uint8_t*>(args.rows) + begin * tile.lda;
  tile.groups = static_cast<size_t>(args.k) / kGroupNumbers;
  tile.out = strip;
  tile.ahead = reading.stream_ahead[rows - 1];
  const auto run = [&](size_t first, auto count, size_t apart) HWY_ATTR {
    constexpr int kCount = decltype(count)::value;
    tile.b = packed + first * stride;
    if (rows == 1) {
      RunBlockStreams<Panel, 1, kCount>(tile, apart * stride);
    } else {
      RunBlockStreams<Panel, 2, kCount>(tile, apart * stride);
    }
    for (size_t i = 0; i < size_t{kCount}; ++i) finish(first + i * apart, begin, rows, strip + i * rows * width);
  };
  // The first of each stream's panels, then the second of each ..., then those that are too few for all streams.
  for (size_t turn = 0; turn < turns; ++turn) {
    if constexpr (kStreams > 2) {
      if (together == 2) {
        run(first_panel + turn, std::integral_constant<int, 2>(), turns);
        continue;
      }
    }
    run(first_panel + turn, std::integral_constant<int, kStreams>(), turns);
  }
  if constexpr (kStreams > 1) {
    size_t done = turns * together;
    if (panels - done >= 2) {
      run(first_panel + done, std::integral_constant<int, 2>(), 1);
      done += 2;
    }
    if (done < panels) run(first_panel + done, std::integral_constant<int, 1>(), 1);
  }
}

// Rows [begin, end) times a panel, which is unpacked once for all of them if kUnpack. Calls finish(row, rows, sums) for
// each tile while its sums are in L1.
template <class Panel, bool kUnpack, class Tiles, class Finish>
void MultiplyPanel(const GemmDotArgs& args, const uint8_t* panel, size_t column, size_t begin, size_t end, float* strip,
                   uint8_t* unpacked, Tiles& multiplier, const Finish& finish) {
  using Read = std::conditional_t<kUnpack, Unpacked<Panel>, Panel>;
  const size_t all = static_cast<size_t>(args.k) / kGroupNumbers;
  const size_t width = PanelWidth();
  const size_t columns = std::min(width, static_cast<size_t>(args.n) - column);
  const RowTiles tiles(end - begin, Tiles::kMostRows);
  const size_t step = tiles.count == 1 && !kUnpack ? all : GroupsAtATime(all, Read::GroupBytes(), Panel::kBlockGroups);
  BlockTileArgs tile{};
  tile.lda = static_cast<size_t>(BlockRowBytes(args.k));
  const size_t ahead = ReadingHere().tile_ahead;
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
      tile.fetch = tiles.count == 1 && !kUnpack ? tile.b + ahead : panel + Panel::Bytes(g + tile.groups) + t * share;
      const bool last = g + tile.groups == all;
      if (last) FetchResult(ResultAt(args, row, column, height, columns));
      tile.a = static_cast<const uint8_t*>(args.rows) + row * tile.lda + g * sizeof(RowGroup);
      tile.out = step < all ? strip + (row - begin) * width : strip;
      multiplier.Run(tile, height);
      if (last) finish(row, height, tile.out);
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
  auto* const unpacked = reinterpret_cast<uint8_t*>(strip + StripRows(args) * width);
  alignas(64) float padded_bias[kMaxPanelWidth];
  const bool unchanged = args.activation == Activation::kNone && args.bias == nullptr && args.residual == nullptr;
  const auto finish_tile = [&](size_t panel, size_t row, size_t count, const float* sums) HWY_ATTR {
    const size_t column = panel * width;
    const size_t columns = std::min(width, n - column);
    if (unchanged && columns == width) return CopySums(sums, ResultAt(args, row, column, count, columns));
    // Made in place: a copy would be a wide load of what narrow stores wrote just now, which waits for those before.
    finish({.sums = sums,
            .to = ResultAt(args, row, column, count, columns),
            .bias = PanelBias(args.bias, column, columns, padded_bias),
            .column_scale = nullptr,
            .column_sum = nullptr,
            .row_scale = nullptr,
            .row_zero = nullptr,
            .residual_first = args.residual_first});
  };
  for (size_t block = 0; block < row_blocks; ++block) {
    const size_t begin = range.row_begin + rows * block / row_blocks;
    const size_t end = range.row_begin + rows * (block + 1) / row_blocks;
    if (end - begin <= static_cast<size_t>(kStreamRows)) {
      MultiplyStreams<Panel>(args, range, begin, end, strip, finish_tile);
      continue;
    }
    VectorBlockTiles<Panel, kStreamRows + 1> few_rows(end - begin);
    std::optional<ManyRows> many_rows;
    if (end - begin > static_cast<size_t>(kDirectTileRows)) {
      many_rows.emplace(std::min(end - begin, ManyRows::kMostRows));
    }
    for (size_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
      const uint8_t* const b = static_cast<const uint8_t*>(args.packed_b) + panel * stride;
      const size_t column = panel * width;
      const auto finish_own = [&](size_t row, size_t count, const float* sums)
                                  HWY_ATTR { finish_tile(panel, row, count, sums); };
      if (many_rows) {
        MultiplyPanel<Panel, Panel::kUnpacks>(args, b, column, begin, end, strip, unpacked, *many_rows, finish_own);
      } else {
        MultiplyPanel<Panel, false>(args, b, column, begin, end, strip, unpacked, few_rows, finish_own);
      }
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
  MultiplyTiles<Panel, VectorBlockTiles<Many, kLeastRowsOfSeveral>>(args, scratch, range);
}

#if THRESHER_UNIT_TARGET

// Rows of bf16, all of the range, times the panels of the range, of both products where there is a gate.
template <class Panel>
void MultiplyWide(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  const size_t n = static_cast<size_t>(args.n), k = static_cast<size_t>(args.k);
  const size_t width = PanelWidth(), stride = PanelStride(args.precision, k),
               lda = static_cast<size_t>(BlockRowBytes(args.k));
  const size_t products = Products(args), at_a_time = WidePanels(k, products);
  const size_t second = (n + width - 1) / width;  // panel of the second product
  const size_t rows = range.row_end - range.row_begin;
  // What rows of a block meet is widened for each block.
  const size_t most_rows =
      std::clamp<size_t>(static_cast<size_t>(Caches().l2) / 2 / lda, kWideLeastRows, kWideMostRows);
  const size_t row_blocks = (rows + most_rows - 1) / most_rows;
  const auto* const packed = static_cast<const uint8_t*>(args.packed_b);
  auto* const wide = static_cast<uint32_t*>(scratch);
  GemmDotArgs product = args;
  product.form = RowForm::kBF16;
  product.precision = Precision::kBf16;
  product.row_bytes = static_cast<int64_t>(lda);
  product.packed_b = wide;
  product.near = true;
  product.blocking = {};
  product.blocking.most_rows = static_cast<int32_t>(most_rows);
  if (args.stores_blocks) {
    product.stores_bf16 = true;
    product.ldc = BlockRowBytes(args.n) / static_cast<int64_t>(sizeof(float));
  }
  for (size_t block = 0; block < row_blocks; ++block) {
    const size_t begin = range.row_begin + rows * block / row_blocks;
    const size_t end = range.row_begin + rows * (block + 1) / row_blocks;
    for (size_t first = range.panel_begin; first < range.panel_end; first += at_a_time) {
      const size_t last = std::min(first + at_a_time, range.panel_end), column = first * width;
      const size_t panels = last - first;
      for (size_t i = 0; i < panels * products; ++i) {
        const size_t panel = i < panels ? first + i : second + first + i - panels;
        Widen<Panel>(packed + panel * stride, k / kGroupNumbers, wide + i * (k / 2) * width);
      }
      product.n = static_cast<int64_t>(std::min(last * width, n) - column);
      product.c = args.c + (args.stores_blocks ? column / 2 : column);
      if (args.bias != nullptr) product.bias = args.bias + column;
      if (args.second_bias != nullptr) product.second_bias = args.second_bias + column;
      if (args.residual != nullptr) product.residual = args.residual + column;
      const size_t next = std::min(last + at_a_time, range.panel_end);
      product.ahead = std::as_bytes(std::span(packed + last * stride, (next - last) * stride));
      GemmDotPanels(product, wide + panels * products * (k / 2) * width, {begin, end, 0, panels});
    }
  }
}

#endif  // THRESHER_UNIT_TARGET

// Rows as blocks, all of the range, times the panels of the range of both products, piece by piece.
template <class Panel>
void MultiplyGated(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  const size_t n = static_cast<size_t>(args.n), width = PanelWidth();
  const size_t stride = PanelStride(args.precision, static_cast<size_t>(args.k));
  const size_t second = (n + width - 1) / width;
  const GatedPiece piece(args);
  float* const sums[2] = {static_cast<float*>(scratch), static_cast<float*>(scratch) + piece.sums};
  const bool gate_first = args.gate == Gate::kFirst;
  const FinishFunction gate = FunctionFor<GatedFinishes>(args.activation);
  GemmDotArgs product = args;
  product.gate = Gate::kNone;
  product.stores_blocks = false;
  product.activation = Activation::kNone;
  for (size_t row = range.row_begin; row < range.row_end; row += piece.rows) {
    const size_t rows = std::min(piece.rows, range.row_end - row);
    product.rows = static_cast<const uint8_t*>(args.rows) + row * static_cast<size_t>(BlockRowBytes(args.k));
    for (size_t first = range.panel_begin; first < range.panel_end; first += piece.panels) {
      const size_t last = std::min(first + piece.panels, range.panel_end), column = first * width;
      product.n = static_cast<int64_t>(std::min(last * width, n) - column);
      product.ldc = static_cast<int64_t>((last - first) * width);
      for (size_t i = 0; i < 2; ++i) {
        const size_t panel = first + i * second;
        product.c = sums[i];
        product.packed_b = static_cast<const uint8_t*>(args.packed_b) + panel * stride;
        const float* const bias = i == 0 ? args.bias : args.second_bias;
        product.bias = bias == nullptr ? nullptr : bias + column;
        MultiplyRange<Panel>(product, sums[1] + piece.sums, {0, rows, 0, last - first});
      }
      FinishArgs joined{};
      joined.gate = sums[gate_first ? 0 : 1];
      joined.sums = sums[gate_first ? 1 : 0];
      joined.sums_ld = static_cast<size_t>(product.ldc);
      joined.to = ResultAt(args, row, column, rows, static_cast<size_t>(product.n));
      if (args.stores_blocks) joined.to.c = sums[0], joined.to.ldc = joined.sums_ld;
      gate(joined);
      if (!args.stores_blocks) continue;
      auto* to = reinterpret_cast<RowGroup*>(args.c) + column / kGroupNumbers;
      const size_t to_stride = static_cast<size_t>(BlockRowBytes(args.n)) / sizeof(RowGroup);
      for (size_t i = 0; i < rows; ++i) {
        ConvertRow(sums[0] + i * joined.to.ldc, joined.to.columns / kGroupNumbers, to + (row + i) * to_stride);
      }
    }
  }
}

// The range moved to whole PanelsTogether(), as those of other parts are.
PanelRange Together(const GemmDotArgs& args, PanelRange range) {
  const size_t width = PanelWidth(), all = (static_cast<size_t>(args.n) + width - 1) / width;
  range.panel_begin -= range.panel_begin % PanelsTogether();
  if (range.panel_end < all) range.panel_end -= range.panel_end % PanelsTogether();
  return range;
}

template <class Panel>
void MultiplyBlocks(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  (args.gate == Gate::kNone ? &MultiplyRange<Panel> : &MultiplyGated<Panel>)(args, scratch, range);
}

void RunProduct(const GemmDotArgs& args, void* scratch, const PanelRange& all) {
  const PanelRange range = args.gate == Gate::kNone ? all : Together(args, all);
  if (range.empty()) return;
  ForBlockPanel(args.precision, [&](auto example) HWY_ATTR {
    using Panel = decltype(example);
#if THRESHER_UNIT_TARGET
    const size_t wide = std::clamp(WideFrom(args.wide_from, args.m), range.row_begin, range.row_end);
    if (wide < range.row_end) {
      // Both kinds of rows meet some panels before either meets the next ones, so that these are read from memory once.
      const size_t step = wide > range.row_begin ? kPanelsForBoth : range.panel_end;
      for (size_t first = range.panel_begin; first < range.panel_end;) {
        const size_t last = std::min(first / step * step + step, range.panel_end);
        if (wide > range.row_begin) MultiplyBlocks<Panel>(args, scratch, {range.row_begin, wide, first, last});
        MultiplyWide<Panel>(args, scratch, {wide, range.row_end, first, last});
        first = last;
      }
      return;
    }
#endif
    MultiplyBlocks<Panel>(args, scratch, range);
  });
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

bool WidensBlocks() { return isa::CurrentTiles() != isa::Tiles::kNone; }

// An odd number of lines: rows do not lie in the same sets of a cache. As many as rows of bf16 have.
int64_t BlockRowBytes(int64_t k) { return (k / kGroupNumbers | 1) * 64; }

void ConvertRowsToBlocks(const ConvertRowsArgs& args, int64_t begin, int64_t end) {
  const int64_t wide = WidensBlocks() ? std::clamp(args.wide_from, begin, end) : end;
  if (begin < wide) HWY_DYNAMIC_DISPATCH(ConvertBlocks)(args, static_cast<size_t>(begin), static_cast<size_t>(wide));
  if (wide == end) return;
  ConvertRowsArgs of_bf16 = args;  // as far apart
  of_bf16.form = RowForm::kBF16;
  ConvertRowRange(of_bf16, wide, end);
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
