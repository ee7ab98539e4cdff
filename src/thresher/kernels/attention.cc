#include "thresher/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "thresher/base/half.h"

#define THRESHER_BF16_TARGETS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/amx_tile-inl.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/math-inl.h"
#include "thresher/kernels/pack-inl.h"
#include "thresher/kernels/panel_formats-inl.h"
#include "thresher/kernels/row_codes-inl.h"
#include "thresher/kernels/tile-inl.h"
#include "thresher/kernels/wide_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

// Keys whose scores are held at once, and the memory those scores of one block of queries may take, so as to stay near
// L1.
constexpr size_t kMostKeys = 512;
constexpr size_t kScoreBytes = size_t{32} * 1024;
constexpr size_t kMostTiles = 8;  // of queries in a block

constexpr float kNoKey = -std::numeric_limits<float>::infinity();  // the maximum over no keys

size_t RoundUp(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Sizes that follow from the arguments alone, and where each buffer lies in the scratch memory, in floats.
struct Layout {
  explicit Layout(const SdpaArgs& args) {
    const size_t width = PanelWidth();
    queries = static_cast<size_t>(args.q.shape[2]);
    keys = static_cast<size_t>(args.k.shape[2]);
    depth = static_cast<size_t>(args.q.shape[3]);
    out_depth = static_cast<size_t>(args.v.shape[3]);
    const size_t key_blocks = std::max<size_t>(1, (keys + kMostKeys - 1) / kMostKeys);
    key_step = RoundUp((keys + key_blocks - 1) / key_blocks, width);
    acc_ld = RoundUp(out_depth, width);
    halves = args.precision != Precision::kFp32;
    const bool on_unit = halves && UnitInUse() != isa::Tiles::kNone;
    const size_t tile = on_unit ? kUnitBlockRows : static_cast<size_t>(kTileRows);
    const size_t tiles = kScoreBytes / (sizeof(float) * std::max<size_t>(key_step, 1) * tile);
    query_step = std::clamp<size_t>(tiles, 1, kMostTiles) * tile;
    // Equal blocks, so that no part ends up with a sliver.
    const size_t query_blocks = std::max<size_t>(1, (queries + query_step - 1) / query_step);
    query_step = (queries + query_blocks - 1) / query_blocks;
    blocks = queries == 0 ? 0 : (queries + query_step - 1) / query_step;

    converts_mask =
        args.mask.data != nullptr && (args.mask.dtype == DType::kBool || (args.mask.strides[3] != 1 && keys > 1));
    mask_rows = !converts_mask ? 0 : args.mask.strides[2] == 0 ? 1 : query_step;

    size_t offset = 0;
    const auto reserve = [&offset](size_t floats) {
      const size_t begin = offset;
      offset += RoundUp(floats, 16);
      return begin;
    };
    // Two elements of 16 bits take the place of one float.
    const auto halved = [&](size_t count) { return halves ? RoundUp(count, 2) / 2 : count; };
    k_panel = halved(depth) * width;
    v_panel = halved(keys) * width;
    packed_k = reserve(RoundUp(keys, width) / width * k_panel);
    packed_v = reserve(acc_ld / width * v_panel);
    // A unit wants rows in whole tiles, and those of one tile in different sets of L1.
    const auto row = [&](size_t count) {
      return on_unit ? UnitRowStride(count * sizeof(uint16_t)) / sizeof(float) : halved(count);
    };
    row_q = row(depth);
    row_scores = row(key_step);
    scores_ld = on_unit ? UnitRowStride(key_step * sizeof(float)) / sizeof(float) : key_step;
    last_zeros = on_unit ? 2 * kUnitSteps : 1;
    narrow_q = reserve(halves ? query_step * row_q : 0);
    narrow_scores = reserve(halves ? query_step * row_scores : 0);
    scores = reserve(query_step * scores_ld);
    acc = reserve(query_step * acc_ld);
    mask = reserve(mask_rows * key_step);
    row_max = reserve(query_step);
    row_sum = reserve(query_step);
    row_scale = reserve(query_step);
    head_scales = reserve(2);
    floats = offset;
  }

  size_t queries, keys, depth, out_depth;
  size_t key_step;    // keys at once, a multiple of the panel width
  size_t query_step;  // queries at once
  size_t blocks;      // of queries
  bool halves;        // factors have 16 bits
  size_t acc_ld;
  bool converts_mask;  // to additive floats with stride 1
  size_t mask_rows;
  size_t k_panel, v_panel;   // of all rows of k or v, in floats
  size_t row_q, row_scores;  // a row of 16 bits, in floats
  size_t scores_ld;          // of a row of floats
  size_t last_zeros;         // rows of 16 bits are filled with zeros up to a multiple of so many elements
  size_t packed_k, packed_v, narrow_q, narrow_scores, scores, acc, mask, row_max, row_sum;
  size_t row_scale;    // of scores
  size_t head_scales;  // what packed k and v are to be multiplied by
  size_t floats;
};

// The softmax of a block takes one loop over its rows for the maxima and one for the exponentials: within one loop the
// rows do not depend on each other, so the processor overlaps the end of one row with the next.

// The maximum of s[0, valid) * scale + mask. With a mask the sums replace the scores. A NaN may get lost here, but not
// in the sum of the exponentials.
template <bool kMasked>
HWY_INLINE float RowMax(float* HWY_RESTRICT s, size_t valid, const float* HWY_RESTRICT mask, float scale) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const auto vscale = hn::Set(d, scale);
  const auto lowest = hn::Neg(hn::Inf(d));
  const size_t whole = valid / lanes * lanes;
  auto max = lowest;
  for (size_t j = 0; j < whole; j += lanes) {
    auto t = hn::Mul(hn::Load(d, s + j), vscale);
    if constexpr (kMasked) {
      t = hn::Add(t, hn::LoadU(d, mask + j));
      hn::Store(t, d, s + j);
    }
    max = hn::Max(max, t);
  }
  if (whole < valid) {
    const size_t count = valid - whole;
    auto t = hn::Mul(hn::Load(d, s + whole), vscale);
    if constexpr (kMasked) {
      t = hn::Add(t, hn::LoadN(d, mask + whole, count));
      hn::Store(t, d, s + whole);
    }
    max = hn::Max(max, hn::IfThenElse(hn::FirstN(d, count), t, lowest));
  }
  return hn::ReduceMax(d, max);
}

