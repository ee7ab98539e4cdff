// Products of few rows, which read each weight once and do little with it: memory sets the pace. Warps stream rows of
// weights, 16 bytes a thread at a time, and multiply them by all rows of x; where there are too few of them to fill a
// device, several warps share one and their sums are added in a fixed order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "thresher/cuda/gemm_layout.h"
#include "thresher/cuda/halves.h"
#include "thresher/cuda/reduce.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

// 16 bytes that are loaded at once.
struct alignas(16) Quad {
  uint32_t word[4];
};

// Of memory that is read once: it shall not displace what is read again.
THRESHER_DEVICE Quad LoadOnce(const Quad* from) {
#if defined(__CUDA_ARCH__)
  const uint4 v = __ldcs(reinterpret_cast<const uint4*>(from));
  return {v.x, v.y, v.z, v.w};
#else
  return *from;
#endif
}

// ---- Floats as they are stored ----

struct StoredF32 {
  using Element = float;
  THRESHER_DEVICE static float Widen(Element x) { return x; }
  THRESHER_DEVICE static Element Round(float x) { return x; }
};

struct StoredBf16 : Bf16 {
  using Element = uint16_t;
};

struct StoredF16 : Fp16 {
  using Element = uint16_t;
};

// The numbers of 16 bytes, in order.
template <class Stored>
THRESHER_DEVICE void WidenQuad(const Quad& quad, float* out) {
  if constexpr (sizeof(typename Stored::Element) == 4) {
    memcpy(out, quad.word, sizeof quad.word);
  } else {
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = Stored::Widen(static_cast<uint16_t>(quad.word[i]));
      out[2 * i + 1] = Stored::Widen(static_cast<uint16_t>(quad.word[i] >> 16));
    }
  }
}

// launch.template operator()<Stored>() of a float type.
template <class Launch>
auto ForFloat(DType dtype, Launch&& launch) {
  if (dtype == DType::kBF16) return launch.template operator()<StoredBf16>();
  if (dtype == DType::kF16) return launch.template operator()<StoredF16>();
  return launch.template operator()<StoredF32>();
}

// ---- What follows a product ----

// v Phi(v) = v / 2 erfc(-v / sqrt(2)), to within 4e-7 of |v|, in less time than erff takes. The error function's
// complement is a polynomial in 1 / (1 + p x) times exp(-x^2) (Abramowitz and Stegun 7.1.26), which keeps the digits of
// the left tail that matter.
THRESHER_DEVICE float GeluOf(float v) {
  const float x = fabsf(v) * 0.70710678118654752f;
#if defined(__CUDA_ARCH__)
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * x);
  const float tail = __expf(-x * x);
#else
  const float t = 1.0f / (1.0f + 0.3275911f * x);
  const float tail = expf(-x * x);
#endif
  const float series =
      t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float outside = 0.5f * v * series * tail;  // of 0 to |v|
  return v < 0 ? outside : v - outside;
}

THRESHER_DEVICE float Activate(kernels::Activation activation, float v) {
  using kernels::Activation;
  switch (activation) {
    case Activation::kRelu:
      return v < 0 ? 0.0f : v;
    case Activation::kGelu: {
      const float half = 0.5f * v;
      return half * erff(v * 0.70710678118654752f) + half;
    }
    case Activation::kGeluTanh: {
      // x/2 * (1 + tanh(u)) written as x / (1 + exp(-2u)), which keeps the digits of the left tail.
      const float minus_2u = v * (v * v * -0.07135481627f - 1.59576912161f);
      return v / (1.0f + expf(minus_2u));
    }
    case Activation::kSilu:
      return v / (1.0f + expf(-v));
    case Activation::kTanh:
      return tanhf(v);
    case Activation::kSigmoid:
      return 1.0f / (1.0f + expf(-v));
    case Activation::kRelu6:
      return v < 0 ? 0.0f : v > 6.0f ? 6.0f : v;
    case Activation::kHardSwish: {
      const float gate = v + 3.0f;
      return v * (gate < 0 ? 0.0f : gate > 6.0f ? 6.0f : gate) / 6.0f;
    }
    default:
      return v;
  }
}

// ---- The product ----

inline constexpr int kGemvWarps = 8;        // of a block, at most
inline constexpr int kMostGemvRows = 8;     // of x
inline constexpr int kMostMatrixRows = 16;  // where the matrix units do it
inline constexpr int kMatrixCols = 16;      // of the result that they compute together

