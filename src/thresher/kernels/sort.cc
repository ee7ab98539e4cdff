#include "thresher/kernels/sort.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "thresher/kernels/iterate.h"

namespace thresher::kernels {
namespace {

template <class T>
struct Element {
  T value;
  int64_t index;
};

template <class T>
bool IsNan(T value) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(value);
  return false;
}

// NaN above all numbers.
template <class T>
bool Below(T a, T b) {
  return a < b || (IsNan(b) && !IsNan(a));
}

// The index decides between equals, which makes any sort a stable one.
template <class T>
bool Ascends(const Element<T>& a, const Element<T>& b) {
  return Below(a.value, b.value) || (!Below(b.value, a.value) && a.index < b.index);
}
template <class T>
bool Descends(const Element<T>& a, const Element<T>& b) {
  return Below(b.value, a.value) || (!Below(a.value, b.value) && a.index < b.index);
}

// The loop over all dimensions but `dim`, of views that otherwise agree.
template <int N>
Loop<N> LinesOf(const View* const (&views)[N], int dim) {
  Loop<N> loop;
  for (int d = 0; d < views[0]->rank; ++d) {
    if (d == dim) continue;
    int64_t strides[N];
    for (int n = 0; n < N; ++n) strides[n] = views[n]->strides[d];
    loop.Push(views[0]->shape[d], strides);
  }
  loop.Collapse();
  return loop;
}

// Calls line(offsets) for every line of the part.
template <int N, class Line>
void ForLines(const Loop<N>& loop, int part, int num_parts, Line&& line) {
  ForRows(loop, PartRange(loop.size(), part, num_parts), [&](const int64_t* offsets, int64_t count) {
    int64_t at[N];
    for (int n = 0; n < N; ++n) at[n] = offsets[n];
    for (int64_t i = 0; i < count; ++i) {
      line(static_cast<const int64_t*>(at));
      for (int n = 0; n < N; ++n) at[n] += loop.inner_stride(n);
    }
  });
}

int64_t SizeAt(const View& x, int dim) { return x.rank == 0 ? 1 : x.shape[dim]; }
int64_t StrideAt(const View& x, int dim) { return x.rank == 0 ? 1 : x.strides[dim]; }

// Bool is sorted as bytes of 0 and 1.
template <class F>
void WithSortable(DType dtype, F&& f) {
  WithType(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      f(uint8_t{});
    } else {
      f(T{});
    }
  });
}

template <class T>
void SortLines(const View& x, int dim, bool descending, const View& values, const View& indices, Element<T>* line,
               int part, int num_parts) {
  const int64_t size = SizeAt(x, dim), kept = SizeAt(values, dim);
  const int64_t from = StrideAt(x, dim), to = StrideAt(values, dim), to_index = StrideAt(indices, dim);
  const auto before = descending ? Descends<T> : Ascends<T>;
  const Loop<3> loop = LinesOf<3>({&x, &values, &indices}, dim);
  ForLines(loop, part, num_parts, [&](const int64_t* offsets) {
    const T* const elements = x.as<const T>() + offsets[0];
    for (int64_t i = 0; i < size; ++i) line[i] = {elements[i * from], i};
    if (kept < size) {
      std::partial_sort(line, line + kept, line + size, before);
    } else {
      std::sort(line, line + size, before);
    }
    for (int64_t i = 0; i < kept; ++i) {
      values.as<T>()[offsets[1] + i * to] = line[i].value;
      indices.as<int64_t>()[offsets[2] + i * to_index] = line[i].index;
    }
  });
}

template <class T>
int64_t FindExtreme(bool greatest, const T* elements, int64_t size, int64_t stride) {
  int64_t at = 0;
  for (int64_t i = 0; i < size; ++i) {
    const T value = elements[i * stride], best = elements[at * stride];
    if (IsNan(value)) return i;
    if (greatest ? value > best : value < best) at = i;
  }
  return at;
}

}  // namespace

bool SupportsSort(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kI64 || dtype == DType::kI32 || dtype == DType::kBool;
}

size_t SortScratchBytes(DType dtype, int64_t size) {
  size_t bytes = 0;
  WithSortable(dtype, [&](auto zero) { bytes = static_cast<size_t>(size) * sizeof(Element<decltype(zero)>); });
  return bytes;
}

void Sort(const View& x, int dim, bool descending, const View& values, const View& indices, std::byte* scratch,
          int part, int num_parts) {
  if (values.size() == 0) return;
  WithSortable(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    SortLines<T>(x, dim, descending, values, indices, reinterpret_cast<Element<T>*>(scratch), part, num_parts);
  });
}

bool SupportsArgExtreme(DType dtype) { return dtype == DType::kF32 || dtype == DType::kI64 || dtype == DType::kI32; }

void ArgExtreme(bool greatest, const View& x, int dim, const View& out, int part, int num_parts) {
  if (x.size() == 0) return;
  View lines = x;  // the dimensions that are kept, as they lie in out
  int64_t stride = 1;
  for (int d = x.rank - 1; d >= 0; --d) {
    lines.strides[d] = stride;
    if (d != dim) stride *= x.shape[d];
  }
  WithType(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (!std::is_same_v<T, bool>) {
      const Loop<2> loop = LinesOf<2>({&x, &lines}, dim);
      ForLines(loop, part, num_parts, [&](const int64_t* offsets) {
        out.as<int64_t>()[offsets[1]] =
            FindExtreme(greatest, x.as<const T>() + offsets[0], SizeAt(x, dim), StrideAt(x, dim));
      });
    }
  });
}

}  // namespace thresher::kernels
