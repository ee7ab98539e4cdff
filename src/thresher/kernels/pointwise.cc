#include "thresher/kernels/pointwise.h"

#include <algorithm>
#include <array>
#include <utility>

#include "thresher/kernels/iterate.h"
#include "thresher/kernels/pointwise_rows.h"
#include "thresher/kernels/row_source.h"

namespace thresher::kernels {
namespace {

// Which types an operator takes.
enum TypeSet : uint8_t { kFloat = 1, kInts = 2, kBools = 4, kNumbers = 3, kIntegral = 6, kAny = 7 };

bool Contains(uint8_t set, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return (set & kFloat) != 0;
    case DType::kI64:
    case DType::kI32:
      return (set & kInts) != 0;
    case DType::kBool:
      return (set & kBools) != 0;
    case DType::kBF16:
    case DType::kF16:
      return false;
  }
  return false;
}

template <class Op>
struct Row {
  Op op;
  std::string_view name;
  std::string_view doc;
  uint8_t types;
  bool to_bool;
  int flops;
};

// Transcendentals count as the multiplications and additions of their polynomials, roughly.
constexpr Row<UnaryOp> kUnary[] = {
    {UnaryOp::kNeg, "neg", "-x.", kNumbers, false, 1},
    {UnaryOp::kAbs, "abs", "The absolute value of x.", kNumbers, false, 1},
    {UnaryOp::kSign, "sign", "-1, 0 or 1 with the sign of x; 0 for NaN.", kAny, false, 1},
    {UnaryOp::kFloor, "floor", "The greatest integer not above x.", kNumbers, false, 1},
    {UnaryOp::kCeil, "ceil", "The least integer not below x.", kNumbers, false, 1},
    {UnaryOp::kRound, "round", "The nearest integer, halves to even.", kNumbers, false, 1},
    {UnaryOp::kTrunc, "trunc", "x without its fraction.", kNumbers, false, 1},
    {UnaryOp::kExp, "exp", "e to the power x.", kFloat, false, 12},
    {UnaryOp::kLog, "log", "The natural logarithm of x.", kFloat, false, 14},
    {UnaryOp::kSqrt, "sqrt", "The square root of x.", kFloat, false, 1},
    {UnaryOp::kRsqrt, "rsqrt", "1 / sqrt(x).", kFloat, false, 2},
    {UnaryOp::kReciprocal, "reciprocal", "1 / x.", kFloat, false, 1},
    {UnaryOp::kErf, "erf", "The error function of x.", kFloat, false, 18},
    {UnaryOp::kTanh, "tanh", "The hyperbolic tangent of x.", kFloat, false, 16},
    {UnaryOp::kSigmoid, "sigmoid", "1 / (1 + exp(-x)).", kFloat, false, 14},
    {UnaryOp::kRelu, "relu", "The larger of x and 0.", kNumbers, false, 1},
    {UnaryOp::kGelu, "gelu", "x times the normal distribution function of x, through erf.", kFloat, false, 21},
    {UnaryOp::kGeluTanh, "gelu_tanh", "The tanh approximation of gelu.", kFloat, false, 22},
    {UnaryOp::kSilu, "silu", "x * sigmoid(x).", kFloat, false, 15},
    {UnaryOp::kSin, "sin", "The sine of x radians.", kFloat, false, 14},
    {UnaryOp::kCos, "cos", "The cosine of x radians.", kFloat, false, 14},
    {UnaryOp::kIsNan, "isnan", "Whether x is not a number.", kAny, true, 0},
    {UnaryOp::kIsInf, "isinf", "Whether x is infinite.", kAny, true, 0},
    {UnaryOp::kLogicalNot, "logical_not", "Whether x is 0.", kAny, true, 0},
    {UnaryOp::kBitwiseNot, "bitwise_not", "The complement of x's bits; logical not on bool.", kIntegral, false, 0},
    {UnaryOp::kRoundBF16, "round_bf16", "The nearest bf16, halves to even.", kFloat, false, 1},
    {UnaryOp::kRoundF16, "round_f16", "The nearest f16, halves to even; infinite beyond 65504.", kFloat, false, 1},
};

constexpr Row<BinaryOp> kBinary[] = {
    {BinaryOp::kAdd, "add", "a + b; or on bool.", kAny, false, 1},
    {BinaryOp::kSub, "sub", "a - b.", kNumbers, false, 1},
    {BinaryOp::kMul, "mul", "a * b; and on bool.", kAny, false, 1},
    {BinaryOp::kDiv, "div", "a / b.", kFloat, false, 1},
    {BinaryOp::kMaximum, "maximum", "The larger of a and b; NaN where either is NaN.", kAny, false, 1},
    {BinaryOp::kMinimum, "minimum", "The smaller of a and b; NaN where either is NaN.", kAny, false, 1},
    {BinaryOp::kPow, "pow", "a to the power b.", kNumbers, false, 30},
    {BinaryOp::kEq, "eq", "Whether a equals b.", kAny, true, 1},
    {BinaryOp::kNe, "ne", "Whether a differs from b; true where either is NaN.", kAny, true, 1},
    {BinaryOp::kLt, "lt", "Whether a is less than b.", kAny, true, 1},
    {BinaryOp::kLe, "le", "Whether a is at most b.", kAny, true, 1},
    {BinaryOp::kGt, "gt", "Whether a is greater than b.", kAny, true, 1},
    {BinaryOp::kGe, "ge", "Whether a is at least b.", kAny, true, 1},
    {BinaryOp::kBitwiseAnd, "bitwise_and", "The bits set in both a and b.", kIntegral, false, 0},
    {BinaryOp::kBitwiseOr, "bitwise_or", "The bits set in a or b.", kIntegral, false, 0},
    {BinaryOp::kBitwiseXor, "bitwise_xor", "The bits set in exactly one of a and b.", kIntegral, false, 0},
    {BinaryOp::kLogicalAnd, "logical_and", "Whether a and b both differ from 0.", kAny, true, 0},
    {BinaryOp::kLogicalOr, "logical_or", "Whether a or b differs from 0.", kAny, true, 0},
    {BinaryOp::kLogicalXor, "logical_xor", "Whether exactly one of a and b differs from 0.", kAny, true, 0},
    {BinaryOp::kFloorDivide, "floor_divide", "a / b, rounded down.", kNumbers, false, 20},
    {BinaryOp::kRemainder, "remainder", "a - b * floor(a / b): what has the sign of b.", kNumbers, false, 20},
    {BinaryOp::kFmod, "fmod", "a - b * trunc(a / b): what has the sign of a.", kNumbers, false, 20},
};

// The tables are indexed by the enumerators.
template <class Op, size_t N>
constexpr bool InOrder(const Row<Op> (&rows)[N]) {
  for (size_t i = 0; i < N; ++i) {
    if (static_cast<size_t>(rows[i].op) != i) return false;
  }
  return true;
}
static_assert(InOrder(kUnary) && InOrder(kBinary));

const Row<UnaryOp>& RowOf(UnaryOp op) { return kUnary[static_cast<size_t>(op)]; }
const Row<BinaryOp>& RowOf(BinaryOp op) { return kBinary[static_cast<size_t>(op)]; }

template <class Op, size_t N>
struct OpList {
  Op ops[N];
  constexpr explicit OpList(const Row<Op> (&rows)[N]) : ops{} {
    for (size_t i = 0; i < N; ++i) ops[i] = rows[i].op;
  }
};
constexpr OpList kUnaryOps(kUnary);
constexpr OpList kBinaryOps(kBinary);

template <class Op, size_t N>
std::optional<Op> Parse(const Row<Op> (&rows)[N], std::string_view name) {
  for (const Row<Op>& row : rows) {
    if (row.name == name) return row.op;
  }
  return std::nullopt;
}

// Rows shorter than this are collected into tiles, so that the row function's call and remainder do not dominate.
constexpr int64_t kMinRow = 32;
// Elements of a tile: three of the widest type fit in L1 with room to spare.
constexpr int64_t kTile = 512;

// Runs row(pointers of the operands' pieces, piece of out, length, which operand is one element) over the part's range.
// `may_broadcast` says for each operand whether the row function can take it as one element; at most one at a time is.
template <int N, class RowFunction>
void Run(const View* const (&views)[N], const bool (&may_broadcast)[N], const View& out, int part, int num_parts,
         RowFunction&& row) {
  const int64_t total = out.size();
  const Range range = PartRange(total, part, num_parts, kPartGranule);
  if (range.size() == 0) return;
  Loop<N> loop;
  for (int d = 0; d < out.rank; ++d) {
    int64_t strides[N];
    for (int n = 0; n < N; ++n) strides[n] = views[n]->strides[d];
    loop.Push(out.shape[d], strides);
  }
  loop.Collapse();

  int64_t element_size[N];
  for (int n = 0; n < N; ++n) element_size[n] = static_cast<int64_t>(SizeOf(views[n]->dtype));
  uint8_t* const to = out.as<uint8_t>() + range.begin * static_cast<int64_t>(SizeOf(out.dtype));
  const int64_t out_size = static_cast<int64_t>(SizeOf(out.dtype));

  bool by_rows = loop.rank == 1 || loop.inner() >= kMinRow;
  int one = -1;
  for (int n = 0; n < N && by_rows; ++n) {
    const int64_t stride = loop.inner_stride(n);
    if (stride == 0 && may_broadcast[n] && one < 0) {
      one = n;
    } else {
      by_rows = stride == 1;
    }
  }
  if (by_rows) {
    int64_t done = 0;
    ForRows(loop, range, [&](const int64_t* offsets, int64_t length) {
      const void* from[N];
      for (int n = 0; n < N; ++n) from[n] = views[n]->template as<uint8_t>() + offsets[n] * element_size[n];
      row(from, to + done * out_size, length, one);
      done += length;
    });
    return;
  }

  alignas(64) uint64_t buffers[N][kTile];
  one = -1;
  for (int n = 0; n < N && one < 0; ++n) {
    if (may_broadcast[n] && loop.Constant(n)) one = n;
  }
  const auto sources = [&]<int... I>(std::integer_sequence<int, I...>) {
    return std::array<RowSource, N>{RowSource(*views[I])...};
  }(std::make_integer_sequence<int, N>());
  for (int64_t begin = range.begin; begin < range.end; begin += kTile) {
    const Range tile = {begin, std::min(begin + kTile, range.end)};
    const void* from[N];
    for (int n = 0; n < N; ++n) from[n] = n == one ? sources[n].data : sources[n].Read(tile, buffers[n]);
    row(from, to + (begin - range.begin) * out_size, tile.size(), one);
  }
}

}  // namespace

