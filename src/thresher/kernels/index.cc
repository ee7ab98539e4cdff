#include "thresher/kernels/index.h"

#include <cstring>
#include <string>
#include <type_traits>

#include "thresher/kernels/block_format.h"
#include "thresher/kernels/iterate.h"

namespace thresher::kernels {
namespace {

// An element of an index tensor.
int64_t IndexAt(const View& indices, int64_t offset) {
  return indices.dtype == DType::kI64 ? indices.as<int64_t>()[offset] : indices.as<int32_t>()[offset];
}

Status Outside(const char* what, int64_t index, const std::string& place, int64_t least, int64_t size) {
  return OutOfRange(std::string(what) + ": index " + std::to_string(index) + " at " + place + " is outside [" +
                    std::to_string(least) + ", " + std::to_string(size) + ")");
}

std::string At(int64_t position) { return "position " + std::to_string(position); }

// The rows that embedding and index move: the same dimensions of every row, contiguous in out.
class RowMover {
 public:
  // The dimensions of x from `first` on.
  RowMover(const View& x, int first, const View& out)
      : element_size_(static_cast<int64_t>(SizeOf(x.dtype))),
        dtype_(x.dtype),
        from_(x.as<uint8_t>()),
        to_(out.as<uint8_t>()) {
    for (int d = first; d < x.rank; ++d) row_.Push(x.shape[d], &x.strides[d]);
    row_.Collapse();
    size_ = row_.size();
    bytes_ = static_cast<size_t>(size_ * element_size_);
  }

  // Moves the row that begins `offset` elements into x to row number `position` of out.
  void Move(int64_t offset, int64_t position) const {
    const uint8_t* const from = from_ + offset * element_size_;
    uint8_t* const to = to_ + position * static_cast<int64_t>(bytes_);
    if (row_.Linear(0)) {
      // A constant size spares single elements the call.
      switch (bytes_) {
        case 4:
          std::memcpy(to, from, 4);
          return;
        case 8:
          std::memcpy(to, from, 8);
          return;
        default:
          std::memcpy(to, from, bytes_);
          return;
      }
    }
    WithElement(dtype_, [&](auto zero) {
      using T = decltype(zero);
      const T* const elements = reinterpret_cast<const T*>(from);
      T* next = reinterpret_cast<T*>(to);
      const int64_t stride = row_.inner_stride(0);
      ForRows(row_, {0, size_}, [&](const int64_t* offsets, int64_t n) {
        for (int64_t i = 0; i < n; ++i) *next++ = elements[offsets[0] + i * stride];
      });
    });
  }

