#include "thresher/kernels/copy.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "thresher/base/half.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/iterate.h"

// After simd_targets.h. Four lanes suit every machine, so nothing here is dispatched.
#include "hwy/highway.h"
#include "thresher/kernels/transpose-inl.h"

namespace thresher::kernels {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A square of elements that one unit of a transpose moves: small enough that both sides stay in L1. Of few columns, a
// unit is more rows: colours of an image twice as fast.
constexpr int64_t kTransposeTile = 32;
constexpr int64_t kFewColumns = 16, kRowsOfFew = 512;
// Of a square that is transposed in registers.
template <class T>
constexpr int64_t kSide = 16 / int64_t{sizeof(T)};

// dst[i * dst_stride + j] = src[j * src_stride + i] of a square of kSide elements a side.
template <class T>
HWY_INLINE void TransposeSquare(const T* src, int64_t src_stride, T* dst, int64_t dst_stride) {
  const hn::FixedTag<T, kSide<T>> d;
  if constexpr (sizeof(T) == 4) {
    HWY_NAMESPACE::StoreTransposed4x4(d, hn::LoadU(d, src), hn::LoadU(d, src + src_stride),
                                      hn::LoadU(d, src + 2 * src_stride), hn::LoadU(d, src + 3 * src_stride), dst,
                                      dst_stride);
  } else {
    hn::Vec<decltype(d)> row[kSide<T>];
    for (int64_t j = 0; j < kSide<T>; ++j) row[j] = hn::LoadU(d, src + j * src_stride);
    HWY_NAMESPACE::StoreTransposed8x8(d, row, dst, dst_stride);
  }
}

// dst[row * dst_stride + column] = src[column * src_stride + row].
template <class T>
void TransposeTile(const T* src, int64_t src_stride, T* dst, int64_t dst_stride, int64_t rows, int64_t columns) {
  int64_t c = 0;
  if constexpr (sizeof(T) == 4 || sizeof(T) == 2) {
    constexpr int64_t side = kSide<T>;
    int64_t r = 0;
    if constexpr (sizeof(T) == 4) {
      if (columns == 3 && dst_stride == 3) {  // planes of colours
        const hn::FixedTag<T, side> d;
        for (; r + side <= rows; r += side) {
          hn::StoreInterleaved3(hn::LoadU(d, src + r), hn::LoadU(d, src + src_stride + r),
                                hn::LoadU(d, src + 2 * src_stride + r), d, dst + 3 * r);
        }
        for (; r < rows; ++r) {
          for (int64_t k = 0; k < 3; ++k) dst[3 * r + k] = src[k * src_stride + r];
        }
        return;
      }
    }
    const auto square = [&](int64_t row, int64_t column) {
      TransposeSquare(src + column * src_stride + row, src_stride, dst + row * dst_stride + column, dst_stride);
    };
    const int64_t whole_rows = rows / side * side, whole_columns = columns / side * side;
    // Rows a multiple of 2 KiB apart push each other out of L1: a few of them are written at a time.
    if (dst_stride * static_cast<int64_t>(sizeof(T)) % 2048 == 0) {
      for (; r < whole_rows; r += side) {
        for (c = 0; c < whole_columns; c += side) square(r, c);
      }
    } else {
      for (; c < whole_columns; c += side) {
        for (r = 0; r < whole_rows; r += side) square(r, c);
      }
    }
    for (r = whole_rows; r < rows; ++r) {
      for (int64_t k = 0; k < whole_columns; ++k) dst[r * dst_stride + k] = src[k * src_stride + r];
    }
    c = whole_columns;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = c; k < columns; ++k) dst[r * dst_stride + k] = src[k * src_stride + r];
  }
}

