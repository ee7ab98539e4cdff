// What reads or writes where integers say: embedding, gather, index, index_put.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "thresher/cuda/blocks.h"
#include "thresher/cuda/call.h"
#include "thresher/cuda/copy_kernel.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/fault.h"
#include "thresher/cuda/reduce.h"
#include "thresher/cuda/rows.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

inline constexpr int kIndexWidth = 256;
inline constexpr int kIndexItems = 4;  // units that a thread has on their way

// Index tensors of one shape, and where in an operand the elements begin that they name.
struct Indices {
  Elements<kMaxRank> elements;
  struct Tensor {
    const void* data;
    int64_t size;    // of the dimension that it indexes
    int64_t stride;  // of that dimension, in whatever the operand is counted in
    DType dtype;
  } tensors[kMaxRank];
  int32_t count;
  bool negative;  // whether an index below 0 counts from the end
  KernelId kernel;
  Fault* fault;

  THRESHER_DEVICE int64_t IndexAt(int tensor, int64_t position) const {
    const int64_t at = elements.OffsetOf(position, tensor);
    const void* data = tensors[tensor].data;
    return tensors[tensor].dtype == DType::kI64 ? static_cast<const int64_t*>(data)[at]
                                                : static_cast<const int32_t*>(data)[at];
  }

  // Where what the indices at `position` name begins; -1, and a fault, where that is nowhere.
  template <class T>
  THRESHER_DEVICE int64_t Begin(T& t, int64_t position) const {
    int64_t begin = 0;
    for (int i = 0; i < count; ++i) {
      const int64_t index = IndexAt(i, position);
      const int64_t size = tensors[i].size;
      const int64_t least = negative ? -size : 0;
      if (index < least || index >= size) {
        Raise(t, fault, kernel, negative ? i : -1, position, index, least, size);
        return -1;
      }
      begin += (index < 0 ? index + size : index) * tensors[i].stride;
    }
    return begin;
  }
};

// `views`: `count` of one shape, which is not empty. The dimensions of `operand` that they index are its first ones.
inline Indices IndicesOf(const Call& call, const View* views, int count, const View& operand, int64_t units) {
  Indices made{};
  kernels::Loop<kMaxRank> loop;
  for (int d = 0; d < views[0].rank; ++d) {
    int64_t strides[kMaxRank] = {};
    for (int i = 0; i < count; ++i) strides[i] = views[i].strides[d];
    loop.Push(views[0].shape[d], strides);
  }
  loop.Collapse();
  made.elements = ElementsOf(loop, count);
  for (int i = 0; i < count; ++i) {
    made.tensors[i] = {views[i].data, operand.shape[i], operand.strides[i] / units, views[i].dtype};
  }
  made.count = count;
  made.negative = call.kernel() == KernelId::kIndex || call.kernel() == KernelId::kIndexPut;
  made.kernel = call.kernel();
  made.fault = call.fault;
  return made;
}

// The rows that indices name, one behind the other: embedding and index. What is wrong becomes zeros.
template <int kBytes>
struct RowsKernel {
  using Unit = typename UnitOf<kBytes>::Type;
  static constexpr int kMostThreads = kIndexWidth;
  Indices indices;
  Elements<1> row;  // of x, in units
  const void* x;
  void* out;
  int64_t size;  // of out, in units

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t tile = int64_t{t.width()} * kIndexItems;
    for (int64_t base = t.block() * tile + t.x(); base < size; base += t.num_blocks() * tile) {
      Unit units[kIndexItems];
      THRESHER_UNROLL
      for (int i = 0; i < kIndexItems; ++i) {
        const int64_t at = base + int64_t{i} * t.width();
        if (at >= size) continue;
        const int64_t position = row.size <= INT32_MAX && at <= INT32_MAX
                                     ? static_cast<int64_t>(static_cast<uint32_t>(at) / static_cast<uint32_t>(row.size))
                                     : at / row.size;
        const int64_t begin = indices.Begin(t, position);
        units[i] = Unit{};
        if (begin < 0) continue;
        units[i] = static_cast<const Unit*>(x)[begin + row.OffsetOf(at - position * row.size, 0)];
      }
      THRESHER_UNROLL
      for (int i = 0; i < kIndexItems; ++i) {
        const int64_t at = base + int64_t{i} * t.width();
        if (at < size) static_cast<Unit*>(out)[at] = units[i];
      }
    }
  }
};