inline constexpr float kMostBase = 1e38f;  // that is a float as an exponent of two, too

// The exponentials exp(s - base) of s[0, valid), the scores being scaled first where RowMax<true> has not done so, and
// 0 for s[valid, total), `total` rounded up to whole vectors. They go to `out`, as floats (which may be s itself), bf16
// or fp16. Returns their sum before rounding.
// kOfTwo: as powers of two, of which bf16 shows no difference, for a base that does not overflow as one.
template <bool kMasked, bool kOfTwo, class T>
HWY_INLINE float RowExp(const float* s, size_t valid, size_t total, float base, float scale, T* out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  constexpr float kUnit = kOfTwo ? 1.44269504088896341f : 1.0f;
  const auto vscale = hn::Set(d, kMasked ? kUnit : scale * kUnit);
  const auto vbase = hn::Set(d, base * kUnit);
  const size_t whole = valid / lanes * lanes;
  auto sum = hn::Zero(d);
  const auto exponential = [&](size_t j) HWY_ATTR {
    const auto t = hn::Load(d, s + j);
    if constexpr (kOfTwo) return Exp2ForBf16(d, hn::MulSub(t, vscale, vbase));
    return ExpNonPositive(d, kMasked ? hn::Sub(t, vbase) : hn::MulSub(t, vscale, vbase));
  };
  const auto store = [&](hn::Vec<TileTag> e, size_t j) HWY_ATTR {
    if constexpr (std::is_same_v<T, float>) {
      hn::Store(e, d, out + j);
    } else {
      const hn::Rebind<T, TileTag> d16;
      hn::StoreU(hn::DemoteTo(d16, e), d16, out + j);
    }
  };
  size_t j = 0;
  for (; j < whole; j += lanes) {
    const auto e = exponential(j);
    store(e, j);
    sum = hn::Add(sum, e);
  }
  if (j < valid) {
    const auto e = hn::IfThenElseZero(hn::FirstN(d, valid - j), exponential(j));
    store(e, j);
    sum = hn::Add(sum, e);
    j += lanes;
  }
  for (; j < total; j += lanes) store(hn::Zero(d), j);
  return hn::ReduceSum(d, sum);
}

