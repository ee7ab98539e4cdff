// How strided kernels walk: merge dimensions, share out a range of elements, visit it row by row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "thresher/base/view.h"

namespace thresher::kernels {

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

// The share of `part` in [0, total): shares are equal up to one `granule`, and begin at multiples of it.
inline Range PartRange(int64_t total, int part, int num_parts, int64_t granule = 1) {
  const int64_t granules = (total + granule - 1) / granule;
  const int64_t quotient = granules / num_parts;
  const int64_t remainder = granules % num_parts;
  const int64_t begin = part * quotient + std::min<int64_t>(part, remainder);
  const int64_t end = begin + quotient + (part < remainder ? 1 : 0);
  return {std::min(begin * granule, total), std::min(end * granule, total)};
}

// Elements a part's range begins at a multiple of: a cache line of the smallest type, so that parts share no line.
inline constexpr int64_t kPartGranule = 64;

// N operands of one shape, outermost dimension first. After Collapse the rank is the least that describes all of them,
// and at least 1.
template <int N>
struct Loop {
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[N][kMaxRank] = {};

  int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }
  int64_t inner() const { return shape[rank - 1]; }
  int64_t inner_stride(int operand) const { return strides[operand][rank - 1]; }

  // Element i of the operand is i * (0 or 1) elements from its beginning.
  bool Linear(int operand) const { return rank == 1 && strides[operand][0] == 1; }
  bool Constant(int operand) const {
    for (int d = 0; d < rank; ++d) {
      if (strides[operand][d] != 0) return false;
    }
    return true;
  }

  void Push(int64_t size, const int64_t* stride_of) {
    shape[rank] = size;
    for (int n = 0; n < N; ++n) strides[n][rank] = stride_of[n];
    ++rank;
  }

  // Drops dimensions of size 1 and merges neighbours that every operand steps through evenly.
  void Collapse() {
    int kept = 0;
    for (int d = 0; d < rank; ++d) {
      if (shape[d] == 1) continue;
      bool mergeable = kept > 0;
      for (int n = 0; n < N && mergeable; ++n) mergeable = strides[n][kept - 1] == strides[n][d] * shape[d];
      if (mergeable) {
        shape[kept - 1] *= shape[d];
        for (int n = 0; n < N; ++n) strides[n][kept - 1] = strides[n][d];
        continue;
      }
      shape[kept] = shape[d];
      for (int n = 0; n < N; ++n) strides[n][kept] = strides[n][d];
      ++kept;
    }
    if (kept == 0) {
      shape[0] = 1;
      for (int n = 0; n < N; ++n) strides[n][0] = 1;
      kept = 1;
    }
    rank = kept;
  }
};

// The loop over one view; `Collapse`d when asked for.
inline Loop<1> LoopOver(const View& view, bool collapse) {
  Loop<1> loop;
  for (int d = 0; d < view.rank; ++d) loop.Push(view.shape[d], &view.strides[d]);
  if (collapse || loop.rank == 0) loop.Collapse();
  return loop;
}

// Visits elements [begin, end) of the loop in row-major order, one piece of an innermost row at a time:
// row(offsets of the piece's first element in each operand, length of the piece).
template <int N, class Row>
inline void ForRows(const Loop<N>& loop, Range range, Row&& row) {
  if (range.begin >= range.end) return;
  const int last = loop.rank - 1;
  const int64_t inner = loop.shape[last];
  int64_t position[kMaxRank] = {};
  int64_t offsets[N] = {};
  int64_t rest = range.begin;
  for (int d = last; d >= 0; --d) {
    position[d] = rest % loop.shape[d];
    rest /= loop.shape[d];
    for (int n = 0; n < N; ++n) offsets[n] += position[d] * loop.strides[n][d];
  }
  int64_t left = range.size();
  for (;;) {
    const int64_t length = std::min(left, inner - position[last]);
    row(static_cast<const int64_t*>(offsets), length);
    left -= length;
    if (left == 0) return;
    for (int n = 0; n < N; ++n) offsets[n] -= position[last] * loop.strides[n][last];
    position[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      if (++position[d] < loop.shape[d]) {
        for (int n = 0; n < N; ++n) offsets[n] += loop.strides[n][d];
        break;
      }
      for (int n = 0; n < N; ++n) offsets[n] -= (loop.shape[d] - 1) * loop.strides[n][d];
      position[d] = 0;
    }
  }
}

// Where element `index`, counted in row-major order, lies; for code that need not be fast.
inline int64_t OffsetOf(const View& view, int64_t index) {
  int64_t offset = 0;
  for (int d = view.rank - 1; d >= 0; --d) {
    offset += index % view.shape[d] * view.strides[d];
    index /= view.shape[d];
  }
  return offset;
}

// Calls f(T{}) with the unsigned integer T as wide as an element of `dtype`.
template <class F>
inline void WithElement(DType dtype, F&& f) {
  switch (SizeOf(dtype)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return;
  }
}

// Calls f(T{}) with the C++ type of `dtype`, which is none of 16 bits; bool is passed as `bool` and stored in one byte.
template <class F>
inline void WithType(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kI64:
      return f(int64_t{});
    case DType::kI32:
      return f(int32_t{});
    case DType::kBool:
      return f(bool{});
    case DType::kBF16:
    case DType::kF16:
      return;
  }
}

}  // namespace thresher::kernels
