// Where the elements of operands lie that one loop walks in row-major order, whatever their strides.
#pragma once

#include <algorithm>
#include <cstdint>

#include "thresher/base/view.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/iterate.h"

namespace thresher::cuda {

template <int N>
struct Elements {
  int64_t size;     // of the shape, as a product
  int32_t rank;     // at least 1; outermost dimension first
  uint32_t dense;   // bit i: operand i is row-major, so that its strides need not be read
  uint32_t single;  // bit i: operand i is one value for all elements
  int64_t shape[kMaxRank];
  int64_t strides[N][kMaxRank];  // in elements

  // In the operand, of an element counted in row-major order. kOneDimension: the rank is 1. Index: wide enough for the
  // size.
  template <bool kOneDimension, class Index>
  THRESHER_DEVICE int64_t OffsetOf(int64_t element, int operand) const {
    const int64_t* stride = strides[operand];
    if constexpr (kOneDimension) {
      return element * stride[0];
    } else {
      if ((dense >> operand & 1u) != 0) return element;
      if ((single >> operand & 1u) != 0) return 0;
      Index rest = static_cast<Index>(element);
      int64_t offset = 0;
      for (int d = rank - 1; d > 0; --d) {
        const Index length = static_cast<Index>(shape[d]);
        offset += static_cast<int64_t>(rest % length) * stride[d];
        rest /= length;
      }
      return offset + static_cast<int64_t>(rest) * stride[0];
    }
  }
};

// Of operands that all have one shape.
template <int N>
Elements<N> ElementsOf(const View* operands, int count) {
  kernels::Loop<N> loop;
  for (int d = 0; d < operands[0].rank; ++d) {
    int64_t strides[N] = {};
    for (int i = 0; i < count; ++i) strides[i] = operands[i].strides[d];
    loop.Push(operands[0].shape[d], strides);
  }
  loop.Collapse();
  Elements<N> to{};
  to.rank = loop.rank;
  to.size = operands[0].size();
  std::copy_n(loop.shape, loop.rank, to.shape);
  for (int i = 0; i < count; ++i) {
    std::copy_n(loop.strides[i], loop.rank, to.strides[i]);
    bool dense = true;
    int64_t step = 1;
    for (int d = loop.rank - 1; d >= 0; --d) {
      dense = dense && loop.strides[i][d] == step;
      step *= loop.shape[d];
    }
    if (dense) to.dense |= 1u << i;
    if (loop.Constant(i)) to.single |= 1u << i;
  }
  return to;
}

// launch(kernel) with Kernel<kOneDimension, Index>, made by make.template operator()<kOneDimension, Index>().
template <int N, class Make>
auto ForLayout(const Elements<N>& elements, Make&& make) {
  if (elements.rank == 1) return make.template operator()<true, uint32_t>();
  if (elements.size <= INT32_MAX) return make.template operator()<false, uint32_t>();
  return make.template operator()<false, uint64_t>();
}

}  // namespace thresher::cuda
