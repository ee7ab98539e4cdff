// A strided window on memory somebody else owns: what kernels read and write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "thresher/base/dtype.h"

namespace thresher {

inline constexpr int kMaxRank = 8;

using Dims = std::vector<int64_t>;

struct View {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};  // in elements; 0 repeats the dimension (broadcast)

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }

  // Row-major without holes; dimensions of size 1 may have any stride.
  bool contiguous() const {
    int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] == 1) continue;
      if (strides[i] != expected) return size() == 0;
      expected *= shape[i];
    }
    return true;
  }
};

// Collapses all dimensions but the last into rows of one stride. False when the strides do not allow it, or the last
// dimension has holes.
inline bool AsRows(const View& view, int64_t* rows, int64_t* cols, int64_t* row_stride) {
  const int last = view.rank - 1;
  *cols = view.rank == 0 ? 1 : view.shape[last];
  *rows = 1;
  *row_stride = *cols;
  if (view.rank > 0 && *cols > 1 && view.strides[last] != 1) return false;
  bool first = true;
  int64_t expected = 0;
  for (int i = last - 1; i >= 0; --i) {
    if (view.shape[i] == 1) continue;
    if (first) {
      *row_stride = view.strides[i];
      first = false;
    } else if (view.strides[i] != expected) {
      return false;
    }
    expected = view.strides[i] * view.shape[i];
    *rows *= view.shape[i];
  }
  // A stride of 0 repeats one row, which collapses only when no further dimension stands before it.
  return true;
}

inline int64_t NumElements(const Dims& shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

inline Dims ContiguousStrides(const Dims& shape) {
  Dims strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

// A row-major view of `data`.
inline View MakeView(void* data, DType dtype, const Dims& shape) {
  View view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  const Dims strides = ContiguousStrides(shape);
  for (int i = 0; i < view.rank; ++i) {
    view.shape[i] = shape[static_cast<size_t>(i)];
    view.strides[i] = strides[static_cast<size_t>(i)];
  }
  return view;
}

// "[2, 3]".
inline std::string ToString(const Dims& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace thresher
