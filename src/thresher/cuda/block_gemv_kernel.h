// Products with weights in blocks of a few bits (kernels/block_format.h), read as they are stored: of few rows by a
// kernel that unpacks them on the way, and for others the kernel that writes them as floats.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "thresher/base/encoding.h"
#include "thresher/cuda/blocks.h"
#include "thresher/cuda/gemm_layout.h"
#include "thresher/cuda/gemv_kernel.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

// ---- The product of few rows ----

// As GemvKernel, but that a thread takes a block at a time.
template <class Block, class Stored, int kRows, int kCols>
struct BlockGemvKernel {
  static constexpr int kMostThreads = kGemvWarps * kWarp;
  static constexpr int kPerQuad = 16 / static_cast<int>(sizeof(typename Stored::Element));
  static constexpr int kSums = kRows * kCols;

  GemvTail<Stored> tail;
  const Quad* a;
  const uint8_t* b;
  int64_t lda;     // in quads
  int32_t blocks;  // of a row

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    tail.template ForEachGroup<kRows, kCols>(t, [&](int64_t col, float* sums) { Multiply(t, col, sums); });
  }

  template <class T>
  THRESHER_DEVICE void Multiply(T& t, int64_t col, float* sums) const {
    const uint8_t* rows[kCols];
    THRESHER_UNROLL
    for (int o = 0; o < kCols; ++o) rows[o] = b + (col + o < tail.n ? col + o : tail.n - 1) * blocks * Block::kBytes;
    for (int q = t.x(); q < blocks; q += t.width()) {
      Block block[kCols];
      THRESHER_UNROLL
      for (int o = 0; o < kCols; ++o) block[o].Load(rows[o] + int64_t{q} * Block::kBytes);
      float parts[kSums], totals[kRows];
      THRESHER_UNROLL
      for (int i = 0; i < kSums; ++i) parts[i] = 0.0f;
      THRESHER_UNROLL
      for (int r = 0; r < kRows; ++r) totals[r] = 0.0f;
      THRESHER_UNROLL
      for (int p = 0; p < kBlockNumbers / kPieceNumbers; ++p) {
        float w[kCols][kPieceNumbers];
        THRESHER_UNROLL
        for (int o = 0; o < kCols; ++o) block[o].Piece(p, w[o]);
        THRESHER_UNROLL
        for (int r = 0; r < kRows; ++r) {
          if (r >= tail.m) break;
          float x[kPieceNumbers];
          const Quad* const from = a + r * lda + (int64_t{q} * kBlockNumbers + p * kPieceNumbers) / kPerQuad;
          THRESHER_UNROLL
          for (int i = 0; i < kPieceNumbers / kPerQuad; ++i) WidenQuad<Stored>(from[i], x + i * kPerQuad);
          THRESHER_UNROLL
          for (int i = 0; i < kPieceNumbers; ++i) {
            if constexpr (Block::kHasOffset) totals[r] += x[i];
            THRESHER_UNROLL
            for (int o = 0; o < kCols; ++o) parts[r * kCols + o] += w[o][i] * x[i];
          }
        }
      }
      THRESHER_UNROLL
      for (int o = 0; o < kCols; ++o) {
        const float scale = BlockScale(block[o]), offset = block[o].Offset();
        THRESHER_UNROLL
        for (int r = 0; r < kRows; ++r) {
          float& sum = sums[r * kCols + o];
          sum += scale * parts[r * kCols + o];
          if constexpr (Block::kHasOffset) sum += offset * totals[r];
        }
      }
    }
  }
};

// Whether the kernel above computes it.
inline bool IsBlockGemv(const Gemm& g) {
  const auto element = static_cast<int64_t>(SizeOf(g.type));
  return HasBlocks(g.encoding) && g.m <= kMostGemvRows && g.c_type == g.type && g.k <= int64_t{1} << 30 &&
         reinterpret_cast<uintptr_t>(g.a) % sizeof(Quad) == 0 && (g.m == 1 || g.lda * element % int64_t{16} == 0);
}

template <class Block, class Stored, int kRows, int kCols, class Launch>
auto LaunchBlockGemvOf(Launch&& launch, const Gemm& g) {
  using Kernel = BlockGemvKernel<Block, Stored, kRows, kCols>;
  Kernel kernel{};
  kernel.tail = TailOf<Stored>(g);
  kernel.a = static_cast<const Quad*>(g.a);
  kernel.b = static_cast<const uint8_t*>(g.b);
  kernel.lda = g.lda / Kernel::kPerQuad;
  kernel.blocks = static_cast<int32_t>(g.k / kBlockNumbers);
  return launch(ShapeOfGemv(g.n, kCols, kernel.blocks, kWarp), kernel);
}

