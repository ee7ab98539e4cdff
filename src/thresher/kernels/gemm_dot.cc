#include "thresher/kernels/gemm_dot.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "thresher/base/cpu.h"
#include "thresher/kernels/arithmetic.h"
#include "thresher/kernels/gemm_block.h"

#define THRESHER_DOT_TARGETS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/gemm_dot.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "thresher/kernels/amx_tile-inl.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/epilogue-inl.h"
#include "thresher/kernels/int4_tile-inl.h"
#include "thresher/kernels/pack-inl.h"
#include "thresher/kernels/row_codes-inl.h"
#include "thresher/kernels/window_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

size_t RoundUp(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Bytes of a panel's numbers.
template <class Dot>
size_t NumberBytes(size_t k) {
  return RoundUp(k, Dot::kStep) / Dot::kStep * PanelWidth() * Dot::kLaneBytes;
}

// An int8 panel is followed by the scales and the sums of its columns.
size_t Int8Stride(size_t k) { return NumberBytes<Int8Dot>(k) + PanelWidth() * (sizeof(float) + sizeof(int32_t)); }

size_t RowStride(RowForm form, size_t k) {
  if (form == RowForm::kInt16) return Int4Rows::Bytes(k);
  const size_t bytes = form != RowForm::kInt8 ? RoundUp(k, Bf16Dot::kStep) * sizeof(uint16_t)
                                              : RoundUp(k, Int8Dot::kStep) * Int8Dot::kRowBytes;
  if (UnitInUse() != isa::Tiles::kNone) return UnitRowStride(bytes);
  const size_t stride = RoundUp(bytes, 16);
  // So that the rows of a tile do not all lie in the same few sets of L1.
  return stride % 2048 == 0 ? stride + 64 : stride;
}

// Of a product's rows.
size_t StrideOf(const GemmDotArgs& args) {
  return args.row_bytes > 0 ? static_cast<size_t>(args.row_bytes) : RowStride(args.form, static_cast<size_t>(args.k));
}

// ---- rows ----

void ConvertRowsToBf16(const ConvertRowsArgs& args, size_t begin, size_t end) {
  const size_t k = static_cast<size_t>(args.k);
  const size_t stride = RowStride(RowForm::kBF16, k);
  for (size_t i = begin; i < end; ++i) {
    uint8_t* row = static_cast<uint8_t*>(args.rows) + i * stride;
    const size_t from = i * static_cast<size_t>(args.ldx);
    if (args.x_bf16) {
      std::memcpy(row, reinterpret_cast<const uint16_t*>(args.x) + from, k * sizeof(uint16_t));
      if (k % Bf16Dot::kStep != 0) std::memset(row + k * sizeof(uint16_t), 0, sizeof(uint16_t));
    } else {
      RowToBf16(args.x + from, k, reinterpret_cast<hwy::bfloat16_t*>(row));
    }
    const size_t used = RoundUp(k, Bf16Dot::kStep) * sizeof(uint16_t);
    std::memset(row + used, 0, stride - used);
  }
}

// Every row has a range of its own: one that fp16 does not reach is scaled down.
void ConvertRowsToF16(const ConvertRowsArgs& args, size_t begin, size_t end) {
  const size_t k = static_cast<size_t>(args.k);
  const size_t stride = RowStride(RowForm::kF16, k);
  for (size_t i = begin; i < end; ++i) {
    const float* HWY_RESTRICT x = args.x + i * static_cast<size_t>(args.ldx);
    uint8_t* row = static_cast<uint8_t*>(args.rows) + i * stride;
    args.scale[i] = F16Scale(RangeOf(x, k));
    RowToF16(x, k, 1.0f / args.scale[i], reinterpret_cast<uint16_t*>(row));
    std::memset(row + k * sizeof(uint16_t), 0, stride - k * sizeof(uint16_t));
  }
}

template <class T>
void ConvertRowsToInt8(const ConvertRowsArgs& args, size_t begin, size_t end) {
  const size_t k = static_cast<size_t>(args.k);
  const size_t ldx = static_cast<size_t>(args.ldx);
  const size_t stride = RowStride(RowForm::kInt8, k);
  const T* const x = reinterpret_cast<const T*>(args.x);
  // First the scales of some rows, then their codes: the end of one row's sums hides behind the next row.
  constexpr size_t kRows = 8;
  RowCodes codes[kRows] = {};
  for (size_t block = begin; block < end; block += kRows) {
    const size_t rows = std::min(kRows, end - block);
    size_t found = 0;
    for (; found + kCodedRows <= rows; found += kCodedRows) {
      FindRowCodes(x + (block + found) * ldx, ldx, k, codes + found);
    }
    for (; found < rows; ++found) codes[found] = RowCodes(RangeOf(x + (block + found) * ldx, k));
    for (size_t r = 0; r < rows; ++r) {
      const size_t i = block + r;
      uint8_t* row = static_cast<uint8_t*>(args.rows) + i * stride;
      args.scale[i] = codes[r].finite ? codes[r].scale : std::numeric_limits<float>::quiet_NaN();
      args.zero[i] = codes[r].StoredZero();
      if (codes[r].finite) StoreRow(x + i * ldx, k, codes[r], row);
      const size_t used = codes[r].finite ? k * Int8Dot::kRowBytes : 0;
      if (used < stride) std::memset(row + used, 0, stride - used);
    }
  }
}

void ConvertRange(const ConvertRowsArgs& args, size_t begin, size_t end) {
  if (args.form == RowForm::kInt16) {
    const size_t k = static_cast<size_t>(args.k);
    for (size_t i = begin; i < end; ++i) {
      Int4Rows::Convert(args.x + i * static_cast<size_t>(args.ldx), k,
                        static_cast<uint8_t*>(args.rows) + i * Int4Rows::Bytes(k));
    }
    return;
  }
  (args.form == RowForm::kBF16  ? &ConvertRowsToBf16
   : args.form == RowForm::kF16 ? &ConvertRowsToF16
   : args.x_bf16                ? &ConvertRowsToInt8<hwy::bfloat16_t>
                                : &ConvertRowsToInt8<float>)(args, begin, end);
}

void RestoreRange(const ConvertRowsArgs& args, float* x) {
  const size_t k = static_cast<size_t>(args.k);
  const size_t stride = RowStride(args.form, k);
  for (size_t i = 0; i < static_cast<size_t>(args.m); ++i) {
    const uint8_t* row = static_cast<const uint8_t*>(args.rows) + i * stride;
    for (size_t j = 0; j < k; ++j) {
      if (args.form == RowForm::kBF16) {
        hwy::bfloat16_t value;
        std::memcpy(&value, row + j * sizeof(value), sizeof(value));
        x[i * k + j] = hwy::F32FromBF16(value);
      } else if (args.form == RowForm::kF16) {
        F16 value;
        std::memcpy(&value, row + j * sizeof(value), sizeof(value));
        x[i * k + j] = args.scale[i] * ToFloat(value);
      } else if (args.form == RowForm::kInt16) {
        x[i * k + j] = Int4Rows::Restore(row, k, j);
      } else {
        int32_t code;
        if constexpr (Int8Dot::kRowBytes == 2) {
          code = reinterpret_cast<const int16_t*>(row)[j];
        } else {
          code = Int8Dot::kRowOffset == 0 ? row[j] : reinterpret_cast<const int8_t*>(row)[j];
        }
        x[i * k + j] = args.scale[i] * static_cast<float>(code - args.zero[i]);
      }
    }
  }
}

// ---- products ----

#if THRESHER_UNIT_TARGET
// Of products on a matrix unit: rows that pass by some panels, and how far ahead a tile fetches that shares the panel
// with no other.
constexpr size_t kUnitLeastRows = 128;
constexpr size_t kUnitMostRows = 1024;
constexpr size_t kUnitFetchDistance = 8192;
#endif

// Rows [row_begin, row_end) of panels [panel_begin, panel_end).
template <class Dot>
void GemmDotRange(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  using Sum = typename Dot::Sum;
  constexpr bool kInt8 = std::is_same_v<Sum, int32_t>;
  const size_t n = static_cast<size_t>(args.n);
  const size_t k = static_cast<size_t>(args.k);
  const size_t lda = StrideOf(args);
  const size_t width = PanelWidth();
  const size_t steps = (k + Dot::kStep - 1) / Dot::kStep;
  const size_t step_bytes = width * Dot::kLaneBytes;
  const size_t panel_stride = kInt8 ? Int8Stride(k) : steps * step_bytes;
  const size_t rows = range.row_end - range.row_begin;
  const Ending<Sum> ending(args, kInt8);

  const size_t most_rows = BlockRows(args.blocking, lda);
  const size_t row_blocks = (rows + most_rows - 1) / most_rows;
  const size_t panel_steps = std::max<size_t>(PanelBlockBytes(args.blocking, Dot::kMostRows) / step_bytes, 1);

  Sum* const strip = static_cast<Sum*>(scratch);  // sums that wait
  alignas(64) float padded_bias[kMaxPanelWidth];

  for (size_t block = 0; block < row_blocks; ++block) {
    const size_t block_begin = range.row_begin + rows * block / row_blocks;
    const size_t block_end = range.row_begin + rows * (block + 1) / row_blocks;
    const RowTiles tiles(block_end - block_begin, static_cast<size_t>(Dot::kMostRows));
    const size_t most_steps = tiles.count == 1 ? std::max<size_t>(steps, 1) : panel_steps;
    const size_t blocks = std::max<size_t>(1, (steps + most_steps - 1) / most_steps);
    // Even, since two steps may belong together.
    const size_t block_steps = RoundUp((steps + blocks - 1) / blocks, 2);

    for (size_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
      const uint8_t* panel_b = static_cast<const uint8_t*>(args.packed_b) + panel * panel_stride;
      const size_t column = panel * width;
      const size_t columns = std::min(width, n - column);
      const bool one_vector = columns <= hn::Lanes(typename Dot::Tag());
      const float* bias = PanelBias(args.bias, column, columns, padded_bias);
      const uint8_t* const scales = kInt8 ? panel_b + steps * step_bytes : nullptr;

      for (size_t b = 0; b < blocks; ++b) {
        const size_t begin = std::min(steps, b * block_steps);
        const size_t end = std::min(steps, begin + block_steps);
        const bool last = b + 1 == blocks;
        const size_t block_bytes = (end - begin) * step_bytes;
        DotTileArgs tile;
        tile.lda = lda;
        tile.b = panel_b + begin * step_bytes;
        tile.steps = end - begin;
        size_t row = block_begin;
        for (size_t t = 0; t < tiles.count; ++t) {
          const size_t height = tiles.Height(t);
          const TileResult to = ResultAt(args, row, column, height, columns);
          Sum* wait = strip + (blocks == 1 ? 0 : (row - block_begin) * width);
          tile.a = static_cast<const uint8_t*>(args.rows) + row * lda + begin * sizeof(uint32_t);
          tile.init = b == 0 ? static_cast<const void*>(kInt8 ? nullptr : bias) : wait;
          tile.init_ld = b == 0 ? 0 : width;
          if (last) {
            ending.Of(to, wait, tile);
          } else {
            tile.KeepSums(wait, width);
          }
          const size_t turns = tile.steps / 2;
          const uint8_t* next_b = tile.b + block_bytes;
          tile.fetch = tiles.count == 1 ? FetchAlone(height, 1, tile.b, block_bytes, turns, next_b)
                                        : FetchShare(tiles, t, tile.b, block_bytes, turns, next_b);
          if (last && !ending.in_tile()) FetchResult(to);
          (one_vector ? DotTileForRows<Dot, 1>(height) : DotTileForRows<Dot>(height))(tile);
          if (last && !ending.in_tile()) {
            FinishArgs rest = ending.Rest(to, wait, bias, scales);
            if constexpr (kInt8) {
              rest.row_scale = args.scale + row;
              if constexpr (!Int8Dot::kCentred) {
                rest.column_sum = reinterpret_cast<const int32_t*>(scales + width * sizeof(float));
                rest.row_zero = args.zero + row;
              }
            }
            ending.finish()(rest);
          }
          row += height;
        }
      }
    }
  }
}

#if THRESHER_UNIT_TARGET

// The same on a matrix unit. It takes rows and panels as fast as L2 delivers both, so k is not cut and no sums wait.
// Some panels meet one tile of rows after the other; the next ones are fetched from afar meanwhile.
template <class Unit, class Dot>
void GemmUnitRange(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  using Sum = typename Dot::Sum;
  constexpr bool kInt8 = std::is_same_v<Sum, int32_t>;
  constexpr bool kF16 = std::is_same_v<Dot, F16Dot>;
  const size_t n = static_cast<size_t>(args.n);
  const size_t k = static_cast<size_t>(args.k);
  const size_t lda = StrideOf(args);
  const size_t width = PanelWidth();
  const size_t steps = (k + Dot::kStep - 1) / Dot::kStep;
  const size_t depth = UnitDepth(steps), turns = steps / depth;
  const size_t number_bytes = NumberBytes<Dot>(k);
  const size_t panel_stride = kInt8 ? Int8Stride(k) : number_bytes;
  const size_t rows = range.row_end - range.row_begin;
  const Ending<Sum> ending(args, kInt8);
  const bool gated = args.gate != Gate::kNone;
  const size_t products = gated ? 2 : 1, all_panels = (n + width - 1) / width;

  const Blocking& blocking = args.blocking;
  const size_t l2 = static_cast<size_t>(Caches().l2);
  const size_t most_rows = blocking.most_rows > 0 ? static_cast<size_t>(blocking.most_rows)
                                                  : std::clamp<size_t>(l2 / 4 / lda, kUnitLeastRows, kUnitMostRows);
  const size_t row_blocks = (rows + most_rows - 1) / most_rows;
  const size_t group_bytes = blocking.panel_kib > 0 ? PanelBlockBytes(blocking, 0) : l2 / 8;
  const size_t group = std::max<size_t>(group_bytes / std::max<size_t>(panel_stride * products, 1), 1);

  const FinishFunction finish = gated ? FunctionFor<GatedFinishes>(args.activation) : ending.finish();

  const BiasOnLines first_bias(args.bias, range, n), second_bias(args.second_bias, range, n);

  // The sums of a tile, then those of the first of two products that wait for the second's.
  Sum* const strip = static_cast<Sum*>(scratch);
  alignas(64) float padded_bias[kMaxPanelWidth];
  for (size_t block = 0; block < row_blocks; ++block) {
    const size_t block_begin = range.row_begin + rows * block / row_blocks;
    const size_t block_end = range.row_begin + rows * (block + 1) / row_blocks;
    const RowTiles tiles(block_end - block_begin, kUnitBlockRows);
    UnitTiles<Unit, Dot> unit(tiles.Height(tiles.count - 1), depth);
    const size_t panels = range.panel_end - range.panel_begin;
    LinesAhead ahead(block + 1 < row_blocks ? std::span<const std::byte>() : args.ahead,
                     tiles.count * products * (args.near ? panels : std::min(panels, group)) * turns);
    // A single tile reads weights from memory, which is faster the longer they lie side by side.
    const size_t run = gated && tiles.count == 1 ? kGateRun : 1;
    const size_t step = std::max(group, run);
    for (size_t first = range.panel_begin; first < range.panel_end; first += step) {
      const size_t last = std::min(first + step, range.panel_end);
      size_t row = block_begin;
      for (size_t t = 0; t < tiles.count; row += tiles.Height(t), ++t) {
        const auto is_scaled = [](float scale) { return scale != 1.0f; };
        const bool scaled = kF16 && std::any_of(args.scale + row, args.scale + row + tiles.Height(t), is_scaled);
        for (size_t begin = first; begin < last; begin += run) {
          for (size_t product = 0; product < products; ++product) {
            for (size_t panel = begin; panel < std::min(begin + run, last); ++panel) {
              const uint8_t* panel_b =
                  static_cast<const uint8_t*>(args.packed_b) + (product * all_panels + panel) * panel_stride;
              const size_t column = panel * width;
              const size_t columns = std::min(width, n - column);
              const float* bias = (product == 0 ? first_bias : second_bias).OfPanel(column, columns, padded_bias);
              const TileResult to = ResultAt(args, row, column, tiles.Height(t), columns);
              const bool direct = !kInt8 && !gated && !scaled && columns == width && !args.stores_bf16 &&
                                  args.activation == Activation::kNone && args.residual == nullptr;
              const bool waits = product + 1 < products;
              Sum* const waiting = strip + (1 + panel - begin) * kUnitBlockRows * width;
              DotTileArgs tile{};
              tile.a = static_cast<const uint8_t*>(args.rows) + row * lda;
              tile.lda = lda;
              tile.b = panel_b;
              tile.steps = steps;
              tile.padded = args.row_bytes == 0;
              tile.init = kInt8 || scaled ? nullptr : bias;
              tile.out = direct ? static_cast<void*>(to.c) : waits ? waiting : strip;
              tile.out_ld = direct ? to.ldc : width;
              if (args.near) {
                tile.fetch = ahead.Next(turns);
              } else if (tiles.count == 1) {
                tile.fetch = {panel_b + kUnitFetchDistance, kUnitTurnLines, false};
              } else if (panel + group < range.panel_end) {
                const size_t lines = (kUnitTurnLines + tiles.count - 1) / tiles.count;
                const size_t done = t * turns * lines * 64;
                if (done < number_bytes) tile.fetch = {panel_b + group * panel_stride + done, lines, false};
              } else {
                tile.fetch = ahead.Next(turns);
              }
              unit.Run(tile, tiles.Height(t), columns <= width / 2);
              if (direct || waits) continue;
              const uint8_t* const scales = kInt8 ? panel_b + number_bytes : nullptr;
              FinishArgs& rest = unit.Finish(finish);
              ending.Rest(to, strip, bias, scales, rest);
              if constexpr (kInt8) {
                rest.column_sum = reinterpret_cast<const int32_t*>(scales + width * sizeof(float));
                rest.row_scale = args.scale + row;
                rest.row_zero = args.zero + row;
              } else if (gated) {
                rest.sums = args.gate == Gate::kFirst ? strip : waiting;
                rest.gate = args.gate == Gate::kFirst ? waiting : strip;
                rest.sums_ld = width;
              } else if (scaled) {
                rest.bias = bias;
                rest.row_scale = args.scale + row;
              }
            }
          }
        }
      }
    }
  }
}

#endif  // THRESHER_UNIT_TARGET

// Few rows of int16 times panels of 4-bit numbers.
void GemmInt4Range(const GemmDotArgs& args, const PanelRange& range) {
  const size_t n = static_cast<size_t>(args.n);
  const size_t k = static_cast<size_t>(args.k);
  const size_t width = PanelWidth();
  const size_t lda = Int4Rows::Bytes(k);
  const FinishFunction finish = FinishFor<float>(args.activation);
  const RowTiles tiles(range.row_end - range.row_begin, static_cast<size_t>(kInt4TileRows));
  alignas(64) float sums[static_cast<size_t>(kInt4TileRows) * kMaxPanelWidth];
  alignas(64) float padded_bias[kMaxPanelWidth];
  for (size_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
    const size_t column = panel * width;
    FinishArgs finished{};
    finished.sums = sums;
    finished.residual_first = args.residual_first;
    const size_t columns = std::min(width, n - column);
    finished.bias = PanelBias(args.bias, column, columns, padded_bias);
    size_t row = range.row_begin;
    for (size_t t = 0; t < tiles.count; ++t) {
      const size_t height = tiles.Height(t);
      Int4TileForRows(height)(static_cast<const uint8_t*>(args.rows) + row * lda, k,
                              static_cast<const uint8_t*>(args.packed_b) + panel * StoredBytes<Int4Panel>(k), sums);
      finished.to = ResultAt(args, row, column, height, columns);
      finish(finished);
      row += height;
    }
  }
}

int RowsOfTile(RowForm form) {
  const bool tiled = form == RowForm::kBF16 || form == RowForm::kF16 || form == RowForm::kInt8;
  if (tiled && UnitInUse() != isa::Tiles::kNone) return kUnitBlockRows;
  return kTileRows;
}

bool RowsAreStored(RowForm form) { return form == RowForm::kBF16 && THRESHER_UNIT_TARGET; }

bool HasShortSums() { return THRESHER_INT8_SHORT_SUMS; }

int64_t BytesOfElement(RowForm form) {
  return form != RowForm::kInt8 ? static_cast<int64_t>(sizeof(uint16_t)) : static_cast<int64_t>(Int8Dot::kRowBytes);
}

size_t WindowScratch() { return kWindowDotScratchBytes; }

template <class Dot>
void MultiplyRange(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  if (args.windows != nullptr) {
    const size_t k = static_cast<size_t>(args.k);
    const size_t stride = std::is_same_v<Dot, Int8Dot> ? Int8Stride(k) : NumberBytes<Dot>(k);
    WindowDotProduct<Dot> product(args, stride, NumberBytes<Dot>(k), scratch);
#if THRESHER_UNIT_TARGET
    if (product.SuitsUnit() || args.stores_bf16) {
      if (UnitInUse() == isa::Tiles::kInstructions) return product.template RunOnUnit<AmxUnit>(range);
      if (UnitInUse() == isa::Tiles::kPlain) return product.template RunOnUnit<PlainUnit>(range);
    }
#endif
    return product.Run(range);
  }
#if THRESHER_UNIT_TARGET
  if (range.row_end - range.row_begin >= kLeastUnitRows<Dot> || args.stores_bf16) {
    if (UnitInUse() == isa::Tiles::kInstructions) return GemmUnitRange<AmxUnit, Dot>(args, scratch, range);
    if (UnitInUse() == isa::Tiles::kPlain) return GemmUnitRange<PlainUnit, Dot>(args, scratch, range);
  }
#endif
  GemmDotRange<Dot>(args, scratch, range);
}

void RunProduct(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  if (args.form == RowForm::kInt16) return GemmInt4Range(args, range);
#if THRESHER_UNIT_TARGET
  if (args.form == RowForm::kF16) {
    const bool plain = UnitInUse() == isa::Tiles::kPlain;
    if (args.windows != nullptr) {
      const size_t bytes = NumberBytes<F16Dot>(static_cast<size_t>(args.k));
      WindowDotProduct<F16Dot> product(args, bytes, bytes, scratch);
      return plain ? product.RunOnUnit<PlainUnit>(range) : product.RunOnUnit<AmxUnit>(range);
    }
    return (plain ? &GemmUnitRange<PlainUnit, F16Dot> : &GemmUnitRange<AmxUnit, F16Dot>)(args, scratch, range);
  }
#endif
  (args.form == RowForm::kBF16 ? &MultiplyRange<Bf16Dot> : &MultiplyRange<Int8Dot>)(args, scratch, range);
}

// ---- packing int8 ----

// What decides the scale of each column: its largest magnitude, or more where short sums would not fit otherwise.
HWY_INLINE hn::Vec<TileTag> ColumnReach(TileTag d, const float* HWY_RESTRICT in, size_t k) {
  const size_t width = PanelWidth();
  auto reach = hn::Zero(d);
  for (size_t row = 0; row < k; ++row) reach = hn::Max(reach, hn::Abs(hn::LoadU(d, in + row * width)));
#if THRESHER_INT8_SHORT_SUMS
  auto most = hn::Zero(d);
  for (size_t period = 0; period < k; period += kShortSumPeriod) {
    for (const int64_t start : kShortSumStarts) {
      auto positive = hn::Zero(d), negative = hn::Zero(d);
      for (const int64_t row : kShortSumRows) {
        const size_t i = period + static_cast<size_t>(start + row);
        if (i >= k) break;
        const auto v = hn::LoadU(d, in + i * width);
        positive = hn::Add(positive, hn::Max(v, hn::Zero(d)));
        negative = hn::Sub(negative, hn::Min(v, hn::Zero(d)));
      }
      most = hn::Max(most, hn::Max(positive, negative));
    }
  }
  reach = hn::Max(reach, hn::Mul(most, hn::Set(d, 127.0f / kMostShortSum)));
#endif
  return reach;
}

// Quantises k rows of a panel of floats.
void EncodePanel(const float* HWY_RESTRICT in, size_t k, uint8_t* HWY_RESTRICT out) {
  const TileTag d;
  const IntTag di;
  const WordTag du;
  const hn::Rebind<uint16_t, TileTag> d16;
  const size_t lanes = hn::Lanes(d);
  const size_t width = PanelWidth();
  float* scales = reinterpret_cast<float*>(out + NumberBytes<Int8Dot>(k));
  int32_t* sums = reinterpret_cast<int32_t*>(scales + width);
  for (size_t j = 0; j < width; j += lanes) {
    const auto scale = hn::Mul(ColumnReach(d, in + j, k), hn::Set(d, 1.0f / 127.0f));
    const auto inverse = hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(d)), hn::Div(hn::Set(d, 1.0f), scale));
    hn::StoreU(scale, d, scales + j);
    auto sum = hn::Zero(di);
    for (size_t row = 0; row < k; row += Int8Dot::kStep) {
      auto group = hn::Zero(du);
      for (size_t i = Int8Dot::kStep; i-- > 0;) {
        auto q = hn::Zero(di);
        if (row + i < k) {
          q = hn::NearestInt(hn::Mul(hn::LoadU(d, in + (row + i) * width + j), inverse));
          q = hn::Min(hn::Max(q, hn::Set(di, -127)), hn::Set(di, 127));
        }
        sum = hn::Add(sum, q);
        group = hn::Or(hn::ShiftLeft<8>(group), hn::And(hn::BitCast(du, q), hn::Set(du, 255)));
      }
      uint8_t* at = out + row / Int8Dot::kStep * width * Int8Dot::kLaneBytes + j * Int8Dot::kLaneBytes;
      if constexpr (Int8Dot::kLaneBytes == 4) {
        hn::StoreU(group, du, reinterpret_cast<uint32_t*>(at));
      } else {
        hn::StoreU(hn::TruncateTo(d16, group), d16, reinterpret_cast<uint16_t*>(at));
      }
    }
    hn::StoreU(sum, di, sums + j);
  }
}

