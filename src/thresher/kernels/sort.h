// Order along one dimension: sorting, the k first, and where an extreme lies.
//
// NaN counts as greater than every number, as in torch; -0 and 0 are equal. Parts share the lines that run along `dim`.
// Rank 0 counts as rank 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/base/dtype.h"
#include "thresher/base/view.h"

namespace thresher::kernels {

// f32, i64, i32 and bool.
bool SupportsSort(DType dtype);

// Bytes of scratch memory that Sort wants for each part where lines have `size` elements.
size_t SortScratchBytes(DType dtype, int64_t size);

// Every line of x in order, and the i64 positions its elements had. Equal elements keep their order, also where the
// order is descending. `values` (x's dtype) and `indices` have x's shape but in `dim`, where they may be shorter: they
// hold the first elements then. Both are row-major without holes; x may have any strides and overlaps neither.
void Sort(const View& x, int dim, bool descending, const View& values, const View& indices, std::byte* scratch,
          int part = 0, int num_parts = 1);

// f32, i64 and i32.
bool SupportsArgExtreme(DType dtype);

// The i64 position of the greatest (or least) element of every line: of equal ones the first, and the first NaN where
// there is one. `out` holds the other dimensions in order, row-major without holes; its own shape is not looked at.
// Lines are not empty.
void ArgExtreme(bool greatest, const View& x, int dim, const View& out, int part = 0, int num_parts = 1);

}  // namespace thresher::kernels
