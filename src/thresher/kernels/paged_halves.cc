// Attention over keys and values in 16 bits.
#include <cstddef>

#include "thresher/base/half.h"
#include "thresher/kernels/paged_types.h"

#define THRESHER_FIXED_VECTORS
#define THRESHER_BF16_TARGETS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/paged_halves.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/paged_chunks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

void AttendBF16(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  paged_chunks::Attend<BF16>(a, memory, part, num_parts);
}

void AttendF16(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  paged_chunks::Attend<F16>(a, memory, part, num_parts);
}

size_t ScratchBytes(const PagedAttentionArgs& a) { return paged_chunks::Scratch(paged::Sizes(a)).bytes(); }

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels::paged {

HWY_EXPORT(AttendBF16);
HWY_EXPORT(AttendF16);
HWY_EXPORT(ScratchBytes);

void AttendToBF16(const PagedAttentionArgs& args, std::byte* scratch, int part, int num_parts) {
  HWY_DYNAMIC_DISPATCH(AttendBF16)(args, scratch, part, num_parts);
}

void AttendToF16(const PagedAttentionArgs& args, std::byte* scratch, int part, int num_parts) {
  HWY_DYNAMIC_DISPATCH(AttendF16)(args, scratch, part, num_parts);
}

size_t ScratchBytesOfHalves(const PagedAttentionArgs& args) { return HWY_DYNAMIC_DISPATCH(ScratchBytes)(args); }

}  // namespace thresher::kernels::paged

#endif  // HWY_ONCE
