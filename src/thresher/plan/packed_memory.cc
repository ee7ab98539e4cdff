#include "thresher/plan/packed_memory.h"

#include <new>

#include "thresher/base/arena.h"
#include "thresher/profile/memory.h"

namespace thresher {
namespace {

constexpr size_t kSlab = 4 * kLargePage;
// A slab keeps at least one large page resident, which must not dwarf what it is for.
constexpr size_t kLeastInSlab = size_t{128} << 10;

std::shared_ptr<std::byte> AllocateAligned(size_t size, size_t alignment) {
  const std::align_val_t align{alignment};
  auto* data = static_cast<std::byte*>(::operator new(size, align));
  if (alignment == kLargePage) WantLargePages(data, size);
  profile::NoteAllocation(data, static_cast<int64_t>(size));
  return {data, [align, size](std::byte* p) {
            profile::NoteRelease(p, static_cast<int64_t>(size));
            ::operator delete(p, align);
          }};
}

}  // namespace

std::shared_ptr<void> PackedMemory::Allocate(int64_t bytes) {
  const size_t size = AlignUp(static_cast<size_t>(bytes));
  if (size < kLeastInSlab) return AllocateAligned(size, kAlignment);
  if (size >= kLargePage) return AllocateAligned(size, kLargePage);
  if (slab_ == nullptr || used_ + size > kSlab) {
    slab_ = AllocateAligned(kSlab, kLargePage);
    used_ = 0;
  }
  std::byte* data = slab_.get() + used_;
  used_ += size;
  return {slab_, data};
}

}  // namespace thresher