 private:
  Loop<1> row_;
  int64_t size_ = 0;
  size_t bytes_ = 0;
  int64_t element_size_;
  DType dtype_;
  const uint8_t* from_;
  uint8_t* to_;
};

// The stride and size of `dim`, where a tensor of rank 0 counts as one of shape [1].
int64_t SizeAt(const View& x, int dim) { return x.rank == 0 ? 1 : x.shape[dim]; }
int64_t StrideAt(const View& x, int dim) { return x.rank == 0 ? 1 : x.strides[dim]; }

}  // namespace

Status Embedding(const View& table, const View& indices, const View& out, int part, int num_parts) {
  const int64_t size = table.shape[0];
  const Range range = PartRange(indices.size(), part, num_parts);
  if (range.size() == 0) return Status::Ok();
  const RowMover mover(table, 1, out);
  const Loop<1> loop = LoopOver(indices, /*collapse=*/true);
  const int64_t stride = loop.inner_stride(0);
  int64_t position = range.begin;
  int64_t bad_position = -1;
  int64_t bad_index = 0;
  ForRows(loop, range, [&](const int64_t* offsets, int64_t n) {
    for (int64_t i = 0; i < n && bad_position < 0; ++i, ++position) {
      const int64_t index = IndexAt(indices, offsets[0] + i * stride);
      if (index < 0 || index >= size) {
        bad_position = position;
        bad_index = index;
      } else {
        mover.Move(index * table.strides[0], position);
      }
    }
  });
  if (bad_position >= 0) return Outside("embedding", bad_index, At(bad_position), 0, size);
  return Status::Ok();
}

Status EmbeddingOfBlocks(Encoding blocks, const View& table, const View& indices, const View& out, int part,
                         int num_parts) {
  const int64_t size = table.shape[0], width = table.shape[1];
  const int64_t row_bytes = EncodedBytes(blocks, width);
  const int64_t count = indices.size();
  for (int64_t position = count * part / num_parts; position < count * (part + 1) / num_parts; ++position) {
    const int64_t index = IndexAt(indices, OffsetOf(indices, position));
    if (index < 0 || index >= size) return Outside("embedding", index, At(position), 0, size);
    DecodeNumbers(blocks, table.as<const uint8_t>() + index * row_bytes, width, out.as<float>() + position * width);
  }
  return Status::Ok();
}

Status Gather(const View& x, int dim, const View& indices, const View& out, int part, int num_parts) {
  const Range range = PartRange(indices.size(), part, num_parts, kPartGranule);
  if (range.size() == 0) return Status::Ok();
  const int64_t size = SizeAt(x, dim);
  const int64_t step = StrideAt(x, dim);
  Loop<2> loop;  // operand 0: indices; operand 1: x outside `dim`
  for (int d = 0; d < indices.rank; ++d) {
    const int64_t strides[2] = {indices.strides[d], d == dim ? 0 : x.strides[d]};
    loop.Push(indices.shape[d], strides);
  }
  loop.Collapse();
  int64_t position = range.begin;
  int64_t bad_position = -1;
  int64_t bad_index = 0;
  WithElement(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* const from = x.as<T>();
    T* const to = out.as<T>();
    const int64_t index_stride = loop.inner_stride(0);
    const int64_t x_stride = loop.inner_stride(1);
    ForRows(loop, range, [&](const int64_t* offsets, int64_t n) {
      for (int64_t i = 0; i < n && bad_position < 0; ++i, ++position) {
        const int64_t index = IndexAt(indices, offsets[0] + i * index_stride);
        if (index < 0 || index >= size) {
          bad_position = position;
          bad_index = index;
        } else {
          to[position] = from[offsets[1] + i * x_stride + index * step];
        }
      }
    });
  });
  if (bad_position >= 0) return Outside("gather", bad_index, At(bad_position), 0, size);
  return Status::Ok();
}

Status IndexNd(const View& x, const View* indices, int n, const View& out, int part, int num_parts) {
  const Range range = PartRange(indices[0].size(), part, num_parts);
  if (range.size() == 0) return Status::Ok();
  const RowMover mover(x, n, out);
  Loop<kMaxRank> loop;  // one operand an index tensor
  for (int d = 0; d < indices[0].rank; ++d) {
    int64_t strides[kMaxRank] = {};
    for (int t = 0; t < n; ++t) strides[t] = indices[t].strides[d];
    loop.Push(indices[0].shape[d], strides);
  }
  loop.Collapse();
  int64_t position = range.begin;
  int64_t bad_position = -1;
  int64_t bad_index = 0;
  int bad_tensor = 0;
  ForRows(loop, range, [&](const int64_t* offsets, int64_t length) {
    for (int64_t i = 0; i < length && bad_position < 0; ++i, ++position) {
      int64_t offset = 0;
      for (int t = 0; t < n; ++t) {
        const int64_t index = IndexAt(indices[t], offsets[t] + i * loop.inner_stride(t));
        const int64_t size = x.shape[t];
        if (index < -size || index >= size) {
          bad_position = position;
          bad_index = index;
          bad_tensor = t;
          return;
        }
        offset += (index < 0 ? index + size : index) * x.strides[t];
      }
      mover.Move(offset, position);
    }
  });
  if (bad_position >= 0) {
    const int64_t size = x.shape[bad_tensor];
    return Outside("index", bad_index, At(bad_position) + " of index tensor " + std::to_string(bad_tensor), -size,
                   size);
  }
  return Status::Ok();
}

namespace {

// to = or += the elements of a row of `values` that begins at `offset`.
template <class T>
void PutRow(const Loop<1>& row, const T* from, bool accumulate, T* to) {
  const int64_t stride = row.inner_stride(0);
  ForRows(row, {0, row.size()}, [&](const int64_t* offsets, int64_t n) {
    for (int64_t i = 0; i < n; ++i, ++to) {
      const T value = from[offsets[0] + i * stride];
      if constexpr (std::is_same_v<T, bool>) {
        *to = value;
      } else if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        *to = accumulate ? static_cast<T>(static_cast<U>(*to) + static_cast<U>(value)) : value;
      } else {
        *to = accumulate ? *to + value : value;
      }
    }
  });
}

}  // namespace