// What kernels of few rows do alike. Blocks have t.height() groups of warps, which share some rows of weights, that is
// columns of the result.
template <class Result>
struct GemvTail {
  const typename Result::Element* bias;
  const typename Result::Element* residual;
  typename Result::Element* c;
  int64_t ldc, ldr, n;
  int32_t m;
  kernels::Activation activation;
  bool residual_first;

  // multiply(col, sums) adds to the sums, of kCols columns from `col` on for kRows rows one after the other, what the
  // thread has of them.
  template <int kRows, int kCols, class T, class Multiply>
  THRESHER_DEVICE void ForEachGroup(T& t, Multiply&& multiply) const {
    constexpr int kSums = kRows * kCols;
    static_assert(kSums <= kWarp);
    const int64_t groups = (n + kCols - 1) / kCols;
    const int64_t step = t.num_blocks() * t.height();
    // All warps of a block make the same number of turns: they meet at barriers.
    for (int64_t first = t.block() * t.height(); first < groups; first += step) {
      const int64_t group = first + t.y();
      float sums[kSums];
      THRESHER_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
      if (group < groups) multiply(group * kCols, sums);
      THRESHER_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i] = ReduceWarp<Sum>(t, sums[i]);
      const int lane = t.x() % kWarp;
      const int warps = t.width() / kWarp;
      // Lane i goes on with sum i.
      float sum = 0.0f;
      THRESHER_UNROLL
      for (int i = 0; i < kSums; ++i) sum = lane == i ? sums[i] : sum;
      if (warps > 1) {
        auto parts = t.shared();
        const int at = t.y() * warps * kWarp;
        t.Sync();  // who still reads the last turn's parts
        if (lane < kSums) parts[at + t.x()] = sum;
        t.Sync();
        if (t.x() >= kSums) continue;
        sum = 0.0f;
        for (int w = 0; w < warps; ++w) sum += parts[at + w * kWarp + t.x()];
      }
      if (t.x() < kSums && group < groups) Store(group * kCols + t.x() % kCols, t.x() / kCols, sum);
    }
  }

  THRESHER_DEVICE void Store(int64_t col, int row, float sum) const {
    if (col >= n || row >= m) return;
    if (bias != nullptr) sum += Result::Widen(bias[col]);
    const float added = residual != nullptr ? Result::Widen(residual[row * ldr + col]) : 0.0f;
    sum = residual_first ? Activate(activation, sum + added) : Activate(activation, sum) + added;
    c[row * ldc + col] = Result::Round(sum);
  }
};

template <class Result>
GemvTail<Result> TailOf(const Gemm& g) {
  using Element = typename Result::Element;
  GemvTail<Result> tail{};
  tail.bias = static_cast<const Element*>(g.bias);
  tail.residual = static_cast<const Element*>(g.residual);
  tail.c = static_cast<Element*>(g.c);
  tail.ldc = g.ldc;
  tail.ldr = g.ldr;
  tail.n = g.n;
  tail.m = static_cast<int32_t>(g.m);
  tail.activation = g.activation;
  tail.residual_first = g.residual_first;
  return tail;
}

// Of products where groups of warps share `cols` rows of weights, which are so many loads of a thread long: as many
// warps as have one and a half of them to do.
inline Shape ShapeOfGemv(int64_t n, int cols, int64_t loads, int shared_floats) {
  int warps = 1;
  while (warps < kGemvWarps && loads >= int64_t{3} * warps * kWarp) warps *= 2;
  Shape shape;
  shape.width = warps * kWarp;
  shape.height = warps >= 4 ? 1 : 4 / warps;
  if (warps > 1) shape.shared_floats = warps * shape.height * shared_floats;
  shape.blocks = AtMostBlocks(DivideUp(DivideUp(n, cols), shape.height));
  return shape;
}

// kRows: of x, at least m. kCols: rows of weights that a warp works on at the same time, so that what it reads of x
// serves several of them. kDepth: loads of each that are on their way together.
template <class Stored, class Result, int kRows, int kCols, int kDepth>
struct GemvKernel {
  static constexpr int kMostThreads = kGemvWarps * kWarp;
  static constexpr int kPerQuad = 16 / static_cast<int>(sizeof(typename Stored::Element));

