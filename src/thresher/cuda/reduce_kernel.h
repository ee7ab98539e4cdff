// Reductions over any dimensions, the position of extremes, and running sums. Numbers: Floats or Integers; bool is
// reduced as integers.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "thresher/cuda/call.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/stored.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

using kernels::ReduceOp;

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceHeight = 8;  // rows of threads where neighbouring outputs have neighbouring elements

template <class Numbers>
THRESHER_DEVICE typename Numbers::Value NumberAt(DType dtype, const void* data, int64_t at) {
  typename Numbers::Raw raw;
  typename Numbers::Value value;
  Numbers::template Load<1>(dtype, data, at, false, &raw);
  Numbers::template Widen<1>(dtype, &raw, &value);
  return value;
}

// 64 bits of another thread of the warp.
template <class T>
THRESHER_DEVICE int64_t ShuffleXor64(T& t, int64_t v, int mask) {
  const auto bits = static_cast<uint64_t>(v);
  const uint32_t low = BitsOf(t.ShuffleXor(FloatOf(static_cast<uint32_t>(bits)), mask));
  const uint32_t high = BitsOf(t.ShuffleXor(FloatOf(static_cast<uint32_t>(bits >> 32)), mask));
  return static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low);
}

template <class T>
THRESHER_DEVICE float ShuffleValue(T& t, float v, int mask) {
  return t.ShuffleXor(v, mask);
}
template <class T>
THRESHER_DEVICE int64_t ShuffleValue(T& t, int64_t v, int mask) {
  return ShuffleXor64(t, v, mask);
}

// A value in shared memory, of one float or two.
template <class Shared>
THRESHER_DEVICE void PutShared(Shared& shared, int at, float v) {
  shared[at] = v;
}
template <class Shared>
THRESHER_DEVICE void PutShared(Shared& shared, int at, int64_t v) {
  shared[2 * at] = FloatOf(static_cast<uint32_t>(static_cast<uint64_t>(v)));
  shared[2 * at + 1] = FloatOf(static_cast<uint32_t>(static_cast<uint64_t>(v) >> 32));
}
template <class Shared>
THRESHER_DEVICE void GetShared(Shared& shared, int at, float& v) {
  v = shared[at];
}
template <class Shared>
THRESHER_DEVICE void GetShared(Shared& shared, int at, int64_t& v) {
  const uint32_t low = BitsOf(static_cast<float>(shared[2 * at]));
  const uint32_t high = BitsOf(static_cast<float>(shared[2 * at + 1]));
  v = static_cast<int64_t>(static_cast<uint64_t>(high) << 32 | low);
}

template <class Value>
THRESHER_DEVICE Value IdentityOf(ReduceOp op) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) return 0;
  if constexpr (sizeof(Value) == sizeof(float)) {
    constexpr float infinity = __builtin_huge_valf();
    return op == ReduceOp::kMax ? -infinity : infinity;
  } else {
    constexpr int64_t least = kLeast<int64_t>;
    return op == ReduceOp::kMax ? least : ~least;
  }
}