// Copies where dst runs along the last dimension and src along dimension `row_dim`. Units are tiles of these two
// dimensions, in every combination of the other dimensions.
template <int64_t kHeight, class T>
void Transpose(const Loop<2>& loop, int row_dim, const T* src, T* dst, int part, int num_parts) {
  const int last = loop.rank - 1;
  const int64_t rows = loop.shape[row_dim];
  const int64_t columns = loop.shape[last];
  const int64_t src_stride = loop.strides[0][last];
  const int64_t dst_stride = loop.strides[1][row_dim];
  Loop<2> units;
  for (int d = 0; d < last; ++d) {
    if (d == row_dim) continue;
    const int64_t strides[2] = {loop.strides[0][d], loop.strides[1][d]};
    units.Push(loop.shape[d], strides);
  }
  const int64_t row_strides[2] = {kHeight, dst_stride * kHeight};
  const int64_t column_strides[2] = {src_stride * kTransposeTile, kTransposeTile};
  const int64_t row_tiles = (rows + kHeight - 1) / kHeight;
  const int64_t column_tiles = (columns + kTransposeTile - 1) / kTransposeTile;
  units.Push(row_tiles, row_strides);
  units.Push(column_tiles, column_strides);
  const Range range = PartRange(units.size(), part, num_parts);
  int64_t unit = range.begin;
  ForRows(units, range, [&](const int64_t* offsets, int64_t n) {
    for (int64_t i = 0; i < n; ++i, ++unit) {
      const int64_t column = unit % column_tiles * kTransposeTile;
      const int64_t row = unit / column_tiles % row_tiles * kHeight;
      TransposeTile(src + offsets[0] + i * column_strides[0], src_stride, dst + offsets[1] + i * column_strides[1],
                    dst_stride, std::min(kHeight, rows - row), std::min(kTransposeTile, columns - column));
    }
  });
}

// The dimension that src runs along while dst runs along the last one, or -1.
int TransposedDim(const Loop<2>& loop) {
  const int last = loop.rank - 1;
  if (loop.strides[1][last] != 1 || loop.strides[0][last] == 0 || loop.strides[0][last] == 1 || loop.shape[last] < 3)
    return -1;
  for (int d = 0; d < last; ++d) {
    if (loop.strides[0][d] == 1 && loop.shape[d] >= 4) return d;
  }
  return -1;
}

template <class T>
void CopyElements(const Loop<2>& loop, const T* src, T* dst, int part, int num_parts) {
  if (const int row_dim = TransposedDim(loop); row_dim >= 0) {
    const bool few = loop.shape[loop.rank - 1] <= kFewColumns;
    few ? Transpose<kRowsOfFew>(loop, row_dim, src, dst, part, num_parts)
        : Transpose<kTransposeTile>(loop, row_dim, src, dst, part, num_parts);
    return;
  }
  const int64_t from = loop.inner_stride(0);
  const int64_t to = loop.inner_stride(1);
  ForRows(loop, PartRange(loop.size(), part, num_parts, kPartGranule), [&](const int64_t* offsets, int64_t n) {
    const T* const s = src + offsets[0];
    T* const d = dst + offsets[1];
    if (from == 1 && to == 1) {
      std::memcpy(d, s, static_cast<size_t>(n) * sizeof(T));
    } else if (from == 0 && to == 1) {
      std::fill_n(d, n, *s);
    } else {
      for (int64_t i = 0; i < n; ++i) d[i * to] = s[i * from];
    }
  });
}

// Orders the dimensions by the operand's strides, largest first, without the dimensions of size 1.
template <int N>
void SortBy(Loop<N>& loop, int operand) {
  int kept = 0;
  for (int d = 0; d < loop.rank; ++d) {
    if (loop.shape[d] == 1) continue;
    std::swap(loop.shape[kept], loop.shape[d]);
    for (int n = 0; n < N; ++n) std::swap(loop.strides[n][kept], loop.strides[n][d]);
    ++kept;
  }
  loop.rank = kept;
  for (int i = 1; i < loop.rank; ++i) {
    for (int j = i; j > 0 && std::abs(loop.strides[operand][j - 1]) < std::abs(loop.strides[operand][j]); --j) {
      std::swap(loop.shape[j - 1], loop.shape[j]);
      for (int n = 0; n < N; ++n) std::swap(loop.strides[n][j - 1], loop.strides[n][j]);
    }
  }
}

// Elements of a rank-1 view that belong to the part: element(i) computes number i.
template <class T, class Element>
void Generate(const View& dst, int part, int num_parts, Element&& element) {
  const Range range = PartRange(dst.size(), part, num_parts, kPartGranule);
  const int64_t stride = dst.rank == 0 ? 1 : dst.strides[0];
  T* const to = dst.as<T>();
  for (int64_t i = range.begin; i < range.end; ++i) to[i * stride] = element(i);
}