void EncodeInt8Range(const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end) {
  const size_t k = static_cast<size_t>(weight.k);
  const hwy::AlignedFreeUniquePtr<float[]> floats = hwy::AllocateAligned<float>(std::max<size_t>(k, 1) * PanelWidth());
  for (size_t panel = panel_begin; panel < panel_end; ++panel) {
    PackPanel(weight, panel, floats.get());
    EncodePanel(floats.get(), k, packed + panel * Int8Stride(k));
  }
}

void DecodeInt8Range(const uint8_t* packed, size_t k, size_t n, float* b) {
  const size_t width = PanelWidth();
  for (size_t j = 0; j < n; ++j) {
    const uint8_t* panel = packed + j / width * Int8Stride(k);
    const float scale = reinterpret_cast<const float*>(panel + NumberBytes<Int8Dot>(k))[j % width];
    for (size_t row = 0; row < k; ++row) {
      const size_t at = (row / Int8Dot::kStep * width + j % width) * Int8Dot::kLaneBytes + row % Int8Dot::kStep;
      b[row * n + j] = static_cast<float>(reinterpret_cast<const int8_t*>(panel)[at]) * scale;
    }
  }
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(HasShortSums);
HWY_EXPORT(RowsOfTile);
HWY_EXPORT(RowsAreStored);
HWY_EXPORT(BytesOfElement);
HWY_EXPORT(WindowScratch);
HWY_EXPORT(RowStride);
HWY_EXPORT(ConvertRange);
HWY_EXPORT(RestoreRange);
HWY_EXPORT(RunProduct);
HWY_EXPORT(Int8Stride);
HWY_EXPORT(EncodeInt8Range);
HWY_EXPORT(DecodeInt8Range);

// By default; more rows amortise the widening of 4-bit weights to floats.
constexpr int64_t kFewRows = 8;

}  // namespace