// NaN wins.
THRESHER_DEVICE float Join(ReduceOp op, float a, float b) {
  if (op == ReduceOp::kMax) return a != a || a > b ? a : b;
  if (op == ReduceOp::kMin) return a != a || a < b ? a : b;
  return a + b;
}
THRESHER_DEVICE int64_t Join(ReduceOp op, int64_t a, int64_t b) {
  if (op == ReduceOp::kMax) return a > b ? a : b;
  if (op == ReduceOp::kMin) return a < b ? a : b;
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

THRESHER_DEVICE bool IsNan(float v) { return v != v; }
THRESHER_DEVICE bool IsNan(int64_t) { return false; }

struct ReduceArgs {
  Elements<2> kept;     // operand 0: x, operand 1: out
  Elements<1> reduced;  // of x, in runs where the kernel reads runs
  const void* x;
  void* out;
  DType dtype;      // of x
  DType out_dtype;  // of out; its element is a partial sum's where `parts` > 1
  ReduceOp op;
  int32_t parts;  // into which the elements behind an output are cut: output o is number o * parts + part
  float divisor;  // of a mean; 1
};

// The elements behind an output are shared by the threads of a block, or of a warp where they are few.
template <class Numbers, int kRun, bool kOneWarp>
struct ReduceRowsKernel {
  using Value = typename Numbers::Value;
  static constexpr int kMostThreads = kOneWarp ? kWarp * kRowsPerBlock : kReduceThreads;
  ReduceArgs args;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t share = (args.reduced.size + args.parts - 1) / args.parts;
    ForEachRow<kOneWarp>(t, args.kept.size * args.parts, [&](int64_t row) {
      const int64_t output = row / args.parts;
      const int64_t begin = (row - output * args.parts) * share;
      const int64_t end = begin + share < args.reduced.size ? begin + share : args.reduced.size;
      const int64_t base = args.kept.OffsetOf(output, 0);
      // Several chains, so that loads and additions do not wait for each other.
      constexpr int kChains = 4;
      Value totals[kChains];
      THRESHER_UNROLL
      for (int c = 0; c < kChains; ++c) totals[c] = IdentityOf<Value>(args.op);
      for (int64_t at = begin + t.x(); at < end; at += int64_t{kChains} * t.width()) {
        typename Numbers::Raw raw[kChains][kRun] = {};
        THRESHER_UNROLL
        for (int c = 0; c < kChains; ++c) {
          const int64_t own = at + int64_t{c} * t.width();
          if (own >= end) continue;
          Numbers::template Load<kRun>(args.dtype, args.x, base + args.reduced.OffsetOf(own, 0), false, raw[c]);
        }
        THRESHER_UNROLL
        for (int c = 0; c < kChains; ++c) {
          if (at + int64_t{c} * t.width() >= end) continue;
          Value values[kRun];
          Numbers::template Widen<kRun>(args.dtype, raw[c], values);
          THRESHER_UNROLL
          for (int i = 0; i < kRun; ++i) totals[c] = Join(args.op, totals[c], values[i]);
        }
      }
      Value total = Join(args.op, Join(args.op, totals[0], totals[1]), Join(args.op, totals[2], totals[3]));
      total = OverThreads(t, total);
      if (t.x() != 0) return;
      Finish(total, row);
    });
  }

 private:
  template <class T>
  THRESHER_DEVICE Value OverWarp(T& t, Value v) const {
    THRESHER_UNROLL
    for (int mask = kWarp / 2; mask > 0; mask /= 2) v = Join(args.op, v, ShuffleValue(t, v, mask));
    return v;
  }

  template <class T>
  THRESHER_DEVICE Value OverThreads(T& t, Value v) const {
    v = OverWarp(t, v);
    if constexpr (!kOneWarp) {
      const int lane = t.x() % kWarp, warps = t.width() / kWarp;
      auto parts = t.shared();
      t.Sync();  // who still reads the last reduction's parts
      if (lane == 0) PutShared(parts, t.x() / kWarp, v);
      t.Sync();
      v = IdentityOf<Value>(args.op);
      if (lane < warps) GetShared(parts, lane, v);
      v = OverWarp(t, v);
    }
    return v;
  }

  THRESHER_DEVICE void Finish(Value total, int64_t row) const {
    if constexpr (sizeof(Value) == sizeof(float)) {
      if (args.op == ReduceOp::kMean) total = total / args.divisor;
    }
    const int64_t at = args.parts > 1 ? row : args.kept.OffsetOf(row, 1);
    Numbers::template Store<1>(args.out_dtype, &total, args.out, at);
  }
};