void ScaleRow(const float* HWY_RESTRICT in, size_t count, float factor, float* HWY_RESTRICT out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  size_t j = 0;
  for (; j + lanes <= count; j += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, in + j), f), d, out + j);
  if (j < count) hn::StoreN(hn::Mul(hn::LoadN(d, in + j, count - j), f), d, out + j, count - j);
}

void ScaleInPlace(float* row, size_t count, float factor) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  for (size_t j = 0; j < count; j += lanes) hn::Store(hn::Mul(hn::Load(d, row + j), f), d, row + j);
}

// out = (init ? out : 0) + a * panels, for `rows` rows and every panel; a panel, or two, stay in L1 while the rows
// pass.
void Multiply(const float* a, size_t lda, size_t rows, size_t k, const float* panels, size_t panel_stride,
              size_t num_panels, bool accumulate, float* out, size_t out_ld) {
  const size_t width = PanelWidth();
  WideTileArgs tile{};
  tile.lda = lda;
  tile.k = k;
  tile.out_ld = out_ld;
  tile.init_ld = out_ld;
  tile.second = {panel_stride * sizeof(float), width};
  const size_t at_once = TakesTwoPanels() && rows > static_cast<size_t>(kTileRows) ? 2 : 1;
  for (size_t p = 0, count; p < num_panels; p += count) {
    count = std::min(at_once, num_panels - p);
    const RowTiles tiles(rows, static_cast<size_t>(count == 2 ? kWideTileRows : kTileRows));
    const auto* block = reinterpret_cast<const uint8_t*>(panels + p * panel_stride);
    const size_t bytes = (count - 1) * tile.second.b + FloatPanel::Bytes(k);
    const uint8_t* next = block + count * tile.second.b;
    tile.b = block;
    size_t row = 0;
    for (size_t t = 0; t < tiles.count; t += tile.tiles) {
      const size_t height = tiles.Height(t);
      float* tile_out = out + row * out_ld + p * width;
      tile.a = a + row * lda;
      tile.out = tile_out;
      tile.init = accumulate ? tile_out : nullptr;
      tile.tiles = tiles.Alike(t);
      const size_t fetched = t * (k / 4) * 64;  // by the tiles before, a line a turn
      tile.fetch = {fetched < bytes ? next + fetched : block, 1, MayFetchIntoL1(height), next + bytes};
      if (count == 2) {
        if constexpr (kHasWideTiles) WideTileForRows(height)(tile);
      } else {
        TileForRows(height)(tile);
      }
      row += tile.tiles * height;
    }
  }
}

// The same with rows and panels of 16 bits; `a` has rows of lda floats, each two elements.
template <class Tiles>
void MultiplyHalves(Tiles& unit, const float* a, size_t lda, size_t rows, size_t k, const float* panels,
                    size_t panel_stride, size_t num_panels, bool accumulate, float* out, size_t out_ld) {
  const size_t width = PanelWidth();
  const RowTiles tiles(rows, Tiles::kMostRows);
  DotTileArgs tile{};
  tile.lda = lda * sizeof(float);
  tile.steps = (k + 1) / 2;
  tile.out_ld = out_ld;
  tile.init_ld = out_ld;
  for (size_t p = 0; p < num_panels; ++p) {
    tile.b = reinterpret_cast<const uint8_t*>(panels + p * panel_stride);
    const uint8_t* next = tile.b + panel_stride * sizeof(float);
    size_t row = 0;
    for (size_t t = 0; t < tiles.count; ++t) {
      const size_t height = tiles.Height(t);
      float* tile_out = out + row * out_ld + p * width;
      tile.a = reinterpret_cast<const uint8_t*>(a + row * lda);
      tile.out = tile_out;
      tile.init = accumulate ? tile_out : nullptr;
      tile.fetch = {next, 1, MayFetchIntoL1(height)};
      unit.Run(tile, height);
      row += height;
    }
  }
}

