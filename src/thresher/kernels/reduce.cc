#include "thresher/kernels/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/iterate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/reduce.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "thresher/kernels/math-inl.h"

// Before the code compiled once per instruction set, which shares it.
#ifndef THRESHER_KERNELS_REDUCE_PLAN_
#define THRESHER_KERNELS_REDUCE_PLAN_
namespace thresher::kernels {

// A reduction after its dimensions were told apart.
struct ReducePlan {
  ReduceOp op;
  const View* x;
  const View* out;
  Loop<2> kept;     // operand 0: x, operand 1: out
  Loop<1> reduced;  // x; the dimension with the smallest stride comes last
  int64_t count;    // elements behind one output
  bool by_columns;  // the last kept dimension has stride 1 in x, the reduced ones do not
};

inline constexpr int64_t kColumnTile = 256;

}  // namespace thresher::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Elements summed in f32 before the block's sum goes on in float64.
constexpr int64_t kBlock = 1024;
constexpr int64_t kBlockRows = 32;

struct SumF {
  static constexpr float kStart = 0.0f;
  HWY_INLINE V operator()(D, V a, V b) const { return hn::Add(a, b); }
  HWY_INLINE float operator()(float a, float b) const { return a + b; }
};
struct MaxF {
  static constexpr float kStart = -std::numeric_limits<float>::infinity();
  HWY_INLINE V operator()(D d, V a, V b) const { return MaxNan(d, a, b); }
  HWY_INLINE float operator()(float a, float b) const { return std::isnan(a) || a > b ? a : b; }
};
struct MinF {
  static constexpr float kStart = std::numeric_limits<float>::infinity();
  HWY_INLINE V operator()(D d, V a, V b) const { return hn::IfThenElse(hn::IsNaN(a), a, AtMost(d, a, b)); }
  HWY_INLINE float operator()(float a, float b) const { return std::isnan(a) || a < b ? a : b; }
};

// What one output accumulates: sums go on in float64 from block to block.
template <class F>
using Total = std::conditional_t<std::is_same_v<F, SumF>, double, float>;

template <class F>
HWY_INLINE Total<F> Join(Total<F> total, float piece) {
  if constexpr (std::is_same_v<F, SumF>) {
    return total + static_cast<double>(piece);
  } else {
    return F()(total, piece);
  }
}

// n contiguous elements, n at most kBlock.
template <class F>
float BlockF(const float* x, int64_t n) {
  const D d;
  const F f;
  const size_t count = static_cast<size_t>(n);
  const size_t lanes = hn::Lanes(d);
  V a0 = hn::Set(d, F::kStart), a1 = a0, a2 = a0, a3 = a0;
  size_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a0 = f(d, a0, hn::LoadU(d, x + i));
    a1 = f(d, a1, hn::LoadU(d, x + i + lanes));
    a2 = f(d, a2, hn::LoadU(d, x + i + 2 * lanes));
    a3 = f(d, a3, hn::LoadU(d, x + i + 3 * lanes));
  }
  for (; i + lanes <= count; i += lanes) a0 = f(d, a0, hn::LoadU(d, x + i));
  a0 = f(d, f(d, a0, a1), f(d, a2, a3));
  HWY_ALIGN float spread[hn::MaxLanes(d)];
  hn::Store(a0, d, spread);
  float result = spread[0];
  for (size_t lane = 1; lane < lanes; ++lane) result = f(result, spread[lane]);
  for (; i < count; ++i) result = f(result, x[i]);
  return result;
}

template <class F>
void RowsF(const ReducePlan& plan, Range range) {
  const float* const from = plan.x->as<float>();
  float* const to = plan.out->as<float>();
  const int64_t stride = plan.reduced.inner_stride(0);
  const double divisor = plan.op == ReduceOp::kMean ? static_cast<double>(plan.count) : 1.0;
  ForRows(plan.kept, range, [&](const int64_t* offsets, int64_t n) HWY_ATTR {
    for (int64_t i = 0; i < n; ++i) {
      const float* const base = from + offsets[0] + i * plan.kept.inner_stride(0);
      Total<F> total = F::kStart;
      ForRows(plan.reduced, {0, plan.count}, [&](const int64_t* begin, int64_t length) HWY_ATTR {
        const float* const row = base + begin[0];
        for (int64_t j = 0; j < length; j += kBlock) {
          const int64_t size = std::min(kBlock, length - j);
          if (stride == 1) {
            total = Join<F>(total, BlockF<F>(row + j, size));
          } else {
            for (int64_t k = j; k < j + size; ++k) total = Join<F>(total, row[k * stride]);
          }
        }
      });
      float& result = to[offsets[1] + i * plan.kept.inner_stride(1)];
      if constexpr (std::is_same_v<F, SumF>) {
        result = static_cast<float>(total / divisor);
      } else {
        result = total;
      }
    }
  });
}