// Neighbouring outputs have neighbouring elements: threads of equal x() share one output, its neighbours are theirs.
template <class Numbers>
struct ReduceColumnsKernel {
  using Value = typename Numbers::Value;
  static constexpr int kMostThreads = kWarp * kReduceHeight;
  ReduceArgs args;  // parts: 1

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t count = args.kept.size;
    for (int64_t tile = t.block(); tile * kWarp < count; tile += t.num_blocks()) {
      const int64_t output = tile * kWarp + t.x();
      // Threads beyond the last output have nothing to do, but meet the others at the barriers.
      const int64_t size = output < count ? args.reduced.size : 0;
      const int64_t base = size > 0 ? args.kept.OffsetOf(output, 0) : 0;
      constexpr int kChains = 4;
      Value totals[kChains];
      THRESHER_UNROLL
      for (int c = 0; c < kChains; ++c) totals[c] = IdentityOf<Value>(args.op);
      for (int64_t at = t.y(); at < size; at += kChains * kReduceHeight) {
        typename Numbers::Raw raw[kChains] = {};
        THRESHER_UNROLL
        for (int c = 0; c < kChains; ++c) {
          const int64_t own = at + c * kReduceHeight;
          if (own >= size) continue;
          Numbers::template Load<1>(args.dtype, args.x, base + args.reduced.OffsetOf(own, 0), false, raw + c);
        }
        THRESHER_UNROLL
        for (int c = 0; c < kChains; ++c) {
          if (at + c * kReduceHeight >= size) continue;
          Value value;
          Numbers::template Widen<1>(args.dtype, raw + c, &value);
          totals[c] = Join(args.op, totals[c], value);
        }
      }
      Value total = Join(args.op, Join(args.op, totals[0], totals[1]), Join(args.op, totals[2], totals[3]));
      auto parts = t.shared();
      t.Sync();  // who still reads the last tile's parts
      PutShared(parts, t.y() * kWarp + t.x(), total);
      t.Sync();
      if (t.y() != 0 || output >= count) continue;
      for (int y = 1; y < t.height(); ++y) {
        Value other;
        GetShared(parts, y * kWarp + t.x(), other);
        total = Join(args.op, total, other);
      }
      if constexpr (sizeof(Value) == sizeof(float)) {
        if (args.op == ReduceOp::kMean) total = total / args.divisor;
      }
      Numbers::template Store<1>(args.out_dtype, &total, args.out, args.kept.OffsetOf(output, 1));
    }
  }
};

// Where the first greatest or least element of each line lies; NaN wins.
template <class Numbers>
struct ArgExtremeKernel {
  using Value = typename Numbers::Value;
  static constexpr int kMostThreads = kReduceThreads;
  Elements<2> kept;  // operand 0: x, operand 1: out
  const void* x;
  int64_t* out;
  int64_t size;  // of a line
  int64_t stride;
  DType dtype;
  bool greatest;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    for (int64_t line = t.block(); line < kept.size; line += t.num_blocks()) {
      const int64_t base = kept.OffsetOf(line, 0);
      Value best = 0;
      int64_t where = size;  // nothing yet
      for (int64_t i = t.x(); i < size; i += t.width()) {
        const Value value = NumberAt<Numbers>(dtype, x, base + i * stride);
        if (!Wins(value, i, best, where)) continue;
        best = value;
        where = i;
      }
      OverWarp(t, best, where);
      const int lane = t.x() % kWarp, warps = t.width() / kWarp;
      auto parts = t.shared();
      t.Sync();  // who still reads the last line's parts
      if (lane == 0) {
        PutShared(parts, 2 * (t.x() / kWarp), AsInteger(best));
        PutShared(parts, 2 * (t.x() / kWarp) + 1, where);
      }
      t.Sync();
      where = size;
      if (lane < warps) {
        int64_t bits;
        GetShared(parts, 2 * lane, bits);
        GetShared(parts, 2 * lane + 1, where);
        best = FromInteger(bits);
      }
      OverWarp(t, best, where);
      if (t.x() == 0) out[kept.OffsetOf(line, 1)] = where;
    }
  }

 private:
  THRESHER_DEVICE static int64_t AsInteger(Value v) {
    if constexpr (sizeof(Value) == sizeof(float)) {
      return BitsOf(v);
    } else {
      return v;
    }
  }
  THRESHER_DEVICE static Value FromInteger(int64_t bits) {
    if constexpr (sizeof(Value) == sizeof(float)) {
      return FloatOf(static_cast<uint32_t>(bits));
    } else {
      return bits;
    }
  }

  THRESHER_DEVICE bool Wins(Value a, int64_t at, Value b, int64_t where) const {
    if (at >= size) return false;
    if (where >= size) return true;
    const bool nan_a = IsNan(a), nan_b = IsNan(b);
    if (nan_a != nan_b) return nan_a;
    if (!nan_a && a != b) return greatest ? a > b : a < b;
    return at < where;
  }

  template <class T>
  THRESHER_DEVICE void OverWarp(T& t, Value& best, int64_t& where) const {
    THRESHER_UNROLL
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const Value other = ShuffleValue(t, best, mask);
      const int64_t at = ShuffleXor64(t, where, mask);
      if (!Wins(other, at, best, where)) continue;
      best = other;
      where = at;
    }
  }
};

