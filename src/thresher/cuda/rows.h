// How rows are shared out among threads, by their length: short ones go to a warp each, longer ones to a block each,
// and both hold their row in registers; the longest are read again for each pass, by then from the cache. A thread
// reads 16 bytes at a time where rows begin at multiples of that, else single elements.
#pragma once

#include <cstdint>

#include "thresher/base/dtype.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/reduce.h"
#include "thresher/cuda/stored.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

inline constexpr int kRowsPerBlock = 4;           // where a warp has a row
inline constexpr int64_t kLongestWarpRow = 1024;  // 32 elements a thread
inline constexpr int kHeldThreads = 512;          // of blocks that hold their row
inline constexpr int64_t kLongestHeldRow = 64 * kHeldThreads;

constexpr int64_t AtMostBlocks(int64_t blocks) { return blocks < kMaxBlocks ? blocks : kMaxBlocks; }

// How the threads of a row read it.
//   kBytes     of an element: 4 (f32) or 2 (bf16, f16)
//   kLength    elements that are read at a time: 16 bytes of them, or 1
//   kOneWarp   whether a warp has a row, else a block
//   kPieces    of kLength elements, that a thread holds; 0: the row is not held
template <int bytes, int length, bool one_warp, int pieces>
struct RowOf {
  static constexpr int kBytes = bytes;
  static constexpr int kLength = length;
  static constexpr bool kOneWarp = one_warp;
  static constexpr int kPieces = pieces;
  static constexpr int kWords = length == 1 ? 1 : 4;  // of a piece as it lies in memory
  static constexpr int kMostThreads = one_warp               ? kWarp * kRowsPerBlock
                                      : pieces == 0          ? kMaxThreads
                                      : pieces * length > 32 ? kHeldThreads
                                                             : kHeldThreads / 2;

  // 80 registers a thread where it holds up to 32 elements, 128 where it holds more or finds each by itself.
  static constexpr int kLeastBlocks =
      pieces == 0 || pieces * length > 32 ? 1 : (length == 1 ? 512 : 768) / kMostThreads;

  // Piece `piece` of a row that begins at `row`.
  THRESHER_DEVICE static void Load(const void* row, int64_t piece, uint32_t* raw) {
    if constexpr (kLength > 1) {
      LoadWords<4>(row, piece, raw);
    } else if constexpr (kBytes == 4) {
      raw[0] = static_cast<const uint32_t*>(row)[piece];
    } else {
      raw[0] = static_cast<const uint16_t*>(row)[piece];
    }
  }

  THRESHER_DEVICE static void Widen(DType dtype, const uint32_t* raw, float* to) {
    if constexpr (kBytes == 4) {
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) to[i] = FloatOf(raw[i]);
    } else if (dtype == DType::kBF16) {
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) to[i] = FloatOfBF16(raw[i / 2] >> (i % 2 * 16) & 0xffffu);
    } else {
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) to[i] = FloatOfF16(raw[i / 2] >> (i % 2 * 16) & 0xffffu);
    }
  }

  THRESHER_DEVICE static void Store(DType dtype, const float* from, void* row, int64_t piece) {
    if constexpr (kBytes == 4) {
      uint32_t words[kLength];
      THRESHER_UNROLL
      for (int i = 0; i < kLength; ++i) words[i] = BitsOf(from[i]);
      StoreWords<kLength>(words, row, piece);
    } else if constexpr (kLength == 1) {
      const uint32_t bits = dtype == DType::kBF16 ? BF16Pair(from[0], 0.0f) : F16Pair(from[0], 0.0f);
      static_cast<uint16_t*>(row)[piece] = static_cast<uint16_t>(bits);
    } else {
      uint32_t words[kLength / 2];
      if (dtype == DType::kBF16) {
        THRESHER_UNROLL
        for (int i = 0; i < kLength / 2; ++i) words[i] = BF16Pair(from[2 * i], from[2 * i + 1]);
      } else {
        THRESHER_UNROLL
        for (int i = 0; i < kLength / 2; ++i) words[i] = F16Pair(from[2 * i], from[2 * i + 1]);
      }
      StoreWords<kLength / 2>(words, row, piece);
    }
  }

  // Where row number `row` begins, in a matrix whose rows lie `stride` elements apart.
  THRESHER_DEVICE static const void* At(const void* matrix, int64_t row, int64_t stride) {
    return static_cast<const uint8_t*>(matrix) + row * stride * kBytes;
  }
  THRESHER_DEVICE static void* At(void* matrix, int64_t row, int64_t stride) {
    return static_cast<uint8_t*>(matrix) + row * stride * kBytes;
  }
};

