// Convolutions of 3 x 3 taps with fewer multiplications: Winograd's F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3). Results are
// computed in tiles of 2 x 2 or 4 x 4 positions. The 4 x 4 or 6 x 6 patch of x that a tile meets and the nine taps are
// transformed, so that one multiplication a channel is left for each of its 16 or 36 elements in place of 36 or 144: 16
// or 36 products of matrices, all tiles by all outputs, whose sums are transformed back.
//
// Factors of the small tiles' transforms are 0, 1 or 1/2 (of the taps 1/4 as well), so that sums of fewer products make
// up for the additions: errors are no larger than those of the plain sum. Those of the large ones are about twice as
// large. They are relative to the largest numbers of a patch, where those of a plain sum are relative to what each
// window covers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/kernels/gemm.h"
#include "thresher/kernels/windows.h"

namespace thresher::kernels {

// Whether windows are such that a convolution may be computed so: 3 x 3 taps side by side, at every position.
bool FitsWinograd(const Windows& windows);

// The side of the tiles with which that is likely to be fastest, 2 or 4, with weights that are packed once or in each
// call; 0 if the product of windows is. Follows from one image alone, so that what becomes of it does not depend on how
// many there are.
int64_t WinogradTile(const Windows& windows, int64_t outputs, bool packed_once);

// Bytes of scratch memory that a part wants; no less than for fewer images. Needs no data.
size_t WinogradScratchBytes(const GemmArgs& args);

// Part `part` of `num_parts` of the convolution that `args` describes as Gemm's arguments do: its windows, in fp32,
// with packed_b from a Weight whose `winograd` is the tiles' side, and k is what that says. `scratch` is 64-byte
// aligned and the part's own. What a tile gives that is not finite is computed as a plain sum, so that an infinity or a
// NaN in x reaches the windows that cover it and no others.
void Winograd(const GemmArgs& args, void* scratch, int part = 0, int num_parts = 1);

}  // namespace thresher::kernels