// Additive float rows of the mask for queries [query, query + rows) and keys [key, key + count).
void ConvertMask(const SdpaArgs& args, size_t batch, size_t head, size_t query, size_t rows, size_t key, size_t count,
                 float* HWY_RESTRICT out, size_t out_ld) {
  const View& mask = args.mask;
  for (size_t i = 0; i < rows; ++i) {
    const int64_t begin = static_cast<int64_t>(batch) * mask.strides[0] + static_cast<int64_t>(head) * mask.strides[1] +
                          static_cast<int64_t>(query + i) * mask.strides[2] +
                          static_cast<int64_t>(key) * mask.strides[3];
    if (mask.dtype == DType::kBool) {
      const uint8_t* in = mask.as<const uint8_t>() + begin;
      for (size_t j = 0; j < count; ++j) {
        out[i * out_ld + j] =
            in[static_cast<int64_t>(j) * mask.strides[3]] != 0 ? 0.0f : -std::numeric_limits<float>::infinity();
      }
    } else {
      const float* in = mask.as<const float>() + begin;
      for (size_t j = 0; j < count; ++j) out[i * out_ld + j] = in[static_cast<int64_t>(j) * mask.strides[3]];
    }
  }
}

// What the tiles multiply: the bits of BF16 or F16.
template <class Half>
using NarrowOf = std::conditional_t<std::is_same_v<Half, BF16>, hwy::bfloat16_t, hwy::float16_t>;

// in[0, count) times `factor`, and a zero behind an odd count.
template <class Half>
HWY_INLINE void NarrowRow(const float* HWY_RESTRICT in, size_t count, float factor, NarrowOf<Half>* HWY_RESTRICT row) {
  if constexpr (std::is_same_v<Half, BF16>) {
    RowToBf16(in, count, row);
  } else {
    auto* const bits = reinterpret_cast<uint16_t*>(row);
    RowToF16(in, count, factor, bits);
    if (count % 2 != 0) bits[count] = 0;
  }
}

// What rows are multiplied by before they become fp16.
float F16Factor(const float* HWY_RESTRICT in, size_t rows, size_t count, ptrdiff_t stride) {
  CodeRange range;
  for (size_t i = 0; i < rows; ++i) range.Include(RangeOf(in + static_cast<ptrdiff_t>(i) * stride, count));
  return 1.0f / F16Scale(range);
}

// PackPanel times `factor` into pairs of Half, some rows at a time.
template <class Half>
void PackHalvesPanel(const float* HWY_RESTRICT b, size_t k, size_t columns, ptrdiff_t stride_k, ptrdiff_t stride_n,
                     float factor, uint8_t* HWY_RESTRICT panel) {
  const auto encode = [](const float* in, size_t ld, size_t rows, uint8_t* out) HWY_ATTR {
    if constexpr (std::is_same_v<Half, BF16>) {
      EncodeBf16(in, ld, rows, out);
    } else {
      EncodeF16Pairs(in, ld, rows, out);
    }
  };
  if (factor == 1 && stride_n == 1 && columns == PanelWidth()) {
    return encode(b, static_cast<size_t>(stride_k), k, panel);
  }
  constexpr size_t kRows = 32;
  alignas(64) float floats[kRows * kMaxPanelWidth];
  for (size_t row = 0; row < k; row += kRows) {
    const size_t rows = std::min(kRows, k - row);
    uint8_t* out = panel + Bf16Panel::Bytes(row);
    if (stride_k == 1) {
      // Columns that lie as rows become pairs where they lie, and pairs are moved as if they were floats.
      for (size_t j = 0; j < columns; ++j) {
        NarrowRow<Half>(b + static_cast<ptrdiff_t>(j) * stride_n + row, rows, factor,
                        reinterpret_cast<NarrowOf<Half>*>(floats + j * (kRows / 2)));
      }
      PackPanel(floats, (rows + 1) / 2, columns, 1, kRows / 2, reinterpret_cast<float*>(out));
    } else {
      PackPanel(b + static_cast<ptrdiff_t>(row) * stride_k, rows, columns, stride_k, stride_n, floats);
      if (factor != 1) ScaleRow(floats, rows * PanelWidth(), factor, floats);
      encode(floats, PanelWidth(), rows, out);
    }
  }
}