// launch(shape, Kernel<RowOf<...>>{args...}) with the variant that fits rows of `cols` elements of `bytes` each.
// `aligned`: all rows begin at multiples of 16 bytes. `rows` and `cols` > 0.
template <template <class> class Kernel, class Launch, class... Args>
auto LaunchRows(Launch&& launch, int64_t rows, int64_t cols, int bytes, bool aligned, const Args&... args) {
  const auto start = [&]<class Row>(Row) {
    Shape shape;
    if (Row::kOneWarp) {
      shape.height = kRowsPerBlock;
      shape.blocks = AtMostBlocks(DivideUp(rows, kRowsPerBlock));
    } else {
      shape.blocks = AtMostBlocks(rows);
      shape.shared_floats = kReduceFloats;
      // As many threads as have a piece each time.
      const int64_t pieces = DivideUp(cols, Row::kLength * (Row::kPieces == 0 ? 1 : Row::kPieces));
      shape.width = static_cast<int>(DivideUp(pieces, kWarp) * kWarp);
      if (Row::kPieces == 0 || shape.width > Row::kMostThreads) shape.width = Row::kMostThreads;
    }
    return launch(shape, Kernel<Row>{args...});
  };
  const auto held = [&]<int size, int length>() {
    constexpr int most = 32 / length;  // pieces of a warp's row
    if (cols <= kWarp * length) return start(RowOf<size, length, true, 1>{});
    if (cols <= kLongestWarpRow / 4) return start(RowOf<size, length, true, most / 4>{});
    if (cols <= kLongestWarpRow / 2) return start(RowOf<size, length, true, most / 2>{});
    if (cols <= kLongestWarpRow) return start(RowOf<size, length, true, most>{});
    if (cols <= kHeldThreads / 2 * 16) return start(RowOf<size, length, false, most / 2>{});
    if (cols <= kHeldThreads / 2 * 32) return start(RowOf<size, length, false, most>{});
    if (cols <= kLongestHeldRow) return start(RowOf<size, length, false, 2 * most>{});
    return start(RowOf<size, length, false, 0>{});
  };
  const auto single = [&]<int size>() {
    if (cols <= 4 * kWarp) return start(RowOf<size, 1, true, 4>{});
    if (cols <= kLongestWarpRow) return start(RowOf<size, 1, true, 32>{});
    if (cols <= kHeldThreads / 2 * 32) return start(RowOf<size, 1, false, 32>{});
    return start(RowOf<size, 1, false, 0>{});
  };
  const bool whole = aligned && cols * bytes % 16 == 0;
  if (bytes == 4) return whole ? held.template operator()<4, 4>() : single.template operator()<4>();
  return whole ? held.template operator()<2, 8>() : single.template operator()<2>();
}

// Whether a pointer that is read in pieces of 16 bytes allows it; an absent one does.
inline bool IsAligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

// Calls body(row) for each row of the thread. All threads that share a row make the same calls.
template <bool kOneWarp, class T, class Body>
THRESHER_DEVICE void ForEachRow(T& t, int64_t rows, Body body) {
  const int64_t height = kOneWarp ? t.height() : 1;
  for (int64_t row = t.block() * height + (kOneWarp ? t.y() : 0); row < rows; row += t.num_blocks() * height) body(row);
}

}  // namespace thresher::cuda