  GemvTail<Result> tail;
  const Quad* a;
  const Quad* b;
  int64_t lda, ldb;  // in quads
  int32_t quads;     // of a row

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    tail.template ForEachGroup<kRows, kCols>(t, [&](int64_t col, float* sums) { Multiply(t, col, sums); });
  }

  template <class T>
  THRESHER_DEVICE void Multiply(T& t, int64_t col, float* sums) const {
    const Quad* rows[kCols];
    THRESHER_UNROLL
    for (int o = 0; o < kCols; ++o) rows[o] = b + (col + o < tail.n ? col + o : tail.n - 1) * ldb;
    for (int q = t.x(); q < quads; q += kDepth * t.width()) {
      Quad w[kDepth][kCols];
      THRESHER_UNROLL
      for (int d = 0; d < kDepth; ++d) {
        const int at = q + d * t.width();
        THRESHER_UNROLL
        for (int o = 0; o < kCols; ++o) w[d][o] = LoadOnce(rows[o] + (at < quads ? at : q));
      }
      THRESHER_UNROLL
      for (int d = 0; d < kDepth; ++d) {
        const int at = q + d * t.width();
        if (at >= quads) break;
        float wide[kCols][kPerQuad];
        THRESHER_UNROLL
        for (int o = 0; o < kCols; ++o) WidenQuad<Stored>(w[d][o], wide[o]);
        THRESHER_UNROLL
        for (int r = 0; r < kRows; ++r) {
          if (r >= tail.m) break;
          float x[kPerQuad];
          WidenQuad<Stored>(a[r * lda + at], x);
          THRESHER_UNROLL
          for (int o = 0; o < kCols; ++o) {
            THRESHER_UNROLL
            for (int i = 0; i < kPerQuad; ++i) sums[r * kCols + o] += wide[o][i] * x[i];
          }
        }
      }
    }
  }
};

// The same on the matrix units, whose first factor is 16 rows of weights and whose second are kTiles times 8 rows of x:
// then more rows cost next to nothing. A lane loads 8 neighbours along k of what it has of either factor. The units
// take them for others, which are as far apart in both.
template <class Stored, class Result, int kTiles, int kDepth>
struct MatrixGemvKernel {
  static constexpr int kMostThreads = kGemvWarps * kWarp;
  static constexpr int kSums = 4 * kTiles;  // of a lane

  GemvTail<Result> tail;
  const Quad* a;
  const Quad* b;
  int64_t lda, ldb;  // in quads
  int32_t quads;     // of a row

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t groups = (tail.n + kMatrixCols - 1) / kMatrixCols;
    const int64_t step = t.num_blocks() * t.height();
    const int warps = t.width() / kWarp;
    // All warps of a block make the same number of turns: they meet at barriers.
    for (int64_t first = t.block() * t.height(); first < groups; first += step) {
      const int64_t group = first + t.y();
      float sums[kTiles][4];
      THRESHER_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i / 4][i % 4] = 0.0f;
      if (group < groups) Multiply(t, group * kMatrixCols, sums);
      if (warps == 1) {
        THRESHER_UNROLL
        for (int i = 0; i < kSums; ++i) {
          if (group < groups) StoreOf(group, t.x() * kSums + i, sums[i / 4][i % 4]);
        }
        continue;
      }
      auto parts = t.shared();
      const int at = t.y() * warps * kWarp * kSums;
      t.Sync();  // who still reads the last turn's parts
      // Sum i of all lanes lies together.
      THRESHER_UNROLL
      for (int i = 0; i < kSums; ++i) {
        parts[at + t.x() / kWarp * kWarp * kSums + i * kWarp + t.x() % kWarp] = sums[i / 4][i % 4];
      }
      t.Sync();
      if (group >= groups) continue;
      for (int i = t.x(); i < kWarp * kSums; i += t.width()) {
        float sum = 0.0f;
        for (int w = 0; w < warps; ++w) sum += parts[at + w * kWarp * kSums + i];
        StoreOf(group, i % kWarp * kSums + i / kWarp, sum);
      }
    }
  }

  // `number`: of a sum, counted lane by lane.
  THRESHER_DEVICE void StoreOf(int64_t group, int number, float sum) const {
    const int lane = number / kSums, tile = number % kSums / 4, i = number % 4;
    tail.Store(group * kMatrixCols + lane / 4 + i / 2 * 8, tile * 8 + lane % 4 * 2 + i % 2, sum);
  }

  template <class T>
  THRESHER_DEVICE void Multiply(T& t, int64_t col, float (&sums)[kTiles][4]) const {
    const int lane = t.x() % kWarp;
    const int row = lane / 4;
    const auto weights = [&](int64_t at) { return b + (at < tail.n ? at : tail.n - 1) * ldb; };
    const Quad *const upper = weights(col + row), *const lower = weights(col + row + 8);
    const int step = t.width() / kWarp * 4;
    const int rounds = (quads + step - 1) / step;
    const int begin = t.x() / kWarp * 4 + lane % 4;
    for (int round = 0; round < rounds; round += kDepth) {
      Quad w[kDepth][2], x[kDepth][kTiles];
      THRESHER_UNROLL
      for (int d = 0; d < kDepth; ++d) {
        const int at = begin + (round + d) * step;
        const bool inside = at < quads;
        w[d][0] = inside ? LoadOnce(upper + at) : Quad{};
        w[d][1] = inside ? LoadOnce(lower + at) : Quad{};
        THRESHER_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          const int of_x = tile * 8 + row;
          x[d][tile] = inside && of_x < tail.m ? a[of_x * lda + at] : Quad{};
        }
      }
      THRESHER_UNROLL
      for (int d = 0; d < kDepth; ++d) {
        THRESHER_UNROLL
        for (int half = 0; half < 4; half += 2) {
          const uint32_t factor[4] = {w[d][0].word[half], w[d][1].word[half], w[d][0].word[half + 1],
                                      w[d][1].word[half + 1]};
          THRESHER_UNROLL
          for (int tile = 0; tile < kTiles; ++tile) {
            t.template MultiplyAdd<Stored>(factor, x[d][tile].word[half], x[d][tile].word[half + 1], sums[tile]);
          }
        }
      }
    }
  }
};