// A warp has a line, and goes along it 32 elements at a time. Sums of f32 are kept in f64, as on the CPU.
template <class Numbers>
struct CumSumKernel {
  static constexpr bool kReal = sizeof(typename Numbers::Value) == sizeof(float);
  static constexpr int kMostThreads = kWarp * kRowsPerBlock;
  Elements<2> kept;  // operand 0: x, operand 1: out
  const void* x;
  void* out;
  int64_t size;  // of a line
  int64_t stride;
  int64_t out_stride;
  DType dtype;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachRow<true>(t, kept.size, [&](int64_t line) {
      const int64_t from = kept.OffsetOf(line, 0), to = kept.OffsetOf(line, 1);
      int64_t before = Zero();
      for (int64_t i = 0; i < size; i += kWarp) {
        const int64_t at = i + t.x();
        int64_t sum = Zero();
        if (at < size) sum = AsSum(NumberAt<Numbers>(dtype, x, from + at * stride));
        // What lies before a lane in its half is added as the halves grow.
        int64_t all = sum;
        THRESHER_UNROLL
        for (int mask = 1; mask < kWarp; mask *= 2) {
          const int64_t other = ShuffleXor64(t, all, mask);
          const bool upper = (t.x() & mask) != 0;
          if (upper) sum = Plus(other, sum);
          all = upper ? Plus(other, all) : Plus(all, other);
        }
        sum = Plus(before, sum);
        before = Plus(before, all);
        if (at < size) {
          const typename Numbers::Value result = FromSum(sum);
          Numbers::template Store<1>(dtype, &result, out, to + at * out_stride);
        }
      }
    });
  }

 private:
  // A sum in 64 bits: of an integer, or of a double.
  THRESHER_DEVICE static double Real(int64_t sum) {
    double real;
    memcpy(&real, &sum, sizeof(real));
    return real;
  }
  THRESHER_DEVICE static int64_t Bits(double real) {
    int64_t bits;
    memcpy(&bits, &real, sizeof(bits));
    return bits;
  }
  THRESHER_DEVICE static int64_t Zero() { return 0; }
  THRESHER_DEVICE static int64_t AsSum(typename Numbers::Value v) {
    if constexpr (kReal) {
      return Bits(static_cast<double>(v));
    } else {
      return v;
    }
  }
  THRESHER_DEVICE static typename Numbers::Value FromSum(int64_t sum) {
    if constexpr (kReal) {
      return static_cast<float>(Real(sum));
    } else {
      return sum;
    }
  }
  THRESHER_DEVICE static int64_t Plus(int64_t a, int64_t b) {
    if constexpr (kReal) {
      return Bits(Real(a) + Real(b));
    } else {
      return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    }
  }
};

// The dimensions of x: kept ones, with their strides in a row-major result, and reduced ones.
struct Reduction {
  kernels::Loop<2> kept;
  kernels::Loop<1> reduced;
};

inline Reduction ReductionOf(const View& x, uint32_t mask) {
  Reduction made;
  int64_t out_strides[kMaxRank] = {};
  int64_t step = 1;
  for (int d = x.rank - 1; d >= 0; --d) {
    if ((mask >> d & 1u) != 0) continue;
    out_strides[d] = step;
    step *= x.shape[d];
  }
  for (int d = 0; d < x.rank; ++d) {
    const int64_t strides[] = {x.strides[d], out_strides[d]};
    if ((mask >> d & 1u) != 0) {
      made.reduced.Push(x.shape[d], strides);
    } else {
      made.kept.Push(x.shape[d], strides);
    }
  }
  made.kept.Collapse();
  made.reduced.Collapse();
  return made;
}

// Few outputs with many elements each: these are cut into parts, whose sums wait in scratch memory.
inline constexpr int64_t kFewOutputs = 256;
inline constexpr int64_t kLeastPart = 8192;  // elements