RowForm RowsFor(Precision precision, int64_t m, Variant variant) {
  if (IsBlocked(precision)) return RowForm::kBlocks;
  if (precision == Precision::kInt8) return RowForm::kInt8;
  if (precision == Precision::kInt4Weight) {
    const bool direct = variant == Variant::kAuto ? m <= kFewRows : variant == Variant::kDirect;
    return direct ? RowForm::kInt16 : RowForm::kF32;
  }
  if (precision == Precision::kFp16) return MultipliesF16() ? RowForm::kF16 : RowForm::kF32;
  return precision == Precision::kBf16 && MultipliesBf16() ? RowForm::kBF16 : RowForm::kF32;
}

int TileRows(RowForm form) { return HWY_DYNAMIC_DISPATCH(RowsOfTile)(form); }

bool StoresRows(RowForm form) { return HWY_DYNAMIC_DISPATCH(RowsAreStored)(form); }

bool TakesGate(RowForm form) {
  return form == RowForm::kBlocks || (form == RowForm::kBF16 && isa::CurrentTiles() != isa::Tiles::kNone);
}

int64_t ElementBytes(RowForm form) { return HWY_DYNAMIC_DISPATCH(BytesOfElement)(form); }

int64_t RowBytes(RowForm form, int64_t k) {
  if (form == RowForm::kF32) return k * static_cast<int64_t>(sizeof(float));
  if (form == RowForm::kBlocks) return BlockRowBytes(k);
  return static_cast<int64_t>(HWY_DYNAMIC_DISPATCH(RowStride)(form, static_cast<size_t>(k)));
}

