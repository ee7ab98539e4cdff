// Layer norm and RMS norm.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "thresher/cuda/call.h"
#include "thresher/cuda/rows.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

// kernels::NormArgs for elements of any float: x, residual, out and sum are of one type, weight and bias of any.
struct NormRows {
  const void* x;
  const void* residual;  // or null
  const void* weight;    // or null
  const void* bias;      // or null
  void* out;             // may be x itself (same stride); rows `cols` apart
  void* sum;             // or null; rows `cols` apart
  int64_t rows;
  int64_t cols;
  int64_t row_stride;
  int64_t residual_row_stride;
  float eps;
  DType dtype;
  DType weight_dtype;
  DType bias_dtype;
};

template <class Row>
struct NormKernel {
  static constexpr int kMostThreads = Row::kMostThreads;
  static constexpr int kLeastBlocks = Row::kLeastBlocks;
  static constexpr int kLength = Row::kLength;
  static constexpr int kMostEarly = 16;
  NormRows args;
  bool rms;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachRow<Row::kOneWarp>(t, args.rows, [&](int64_t row) {
      if constexpr (Row::kPieces > 0) {
        Held(t, row);
      } else {
        Reread(t, row);
      }
    });
  }

 private:
  struct Scaling {
    float mean;
    float factor;
    float correction;
  };

  THRESHER_DEVICE int64_t Pieces() const { return args.cols / kLength; }

  // The mean, rounded to a float, is off by up to half a unit in its last place, which counts where all elements share
  // a large offset. The second pass finds by how much, and both its sums are corrected.
  template <class T>
  THRESHER_DEVICE Scaling ScalingOf(T& t, float mean, float first, float second) const {
    const float count = static_cast<float>(args.cols);
    float sums[] = {first, second};
    ReduceRow<Row::kOneWarp, Sum>(t, sums);
    const float correction = rms ? 0.0f : sums[0] / count;
    const float variance = sums[1] / count - correction * correction;
    const float factor = 1.0f / sqrtf(variance + args.eps);
    return {mean, factor, correction * factor};
  }

  template <class T>
  THRESHER_DEVICE float MeanOf(T& t, float total) const {
    return rms ? 0.0f : ReduceRow<Row::kOneWarp, Sum>(t, total) / static_cast<float>(args.cols);
  }

  // x, or x + residual, which goes to `sum` as it is rounded there.
  THRESHER_DEVICE void LoadPiece(int64_t row, int64_t piece, bool stored, float* to) const {
    uint32_t raw[Row::kWords];
    Row::Load(Row::At(args.x, row, args.row_stride), piece, raw);
    Row::Widen(args.dtype, raw, to);
    if (args.residual == nullptr) return;
    float more[kLength];
    Row::Load(Row::At(args.residual, row, args.residual_row_stride), piece, raw);
    Row::Widen(args.dtype, raw, more);
    THRESHER_UNROLL
    for (int i = 0; i < kLength; ++i) to[i] += more[i];
    if (stored && args.sum != nullptr) Row::Store(args.dtype, to, Row::At(args.sum, row, args.cols), piece);
  }

  // Elements of weight or bias.
  THRESHER_DEVICE static void LoadFactors(DType dtype, const void* from, int64_t piece, float* to) {
    constexpr int run = kLength < kRun ? 1 : kRun;
    THRESHER_UNROLL
    for (int i = 0; i < kLength; i += run) {
      uint32_t raw[run] = {};
      Floats::Load<run>(dtype, from, piece * kLength + i, false, raw);
      Floats::Widen<run>(dtype, raw, to + i);
    }
  }

  // A piece of weight and bias, where there are such.
  struct Factors {
    float weight[kLength];
    float bias[kLength];
  };

  THRESHER_DEVICE void LoadFactors(int64_t piece, Factors& to) const {
    if (args.weight != nullptr) LoadFactors(args.weight_dtype, args.weight, piece, to.weight);
    if (args.bias != nullptr) LoadFactors(args.bias_dtype, args.bias, piece, to.bias);
  }

  // `early`: the factors, where they have been loaded.
  THRESHER_DEVICE void StorePiece(int64_t row, int64_t piece, const float* v, const Scaling& s,
                                  const Factors* early) const {
    float result[kLength], factors[kLength];
    THRESHER_UNROLL
    for (int i = 0; i < kLength; ++i) result[i] = (v[i] - s.mean) * s.factor - s.correction;
    if (args.weight != nullptr) {
      if (early == nullptr) LoadFactors(args.weight_dtype, args.weight, piece, factors);
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) result[i] *= early != nullptr ? early->weight[i] : factors[i];
    }
    if (args.bias != nullptr) {
      if (early == nullptr) LoadFactors(args.bias_dtype, args.bias, piece, factors);
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) result[i] += early != nullptr ? early->bias[i] : factors[i];
    }
    Row::Store(args.dtype, result, Row::At(args.out, row, args.cols), piece);
  }

  THRESHER_DEVICE static void Add(const float* v, float mean, float& first, float& second) {
    THRESHER_UNROLL
    for (int i = 0; i < kLength; ++i) {
      const float difference = v[i] - mean;
      first += difference;
      second += difference * difference;
    }
  }

  template <class T>
  THRESHER_DEVICE void Held(T& t, int64_t row) const {
    // Where there are registers for them, weight and bias are on their way while the sums are made.
    constexpr bool kEarly = Row::kPieces * kLength <= kMostEarly;
    float held[Row::kPieces][kLength];
    Factors factors[kEarly ? Row::kPieces : 1];
    float total = 0.0f;
    THRESHER_UNROLL
    for (int p = 0; p < Row::kPieces; ++p) {
      const int64_t piece = t.x() + int64_t{p} * t.width();
      if (piece < Pieces()) {
        LoadPiece(row, piece, true, held[p]);
        if constexpr (kEarly) LoadFactors(piece, factors[p]);
      } else {
        THRESHER_UNROLL
        for (int i = 0; i < kLength; ++i) held[p][i] = 0.0f;
      }
    }
    THRESHER_UNROLL
    for (int p = 0; p < Row::kPieces; ++p) {
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) total += held[p][i];
    }
    const float mean = MeanOf(t, total);
    float first = 0.0f, second = 0.0f;
    THRESHER_UNROLL
    for (int p = 0; p < Row::kPieces; ++p) {
      if (t.x() + int64_t{p} * t.width() < Pieces()) Add(held[p], mean, first, second);
    }
    const Scaling scaling = ScalingOf(t, mean, first, second);
    THRESHER_UNROLL
    for (int p = 0; p < Row::kPieces; ++p) {
      const int64_t piece = t.x() + int64_t{p} * t.width();
      if (piece < Pieces()) StorePiece(row, piece, held[p], scaling, kEarly ? &factors[kEarly ? p : 0] : nullptr);
    }
  }

  template <class T>
  THRESHER_DEVICE void Reread(T& t, int64_t row) const {
    float v[kLength];
    float total = 0.0f;
    for (int64_t piece = t.x(); piece < Pieces(); piece += t.width()) {
      LoadPiece(row, piece, true, v);
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) total += v[i];
    }
    const float mean = MeanOf(t, total);
    float first = 0.0f, second = 0.0f;
    for (int64_t piece = t.x(); piece < Pieces(); piece += t.width()) {
      LoadPiece(row, piece, false, v);
      Add(v, mean, first, second);
    }
    const Scaling scaling = ScalingOf(t, mean, first, second);
    for (int64_t piece = t.x(); piece < Pieces(); piece += t.width()) {
      LoadPiece(row, piece, false, v);
      StorePiece(row, piece, v, scaling, nullptr);
    }
  }
};