// The same rows of a table in blocks, as f32. A thread has a block of a row.
template <class Block>
struct BlockRowsKernel {
  static constexpr int kMostThreads = kIndexWidth;
  Indices indices;
  const uint8_t* table;
  float* out;
  int64_t row_blocks;  // of a row
  int64_t count;       // of all rows

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    for (int64_t at = t.block() * t.width() + t.x(); at < count; at += t.num_blocks() * t.width()) {
      const int64_t position = at / row_blocks;
      const int64_t begin = indices.Begin(t, position);
      float numbers[kBlockNumbers];
      if (begin < 0) {
        THRESHER_UNROLL
        for (int i = 0; i < kBlockNumbers; ++i) numbers[i] = 0.0f;
      } else {
        Block block;
        block.Load(table + (begin + at - position * row_blocks) * Block::kBytes);
        const float scale = BlockScale(block), offset = block.Offset();
        THRESHER_UNROLL
        for (int p = 0; p < kBlockNumbers / kPieceNumbers; ++p) {
          block.Piece(p, numbers + p * kPieceNumbers);
          THRESHER_UNROLL
          for (int i = 0; i < kPieceNumbers; ++i) {
            numbers[p * kPieceNumbers + i] = scale * numbers[p * kPieceNumbers + i] + offset;
          }
        }
      }
      THRESHER_UNROLL
      for (int i = 0; i < kBlockNumbers; ++i) out[at * kBlockNumbers + i] = numbers[i];
    }
  }
};

template <int kBytes>
struct GatherKernel {
  using Unit = typename UnitOf<kBytes>::Type;
  static constexpr int kMostThreads = kIndexWidth;
  Indices indices;  // `stride` is that of the dimension; the elements that an index is added to are in `outside`
  Elements<1> outside;
  const void* x;
  void* out;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    for (int64_t at = t.block() * t.width() + t.x(); at < outside.size; at += t.num_blocks() * t.width()) {
      const int64_t begin = indices.Begin(t, at);
      static_cast<Unit*>(out)[at] = begin < 0 ? Unit{} : static_cast<const Unit*>(x)[begin + outside.OffsetOf(at, 0)];
    }
  }
};

// Writes, or adds, the rows of `values` to those of out that indices name. A block has an index: where values are
// written, the last one that names a row, where they are added, the first one, which adds those of all that follow, in
// order. Element: what lies in memory, or what is added.
template <class Element, bool kAdd>
struct IndexPutKernel {
  static constexpr int kMostThreads = kIndexWidth;
  Indices indices;
  Elements<1> heads;  // where each row of values begins
  Elements<1> row;    // of values
  const Element* values;
  Element* out;  // row-major

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t count = heads.size;
    for (int64_t position = t.block(); position < count; position += t.num_blocks()) {
      const int64_t begin = indices.Begin(t, position);
      if (begin < 0) continue;  // the whole block
      float other = 0.0f;
      const int64_t first = kAdd ? 0 : position + 1, last = kAdd ? position : count;
      for (int64_t i = first + t.x(); i < last; i += t.width()) {
        if (indices.Begin(t, i) == begin) other = 1.0f;
      }
      if (ReduceRow<false, Max>(t, other) != 0.0f) continue;
      Put(t, position, begin);
      if constexpr (kAdd) {
        for (int64_t i = position + 1; i < count; ++i) {
          if (indices.Begin(t, i) == begin) Put(t, i, begin);
        }
      }
    }
  }

 private:
  // A thread has the same elements of the row each time.
  template <class T>
  THRESHER_DEVICE void Put(T& t, int64_t position, int64_t begin) const {
    const Element* from = values + heads.OffsetOf(position, 0);
    for (int64_t i = t.x(); i < row.size; i += t.width()) {
      const Element value = from[row.OffsetOf(i, 0)];
      if constexpr (kAdd) {
        out[begin + i] = out[begin + i] + value;
      } else {
        out[begin + i] = value;
      }
    }
  }
};

// The dimensions of a view from `first` to `last`, without that one.
inline kernels::Loop<1> LoopOfDimensions(const View& view, int first, int last) {
  kernels::Loop<1> loop;
  for (int d = first; d < last; ++d) loop.Push(view.shape[d], &view.strides[d]);
  loop.Collapse();
  return loop;
}