std::span<const UnaryOp> AllUnaryOps() { return kUnaryOps.ops; }
std::span<const BinaryOp> AllBinaryOps() { return kBinaryOps.ops; }

std::string_view Name(UnaryOp op) { return RowOf(op).name; }
std::string_view Name(BinaryOp op) { return RowOf(op).name; }
std::optional<UnaryOp> ParseUnary(std::string_view name) { return Parse(kUnary, name); }
std::optional<BinaryOp> ParseBinary(std::string_view name) { return Parse(kBinary, name); }

std::string_view Doc(UnaryOp op) { return RowOf(op).doc; }
std::string_view Doc(BinaryOp op) { return RowOf(op).doc; }
int FlopsPerElement(UnaryOp op) { return RowOf(op).flops; }
int FlopsPerElement(BinaryOp op) { return RowOf(op).flops; }

bool Supports(UnaryOp op, DType dtype) { return Contains(RowOf(op).types, dtype); }
bool Supports(BinaryOp op, DType dtype) { return Contains(RowOf(op).types, dtype); }

DType ResultType(UnaryOp op, DType dtype) { return RowOf(op).to_bool ? DType::kBool : dtype; }
DType ResultType(BinaryOp op, DType dtype) { return RowOf(op).to_bool ? DType::kBool : dtype; }