// Columns [begin, begin + n) of the last kept dimension at once, n at most kColumnTile.
template <class F>
void ColumnTileF(const ReducePlan& plan, const float* from, int64_t n, float* to, int64_t to_stride) {
  const D d;
  const F f;
  const size_t count = static_cast<size_t>(n);
  const size_t lanes = hn::Lanes(d);
  alignas(64) float block[kColumnTile];
  Total<F> totals[kColumnTile];
  std::fill_n(totals, n, F::kStart);
  int64_t rows_in_block = 0;
  const auto flush = [&]() HWY_ATTR {
    for (int64_t c = 0; c < n; ++c) totals[c] = Join<F>(totals[c], block[c]);
    rows_in_block = 0;
  };
  ForRows(plan.reduced, {0, plan.count}, [&](const int64_t* offsets, int64_t length) HWY_ATTR {
    for (int64_t r = 0; r < length; ++r) {
      const float* const row = from + offsets[0] + r * plan.reduced.inner_stride(0);
      if (rows_in_block == 0) {
        std::copy_n(row, n, block);
      } else {
        size_t c = 0;
        for (; c + lanes <= count; c += lanes) {
          hn::StoreU(f(d, hn::LoadU(d, block + c), hn::LoadU(d, row + c)), d, block + c);
        }
        for (; c < count; ++c) block[c] = f(block[c], row[c]);
      }
      if (++rows_in_block == kBlockRows) flush();
    }
  });
  if (rows_in_block != 0) flush();
  for (int64_t c = 0; c < n; ++c) {
    if constexpr (std::is_same_v<F, SumF>) {
      const double divisor = plan.op == ReduceOp::kMean ? static_cast<double>(plan.count) : 1.0;
      to[c * to_stride] = static_cast<float>(totals[c] / divisor);
    } else {
      to[c * to_stride] = totals[c];
    }
  }
}

template <class F>
void ColumnsF(const ReducePlan& plan, Range range) {
  const int64_t to_stride = plan.kept.inner_stride(1);
  ForRows(plan.kept, range, [&](const int64_t* offsets, int64_t n) HWY_ATTR {
    for (int64_t c = 0; c < n; c += kColumnTile) {
      ColumnTileF<F>(plan, plan.x->as<float>() + offsets[0] + c, std::min(kColumnTile, n - c),
                     plan.out->as<float>() + offsets[1] + c * to_stride, to_stride);
    }
  });
}

template <class F>
void RunF(const ReducePlan& plan, Range range) {
  if (plan.by_columns) {
    ColumnsF<F>(plan, range);
  } else {
    RowsF<F>(plan, range);
  }
}

// Integers and bool (T = uint8_t).
template <class T, class F>
void RunI(const ReducePlan& plan, Range range, T start, F f) {
  const T* const from = plan.x->as<T>();
  T* const to = plan.out->as<T>();
  const int64_t stride = plan.reduced.inner_stride(0);
  ForRows(plan.kept, range, [&](const int64_t* offsets, int64_t n) HWY_ATTR {
    for (int64_t i = 0; i < n; ++i) {
      const T* const base = from + offsets[0] + i * plan.kept.inner_stride(0);
      T total = start;
      ForRows(plan.reduced, {0, plan.count}, [&](const int64_t* begin, int64_t length) HWY_ATTR {
        const T* const row = base + begin[0];
        if (stride == 1) {
          for (int64_t j = 0; j < length; ++j) total = f(total, row[j]);
        } else {
          for (int64_t j = 0; j < length; ++j) total = f(total, row[j * stride]);
        }
      });
      to[offsets[1] + i * plan.kept.inner_stride(1)] = total;
    }
  });
}

