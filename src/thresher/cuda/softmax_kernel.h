// Softmax and log-softmax. A NaN anywhere, a maximum of +infinity (inf - inf) and a slice of -infinity only all turn
// the sum into NaN, and the sum the whole slice; so the maximum itself need not propagate NaN.
#pragma once

#include <cmath>
#include <cstdint>

#include "thresher/cuda/call.h"
#include "thresher/cuda/rows.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

struct SoftmaxArgs {
  const void* x;  // row-major [outer, dim, inner]
  void* out;      // may be x
  DType dtype;    // of both: a float
  int64_t outer;
  int64_t dim;
  int64_t inner;
  bool log;
};

// What is left to do with an element once maximum and sum of its slice are known.
struct SoftmaxFinish {
  float max;
  float term;  // logarithm of the sum for log-softmax, else the sum's reciprocal

  THRESHER_DEVICE SoftmaxFinish(float maximum, float sum, bool log)
      : max(maximum), term(log ? logf(sum) : 1.0f / sum) {}
  THRESHER_DEVICE float Log(float x) const { return (x - max) - term; }
  THRESHER_DEVICE float Linear(float x) const { return expf(x - max) * term; }
};

// inner == 1: slices are contiguous rows.
template <class Row>
struct SoftmaxRowKernel {
  static constexpr int kMostThreads = Row::kMostThreads;
  static constexpr int kLeastBlocks = Row::kLeastBlocks;
  static constexpr int kLength = Row::kLength;
  SoftmaxArgs args;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachRow<Row::kOneWarp>(t, args.outer, [&](int64_t row) {
      const void* x = Row::At(args.x, row, args.dim);
      void* out = Row::At(args.out, row, args.dim);
      if constexpr (Row::kPieces > 0) {
        Held(t, x, out);
      } else {
        Reread(t, x, out);
      }
    });
  }

 private:
  THRESHER_DEVICE int64_t Pieces() const { return args.dim / kLength; }

  THRESHER_DEVICE void LoadPiece(const void* x, int64_t piece, float* to) const {
    uint32_t raw[Row::kWords];
    Row::Load(x, piece, raw);
    Row::Widen(args.dtype, raw, to);
  }

  template <class T>
  THRESHER_DEVICE void Held(T& t, const void* x, void* out) const {
    float held[Row::kPieces][kLength];
    THRESHER_UNROLL
    for (int p = 0; p < Row::kPieces; ++p) {
      const int64_t piece = t.x() + int64_t{p} * t.width();
      if (piece < Pieces()) {
        LoadPiece(x, piece, held[p]);
      } else {
        THRESHER_UNROLL
        for (int i = 0; i < kLength; ++i) held[p][i] = Max::kIdentity;
      }
    }
    float most = Max::kIdentity;
    THRESHER_UNROLL
    for (int p = 0; p < Row::kPieces; ++p) {
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) most = Max::Of(most, held[p][i]);
    }
    most = ReduceRow<Row::kOneWarp, Max>(t, most);
    float total = 0.0f;
    THRESHER_UNROLL
    for (int p = 0; p < Row::kPieces; ++p) {
      if (t.x() + int64_t{p} * t.width() >= Pieces()) continue;
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) {
        const float exponential = expf(held[p][i] - most);
        total += exponential;
        if (!args.log) held[p][i] = exponential;
      }
    }
    const SoftmaxFinish finish(most, ReduceRow<Row::kOneWarp, Sum>(t, total), args.log);
    THRESHER_UNROLL
    for (int p = 0; p < Row::kPieces; ++p) {
      const int64_t piece = t.x() + int64_t{p} * t.width();
      if (piece >= Pieces()) continue;
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) held[p][i] = args.log ? finish.Log(held[p][i]) : held[p][i] * finish.term;
      Row::Store(args.dtype, held[p], out, piece);
    }
  }

  // Maximum and sum are found in one pass: what was summed so far is scaled when the maximum grows.
  template <class T>
  THRESHER_DEVICE void Reread(T& t, const void* x, void* out) const {
    float v[kLength];
    float most = Max::kIdentity, total = 0.0f;
    for (int64_t piece = t.x(); piece < Pieces(); piece += t.width()) {
      LoadPiece(x, piece, v);
      const float before = most;
      bool nan = false;
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) {
        most = Max::Of(most, v[i]);
        nan = nan || v[i] != v[i];
      }
      if (most == Max::kIdentity && !nan) continue;  // -infinity only: nothing to add yet, and nothing to subtract
      if (most > before) total *= expf(before - most);
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) total += expf(v[i] - most);
    }
    const float all = ReduceRow<Row::kOneWarp, Max>(t, most);
    const float share = total * expf(most - all);
    const SoftmaxFinish finish(all, ReduceRow<Row::kOneWarp, Sum>(t, share), args.log);
    for (int64_t piece = t.x(); piece < Pieces(); piece += t.width()) {
      LoadPiece(x, piece, v);
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) v[i] = args.log ? finish.Log(v[i]) : finish.Linear(v[i]);
      Row::Store(args.dtype, v, out, piece);
    }
  }
};