// Into how many elements, at most 16 bytes, the rows of x from dimension `first` on can be cut.
inline int64_t UnitElements(const View& x, int first, const View& out, kernels::Loop<1>& row) {
  const auto size = static_cast<int64_t>(SizeOf(x.dtype));
  for (int64_t count = 16 / size; count > 1; count /= 2) {
    const auto bytes = static_cast<uint64_t>(count * size);
    bool whole = row.inner() % count == 0 && row.inner_stride(0) == 1 &&
                 reinterpret_cast<uintptr_t>(x.data) % bytes == 0 && reinterpret_cast<uintptr_t>(out.data) % bytes == 0;
    for (int d = 0; d < first; ++d) whole = whole && x.strides[d] % count == 0;
    for (int d = 0; d + 1 < row.rank; ++d) whole = whole && row.strides[0][d] % count == 0;
    if (!whole) continue;
    row.shape[row.rank - 1] /= count;
    for (int d = 0; d + 1 < row.rank; ++d) row.strides[0][d] /= count;
    return count;
  }
  return 1;
}

// The first `count` dimensions of x, indexed by `indices`. out is row-major and not empty.
template <class Launch>
auto LaunchRowsOf(Launch&& launch, const Call& call, const View& x, const View* indices, int count, const View& out) {
  kernels::Loop<1> row = LoopOfDimensions(x, count, x.rank);
  const int64_t units = UnitElements(x, count, out, row);
  const auto start = [&](auto kernel) {
    kernel.indices = IndicesOf(call, indices, count, x, units);
    kernel.row = ElementsOf(row);
    kernel.x = x.data;
    kernel.out = out.data;
    kernel.size = out.size() / units;
    Shape shape;
    shape.width = kIndexWidth;
    shape.blocks = AtMostBlocks(DivideUp(kernel.size, int64_t{kIndexWidth} * kIndexItems));
    return launch(shape, kernel);
  };
  switch (units * static_cast<int64_t>(SizeOf(x.dtype))) {
    case 16:
      return start(RowsKernel<16>{});
    case 8:
      return start(RowsKernel<8>{});
    case 4:
      return start(RowsKernel<4>{});
    case 2:
      return start(RowsKernel<2>{});
    default:
      return start(RowsKernel<1>{});
  }
}

// `table`: [rows, width] in blocks, row after row. out is f32, row-major and not empty.
template <class Launch>
auto LaunchBlockRows(Launch&& launch, const Call& call, Encoding encoding, const View& table, const View& indices,
                     const View& out) {
  return ForBlocks(encoding, [&]<class Block>() {
    BlockRowsKernel<Block> kernel{};
    kernel.indices = IndicesOf(call, &indices, 1, table, kBlockNumbers);
    kernel.table = table.as<const uint8_t>();
    kernel.out = out.as<float>();
    kernel.row_blocks = table.shape[1] / kBlockNumbers;
    kernel.count = out.size() / kBlockNumbers;
    Shape shape;
    shape.width = kIndexWidth;
    shape.blocks = AtMostBlocks(DivideUp(kernel.count, kIndexWidth));
    return launch(shape, kernel);
  });
}

template <class Launch>
auto LaunchGather(Launch&& launch, const Call& call, const View& x, int dim, const View& indices, const View& out) {
  View whole = x;
  if (x.rank == 0) whole.shape[0] = whole.strides[0] = 1;  // counts as one of shape [1]
  kernels::Loop<1> outside;
  for (int d = 0; d < indices.rank; ++d) {
    const int64_t stride = d == dim ? 0 : x.strides[d];
    outside.Push(indices.shape[d], &stride);
  }
  outside.Collapse();
  const auto start = [&](auto kernel) {
    View along = whole;
    along.shape[0] = whole.shape[dim];
    along.strides[0] = whole.strides[dim];
    kernel.indices = IndicesOf(call, &indices, 1, along, 1);
    kernel.outside = ElementsOf(outside);
    kernel.x = x.data;
    kernel.out = out.data;
    Shape shape;
    shape.width = kIndexWidth;
    shape.blocks = AtMostBlocks(DivideUp(out.size(), kIndexWidth));
    return launch(shape, kernel);
  };
  switch (SizeOf(x.dtype)) {
    case 8:
      return start(GatherKernel<8>{});
    case 4:
      return start(GatherKernel<4>{});
    case 2:
      return start(GatherKernel<2>{});
    default:
      return start(GatherKernel<1>{});
  }
}

