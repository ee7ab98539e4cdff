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
  const float* x;  // row-major [outer, dim, inner]
  float* out;      // may be x
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

// inner == 1: slices are contiguous rows. As in NormKernel.
template <bool kOneWarp, int kItems>
struct SoftmaxRowKernel {
  static constexpr int kMostThreads = kMostRowThreads<kOneWarp>;
  SoftmaxArgs args;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachRow<kOneWarp>(t, args.outer, [&](int64_t row) {
      if constexpr (kItems > 0) {
        Held(t, args.x + row * args.dim, args.out + row * args.dim);
      } else {
        Reread(t, args.x + row * args.dim, args.out + row * args.dim);
      }
    });
  }

 private:
  template <class T>
  THRESHER_DEVICE void Held(T& t, const float* x, float* out) const {
    float held[kItems];
    float most = Max::kIdentity;
    THRESHER_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int64_t col = t.x() + int64_t{i} * t.width();
      held[i] = col < args.dim ? x[col] : Max::kIdentity;
      most = Max::Of(most, held[i]);
    }
    most = ReduceRow<kOneWarp, Max>(t, most);
    float total = 0.0f;
    THRESHER_UNROLL
    for (int i = 0; i < kItems; ++i) {
      if (t.x() + int64_t{i} * t.width() >= args.dim) continue;
      if (args.log) {
        total += expf(held[i] - most);
      } else {
        held[i] = expf(held[i] - most);
        total += held[i];
      }
    }
    const SoftmaxFinish finish(most, ReduceRow<kOneWarp, Sum>(t, total), args.log);
    THRESHER_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int64_t col = t.x() + int64_t{i} * t.width();
      if (col < args.dim) out[col] = args.log ? finish.Log(held[i]) : held[i] * finish.term;
    }
  }

  template <class T>
  THRESHER_DEVICE void Reread(T& t, const float* x, float* out) const {
    float most = Max::kIdentity;
    for (int64_t col = t.x(); col < args.dim; col += t.width()) most = Max::Of(most, x[col]);
    most = ReduceRow<kOneWarp, Max>(t, most);
    float total = 0.0f;
    for (int64_t col = t.x(); col < args.dim; col += t.width()) total += expf(x[col] - most);
    const SoftmaxFinish finish(most, ReduceRow<kOneWarp, Sum>(t, total), args.log);
    for (int64_t col = t.x(); col < args.dim; col += t.width()) {
      out[col] = args.log ? finish.Log(x[col]) : finish.Linear(x[col]);
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
      const float* x = args.x + offset;
      float* out = args.out + offset;
      float most = Max::kIdentity;
      for (int64_t i = t.y(); i < dim; i += t.height()) most = Max::Of(most, x[i * args.inner]);
      most = Reduce<Max>(t, most);
      float total = 0.0f;
      for (int64_t i = t.y(); i < dim; i += t.height()) total += expf(x[i * args.inner] - most);
      const SoftmaxFinish finish(most, Reduce<Sum>(t, total), args.log);
      for (int64_t i = t.y(); i < dim; i += t.height()) {
        const float v = x[i * args.inner];
        out[i * args.inner] = args.log ? finish.Log(v) : finish.Linear(v);
      }
    }
  }

 private:
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
  if (softmax.inner == 1) return LaunchRows<SoftmaxRowKernel>(launch, softmax.outer, softmax.dim, softmax);
  Shape shape;
  shape.blocks = AtMostBlocks(softmax.outer * SoftmaxColumnKernel::Tiles(softmax));
  shape.height = SoftmaxColumnKernel::kHeight;
  shape.shared_floats = kWarp * SoftmaxColumnKernel::kHeight;
  return launch(shape, SoftmaxColumnKernel{softmax});
}

struct SoftmaxFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kSoftmax};

  static Verdict Check(const Call& call) {
    const Verdict verdict = Fits(call, sizeof(kernels::SoftmaxParams), 2);
    return verdict.ok() ? AllF32(call) : verdict;
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    if (call.last().size() == 0) return launch.Nothing();
    const auto& p = call.as<kernels::SoftmaxParams>();
    const auto* x = call.views[0].as<const float>();
    return LaunchSoftmax(launch, SoftmaxArgs{x, call.views[1].as<float>(), p.outer, p.dim, p.inner, p.log});
  }
};

}  // namespace thresher::cuda