inline int64_t PartsOf(int64_t outputs, int64_t count) {
  if (outputs >= kFewOutputs || count < 2 * kLeastPart) return 1;
  const int64_t wanted = DivideUp(2 * kFewOutputs, outputs > 0 ? outputs : 1);
  const int64_t most = count / kLeastPart;
  return wanted < most ? wanted : most;
}

inline int64_t ReducedCount(const View& x, uint32_t mask) {
  int64_t count = 1;
  for (int d = 0; d < x.rank; ++d) {
    if ((mask >> d & 1u) != 0) count *= x.shape[d];
  }
  return count;
}

template <class Numbers, class Launch>
auto LaunchReduceRows(Launch&& launch, const ReduceArgs& args) {
  const int64_t rows = args.kept.size * args.parts;
  const int64_t each = DivideUp(args.reduced.size, args.parts);
  Shape shape;
  const auto start = [&]<int run, bool one_warp>() {
    if (one_warp) {
      shape.height = kRowsPerBlock;
      shape.blocks = AtMostBlocks(DivideUp(rows, kRowsPerBlock));
    } else {
      shape.width = kReduceThreads;
      shape.blocks = AtMostBlocks(rows);
      shape.shared_floats = 2 * kReduceThreads / kWarp;
    }
    return launch(shape, ReduceRowsKernel<Numbers, run, one_warp>{args});
  };
  if (args.reduced.run == kRun) {
    return each <= 256 ? start.template operator()<kRun, true>() : start.template operator()<kRun, false>();
  }
  return each <= 256 ? start.template operator()<1, true>() : start.template operator()<1, false>();
}

// out: row-major, the kept dimensions of x. It is not empty.
template <class Numbers, class Launch>
auto LaunchReduce(Launch&& launch, ReduceOp op, const View& x, uint32_t mask, const View& out, void* scratch) {
  const Reduction reduction = ReductionOf(x, mask);
  const int64_t count = ReducedCount(x, mask);
  ReduceArgs args{};
  args.kept = ElementsOf(reduction.kept);
  args.reduced = ElementsOf(reduction.reduced);
  if (count == 0) args.reduced.size = 0;
  args.x = x.data;
  args.out = out.data;
  args.dtype = x.dtype;
  args.out_dtype = out.dtype;
  args.op = op;
  args.parts = 1;
  args.divisor = static_cast<float>(count);
  if (reduction.kept.inner_stride(0) == 1 && reduction.reduced.inner_stride(0) != 1 && args.kept.size >= kWarp &&
      count > 1) {
    Shape shape;
    shape.height = kReduceHeight;
    shape.blocks = AtMostBlocks(DivideUp(args.kept.size, kWarp));
    shape.shared_floats = 2 * kWarp * kReduceHeight;
    return launch(shape, ReduceColumnsKernel<Numbers>{args});
  }
  // Runs of the reduced elements, where each output's begin at one.
  const auto& loop = reduction.reduced;
  bool by_runs = count > 0 && loop.inner_stride(0) == 1 && loop.inner() % kRun == 0 && IsAligned(x.data);
  for (int d = 0; d + 1 < loop.rank; ++d) by_runs = by_runs && loop.strides[0][d] % kRun == 0;
  for (int d = 0; d < reduction.kept.rank; ++d) {
    by_runs = by_runs && (reduction.kept.strides[0][d] % kRun == 0 || reduction.kept.shape[d] == 1);
  }
  if (by_runs) {
    kernels::Loop<1> runs = loop;
    runs.shape[runs.rank - 1] /= kRun;
    runs.strides[0][runs.rank - 1] *= kRun;
    args.reduced = ElementsOf(runs);
    args.reduced.run = kRun;
  }
  args.parts = static_cast<int32_t>(PartsOf(args.kept.size, count));
  if (args.parts == 1) return LaunchReduceRows<Numbers>(launch, args);
  constexpr DType wide = sizeof(typename Numbers::Value) == sizeof(float) ? DType::kF32 : DType::kI64;
  ReduceArgs first = args;
  first.out = scratch;
  first.out_dtype = wide;
  first.op = op == ReduceOp::kMean ? ReduceOp::kSum : op;
  if (auto result = LaunchReduceRows<Numbers>(launch, first); result != launch.Nothing()) return result;
  // Then one output's parts, which lie one behind the other.
  kernels::Loop<1> parts;
  const int64_t one = 1;
  parts.Push(args.parts, &one);
  parts.Collapse();
  ReduceArgs second = args;
  second.reduced = ElementsOf(parts);
  for (int d = 0; d < reduction.kept.rank; ++d) second.kept.strides[0][d] = reduction.kept.strides[1][d] * args.parts;
  second.kept.dense = second.kept.single = 0;
  second.x = scratch;
  second.dtype = wide;
  second.parts = 1;
  return LaunchReduceRows<Numbers>(launch, second);
}