Status IndexPut(const View* indices, int n, const View& values, bool accumulate, const View& out, int part,
                int num_parts) {
  int64_t rows = 1;
  for (int d = 0; d < n; ++d) rows *= out.shape[d];
  const Range own = PartRange(rows, part, num_parts);
  Loop<1> row;
  for (int d = indices[0].rank; d < values.rank; ++d) row.Push(values.shape[d], &values.strides[d]);
  row.Collapse();
  const int64_t width = row.size();
  View heads = values;  // where each row of values begins
  heads.rank = indices[0].rank;
  for (int64_t i = 0; i < indices[0].size(); ++i) {
    int64_t to = 0;
    for (int t = 0; t < n; ++t) {
      const int64_t index = IndexAt(indices[t], OffsetOf(indices[t], i));
      const int64_t size = out.shape[t];
      if (index < -size || index >= size) {
        return Outside("index_put", index, At(i) + " of index tensor " + std::to_string(t), -size, size);
      }
      to = to * size + (index < 0 ? index + size : index);
    }
    if (to < own.begin || to >= own.end) continue;
    WithType(out.dtype, [&](auto zero) {
      using T = decltype(zero);
      PutRow(row, values.as<const T>() + OffsetOf(heads, i), accumulate, out.as<T>() + to * width);
    });
  }
  return Status::Ok();
}

namespace {

void MoveElement(const View& from, int64_t offset, const View& to, int64_t index) {
  const size_t size = SizeOf(from.dtype);
  std::memcpy(to.as<uint8_t>() + static_cast<size_t>(index) * size,
              from.as<uint8_t>() + offset * static_cast<int64_t>(size), size);
}

}  // namespace

Status EmbeddingReference(const View& table, const View& indices, const View& out) {
  const int64_t width = table.shape[1];
  for (int64_t i = 0; i < indices.size(); ++i) {
    const int64_t index = IndexAt(indices, OffsetOf(indices, i));
    if (index < 0 || index >= table.shape[0]) return Outside("embedding", index, At(i), 0, table.shape[0]);
    for (int64_t c = 0; c < width; ++c) {
      MoveElement(table, index * table.strides[0] + c * table.strides[1], out, i * width + c);
    }
  }
  return Status::Ok();
}

Status GatherReference(const View& x, int dim, const View& indices, const View& out) {
  for (int64_t i = 0; i < indices.size(); ++i) {
    const int64_t index = IndexAt(indices, OffsetOf(indices, i));
    if (index < 0 || index >= SizeAt(x, dim)) return Outside("gather", index, At(i), 0, SizeAt(x, dim));
    int64_t offset = index * StrideAt(x, dim);
    int64_t rest = i;
    for (int d = indices.rank - 1; d >= 0; --d) {
      if (d != dim) offset += rest % indices.shape[d] * x.strides[d];
      rest /= indices.shape[d];
    }
    MoveElement(x, offset, out, i);
  }
  return Status::Ok();
}

Status IndexNdReference(const View& x, const View* indices, int n, const View& out) {
  View row = x;
  row.rank = x.rank - n;
  for (int d = 0; d < row.rank; ++d) {
    row.shape[d] = x.shape[d + n];
    row.strides[d] = x.strides[d + n];
  }
  for (int64_t i = 0; i < indices[0].size(); ++i) {
    int64_t offset = 0;
    for (int t = 0; t < n; ++t) {
      const int64_t index = IndexAt(indices[t], OffsetOf(indices[t], i));
      const int64_t size = x.shape[t];
      if (index < -size || index >= size) {
        return Outside("index", index, At(i) + " of index tensor " + std::to_string(t), -size, size);
      }
      offset += (index + size) % size * x.strides[t];
    }
    for (int64_t c = 0; c < row.size(); ++c) MoveElement(x, offset + OffsetOf(row, c), out, i * row.size() + c);
  }
  return Status::Ok();
}

}  // namespace thresher::kernels
