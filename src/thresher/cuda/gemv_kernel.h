// Products of few rows, which read each weight once and do little with it: memory sets the pace. Warps stream rows of
// weights, 16 bytes a thread at a time, and multiply them by all rows of x; where there are too few of them to fill a
// device, several warps share one and their sums are added in a fixed order.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "thresher/base/half.h"
#include "thresher/cuda/gemm_layout.h"
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
  static constexpr DType kType = DType::kF32;
  THRESHER_DEVICE static float Widen(Element x) { return x; }
  THRESHER_DEVICE static Element Round(float x) { return x; }
};

struct StoredBf16 {
  using Element = uint16_t;
  static constexpr DType kType = DType::kBF16;
  THRESHER_DEVICE static float Widen(Element bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
  }
  THRESHER_DEVICE static Element Round(float x) {
#if defined(__CUDA_ARCH__)
    Element bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    return ToBF16(x).bits;
#endif
  }
};

struct StoredF16 {
  using Element = uint16_t;
  static constexpr DType kType = DType::kF16;
  THRESHER_DEVICE static float Widen(Element bits) {
#if defined(__CUDA_ARCH__)
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
#else
    return ToFloat(F16{bits});
#endif
  }
  THRESHER_DEVICE static Element Round(float x) {
#if defined(__CUDA_ARCH__)
    Element bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    return ToF16(x).bits;
#endif
  }
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
    default:
      return v;
  }
}

// ---- The product ----

inline constexpr int kGemvWarps = 8;     // of a block, at most
inline constexpr int kMostGemvRows = 8;  // of x

// kRows: of x, at least m. kCols: rows of weights that a warp works on at the same time, so that what it reads of x
// serves several of them. kDepth: loads of each that are on their way together. Blocks have t.height() groups of warps,
// which share kCols rows of weights.
template <class Stored, class Result, int kRows, int kCols, int kDepth>
struct GemvKernel {
  static constexpr int kMostThreads = kGemvWarps * kWarp;
  static constexpr int kPerQuad = 16 / static_cast<int>(sizeof(typename Stored::Element));
  static constexpr int kSums = kRows * kCols;

  const Quad* a;
  const Quad* b;
  const typename Result::Element* bias;
  const typename Result::Element* residual;
  typename Result::Element* c;
  int64_t lda, ldb;  // in quads
  int64_t ldc, ldr;  // in elements
  int64_t n;
  int32_t m;
  int32_t quads;  // of a row
  kernels::Activation activation;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t groups = (n + kCols - 1) / kCols;
    const int64_t step = t.num_blocks() * t.height();
    // All warps of a block make the same number of turns: they meet at barriers.
    for (int64_t first = t.block() * t.height(); first < groups; first += step) {
      const int64_t group = first + t.y();
      float sums[kSums];
      THRESHER_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
      if (group < groups) Multiply(t, group * kCols, sums);
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

  template <class T>
  THRESHER_DEVICE void Multiply(T& t, int64_t col, float* sums) const {
    const Quad* rows[kCols];
    THRESHER_UNROLL
    for (int o = 0; o < kCols; ++o) rows[o] = b + (col + o < n ? col + o : n - 1) * ldb;
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
          if (r >= m) break;
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

  THRESHER_DEVICE void Store(int64_t col, int row, float sum) const {
    if (col >= n || row >= m) return;
    if (bias != nullptr) sum += Result::Widen(bias[col]);
    sum = Activate(activation, sum);
    if (residual != nullptr) sum += Result::Widen(residual[row * ldr + col]);
    c[row * ldc + col] = Result::Round(sum);
  }
};

// Whether the kernel above computes it: few rows, weights [n, k], everything in whole quads.
inline bool IsGemv(const Gemm& g) {
  const auto element = static_cast<int64_t>(SizeOf(g.type));
  const auto whole = [&](const void* data, int64_t ld) {
    return reinterpret_cast<uintptr_t>(data) % sizeof(Quad) == 0 && ld * element % int64_t{sizeof(Quad)} == 0;
  };
  return g.m <= kMostGemvRows && g.batch == 1 && g.transpose_b && !g.transpose_a && !IsBlocked(g.encoding) &&
         g.k * element % int64_t{sizeof(Quad)} == 0 && g.k <= int64_t{1} << 30 && whole(g.a, g.m > 1 ? g.lda : 0) &&
         whole(g.b, g.n > 1 ? g.ldb : 0);
}

// How many warps share `cols` rows of weights at a time, so that some thousand of them are at work and each has
// something to do.
inline int WarpsOfGemv(int64_t n, int cols, int64_t quads) {
  constexpr int64_t kEnough = 132 * 16;
  int warps = 1;
  while (warps < kGemvWarps && DivideUp(n, cols) * warps < kEnough && quads > int64_t{warps} * kWarp) warps *= 2;
  return warps;
}

template <class Stored, class Result, int kRows, int kCols, int kDepth, class Launch>
auto LaunchGemvOf(Launch&& launch, const Gemm& g) {
  using Kernel = GemvKernel<Stored, Result, kRows, kCols, kDepth>;
  static_assert(Kernel::kSums <= kWarp);
  Kernel kernel{};
  kernel.a = static_cast<const Quad*>(g.a);
  kernel.b = static_cast<const Quad*>(g.b);
  kernel.bias = static_cast<const typename Result::Element*>(g.bias);
  kernel.residual = static_cast<const typename Result::Element*>(g.residual);
  kernel.c = static_cast<typename Result::Element*>(g.c);
  kernel.lda = g.lda / Kernel::kPerQuad;
  kernel.ldb = g.ldb / Kernel::kPerQuad;
  kernel.ldc = g.ldc;
  kernel.ldr = g.ldr;
  kernel.n = g.n;
  kernel.m = static_cast<int32_t>(g.m);
  kernel.quads = static_cast<int32_t>(g.k / Kernel::kPerQuad);
  kernel.activation = g.activation;
  const int warps = WarpsOfGemv(g.n, kCols, kernel.quads);
  Shape shape;
  shape.width = warps * kWarp;
  shape.height = warps >= 4 ? 1 : 4 / warps;
  if (warps > 1) shape.shared_floats = shape.width * shape.height;
  shape.blocks = AtMostBlocks(DivideUp(DivideUp(g.n, kCols), shape.height));
  return launch(shape, kernel);
}

// For what IsGemv() says.
template <class Launch>
auto LaunchGemv(Launch&& launch, const Gemm& g) {
  return ForFloat(g.type, [&]<class Stored>() {
    const auto rows = [&]<class Result>() {
      if (g.m == 1) return LaunchGemvOf<Stored, Result, 1, 1, 4>(launch, g);
      if (g.m == 2) return LaunchGemvOf<Stored, Result, 2, 2, 4>(launch, g);
      if (g.m <= 4) return LaunchGemvOf<Stored, Result, 4, 4, 2>(launch, g);
      return LaunchGemvOf<Stored, Result, 8, 4, 2>(launch, g);
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
    THRESHER_UNROLL
    for (int j = 0; j < kPerQuad; ++j) {
      v[j] = Activate(activation, v[j]);
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