struct ReduceFamily {
  static constexpr KernelId kKernels[] = {KernelId::kReduce, KernelId::kArgExtreme, KernelId::kCumSum};

  static Verdict Check(const Call& call) {
    switch (call.kernel()) {
      case KernelId::kReduce:
        return Fits(call, sizeof(kernels::ReduceParams), 2);
      case KernelId::kArgExtreme:
        return Fits(call, sizeof(kernels::ArgExtremeParams), 2);
      default:
        return Fits(call, sizeof(kernels::CumSumParams), 2);
    }
  }

  static size_t ScratchBytes(const Call& call) {
    if (call.kernel() != KernelId::kReduce) return 0;
    const uint32_t mask = call.as<kernels::ReduceParams>().mask;
    const int64_t outputs = call.last().size();
    const int64_t parts = PartsOf(outputs, ReducedCount(call.views[0], mask));
    return parts > 1 ? static_cast<size_t>(outputs * parts) * sizeof(int64_t) : 0;
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    const View &x = call.views[0], &out = call.last();
    if (out.size() == 0) return launch.Nothing();
    return IsFloat(x.dtype) ? LaunchOf<Floats>(launch, call, x, out) : LaunchOf<Integers>(launch, call, x, out);
  }

 private:
  template <class Numbers, class Launcher>
  static auto LaunchOf(Launcher&& launch, const Call& call, const View& x, const View& out) {
    if (call.kernel() == KernelId::kReduce) {
      const auto& p = call.as<kernels::ReduceParams>();
      return LaunchReduce<Numbers>(launch, p.op, x, p.mask, out, call.scratch);
    }
    const bool extreme = call.kernel() == KernelId::kArgExtreme;
    const int dim = extreme ? call.as<kernels::ArgExtremeParams>().dim : call.as<kernels::CumSumParams>().dim;
    const int64_t size = x.rank == 0 ? 1 : x.shape[dim], stride = x.rank == 0 ? 1 : x.strides[dim];
    Shape shape;
    if (extreme) {
      ArgExtremeKernel<Numbers> kernel{};
      kernel.kept = ElementsOf(ReductionOf(x, 1u << dim).kept);
      kernel.x = x.data;
      kernel.out = out.as<int64_t>();
      kernel.size = size;
      kernel.stride = stride;
      kernel.dtype = x.dtype;
      kernel.greatest = call.as<kernels::ArgExtremeParams>().greatest;
      shape.width = static_cast<int>(size < kReduceThreads ? DivideUp(size, kWarp) * kWarp : kReduceThreads);
      shape.blocks = AtMostBlocks(kernel.kept.size);
      shape.shared_floats = 4 * kReduceThreads / kWarp;
      return launch(shape, kernel);
    }
    kernels::Loop<2> lines;
    for (int d = 0; d < x.rank; ++d) {
      const int64_t strides[] = {x.strides[d], out.strides[d]};
      if (d != dim) lines.Push(x.shape[d], strides);
    }
    lines.Collapse();
    CumSumKernel<Numbers> kernel{};
    kernel.kept = ElementsOf(lines);
    kernel.x = x.data;
    kernel.out = out.data;
    kernel.size = size;
    kernel.stride = stride;
    kernel.out_stride = x.rank == 0 ? 1 : out.strides[dim];
    kernel.dtype = x.dtype;
    shape.height = kRowsPerBlock;
    shape.blocks = AtMostBlocks(DivideUp(kernel.kept.size, kRowsPerBlock));
    return launch(shape, kernel);
  }
};

}  // namespace thresher::cuda