void ConvertRows(const ConvertRowsArgs& args, int part, int num_parts) {
  const int64_t begin = args.m * part / num_parts;
  const int64_t end = args.m * (part + 1) / num_parts;
  if (args.form == RowForm::kBlocks) return ConvertRowsToBlocks(args, begin, end);
  ConvertRowRange(args, begin, end);
}

void ConvertRowRange(const ConvertRowsArgs& args, int64_t begin, int64_t end) {
  if (begin < end) HWY_DYNAMIC_DISPATCH(ConvertRange)(args, static_cast<size_t>(begin), static_cast<size_t>(end));
}

void RestoreRows(const ConvertRowsArgs& converted, float* x) {
  if (converted.form == RowForm::kBlocks) return RestoreBlockRows(converted, x);
  HWY_DYNAMIC_DISPATCH(RestoreRange)(converted, x);
}

size_t GemmDotScratchBytes(const GemmDotArgs& args) {
  if (args.form == RowForm::kInt16) return 0;
  if (args.form == RowForm::kBlocks) return GemmBlockScratchBytes(args);
  if (args.windows != nullptr) return HWY_DYNAMIC_DISPATCH(WindowScratch)();
  const int64_t rows = args.gate == Gate::kNone ? std::min<int64_t>(args.m, kMostBlockRows)
                                                : static_cast<int64_t>(1 + kGateRun) * TileRows(args.form);
  return static_cast<size_t>(rows * PackedColumns()) * sizeof(float);
}

void GemmDot(const GemmDotArgs& args, void* scratch, int part, int num_parts) {
  if (args.m <= 0 || args.n <= 0) return;
  const PanelRange range = ShareOfProduct(args.m, args.n, part, num_parts, args.blocking.split);
  if (range.empty()) return;
  if (args.form == RowForm::kBlocks) return GemmBlock(args, scratch, range);
  GemmDotPanels(args, scratch, range);
}

void GemmDotPanels(const GemmDotArgs& args, void* scratch, const PanelRange& range) {
  HWY_DYNAMIC_DISPATCH(RunProduct)(args, scratch, range);
}

bool Int8SumsAreShort() { return HWY_DYNAMIC_DISPATCH(HasShortSums)(); }

size_t Int8PanelStride(size_t k) { return HWY_DYNAMIC_DISPATCH(Int8Stride)(k); }

void EncodeInt8(Precision, const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end) {
  HWY_DYNAMIC_DISPATCH(EncodeInt8Range)(weight, packed, panel_begin, panel_end);
}

void DecodeInt8(Precision, const uint8_t* packed, size_t k, size_t n, float* b) {
  HWY_DYNAMIC_DISPATCH(DecodeInt8Range)(packed, k, n, b);
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
