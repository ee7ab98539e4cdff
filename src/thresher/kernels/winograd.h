// Convolutions of 3 x 3 taps, or of three in a line, with fewer multiplications: Winograd's F(2 x 2, 3 x 3),
// F(4 x 4, 3 x 3) and F(4, 3). Results are computed in tiles of 2 x 2, 4 x 4 or 1 x 4 positions. The patch of x that a
// tile meets, of 4 x 4, 6 x 6 or 6 positions, and the taps are transformed, so that one multiplication a channel is
// left for each of its 16, 36 or 6 elements in place of 36, 144 or 12: as many products of matrices, all tiles by all
// outputs, whose sums are transformed back. Of taps in depth each has a patch of its own, and all of them are one sum.
//
// Factors of the smallest tiles' transforms are 0, 1 or 1/2 (of the taps 1/4 as well), so that sums of fewer products
// make up for the additions: errors are no larger than those of the plain sum. Those of the others are about twice as
// large. They are relative to the largest numbers of a patch, where those of a plain sum are relative to what each
// window covers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/kernels/gemm.h"
#include "thresher/kernels/weight.h"
#include "thresher/kernels/windows.h"

namespace thresher::kernels {

// Whether windows are such that a convolution may be computed in such tiles: three taps side by side in width and, but
// for tiles of one line, in height, at every position. In depth there may be any taps.
bool FitsWinograd(const Windows& windows, WinogradTile tile);

// The tiles with which that is likely to be fastest, with weights that are packed once or in each call; kNone if the
// product of windows is. Follows from one image alone, so that what becomes of it does not depend on how many there
// are.
WinogradTile SuitableWinogradTile(const Windows& windows, int64_t outputs, bool packed_once);

// What a multiplication takes in such tiles, of one of the product of windows: there are fewer of them, but transforms,
// which are dear beside few outputs or products of few channels (in `depth` taps there) each.
double WinogradShare(WinogradTile tile, int64_t channels, int64_t depth, int64_t outputs);

// Bytes of scratch memory that a part wants; no less than for fewer images. Needs no data.
size_t WinogradScratchBytes(const GemmArgs& args);

// Part `part` of `num_parts` of the convolution that `args` describes as Gemm's arguments do: its windows, in fp32,
// with packed_b from a Weight with tiles, and k is what that says. `scratch` is 64-byte
// aligned and the part's own. What a tile gives that is not finite is computed as a plain sum, so that an infinity or a
// NaN in x reaches the windows that cover it and no others.
void Winograd(const GemmArgs& args, void* scratch, int part = 0, int num_parts = 1);

}  // namespace thresher::kernels