// f32 or an integer from float64; see Cast in pointwise.h.
template <class T>
T FromReal(double value) {
  if constexpr (std::numeric_limits<T>::is_integer) {
    constexpr double kLeast = static_cast<double>(std::numeric_limits<T>::min());
    return static_cast<T>(value >= kLeast && value < -kLeast ? value : kLeast);
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace

void Copy(const View& src, const View& dst, int part, int num_parts) {
  if (dst.size() == 0) return;
  Loop<2> loop;
  for (int d = 0; d < dst.rank; ++d) {
    const int64_t strides[2] = {src.strides[d], dst.strides[d]};
    loop.Push(dst.shape[d], strides);
  }
  SortBy(loop, /*operand=*/1);
  loop.Collapse();
  WithElement(dst.dtype, [&](auto zero) {
    using T = decltype(zero);
    CopyElements<T>(loop, src.as<T>(), dst.as<T>(), part, num_parts);
  });
}

void Fill(const View& dst, uint64_t bits, int part, int num_parts) {
  if (dst.size() == 0) return;
  Loop<1> loop = LoopOver(dst, /*collapse=*/false);
  SortBy(loop, /*operand=*/0);
  loop.Collapse();
  WithElement(dst.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T value = static_cast<T>(bits);
    T* const to = dst.as<T>();
    const int64_t stride = loop.inner_stride(0);
    ForRows(loop, PartRange(loop.size(), part, num_parts, kPartGranule), [&](const int64_t* offsets, int64_t n) {
      if (stride == 1) {
        std::fill_n(to + offsets[0], n, value);
      } else {
        for (int64_t i = 0; i < n; ++i) to[offsets[0] + i * stride] = value;
      }
    });
  });
}

uint64_t BitsOf(double value, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::kI64:
      return static_cast<uint64_t>(FromReal<int64_t>(value));
    case DType::kI32:
      return static_cast<uint32_t>(FromReal<int32_t>(value));
    case DType::kBool:
      return value != 0;
    case DType::kBF16:
      return ToBF16(static_cast<float>(value)).bits;
    case DType::kF16:
      return ToF16(static_cast<float>(value)).bits;
  }
  return 0;
}

uint64_t BitsOf(int64_t value, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::kI64:
      return static_cast<uint64_t>(value);
    case DType::kI32:
      return static_cast<uint32_t>(value);
    case DType::kBool:
      return value != 0;
    case DType::kBF16:
      return ToBF16(static_cast<float>(value)).bits;
    case DType::kF16:
      return ToF16(static_cast<float>(value)).bits;
  }
  return 0;
}

void Arange(const View& dst, double start, double step, int part, int num_parts) {
  const auto value = [&](int64_t i) { return start + static_cast<double>(i) * step; };
  switch (dst.dtype) {
    case DType::kF32:
      Generate<float>(dst, part, num_parts, [&](int64_t i) { return FromReal<float>(value(i)); });
      return;
    case DType::kI64:
      Generate<int64_t>(dst, part, num_parts, [&](int64_t i) { return FromReal<int64_t>(value(i)); });
      return;
    case DType::kI32:
      Generate<int32_t>(dst, part, num_parts, [&](int64_t i) { return FromReal<int32_t>(value(i)); });
      return;
    case DType::kBF16:
      Generate<BF16>(dst, part, num_parts, [&](int64_t i) { return ToBF16(FromReal<float>(value(i))); });
      return;
    case DType::kF16:
      Generate<F16>(dst, part, num_parts, [&](int64_t i) { return ToF16(FromReal<float>(value(i))); });
      return;
    case DType::kBool:
      return;
  }
}

void ArangeInt(const View& dst, int64_t start, int64_t step, int part, int num_parts) {
  const auto value = [&](int64_t i) {
    return static_cast<int64_t>(static_cast<uint64_t>(start) + static_cast<uint64_t>(i) * static_cast<uint64_t>(step));
  };
  switch (dst.dtype) {
    case DType::kF32:
      Generate<float>(dst, part, num_parts, [&](int64_t i) { return static_cast<float>(value(i)); });
      return;
    case DType::kI64:
      Generate<int64_t>(dst, part, num_parts, value);
      return;
    case DType::kI32:
      Generate<int32_t>(dst, part, num_parts, [&](int64_t i) { return static_cast<int32_t>(value(i)); });
      return;
    case DType::kBF16:
    case DType::kF16:
    case DType::kBool:
      return;
  }
}

void CopyReference(const View& src, const View& dst) {
  WithElement(dst.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < dst.size(); ++i) dst.as<T>()[OffsetOf(dst, i)] = src.as<T>()[OffsetOf(src, i)];
  });
}

}  // namespace thresher::kernels
