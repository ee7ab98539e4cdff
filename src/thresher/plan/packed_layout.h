// What the bytes of packed weights mean.
#pragma once

#include "thresher/graph/hash.h"

namespace thresher {

// A digest of a small matrix in every encoding and precision, as the kernels of the instruction set in use pack it: two
// engines with the same one read each other's panels, and a kernel that begins to pack otherwise changes it by itself.
Digest PackedLayout();

}  // namespace thresher
