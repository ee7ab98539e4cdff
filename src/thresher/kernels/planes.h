// Convolutions of single channels and small groups whose x lies in planes: [batch, channels, positions], as PyTorch has
// it. Lanes are neighbouring positions of a line.
#pragma once

#include <cstddef>
#include <cstdint>

#include "thresher/kernels/depthwise.h"
#include "thresher/kernels/windows.h"

namespace thresher::kernels {

// Floats of the copies of lines of x: as many as L1 holds, or, where windows reach far, at most so many.
inline constexpr int64_t kBandFloats = int64_t{8} * 1024;
inline constexpr int64_t kMostBandFloats = int64_t{64} * 1024;
// Positions of a line are cut into no smaller pieces than these.
inline constexpr int64_t kLeastBandColumns = 64;

// Shorter lines leave too much of a vector empty, and those of single channels too little work to a plane: copies with
// channels last are sooner made.
inline constexpr int64_t kLeastPlaneColumns = 12;
inline constexpr int64_t kLeastOwnColumns = 16;

// Whether what windows meet of a line of positions fits into memory of a thread's own, `planes` channels a group. Where
// x is spread, its zeros are copied as well.
bool FitsBand(const Windows& windows, int64_t planes);

// Whether it does and lines are long enough. Zeros of x that is spread are multiplied, which pays where a group is one
// channel.
bool SuitsPlanes(const Windows& windows, int64_t planes);

struct PlanesArgs {
  DepthwiseArgs depthwise;  // without a residual; out is [batch, outputs, positions], ldc is not looked at
  int64_t x_channel = 0;    // elements from one channel of x to the next; those of a line lie side by side
};

// Bytes of scratch memory that a part wants.
size_t PlanesScratchBytes();

// Part `part` of `num_parts`: a range of lines of output positions of the groups. `scratch` is 64-byte aligned and the
// part's own.
void Planes(const PlanesArgs& args, void* scratch, int part = 0, int num_parts = 1);

// The same in scalar code with float64 accumulation.
void PlanesReference(const PlanesArgs& args);

}  // namespace thresher::kernels
