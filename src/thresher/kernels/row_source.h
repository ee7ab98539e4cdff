// An operand read piece by piece in row-major order, whatever its strides. Internal to the kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "thresher/base/view.h"
#include "thresher/kernels/iterate.h"

namespace thresher::kernels {

struct RowSource {
  const uint8_t* data = nullptr;
  int64_t element_size = 0;
  Loop<1> loop;
  DType dtype = DType::kF32;

  RowSource() = default;
  explicit RowSource(const View& view)
      : data(view.as<const uint8_t>()),
        element_size(static_cast<int64_t>(SizeOf(view.dtype))),
        loop(LoopOver(view, /*collapse=*/true)),
        dtype(view.dtype) {}

  // Elements `range`, contiguous: in place where they are, else copied to `buffer`.
  const void* Read(Range range, void* buffer) const {
    if (loop.Linear(0)) return data + range.begin * element_size;
    WithElement(dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* from = reinterpret_cast<const T*>(data);
      T* to = static_cast<T*>(buffer);
      const int64_t stride = loop.inner_stride(0);
      ForRows(loop, range, [&](const int64_t* offsets, int64_t n) {
        const T* row = from + offsets[0];
        if (stride == 1) {
          std::memcpy(to, row, static_cast<size_t>(n) * sizeof(T));
        } else {
          for (int64_t i = 0; i < n; ++i) to[i] = row[i * stride];
        }
        to += n;
      });
    });
    return buffer;
  }
};

// Whether every element of the view is the same one in memory.
inline bool IsOneValue(const View& view) {
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] != 1 && view.strides[d] != 0) return false;
  }
  return true;
}

}  // namespace thresher::kernels
