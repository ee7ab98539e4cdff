// Matrix multiplication with operands smaller than the sums: bf16 and fp16 with fp32 sums, int8 with int32 sums.
//
// The rows of A are converted first, once for all products that share them. int8 quantises each row to 8 bits with a
// scale and a zero point of its own, found from its smallest and largest number:
//   a = scale * (q - zero), 0 <= q <= 255,
// and each column of B symmetrically to [-127, 127] with a scale of its own. The integer sums are exact; only rounding
// to 8 bits and the final scaling are not. Where Int8SumsAreShort(), the scale of a column is also
// large enough for the sums that kMostShortSum bounds.
//
// fp16, where tiles of it are multiplied (isa::HasF16Tiles), is as exact as a model's own fp16: a row that reaches
// beyond 65504 is scaled down by a power of two, its sums up again.
//
// A few rows times 4-bit weights are multiplied as int16: each group of kInt4Group elements of a row is quantised to
// 16 bits with a scale of its own, which adds an error of 2^-16 of the group's largest number, far below that of the
// weights. Memory then sets the pace instead of the unpacking.
//
// Weights in blocks are multiplied by rows in blocks, or by rows of bf16: see gemm_block.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "thresher/kernels/gemm.h"

namespace thresher::kernels {

enum class RowForm : uint8_t { kF32, kBF16, kF16, kInt8, kInt16, kBlocks };

// Whether converted rows have scales of their own.
constexpr bool HasRowScales(RowForm form) { return form == RowForm::kF16 || form == RowForm::kInt8; }

// What a product of m rows wants of A in this precision; kF32 means Gemm() of gemm.h. bf16 weights are multiplied by
// fp32 rows where the processor does not multiply bf16, or is slower at it (arithmetic.h).
RowForm RowsFor(Precision precision, int64_t m, Variant variant = Variant::kAuto);

// Rows of the tile that is multiplied in registers, or by a matrix unit.
int TileRows(RowForm form);

// Bytes of an element of kBF16, kF16 or kInt8.
int64_t ElementBytes(RowForm form);

// Bytes of a converted row of k elements.
int64_t RowBytes(RowForm form, int64_t k);

// Whether products of rows or windows in kBF16 or kInt8 and attention can store their results as rows of this form,
// such products take residuals that are stored so, and DepthwiseRows() computes with them.
bool StoresRows(RowForm form);
// Where a matrix unit multiplies, such rows begin a multiple of so many columns apart, but for dense ones. What
// attention stores has that many, too.
inline constexpr int64_t kStoredColumns = 32;

// Whether products of k by n take rows of bf16 as they lie, without gaps: not too many of a tile fall into the same
// sets of L1, and ends that fill no tile are copied for each panel, which pays for few.
constexpr bool SuitsAsRows(int64_t k, int64_t n) {
  return k <= 512 && (k % kStoredColumns == 0 || (k % 2 == 0 && n <= 128));
}

// Which of two products side by side, if any, goes through the activation and then times the other.
enum class Gate : uint8_t { kNone, kFirst, kSecond };

// Panels of the first of both products that a single tile of rows meets before those of the second.
inline constexpr size_t kGateRun = 8;

// Whether products of rows in this form take a gate.
bool TakesGate(RowForm form);

// Behind any row.
inline constexpr int64_t kNoRow = std::numeric_limits<int64_t>::max();

struct ConvertRowsArgs {
  RowForm form = RowForm::kBF16;  // not kF32
  int64_t m = 0;
  int64_t k = 0;
  const float* x = nullptr;  // [m, k], rows ldx apart
  int64_t ldx = 0;
  void* rows = nullptr;        // m times RowBytes(form, k)
  float* scale = nullptr;      // [m], if HasRowScales(form); of kInt8 NaN for a row that holds a NaN or an infinity
  int32_t* zero = nullptr;     // [m], kInt8 only: what the stored numbers are relative to
  bool x_bf16 = false;         // kBF16 and kInt8: x is bf16 in truth, ldx counts its elements
  int64_t wide_from = kNoRow;  // kBlocks: as in GemmDotArgs
};
void ConvertRows(const ConvertRowsArgs& args, int part = 0, int num_parts = 1);

struct GemmDotArgs {
  RowForm form = RowForm::kBF16;           // not kF32
  Precision precision = Precision::kBf16;  // of packed_b, which decides the form; only kBlocks looks at it
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* rows = nullptr;  // from ConvertRows
  int64_t row_bytes = 0;       // from one to the next where they are others, that SuitsAsRows(); else 0
  const float* scale = nullptr;
  const int32_t* zero = nullptr;
  // Or the rows are these windows of the image at `rows` (window_image.h; kBF16, kF16 and kInt8), with a scale and a
  // zero point a picture: of a group's channels, which `channels` of all groups lie side by side with.
  const Windows* windows = nullptr;
  int64_t channels = 0;
  const void* packed_b = nullptr;  // from PackWeight
  float* c = nullptr;              // [m, n], rows ldc apart
  int64_t ldc = 0;
  // Where StoresRows(): whether c, or the residual, is rows of kBF16 that lie so many pairs apart.
  bool stores_bf16 = false;
  bool residual_bf16 = false;
  const float* bias = nullptr;      // [n], or null
  const float* residual = nullptr;  // [m, n], rows ldr apart, or null; may be c itself
  int64_t ldr = 0;
  Activation activation = Activation::kNone;
  bool residual_first = false;  // the residual is added before the activation
  // Where TakesGate(): packed_b is that of two products of n columns, each in panels of its own; c = act(one) * other,
  // without a residual.
  Gate gate = Gate::kNone;
  const float* second_bias = nullptr;  // as `bias` is the first one's
  // kBlocks with a gate: c is rows of n numbers in blocks, from wide_from on of bf16, as ConvertRows() makes them.
  bool stores_blocks = false;
  Blocking blocking = {};  // of which kInt16 and kBlocks have no use for the sizes
  // kBlocks: the first row of those that are rounded to bf16, as is what weights in blocks stand for, where a matrix
  // unit multiplies them so (WidensBlocks()).
  int64_t wide_from = kNoRow;
  // Read next by who calls: a matrix unit's tiles fetch it into L2 when nothing of packed_b is left to fetch, which
  // may lie there already.
  std::span<const std::byte> ahead;
  bool near = false;
};

// As GemmScratchBytes.
size_t GemmDotScratchBytes(const GemmDotArgs& args);

// C = act(A * B + bias) + residual, or with a gate; part `part` of `num_parts`. `scratch` is 64-byte aligned and the
// part's own.
void GemmDot(const GemmDotArgs& args, void* scratch, int part = 0, int num_parts = 1);

// Rows [begin, end) of ConvertRows(), but those in blocks.
void ConvertRowRange(const ConvertRowsArgs& args, int64_t begin, int64_t end);

// A share of GemmDot() of kBF16, kF16 or kInt8.
void GemmDotPanels(const GemmDotArgs& args, void* scratch, const PanelRange& range);

// What the rows stand for, as [m, k] floats.
void RestoreRows(const ConvertRowsArgs& converted, float* x);

// Whether this machine adds four products of int8 in int16: it has an instruction for that, and none for int32.
bool Int8SumsAreShort();

// The rows of such a four, from the starts in every period on. The weights of one sign among them add up to
// kMostShortSum at most, and to 128 once they are rounded: times 255, what rows hold at most, that fits into int16.
inline constexpr int64_t kShortSumRows[] = {0, 1, 4, 5};
inline constexpr int64_t kShortSumStarts[] = {0, 2};
inline constexpr int64_t kShortSumPeriod = 8;
inline constexpr float kMostShortSum = 126.0f;

// For gemm.cc: the int8 form of PackWeight, UnpackWeight and of the bytes of a panel.
size_t Int8PanelStride(size_t k);
void EncodeInt8(Precision, const Weight& weight, uint8_t* packed, size_t panel_begin, size_t panel_end);
void DecodeInt8(Precision, const uint8_t* packed, size_t k, size_t n, float* b);

}  // namespace thresher::kernels
