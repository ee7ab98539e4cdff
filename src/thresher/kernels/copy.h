// Moving and making elements: strided copies, fills and ranges.
#pragma once

#include <cstdint>

#include "thresher/base/dtype.h"
#include "thresher/base/view.h"

namespace thresher::kernels {

// dst = src: one shape, one dtype, any strides on both sides (0 allowed on src), no overlap. Fast where the views are
// contiguous or share runs of contiguous elements, and for transposes.
void Copy(const View& src, const View& dst, int part = 0, int num_parts = 1);

// Writes one value to every element of dst, which may have any strides. `bits` holds the value's bytes in its low end
// (BitsOf).
void Fill(const View& dst, uint64_t bits, int part = 0, int num_parts = 1);

// `value` as an element of `dtype`, by the rules of Cast (pointwise.h): f32 rounds, integers truncate, bool is value !=
// 0.
uint64_t BitsOf(double value, DType dtype);
// The same for an integer, exact for i64.
uint64_t BitsOf(int64_t value, DType dtype);

// dst[i] = start + i * step. dst is a float (rounded from float64 to f32, from there to 16 bits), i64 or i32 (truncated
// from float64), rank 1, any stride.
void Arange(const View& dst, double start, double step, int part = 0, int num_parts = 1);
// The same in exact integer arithmetic that wraps around; f32 is rounded from the i64.
void ArangeInt(const View& dst, int64_t start, int64_t step, int part = 0, int num_parts = 1);

// Copy element by element, in one thread.
void CopyReference(const View& src, const View& dst);

}  // namespace thresher::kernels