// The same of rows that are bf16 already: of keys, which become columns, as they are; of values two rows at a time.
void PackStoredKeys(const uint16_t* HWY_RESTRICT keys, size_t depth, size_t columns, size_t stride,
                    uint8_t* HWY_RESTRICT panel) {
  PackPanel(reinterpret_cast<const float*>(keys), depth / 2, columns, 1, static_cast<ptrdiff_t>(stride / 2),
            reinterpret_cast<float*>(panel));
}
void PackStoredValues(const uint16_t* HWY_RESTRICT values, size_t rows, size_t columns, size_t stride,
                      uint8_t* HWY_RESTRICT panel) {
  const hn::Repartition<uint32_t, TileTag> d32;
  const hn::Rebind<uint16_t, decltype(d32)> d16;
  const size_t lanes = hn::Lanes(d32);
  auto* out = reinterpret_cast<uint32_t*>(panel);
  for (size_t row = 0; row < rows; row += 2) {
    const uint16_t* const first = values + row * stride;
    const uint16_t* const second = first + stride;
    for (size_t j = 0; j < PanelWidth(); j += lanes, out += lanes) {
      const size_t count = columns <= j ? 0 : std::min(lanes, columns - j);
      auto pair = hn::PromoteTo(d32, hn::LoadN(d16, first + j, count));
      if (row + 1 < rows) {
        pair = hn::Or(pair, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadN(d16, second + j, count))));
      }
      hn::StoreU(pair, d32, out);
    }
  }
}

// Where row i of a head begins.
template <class T>
const T* HeadRow(const View& view, size_t batch, size_t head, size_t i) {
  return view.as<const T>() + static_cast<int64_t>(batch) * view.strides[0] +
         static_cast<int64_t>(head) * view.strides[1] + static_cast<int64_t>(i) * view.strides[2];
}

void PackStoredHead(const SdpaArgs& args, const Layout& layout, size_t batch, size_t kv_head, float* scratch) {
  const size_t width = PanelWidth();
  scratch[layout.head_scales] = scratch[layout.head_scales + 1] = 1;
  for (size_t key = 0; key < layout.keys; key += width) {
    PackStoredKeys(HeadRow<uint16_t>(args.k, batch, kv_head, key), layout.depth, std::min(width, layout.keys - key),
                   static_cast<size_t>(args.k.strides[2]),
                   reinterpret_cast<uint8_t*>(scratch + layout.packed_k + key / width * layout.k_panel));
  }
  for (size_t column = 0; column < layout.out_depth; column += width) {
    PackStoredValues(HeadRow<uint16_t>(args.v, batch, kv_head, 0) + column, layout.keys,
                     std::min(width, layout.out_depth - column), static_cast<size_t>(args.v.strides[2]),
                     reinterpret_cast<uint8_t*>(scratch + layout.packed_v + column / width * layout.v_panel));
  }
}

// The type whose tiles are Tiles.
template <class Tiles>
using HalfOf = std::conditional_t<std::is_same_v<typename Tiles::Dot, Bf16Dot>, BF16, F16>;

template <class Half>
void PackHead(const SdpaArgs& args, const Layout& layout, size_t batch, size_t kv_head, float* scratch) {
  if (args.k.dtype == DType::kBF16) return PackStoredHead(args, layout, batch, kv_head, scratch);
  const size_t width = PanelWidth();
  const float* k = HeadRow<float>(args.k, batch, kv_head, 0);
  const float* v = HeadRow<float>(args.v, batch, kv_head, 0);
  float factor_k = 1, factor_v = 1;
  if constexpr (std::is_same_v<Half, F16>) {
    factor_k = F16Factor(k, layout.keys, layout.depth, args.k.strides[2]);
    factor_v = F16Factor(v, layout.keys, layout.out_depth, args.v.strides[2]);
  }
  scratch[layout.head_scales] = 1 / factor_k;
  scratch[layout.head_scales + 1] = 1 / factor_v;
  for (size_t key = 0; key < layout.keys; key += width) {
    const float* in = k + static_cast<int64_t>(key) * args.k.strides[2];
    const size_t columns = std::min(width, layout.keys - key);
    float* panel = scratch + layout.packed_k + key / width * layout.k_panel;
    if (layout.halves) {
      PackHalvesPanel<Half>(in, layout.depth, columns, 1, args.k.strides[2], factor_k,
                            reinterpret_cast<uint8_t*>(panel));
    } else {
      PackPanel(in, layout.depth, columns, 1, args.k.strides[2], panel);
    }
  }
  for (size_t column = 0; column < layout.out_depth; column += width) {
    const size_t columns = std::min(width, layout.out_depth - column);
    float* panel = scratch + layout.packed_v + column / width * layout.v_panel;
    if (layout.halves) {
      PackHalvesPanel<Half>(v + column, layout.keys, columns, args.v.strides[2], 1, factor_v,
                            reinterpret_cast<uint8_t*>(panel));
    } else {
      PackPanel(v + column, layout.keys, columns, args.v.strides[2], 1, panel);
    }
  }
}