// Whether a kernel above computes it: few rows, weights [n, k], everything in whole quads.
inline bool IsGemv(const Gemm& g) {
  const auto element = static_cast<int64_t>(SizeOf(g.type));
  const auto whole = [&](const void* data, int64_t ld) {
    return reinterpret_cast<uintptr_t>(data) % sizeof(Quad) == 0 && ld * element % int64_t{sizeof(Quad)} == 0;
  };
  return g.m <= (IsHalf(g.type) ? kMostMatrixRows : kMostGemvRows) && g.batch == 1 && g.transpose_b && !g.transpose_a &&
         !IsBlocked(g.encoding) && g.k * element % int64_t{sizeof(Quad)} == 0 && g.k <= int64_t{1} << 30 &&
         whole(g.a, g.m > 1 ? g.lda : 0) && whole(g.b, g.n > 1 ? g.ldb : 0);
}

template <class Stored, class Result, int kRows, int kCols, int kDepth, class Launch>
auto LaunchGemvOf(Launch&& launch, const Gemm& g) {
  using Kernel = GemvKernel<Stored, Result, kRows, kCols, kDepth>;
  Kernel kernel{};
  kernel.tail = TailOf<Result>(g);
  kernel.a = static_cast<const Quad*>(g.a);
  kernel.b = static_cast<const Quad*>(g.b);
  kernel.lda = g.lda / Kernel::kPerQuad;
  kernel.ldb = g.ldb / Kernel::kPerQuad;
  kernel.quads = static_cast<int32_t>(g.k / Kernel::kPerQuad);
  return launch(ShapeOfGemv(g.n, kCols, kernel.quads, kWarp), kernel);
}

template <class Stored, class Result, int kTiles, int kDepth, class Launch>
auto LaunchMatrixGemvOf(Launch&& launch, const Gemm& g) {
  using Kernel = MatrixGemvKernel<Stored, Result, kTiles, kDepth>;
  Kernel kernel{};
  kernel.tail = TailOf<Result>(g);
  kernel.a = static_cast<const Quad*>(g.a);
  kernel.b = static_cast<const Quad*>(g.b);
  kernel.lda = g.lda / 8;
  kernel.ldb = g.ldb / 8;
  kernel.quads = static_cast<int32_t>(g.k / 8);
  // A thread loads a quad of 4 that a row's next 32 numbers are.
  return launch(ShapeOfGemv(g.n, kMatrixCols, kernel.quads * 4, Kernel::kSums * kWarp), kernel);
}

// For what IsGemv() says.
template <class Launch>
auto LaunchGemv(Launch&& launch, const Gemm& g) {
  return ForFloat(g.type, [&]<class Stored>() {
    const auto rows = [&]<class Result>() {
      if (g.m == 1) return LaunchGemvOf<Stored, Result, 1, 2, 2>(launch, g);
      if constexpr (std::is_same_v<Stored, StoredF32>) {
        if (g.m == 2) return LaunchGemvOf<Stored, Result, 2, 2, 2>(launch, g);
        if (g.m <= 4) return LaunchGemvOf<Stored, Result, 4, 4, 1>(launch, g);
        return LaunchGemvOf<Stored, Result, 8, 4, 1>(launch, g);
      } else {
        if (g.m <= 8) return LaunchMatrixGemvOf<Stored, Result, 1, 4>(launch, g);
        return LaunchMatrixGemvOf<Stored, Result, 2, 4>(launch, g);
      }
    };
    // The result is f32 or as the factors are.
    if (g.c_type == DType::kF32) return rows.template operator()<StoredF32>();
    return rows.template operator()<Stored>();
  });
}