void Unary(UnaryOp op, const View& x, const View& out, int part, int num_parts) {
  const UnaryRow row = FindUnaryRow(op, x.dtype);
  const View* const views[1] = {&x};
  Run(views, {false}, out, part, num_parts,
      [&](const void* const* from, void* to, int64_t n, int) { row(from[0], to, n); });
}

void Binary(BinaryOp op, const View& a, const View& b, const View& out, int part, int num_parts) {
  if (out.size() == 0) return;
  if (op == BinaryOp::kPow && b.dtype == DType::kF32 && IsOneValue(b)) {
    if (const BinaryRow power = FindPowerRow(*b.as<float>())) {
      const View* const views[1] = {&a};
      Run(views, {false}, out, part, num_parts,
          [&](const void* const* from, void* to, int64_t n, int) { power(from[0], b.data, to, n, Broadcast::kB); });
      return;
    }
  }
  const BinaryRow row = FindBinaryRow(op, a.dtype);
  const View* const views[2] = {&a, &b};
  Run(views, {true, true}, out, part, num_parts, [&](const void* const* from, void* to, int64_t n, int one) {
    row(from[0], from[1], to, n, one == 0 ? Broadcast::kA : one == 1 ? Broadcast::kB : Broadcast::kNone);
  });
}

void Where(const View& cond, const View& a, const View& b, const View& out, int part, int num_parts) {
  const WhereRow row = FindWhereRow(a.dtype);
  const View* const views[3] = {&cond, &a, &b};
  Run(views, {false, true, true}, out, part, num_parts, [&](const void* const* from, void* to, int64_t n, int one) {
    row(from[0], from[1], from[2], to, n, one == 1 ? Broadcast::kA : one == 2 ? Broadcast::kB : Broadcast::kNone);
  });
}

void Cast(const View& x, const View& out, int part, int num_parts) {
  const UnaryRow row = FindCastRow(x.dtype, out.dtype);
  const View* const views[1] = {&x};
  Run(views, {false}, out, part, num_parts,
      [&](const void* const* from, void* to, int64_t n, int) { row(from[0], to, n); });
}

}  // namespace thresher::kernels
