// How rows are shared out among threads, by their length: short ones go to a warp each, longer ones to a block each,
// and both hold their row in registers; the longest are read again for each pass, by then from the cache.
#pragma once

#include <cstdint>

#include "thresher/cuda/elements.h"
#include "thresher/cuda/reduce.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

inline constexpr int kRowsPerBlock = 4;          // where a warp has a row
inline constexpr int64_t kLongestWarpRow = 512;  // 16 elements a thread
inline constexpr int64_t kLongestHeldRow = 16 * kMaxThreads;

template <bool kOneWarp>
inline constexpr int kMostRowThreads = kOneWarp ? kWarp * kRowsPerBlock : kMaxThreads;

constexpr int64_t AtMostBlocks(int64_t blocks) { return blocks < kMaxBlocks ? blocks : kMaxBlocks; }

struct RowShape {
  Shape shape;
  bool one_warp = false;
  int items = 0;  // elements that a thread holds; 0: the row is not held
};

inline RowShape ShapeOfRows(int64_t rows, int64_t cols) {
  RowShape out;
  if (cols <= kLongestWarpRow) {
    out.one_warp = true;
    out.items = 1;
    while (int64_t{out.items} * kWarp < cols) out.items *= 2;
    out.shape.height = kRowsPerBlock;
    out.shape.blocks = AtMostBlocks(DivideUp(rows, kRowsPerBlock));
    return out;
  }
  out.shape.blocks = AtMostBlocks(rows);
  out.shape.shared_floats = kReduceFloats;
  if (cols > kLongestHeldRow) {
    out.shape.width = kMaxThreads;
    return out;
  }
  // Four elements a thread until the block is full.
  out.shape.width = static_cast<int>(DivideUp(DivideUp(cols, 4), kWarp) * kWarp);
  if (out.shape.width > kMaxThreads) out.shape.width = kMaxThreads;
  out.items = 4;
  while (int64_t{out.items} * out.shape.width < cols) out.items *= 2;
  return out;
}

// launch(shape, Kernel<one_warp, items>{args...}) with the variant that fits the rows. `rows` and `cols` > 0.
template <template <bool, int> class Kernel, class Launch, class... Args>
auto LaunchRows(Launch&& launch, int64_t rows, int64_t cols, const Args&... args) {
  const RowShape row = ShapeOfRows(rows, cols);
  if (row.one_warp) {
    switch (row.items) {
      case 1:
        return launch(row.shape, Kernel<true, 1>{args...});
      case 2:
        return launch(row.shape, Kernel<true, 2>{args...});
      case 4:
        return launch(row.shape, Kernel<true, 4>{args...});
      case 8:
        return launch(row.shape, Kernel<true, 8>{args...});
      default:
        return launch(row.shape, Kernel<true, 16>{args...});
    }
  }
  switch (row.items) {
    case 0:
      return launch(row.shape, Kernel<false, 0>{args...});
    case 4:
      return launch(row.shape, Kernel<false, 4>{args...});
    case 8:
      return launch(row.shape, Kernel<false, 8>{args...});
    default:
      return launch(row.shape, Kernel<false, 16>{args...});
  }
}

// Calls body(row) for each row of the thread. All threads that share a row make the same calls.
template <bool kOneWarp, class T, class Body>
THRESHER_DEVICE void ForEachRow(T& t, int64_t rows, Body body) {
  const int64_t height = kOneWarp ? t.height() : 1;
  for (int64_t row = t.block() * height + (kOneWarp ? t.y() : 0); row < rows; row += t.num_blocks() * height) body(row);
}

}  // namespace thresher::cuda