// `rms`: RMS norm. rows, cols > 0.
template <class Launch>
auto LaunchNorm(Launch&& launch, const NormRows& norm, bool rms) {
  const auto bytes = static_cast<int>(SizeOf(norm.dtype));
  const auto apart = [&](const void* data, int64_t stride) { return data == nullptr || stride * bytes % 16 == 0; };
  bool aligned = apart(norm.x, norm.row_stride) && apart(norm.residual, norm.residual_row_stride);
  for (const void* data : {norm.x, norm.residual, norm.weight, norm.bias, const_cast<const void*>(norm.out),
                           const_cast<const void*>(norm.sum)}) {
    aligned = aligned && IsAligned(data);
  }
  return LaunchRows<NormKernel>(launch, norm.rows, norm.cols, bytes, aligned, norm, rms);
}

inline NormRows NormRowsOf(const kernels::NormParams& p, const View* v) {
  return {v[0].data, v[3].data,  v[1].data,  v[2].data,    v[4].data,
          v[5].data, p.rows,     p.cols,     p.row_stride, p.residual_row_stride,
          p.eps,     v[0].dtype, v[1].dtype, v[2].dtype};
}

struct NormFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kLayerNorm, KernelId::kRmsNorm};

  static Verdict Check(const Call& call) {
    Verdict verdict = Fits(call, sizeof(kernels::NormParams), 6);
    if (verdict.ok()) verdict = AllFloats(call);
    if (!verdict.ok()) return verdict;
    for (const int i : {3, 4, 5}) {
      const View& v = call.views[i];
      if (v.rank == 0 || v.dtype == call.views[0].dtype) continue;  // absent, or as x is
      return Unsupported(std::string(Name(call.kernel())) + ": expected x, residual and results of one type, got " +
                         std::string(Name(call.views[0].dtype)) + " and " + std::string(Name(v.dtype)));
    }
    return {};
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    const NormRows args = NormRowsOf(call.as<kernels::NormParams>(), call.views);
    if (args.rows == 0 || args.cols == 0) return launch.Nothing();
    return LaunchNorm(launch, args, call.kernel() == KernelId::kRmsNorm);
  }
};

}  // namespace thresher::cuda
