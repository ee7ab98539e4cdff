#include "thresher/kernels/scan.h"

#include <cstdint>

namespace thresher::kernels {
namespace {

// `Sum` is what the sum is kept in: wider than T for floats, unsigned for integers, whose overflow is then defined.
template <class T, class Sum>
void CumSumLines(const View& x, int dim, const View& out, int64_t begin, int64_t end) {
  const int64_t length = x.rank == 0 ? 1 : x.shape[dim];
  const int64_t x_step = x.rank == 0 ? 0 : x.strides[dim];
  const int64_t out_step = x.rank == 0 ? 0 : out.strides[dim];
  for (int64_t line = begin; line < end; ++line) {
    int64_t from = 0, to = 0, rest = line;
    for (int d = x.rank - 1; d >= 0; --d) {
      if (d == dim) continue;
      const int64_t index = rest % x.shape[d];
      rest /= x.shape[d];
      from += index * x.strides[d];
      to += index * out.strides[d];
    }
    const T* source = static_cast<const T*>(x.data) + from;
    T* target = static_cast<T*>(out.data) + to;
    Sum sum = 0;
    for (int64_t i = 0; i < length; ++i) {
      sum += static_cast<Sum>(source[i * x_step]);
      target[i * out_step] = static_cast<T>(sum);
    }
  }
}

}  // namespace

bool SupportsCumSum(DType dtype) { return dtype == DType::kF32 || dtype == DType::kI64 || dtype == DType::kI32; }

void CumSum(const View& x, int dim, const View& out, int part, int num_parts) {
  if (x.size() == 0) return;
  const int64_t lines = x.rank == 0 ? 1 : x.size() / x.shape[dim];
  const int64_t begin = lines * part / num_parts, end = lines * (part + 1) / num_parts;
  switch (x.dtype) {
    case DType::kF32:
      return CumSumLines<float, double>(x, dim, out, begin, end);
    case DType::kI64:
      return CumSumLines<int64_t, uint64_t>(x, dim, out, begin, end);
    case DType::kI32:
      return CumSumLines<int32_t, uint32_t>(x, dim, out, begin, end);
    default:
      return;
  }
}

}  // namespace thresher::kernels