// out is row-major and not empty, as indices and values are.
template <class Launch>
auto LaunchIndexPut(Launch&& launch, const Call& call, const View& values, const View* indices, int count,
                    bool accumulate, const View& out) {
  const auto start = [&]<class Element, bool add>(IndexPutKernel<Element, add> kernel) {
    kernel.indices = IndicesOf(call, indices, count, out, 1);
    kernel.heads = ElementsOf(LoopOfDimensions(values, 0, indices[0].rank));
    kernel.row = ElementsOf(LoopOfDimensions(values, indices[0].rank, values.rank));
    kernel.values = values.as<const Element>();
    kernel.out = out.as<Element>();
    Shape shape;
    // As many threads as the longer of the two has work for: a row, or looking through the other indices.
    const int64_t work = std::max(kernel.row.size, kernel.heads.size);
    shape.width = static_cast<int>(std::min<int64_t>(DivideUp(work, kWarp) * kWarp, kIndexWidth));
    shape.blocks = AtMostBlocks(kernel.heads.size);
    shape.shared_floats = kReduceFloats;
    return launch(shape, kernel);
  };
  if (accumulate) {
    if (out.dtype == DType::kF32) return start(IndexPutKernel<float, true>{});
    // Sums wrap around.
    return out.dtype == DType::kI64 ? start(IndexPutKernel<uint64_t, true>{}) : start(IndexPutKernel<uint32_t, true>{});
  }
  switch (SizeOf(out.dtype)) {
    case 8:
      return start(IndexPutKernel<uint64_t, false>{});
    case 4:
      return start(IndexPutKernel<uint32_t, false>{});
    case 2:
      return start(IndexPutKernel<uint16_t, false>{});
    default:
      return start(IndexPutKernel<uint8_t, false>{});
  }
}

struct IndexFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kEmbedding, KernelId::kGather, KernelId::kIndex,
                                          KernelId::kIndexPut};

  static Verdict Check(const Call& call) {
    switch (call.kernel()) {
      case KernelId::kEmbedding: {
        Verdict verdict = Fits(call, sizeof(kernels::EmbeddingParams), 3);
        if (!verdict.ok()) return verdict;
        const Encoding blocks = call.as<kernels::EmbeddingParams>().blocks;
        if (!IsBlocked(blocks) || (HasBlocks(blocks) && call.last().dtype == DType::kF32)) return verdict;
        return Unsupported(
            "embedding: expected a table whose numbers lie one by one, or in q8_0, q4_0 or q4_1 and a result of f32, "
            "on this device, got " +
            std::string(Name(blocks)) + " and " + std::string(Name(call.last().dtype)));
      }
      case KernelId::kGather:
        return Fits(call, sizeof(kernels::GatherParams), 3);
      case KernelId::kIndex:
        return Fits(call, sizeof(NoParams), std::clamp(call.num_views, 3, kMaxRank + 2));
      default:
        break;
    }
    Verdict verdict = Fits(call, sizeof(kernels::IndexPutParams), std::clamp(call.num_views, 3, kMaxRank + 2));
    if (!verdict.ok() || !call.as<kernels::IndexPutParams>().accumulate || !IsHalf(call.last().dtype)) return verdict;
    return Unsupported("index_put: expected f32, i64 or i32 where values are added on this device, got " +
                       std::string(Name(call.last().dtype)));
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    const View *first = call.views, *rest = call.views + 1;
    const View& out = call.last();
    if (out.size() == 0 || rest[0].size() == 0) return launch.Nothing();
    switch (call.kernel()) {
      case KernelId::kEmbedding:
        if (const Encoding blocks = call.as<kernels::EmbeddingParams>().blocks; IsBlocked(blocks)) {
          return LaunchBlockRows(launch, call, blocks, *first, *rest, out);
        }
        return LaunchRowsOf(launch, call, *first, rest, 1, out);
      case KernelId::kGather:
        return LaunchGather(launch, call, *first, call.as<kernels::GatherParams>().dim, *rest, out);
      case KernelId::kIndex:
        return LaunchRowsOf(launch, call, *first, rest, call.num_views - 2, out);
      default:
        break;
    }
    if (first->size() == 0) return launch.Nothing();
    return LaunchIndexPut(launch, call, *first, rest, call.num_views - 2, call.as<kernels::IndexPutParams>().accumulate,
                          out);
  }
};

}  // namespace thresher::cuda
