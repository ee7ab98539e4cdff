// Attention over keys and values in q8_0.
#include <cstddef>

#include "thresher/kernels/paged_types.h"

#define THRESHER_FIXED_VECTORS
#define THRESHER_INT8_TARGETS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/paged_q8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/paged_chunks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

void AttendQ8(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  paged_chunks::Attend<paged::Blocks<Encoding::kQ8_0>>(a, memory, part, num_parts);
}

size_t ScratchBytes(const PagedAttentionArgs& a) { return paged_chunks::Scratch(paged::Sizes(a)).bytes(); }

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels::paged {

HWY_EXPORT(AttendQ8);
HWY_EXPORT(ScratchBytes);

void AttendToQ8(const PagedAttentionArgs& args, std::byte* scratch, int part, int num_parts) {
  HWY_DYNAMIC_DISPATCH(AttendQ8)(args, scratch, part, num_parts);
}

size_t ScratchBytesOfQ8(const PagedAttentionArgs& args) { return HWY_DYNAMIC_DISPATCH(ScratchBytes)(args); }

}  // namespace thresher::kernels::paged

#endif  // HWY_ONCE
