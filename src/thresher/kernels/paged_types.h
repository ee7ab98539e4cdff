// Attention over keys and values in pages, of the types that have instructions of their own: each of these sources is
// compiled for those processors besides, and only for them.
#pragma once

#include <cstddef>

#include "thresher/kernels/paged_attention.h"

namespace thresher::kernels::paged {

void AttendToBF16(const PagedAttentionArgs& args, std::byte* scratch, int part, int num_parts);
void AttendToF16(const PagedAttentionArgs& args, std::byte* scratch, int part, int num_parts);
size_t ScratchBytesOfHalves(const PagedAttentionArgs& args);

void AttendToQ8(const PagedAttentionArgs& args, std::byte* scratch, int part, int num_parts);
size_t ScratchBytesOfQ8(const PagedAttentionArgs& args);

}  // namespace thresher::kernels::paged