// ---- What cuBLASLt's epilogues leave ----

// c = act(c) + residual.
template <class Result>
struct EpilogueKernel {
  static constexpr int kMostThreads = 256;
  static constexpr int kPerQuad = 16 / static_cast<int>(sizeof(typename Result::Element));
  // Its error is far below what a float of 16 bits keeps.
  static constexpr bool kQuickGelu = kPerQuad == 8;

  typename Result::Element* c;
  const typename Result::Element* residual;  // or null
  int64_t m, n, ldc, ldr;
  kernels::Activation activation;
  bool quads;  // rows begin and end at multiples of 16 bytes

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t per_row = quads ? n / kPerQuad : n;
    const int64_t step = t.num_blocks() * t.width();
    for (int64_t i = t.block() * t.width() + t.x(); i < m * per_row; i += step) {
      const int64_t row = m == 1 ? 0 : i / per_row;
      const int64_t at = i - row * per_row;
      if (quads) {
        OfQuad(row, at);
      } else {
        float v = Activate(activation, Result::Widen(c[row * ldc + at]));
        if (residual != nullptr) v += Result::Widen(residual[row * ldr + at]);
        c[row * ldc + at] = Result::Round(v);
      }
    }
  }

  THRESHER_DEVICE void OfQuad(int64_t row, int64_t at) const {
    Quad* const place = reinterpret_cast<Quad*>(c + row * ldc) + at;
    const Quad quad = *place;
    float v[kPerQuad], added[kPerQuad];
    WidenQuad<Result>(quad, v);
    if (residual != nullptr) WidenQuad<Result>(reinterpret_cast<const Quad*>(residual + row * ldr)[at], added);
    typename Result::Element out[kPerQuad];
    if (kQuickGelu && activation == kernels::Activation::kGelu) {
      THRESHER_UNROLL
      for (int j = 0; j < kPerQuad; ++j) v[j] = GeluOf(v[j]);
    } else {
      THRESHER_UNROLL
      for (int j = 0; j < kPerQuad; ++j) v[j] = Activate(activation, v[j]);
    }
    THRESHER_UNROLL
    for (int j = 0; j < kPerQuad; ++j) {
      if (residual != nullptr) v[j] += added[j];
      out[j] = Result::Round(v[j]);
    }
    Quad rounded;
    memcpy(rounded.word, out, sizeof rounded.word);
    *place = rounded;
  }
};

// What `rest` says of g, whose product is in c.
template <class Launch>
auto LaunchEpilogue(Launch&& launch, const Gemm& g, const Epilogue& rest) {
  return ForFloat(g.c_type, [&]<class Result>() {
    using Element = typename Result::Element;
    using Kernel = EpilogueKernel<Result>;
    const auto whole = [](const void* data, int64_t ld) {
      return reinterpret_cast<uintptr_t>(data) % sizeof(Quad) == 0 && ld % Kernel::kPerQuad == 0;
    };
    Kernel kernel{};
    kernel.c = static_cast<Element*>(g.c);
    kernel.residual = rest.residual ? static_cast<const Element*>(g.residual) : nullptr;
    // Rows without gaps are one.
    const bool dense = g.ldc == g.n && (!rest.residual || g.ldr == g.n);
    kernel.m = dense ? 1 : g.m;
    kernel.n = dense ? g.m * g.n : g.n;
    kernel.ldc = dense ? 0 : g.ldc;
    kernel.ldr = dense || !rest.residual ? 0 : g.ldr;
    kernel.activation = rest.activation;
    kernel.quads = kernel.n % Kernel::kPerQuad == 0 && whole(kernel.c, kernel.ldc) &&
                   (!rest.residual || whole(kernel.residual, kernel.ldr));
    Shape shape;
    shape.width = Kernel::kMostThreads;
    shape.blocks = AtMostBlocks(DivideUp(kernel.m * kernel.n / (kernel.quads ? Kernel::kPerQuad : 1), shape.width));
    return launch(shape, kernel);
  });
}

}  // namespace thresher::cuda