template <class T>
void RunInteger(const ReducePlan& plan, Range range) {
  using U = std::make_unsigned_t<T>;
  switch (plan.op) {
    case ReduceOp::kSum:
      RunI<T>(plan, range, 0, [](T a, T b) HWY_ATTR { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); });
      return;
    case ReduceOp::kMax:
      RunI<T>(plan, range, std::numeric_limits<T>::min(), [](T a, T b) HWY_ATTR { return a > b ? a : b; });
      return;
    case ReduceOp::kMin:
      RunI<T>(plan, range, std::numeric_limits<T>::max(), [](T a, T b) HWY_ATTR { return a < b ? a : b; });
      return;
    case ReduceOp::kMean:
      return;
  }
}

void RunBool(const ReducePlan& plan, Range range) {
  if (plan.op == ReduceOp::kMax) {
    RunI<uint8_t>(plan, range, 0, [](uint8_t a, uint8_t b) HWY_ATTR { return static_cast<uint8_t>(a | (b != 0)); });
  } else {
    RunI<uint8_t>(plan, range, 1, [](uint8_t a, uint8_t b) HWY_ATTR { return static_cast<uint8_t>(a & (b != 0)); });
  }
}

}  // namespace

// Not in the unnamed namespace: the dispatch table names it. `range` counts outputs.
void RunReduce(const ReducePlan& plan, Range range) {
  switch (plan.x->dtype) {
    case DType::kF32:
      if (plan.op == ReduceOp::kMax) return RunF<MaxF>(plan, range);
      if (plan.op == ReduceOp::kMin) return RunF<MinF>(plan, range);
      return RunF<SumF>(plan, range);
    case DType::kI64:
      return RunInteger<int64_t>(plan, range);
    case DType::kI32:
      return RunInteger<int32_t>(plan, range);
    case DType::kBool:
      return RunBool(plan, range);
    case DType::kBF16:
    case DType::kF16:
      return;
  }
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thresher::kernels {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMax, ReduceOp::kMin};

// Which bits of `dims_mask` are set for dimension d.
bool IsReduced(uint32_t dims_mask, int d) { return ((dims_mask >> d) & 1u) != 0; }

// Puts the dimension with the smallest stride last, which no reduction minds.
void SortForReading(Loop<1>& loop) {
  for (int i = 1; i < loop.rank; ++i) {
    for (int j = i; j > 0 && std::abs(loop.strides[0][j - 1]) < std::abs(loop.strides[0][j]); --j) {
      std::swap(loop.strides[0][j - 1], loop.strides[0][j]);
      std::swap(loop.shape[j - 1], loop.shape[j]);
    }
  }
}

// The same for the kept dimensions, by x's strides: outputs are independent of each other.
void SortForReading(Loop<2>& loop) {
  for (int i = 1; i < loop.rank; ++i) {
    for (int j = i; j > 0 && std::abs(loop.strides[0][j - 1]) < std::abs(loop.strides[0][j]); --j) {
      for (int operand = 0; operand < 2; ++operand) {
        std::swap(loop.strides[operand][j - 1], loop.strides[operand][j]);
      }
      std::swap(loop.shape[j - 1], loop.shape[j]);
    }
  }
}

}  // namespace

HWY_EXPORT(RunReduce);

std::span<const ReduceOp> AllReduceOps() { return kOps; }

std::string_view Name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMean:
      return "mean";
    case ReduceOp::kMax:
      return "amax";
    case ReduceOp::kMin:
      return "amin";
  }
  return "?";
}

std::optional<ReduceOp> ParseReduce(std::string_view name) {
  for (const ReduceOp op : kOps) {
    if (Name(op) == name) return op;
  }
  return std::nullopt;
}

std::string_view Doc(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "The sum over the dimensions.";
    case ReduceOp::kMean:
      return "The mean over the dimensions.";
    case ReduceOp::kMax:
      return "The largest element over the dimensions, NaN where there is one; any on bool.";
    case ReduceOp::kMin:
      return "The smallest element over the dimensions, NaN where there is one; all on bool.";
  }
  return "?";
}

