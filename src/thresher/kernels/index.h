// Kernels that read where an integer tensor says: embedding, gather, index.
//
// Indices are i64 or i32 and may have any strides; `out` is row-major without holes and overlaps nothing. An index
// outside its range gives OutOfRange naming the index, its row-major position among the indices and the range; what out
// holds is then unspecified. Each part reports the first bad index of its own share, so the caller looks at every
// part's status.
#pragma once

#include "thresher/base/encoding.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"

namespace thresher::kernels {

// out[i..., :] = table[indices[i...], :]. table [V, D], any strides and dtype; out: the indices' shape and D.
// A negative index is an error, as in torch.
Status Embedding(const View& table, const View& indices, const View& out, int part = 0, int num_parts = 1);

// The same of a table [V, D] in blocks (base/encoding.h), whose rows lie one behind the other; out is f32.
Status EmbeddingOfBlocks(Encoding blocks, const View& table, const View& indices, const View& out, int part = 0,
                         int num_parts = 1);

// torch.gather: out has the indices' shape, and out[i0, .., in] = x[i0, .., indices[i0, .., in] at `dim`, .., in].
// Outside `dim` the indices' shape is at most x's. 0 <= dim < rank (rank 0 counts as rank 1). A negative index is an
// error.
Status Gather(const View& x, int dim, const View& indices, const View& out, int part = 0, int num_parts = 1);

// x[indices[0], .., indices[n - 1]]: the first n dimensions of x indexed by tensors broadcast to one shape (stride 0
// allowed). out: that shape, then x's dimensions from n on. An index in [-size, 0) counts from the end. 1 <= n <=
// x.rank.
Status IndexNd(const View& x, const View* indices, int n, const View& out, int part = 0, int num_parts = 1);

// x[indices[0], .., indices[n - 1]] = values, or += values with `accumulate` (not bool), where `out` holds x: row-major
// without holes. indices as above; values: their shape, then x's dimensions from n on, any strides. What an index names
// several times is written in order. Every part reads all indices and writes its own rows.
Status IndexPut(const View* indices, int n, const View& values, bool accumulate, const View& out, int part = 0,
                int num_parts = 1);

// The same, element by element, in one thread.
Status EmbeddingReference(const View& table, const View& indices, const View& out);
Status GatherReference(const View& x, int dim, const View& indices, const View& out);
Status IndexNdReference(const View& x, const View* indices, int n, const View& out);

}  // namespace thresher::kernels