// For what IsBlockGemv() says.
template <class Launch>
auto LaunchBlockGemv(Launch&& launch, const Gemm& g) {
  return ForBlocks(g.encoding, [&]<class Block>() {
    return ForFloat(g.type, [&]<class Stored>() {
      if (g.m == 1) return LaunchBlockGemvOf<Block, Stored, 1, 4>(launch, g);
      if (g.m <= 4) return LaunchBlockGemvOf<Block, Stored, 4, 4>(launch, g);
      return LaunchBlockGemvOf<Block, Stored, 8, 2>(launch, g);
    });
  });
}

// ---- Blocks as floats ----

template <class Block, class Stored>
struct UnpackKernel {
  static constexpr int kMostThreads = 256;

  const uint8_t* blocks;
  typename Stored::Element* to;
  int64_t count;  // of blocks

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t step = t.num_blocks() * t.width();
    for (int64_t i = t.block() * t.width() + t.x(); i < count; i += step) {
      Block block;
      block.Load(blocks + i * Block::kBytes);
      const float scale = BlockScale(block), offset = block.Offset();
      THRESHER_UNROLL
      for (int p = 0; p < kBlockNumbers / kPieceNumbers; ++p) {
        float w[kPieceNumbers];
        block.Piece(p, w);
        alignas(16) typename Stored::Element out[kPieceNumbers];
        THRESHER_UNROLL
        for (int j = 0; j < kPieceNumbers; ++j) out[j] = Stored::Round(scale * w[j] + offset);
        memcpy(to + i * kBlockNumbers + p * kPieceNumbers, out, sizeof out);
      }
    }
  }
};

// `numbers` numbers, whole blocks, as elements of `dtype` at `to`, which is a multiple of 16.
template <class Launch>
auto LaunchUnpack(Launch&& launch, Encoding encoding, const void* blocks, int64_t numbers, DType dtype, void* to) {
  return ForBlocks(encoding, [&]<class Block>() {
    return ForFloat(dtype, [&]<class Stored>() {
      const UnpackKernel<Block, Stored> kernel{static_cast<const uint8_t*>(blocks),
                                               static_cast<typename Stored::Element*>(to), numbers / kBlockNumbers};
      Shape shape;
      shape.width = UnpackKernel<Block, Stored>::kMostThreads;
      shape.blocks = AtMostBlocks(DivideUp(kernel.count, shape.width));
      return launch(shape, kernel);
    });
  });
}

// What a product of more rows unpacks at a time, so that its memory is bounded: so many rows of weights.
inline constexpr int64_t kUnpackedBytes = int64_t{64} << 20;

inline int64_t UnpackedRows(const kernels::StoredProductParams& p, DType type) {
  const int64_t row = p.k * static_cast<int64_t>(SizeOf(type));
  return std::min(p.n, std::max<int64_t>(kUnpackedBytes / row / 8 * 8, 8));
}

inline size_t UnpackedBytes(const kernels::StoredProductParams& p, DType type) {
  if (!IsBlocked(p.encoding)) return 0;
  return static_cast<size_t>(UnpackedRows(p, type) * p.k) * SizeOf(type);
}

// run(part), one after the other, of a product with weights in blocks: each with some of its columns and weights that
// unpack(blocks, numbers) has written to `memory` as floats. `failed` tells what run and unpack give.
template <class Result, class Unpack, class Run, class Failed>
Result ForUnpacked(const Gemm& g, void* memory, Unpack&& unpack, Run&& run, Failed&& failed) {
  const int64_t rows = UnpackedRows(g, g.type);
  const auto c_size = static_cast<int64_t>(SizeOf(g.c_type));
  Result result{};
  for (int64_t first = 0; first < g.n; first += rows) {
    Gemm part = g;
    part.n = std::min(rows, g.n - first);
    part.encoding = *EncodingOf(g.type);
    part.b = memory;
    const auto at = [](const void* data, int64_t bytes) {
      return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
    };
    part.bias = at(g.bias, first * c_size);
    part.residual = at(g.residual, first * c_size);
    part.c = static_cast<std::byte*>(g.c) + first * c_size;
    result = unpack(at(g.b, EncodedBytes(g.encoding, first * g.k)), part.n * g.k);
    if (!failed(result)) result = run(part);
    if (failed(result)) return result;
  }
  return result;
}

}  // namespace thresher::cuda
