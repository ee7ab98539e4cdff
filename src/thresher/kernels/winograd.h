// Convolutions of 3 x 3 taps with fewer multiplications: Winograd's F(2 x 2, 3 x 3). Results are computed in tiles of
// 2 x 2 positions. The 4 x 4 patch of x that a tile meets and the nine taps are transformed, so that one multiplication
// a channel is left for each of 16 elements of a patch in place of 36: 16 products of matrices, all tiles by all
// outputs, whose sums are transformed back.
//
// Every factor of the transforms is 0, 1 or 1/2 (of the taps 1/4 as well), so that sums of fewer products make up for
// the additions: errors are no larger than those of the plain sum. They are relative to the largest numbers of a patch,
// though, where those of a plain sum are relative to what each window covers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/kernels/gemm.h"
#include "thresher/kernels/windows.h"

namespace thresher::kernels {

// Whether windows are such that a convolution may be computed so: 3 x 3 taps side by side, at every position.
bool FitsWinograd(const Windows& windows);

// Whether that is likely to be faster than the product of windows, with weights that are packed once or in each call.
// Follows from one image alone, so that what becomes of it does not depend on how many there are.
bool SuitsWinograd(const Windows& windows, int64_t outputs, bool packed_once);

// Bytes of scratch memory that a part wants; no less than for fewer images. Needs no data.
size_t WinogradScratchBytes(const GemmArgs& args);

// Part `part` of `num_parts` of the convolution that `args` describes as Gemm's arguments do: its windows, in fp32,
// with packed_b from a Weight of kWinogradMatrices taps that says `winograd`. `scratch` is 64-byte aligned and the
// part's own. What a tile gives that is not finite is computed as a plain sum, so that an infinity or a NaN in x
// reaches the windows that cover it and no others.
void Winograd(const GemmArgs& args, void* scratch, int part = 0, int num_parts = 1);

}  // namespace thresher::kernels