// inner > 1: a block takes 32 neighbouring slices; its threads of equal x() share one.
struct SoftmaxColumnKernel {
  static constexpr int kHeight = 8;
  static constexpr int kMostThreads = kWarp * kHeight;
  SoftmaxArgs args;

  static int64_t Tiles(const SoftmaxArgs& args) { return DivideUp(args.inner, kWarp); }

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t tiles = (args.inner + kWarp - 1) / kWarp;
    for (int64_t unit = t.block(); unit < args.outer * tiles; unit += t.num_blocks()) {
      const int64_t column = unit % tiles * kWarp + t.x();
      const int64_t offset = unit / tiles * args.dim * args.inner + column;
      // Threads beyond the last column have nothing to do, but meet the others at the barriers.
      const int64_t dim = column < args.inner ? args.dim : 0;
      float most = Max::kIdentity;
      for (int64_t i = t.y(); i < dim; i += t.height()) most = Max::Of(most, At(offset + i * args.inner));
      most = Reduce<Max>(t, most);
      float total = 0.0f;
      for (int64_t i = t.y(); i < dim; i += t.height()) total += expf(At(offset + i * args.inner) - most);
      const SoftmaxFinish finish(most, Reduce<Sum>(t, total), args.log);
      for (int64_t i = t.y(); i < dim; i += t.height()) {
        const float v = At(offset + i * args.inner);
        const float result = args.log ? finish.Log(v) : finish.Linear(v);
        Floats::Store<1>(args.dtype, &result, args.out, offset + i * args.inner);
      }
    }
  }

 private:
  THRESHER_DEVICE float At(int64_t offset) const {
    uint32_t raw;
    float v;
    Floats::Load<1>(args.dtype, args.x, offset, false, &raw);
    Floats::Widen<1>(args.dtype, &raw, &v);
    return v;
  }

  // Over the threads of equal x().
  template <class Op, class T>
  THRESHER_DEVICE float Reduce(T& t, float v) const {
    auto parts = t.shared();
    t.Sync();  // who still reads the last reduction's parts
    parts[t.y() * kWarp + t.x()] = v;
    t.Sync();
    float all = Op::kIdentity;
    for (int y = 0; y < t.height(); ++y) all = Op::Of(all, parts[y * kWarp + t.x()]);
    return all;
  }
};

// All dimensions > 0.
template <class Launch>
auto LaunchSoftmax(Launch&& launch, const SoftmaxArgs& softmax) {
  if (softmax.inner == 1) {
    return LaunchRows<SoftmaxRowKernel>(launch, softmax.outer, softmax.dim, static_cast<int>(SizeOf(softmax.dtype)),
                                        IsAligned(softmax.x) && IsAligned(softmax.out), softmax);
  }
  Shape shape;
  shape.blocks = AtMostBlocks(softmax.outer * SoftmaxColumnKernel::Tiles(softmax));
  shape.height = SoftmaxColumnKernel::kHeight;
  shape.shared_floats = kWarp * SoftmaxColumnKernel::kHeight;
  return launch(shape, SoftmaxColumnKernel{softmax});
}

struct SoftmaxFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kSoftmax};

  static Verdict Check(const Call& call) {
    Verdict verdict = Fits(call, sizeof(kernels::SoftmaxParams), 2);
    if (verdict.ok()) verdict = AllFloats(call);
    if (!verdict.ok() || call.views[0].dtype == call.views[1].dtype) return verdict;
    return Unsupported("softmax: expected a result of x's type, " + std::string(Name(call.views[0].dtype)) + ", got " +
                       std::string(Name(call.views[1].dtype)));
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    const View *x = call.views, *out = call.views + 1;
    if (out->size() == 0) return launch.Nothing();
    const auto& p = call.as<kernels::SoftmaxParams>();
    return LaunchSoftmax(launch, SoftmaxArgs{x->data, out->data, x->dtype, p.outer, p.dim, p.inner, p.log});
  }
};

}  // namespace thresher::cuda