bool Supports(ReduceOp op, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return true;
    case DType::kI64:
    case DType::kI32:
      return op != ReduceOp::kMean;
    case DType::kBool:
      return op == ReduceOp::kMax || op == ReduceOp::kMin;
    case DType::kBF16:
    case DType::kF16:
      return false;
  }
  return false;
}

void Reduce(ReduceOp op, const View& x, uint32_t dims_mask, const View& out, int part, int num_parts) {
  ReducePlan plan = {.op = op, .x = &x, .out = &out, .kept = {}, .reduced = {}, .count = 1, .by_columns = false};
  int64_t out_strides[kMaxRank] = {};
  int64_t outputs = 1;
  for (int d = x.rank - 1; d >= 0; --d) {
    if (IsReduced(dims_mask, d)) continue;
    out_strides[d] = outputs;
    outputs *= x.shape[d];
  }
  for (int d = 0; d < x.rank; ++d) {
    if (IsReduced(dims_mask, d)) {
      plan.reduced.Push(x.shape[d], &x.strides[d]);
      plan.count *= x.shape[d];
    } else {
      const int64_t strides[2] = {x.strides[d], out_strides[d]};
      plan.kept.Push(x.shape[d], strides);
    }
  }
  if (outputs == 0) return;
  plan.kept.Collapse();
  plan.reduced.Collapse();
  SortForReading(plan.reduced);
  if (plan.reduced.inner_stride(0) != 1 && plan.count > 1 && x.dtype == DType::kF32) {
    SortForReading(plan.kept);
    plan.by_columns = plan.kept.inner_stride(0) == 1 && plan.kept.inner() >= 4;
  }
  const Range range = PartRange(outputs, part, num_parts, plan.by_columns ? kPartGranule : 1);
  HWY_DYNAMIC_DISPATCH(RunReduce)(plan, range);
}

namespace {

template <class T, class Accumulator>
void ReferenceOf(ReduceOp op, const View& x, uint32_t dims_mask, const View& out, Accumulator start) {
  int64_t outputs = 1;
  int64_t count = 1;
  for (int d = 0; d < x.rank; ++d) (IsReduced(dims_mask, d) ? count : outputs) *= x.shape[d];
  for (int64_t o = 0; o < outputs; ++o) {
    Accumulator total = start;
    for (int64_t r = 0; r < count; ++r) {
      int64_t rest_kept = o;
      int64_t rest_reduced = r;
      int64_t offset = 0;
      for (int d = x.rank - 1; d >= 0; --d) {
        int64_t& rest = IsReduced(dims_mask, d) ? rest_reduced : rest_kept;
        offset += rest % x.shape[d] * x.strides[d];
        rest /= x.shape[d];
      }
      const Accumulator value = static_cast<Accumulator>(x.as<T>()[offset]);
      switch (op) {
        case ReduceOp::kSum:
        case ReduceOp::kMean:
          total += value;
          break;
        case ReduceOp::kMax:
          total = total != total || total > value ? total : value;
          break;
        case ReduceOp::kMin:
          total = total != total || total < value ? total : value;
          break;
      }
    }
    if (op == ReduceOp::kMean) total = total / static_cast<Accumulator>(count);
    out.as<T>()[o] = static_cast<T>(total);
  }
}

template <class T>
T StartOf(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  if (op == ReduceOp::kMax) return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  if (op == ReduceOp::kMin) return Limits::has_infinity ? Limits::infinity() : Limits::max();
  return 0;
}

}  // namespace

void ReduceReference(ReduceOp op, const View& x, uint32_t dims_mask, const View& out) {
  WithType(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, float>) {
      ReferenceOf<T, double>(op, x, dims_mask, out, StartOf<double>(op));
    } else if constexpr (std::is_same_v<T, bool>) {
      ReferenceOf<T, int>(op, x, dims_mask, out, op == ReduceOp::kMin ? 1 : 0);
    } else if (op == ReduceOp::kSum) {
      ReferenceOf<T, uint64_t>(op, x, dims_mask, out, 0);
    } else {
      ReferenceOf<T, T>(op, x, dims_mask, out, StartOf<T>(op));
    }
  });
}

}  // namespace thresher::kernels
#endif  // HWY_ONCE