// Queries [begin, end) of one head, whose keys and values are packed; Tiles multiply those of 16 bits.
template <class Tiles>
void AttendBlock(const SdpaArgs& args, const Layout& layout, size_t batch, size_t head, size_t begin, size_t end,
                 float* scratch) {
  const size_t width = PanelWidth();
  const size_t rows = end - begin;
  const size_t limit = args.causal ? std::min(layout.keys, end) : layout.keys;  // keys any of these rows sees
  const bool stored = args.q.dtype == DType::kBF16;
  const float* q = stored ? nullptr : HeadRow<float>(args.q, batch, head, begin);
  float* scores = scratch + layout.scores;
  float* acc = scratch + layout.acc;
  float* mask_rows = scratch + layout.mask;
  float* row_max = scratch + layout.row_max;
  float* row_sum = scratch + layout.row_sum;
  float* row_scale = scratch + layout.row_scale;
  std::fill_n(row_scale, rows, args.scale * scratch[layout.head_scales]);
  std::fill_n(row_max, rows, kNoKey);
  std::fill_n(row_sum, rows, 0.0f);
  const bool masked = args.mask.data != nullptr;
  using Half = HalfOf<Tiles>;
  const RowTiles row_tiles(rows, Tiles::kMostRows);
  Tiles unit(row_tiles.Height(row_tiles.count - 1));
  if (layout.halves) {
    const size_t filled = RoundUp(layout.depth, 2);
    const size_t zeros = RoundUp(filled, layout.last_zeros) - filled;
    for (size_t i = 0; i < rows; ++i) {
      auto* row = reinterpret_cast<NarrowOf<Half>*>(scratch + layout.narrow_q + i * layout.row_q);
      if (stored) {
        std::memcpy(row, HeadRow<uint16_t>(args.q, batch, head, begin + i), layout.depth * sizeof(*row));
      } else {
        const float* const query = q + static_cast<int64_t>(i) * args.q.strides[2];
        float factor = 1;
        if constexpr (std::is_same_v<Half, F16>) factor = F16Factor(query, 1, layout.depth, 0);
        row_scale[i] /= factor;
        NarrowRow<Half>(query, layout.depth, factor, row);
      }
      std::memset(row + filled, 0, zeros * sizeof(*row));
    }
  }

  for (size_t key = 0; key < limit; key += layout.key_step) {
    const size_t count = std::min(layout.key_step, limit - key);
    const float* keys = scratch + layout.packed_k + key / width * layout.k_panel;
    if (layout.halves) {
      MultiplyHalves(unit, scratch + layout.narrow_q, layout.row_q, rows, layout.depth, keys, layout.k_panel,
                     (count + width - 1) / width, false, scores, layout.scores_ld);
    } else {
      Multiply(q, static_cast<size_t>(args.q.strides[2]), rows, layout.depth, keys, layout.k_panel,
               (count + width - 1) / width, false, scores, layout.scores_ld);
    }
    if (layout.converts_mask) {
      ConvertMask(args, batch, head, begin, layout.mask_rows == 1 ? 1 : rows, key, count, mask_rows, layout.key_step);
    }
    const auto valid = [&](size_t i) {
      const size_t visible = args.causal ? std::min(layout.keys, begin + i + 1) : layout.keys;
      return visible <= key ? size_t{0} : std::min(count, visible - key);
    };
    for (size_t i = 0; i < rows; ++i) {
      float* s = scores + i * layout.scores_ld;
      float max;
      if (!masked) {
        max = RowMax<false>(s, valid(i), nullptr, row_scale[i]);
      } else if (layout.converts_mask) {
        max = RowMax<true>(s, valid(i), mask_rows + (layout.mask_rows == 1 ? 0 : i) * layout.key_step, row_scale[i]);
      } else {
        const int64_t mask = static_cast<int64_t>(batch) * args.mask.strides[0] +
                             static_cast<int64_t>(head) * args.mask.strides[1] +
                             static_cast<int64_t>(begin + i) * args.mask.strides[2] + static_cast<int64_t>(key);
        max = RowMax<true>(s, valid(i), args.mask.as<const float>() + mask, row_scale[i]);
      }
      const float old_max = row_max[i];
      const float new_max = std::max(old_max, max);
      row_max[i] = new_max;
      // What earlier blocks summed was relative to their maximum.
      if (key != 0 && old_max != new_max) {
        const float factor = old_max == kNoKey ? 0.0f : std::exp(old_max - new_max);
        row_sum[i] *= factor;
        ScaleInPlace(acc + i * layout.acc_ld, layout.acc_ld, factor);
      }
    }
    float* weights = scratch + layout.narrow_scores;
    const size_t total = layout.halves ? RoundUp(count, layout.last_zeros) : count;
    for (size_t i = 0; i < rows; ++i) {
      float* s = scores + i * layout.scores_ld;
      // No key seen yet: subtract 0 rather than -infinity, and every exponential is 0.
      const float base = row_max[i] == kNoKey ? 0.0f : row_max[i];
      const auto exponentials = [&](auto* to, auto of_two) HWY_ATTR {
        constexpr bool kOfTwo = decltype(of_two)::value;
        return masked ? RowExp<true, kOfTwo>(s, valid(i), total, base, row_scale[i], to)
                      : RowExp<false, kOfTwo>(s, valid(i), total, base, row_scale[i], to);
      };
      if (!layout.halves) {
        row_sum[i] += exponentials(s, std::false_type());
        continue;
      }
      auto* const narrow = reinterpret_cast<NarrowOf<Half>*>(weights + i * layout.row_scores);
      if (std::is_same_v<Half, BF16> && std::abs(base) < kMostBase) {
        row_sum[i] += exponentials(narrow, std::bool_constant<std::is_same_v<Half, BF16>>());
      } else {
        row_sum[i] += exponentials(narrow, std::false_type());
      }
    }
    if (layout.halves) {
      // Keys begin at an even one, so half the rows of floats lie before it.
      MultiplyHalves(unit, weights, layout.row_scores, rows, count, scratch + layout.packed_v + key / 2 * width,
                     layout.v_panel, layout.acc_ld / width, key != 0, acc, layout.acc_ld);
    } else {
      Multiply(scores, layout.scores_ld, rows, count, scratch + layout.packed_v + key * width, layout.v_panel,
               layout.acc_ld / width, key != 0, acc, layout.acc_ld);
    }
  }

  const int64_t first = static_cast<int64_t>(batch) * args.out.strides[0] +
                        static_cast<int64_t>(head) * args.out.strides[1] +
                        static_cast<int64_t>(begin) * args.out.strides[2];
  for (size_t i = 0; i < rows; ++i) {
    const int64_t at = first + static_cast<int64_t>(i) * args.out.strides[2];
    float* const sums = acc + i * layout.acc_ld;
    const bool sees_none = row_sum[i] == 0.0f;
    if (sees_none) std::fill_n(sums, layout.out_depth, 0.0f);
    const float factor = sees_none ? 1.0f : scratch[layout.head_scales + 1] / row_sum[i];
    if (args.out.dtype == DType::kBF16) {
      ScaleInPlace(sums, layout.out_depth, factor);
      RowToBf16(sums, layout.out_depth, args.out.as<hwy::bfloat16_t>() + at);
    } else {
      ScaleRow(sums, layout.out_depth, factor, args.out.as<float>() + at);
    }
  }
}

size_t SdpaScratchFloats(const SdpaArgs& args) { return Layout(args).floats; }

template <class Tiles>
void SdpaRange(const SdpaArgs& args, float* scratch, size_t part, size_t num_parts) {
  const Layout layout(args);
  const size_t heads = static_cast<size_t>(args.q.shape[1]);
  const size_t kv_heads = static_cast<size_t>(args.k.shape[1]);
  const size_t total = static_cast<size_t>(args.q.shape[0]) * heads * layout.blocks;
  const size_t end = total * (part + 1) / num_parts;
  size_t packed = SIZE_MAX;
  for (size_t unit = total * part / num_parts; unit < end; ++unit) {
    const size_t block = unit % layout.blocks;
    const size_t head = unit / layout.blocks % heads;
    const size_t batch = unit / layout.blocks / heads;
    const size_t kv_head = head / (heads / kv_heads);
    if (packed != batch * kv_heads + kv_head) {
      packed = batch * kv_heads + kv_head;
      PackHead<HalfOf<Tiles>>(args, layout, batch, kv_head, scratch);
    }
    const size_t begin = block * layout.query_step;
    AttendBlock<Tiles>(args, layout, batch, head, begin, std::min(layout.queries, begin + layout.query_step), scratch);
  }
}

void SdpaPart(const SdpaArgs& args, float* scratch, size_t part, size_t num_parts) {
#if THRESHER_UNIT_TARGET
  const auto by_tiles = [&](auto dot) HWY_ATTR {
    using Dot = decltype(dot);
    if (UnitInUse() == isa::Tiles::kPlain) {
      return SdpaRange<UnitTiles<PlainUnit, Dot>>(args, scratch, part, num_parts);
    }
    SdpaRange<UnitTiles<AmxUnit, Dot>>(args, scratch, part, num_parts);
  };
  if (args.precision == Precision::kFp16) return by_tiles(F16Dot());
  if (args.precision == Precision::kBf16 && UnitInUse() != isa::Tiles::kNone) return by_tiles(Bf16Dot());
#endif
  SdpaRange<VectorTiles<Bf16Dot>>(args, scratch, part, num_parts);
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(SdpaScratchFloats);
HWY_EXPORT(SdpaPart);

}  // namespace

size_t SdpaScratchBytes(const SdpaArgs& args) { return HWY_DYNAMIC_DISPATCH(SdpaScratchFloats)(args) * sizeof(float); }

void Sdpa(const SdpaArgs& args, void* scratch, int part, int num_parts) {
  HWY_DYNAMIC_DISPATCH(SdpaPart)
  (args, static_cast<float*>(scratch), static_cast<size_t>(part), static_cast<size_t>(num_parts));
}

void SdpaReference(const SdpaArgs& args) {
  const auto at = [](const View& view, int64_t b, int64_t h, int64_t i, int64_t j) {
    return b * view.strides[0] + h * view.strides[1] + i * view.strides[2] + j * view.strides[3];
  };
  const int64_t keys = args.k.shape[2];
  const int64_t group = args.k.shape[1] == 0 ? 1 : args.q.shape[1] / args.k.shape[1];
  std::vector<double> weights(static_cast<size_t>(keys));
  for (int64_t b = 0; b < args.q.shape[0]; ++b) {
    for (int64_t h = 0; h < args.q.shape[1]; ++h) {
      for (int64_t i = 0; i < args.q.shape[2]; ++i) {
        double max = -std::numeric_limits<double>::infinity();
        bool any_nan = false;
        for (int64_t j = 0; j < keys; ++j) {
          double score = 0.0;
          for (int64_t l = 0; l < args.q.shape[3]; ++l) {
            score += static_cast<double>(args.q.as<const float>()[at(args.q, b, h, i, l)]) *
                     static_cast<double>(args.k.as<const float>()[at(args.k, b, h / group, j, l)]);
          }
          score *= args.scale;
          if (args.mask.data != nullptr) {
            const int64_t m = at(args.mask, b, h, i, j);
            // Added in float, as the mask may hold the lowest float, which must absorb the score.
            if (args.mask.dtype == DType::kF32) {
              score = static_cast<float>(score) + args.mask.as<const float>()[m];
            } else if (args.mask.as<const uint8_t>()[m] == 0) {
              score = -std::numeric_limits<double>::infinity();
            }
          }
          if (args.causal && j > i) score = -std::numeric_limits<double>::infinity();
          weights[static_cast<size_t>(j)] = score;
          any_nan = any_nan || std::isnan(score);
          max = std::max(max, score);
        }
        const bool sees_none = !any_nan && max == -std::numeric_limits<double>::infinity();
        double sum = 0.0;
        for (double& w : weights) {
          w = sees_none ? 0.0 : std::exp(w - max);
          sum += w;
        }
        for (int64_t c = 0; c < args.v.shape[3]; ++c) {
          double value = 0.0;
          for (int64_t j = 0; j < keys && !sees_none; ++j) {
            value += weights[static_cast<size_t>(j)] / sum *
                     static_cast<double>(args.v.as<const float>()[at(args.v, b, h / group, j, c)]);
          }
          args.out.as<float>()[at(args.out, b, h, i, c)] = static_cast<float>(value);
        }
      }
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
