#include "thresher/base/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

namespace thresher {

void WantLargePages(void* data, size_t bytes) {
  // What is behind the last whole one may share its pages with other blocks.
  (void)madvise(data, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
}

Arena::~Arena() { std::free(data_); }

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::byte* Arena::Release() {
  size_ = 0;
  return std::exchange(data_, nullptr);
}

Result<Arena> Arena::Allocate(size_t bytes) {
  if (bytes == 0) return Arena();
  const bool large = bytes >= kLargePage;
  const size_t alignment = large ? kLargePage : kAlignment;
  const size_t whole = bytes <= PTRDIFF_MAX - alignment ? (bytes + alignment - 1) / alignment * alignment : 0;
  void* data = whole > 0 ? std::aligned_alloc(alignment, whole) : nullptr;
  if (data == nullptr) {
    return ResourceExhausted("memory: expected a block of " + std::to_string(bytes) +
                             " bytes, the system gave none; use smaller batches or shorter sequences");
  }
  if (large) WantLargePages(data, bytes);
  return Arena(static_cast<std::byte*>(data), bytes);
}

std::shared_ptr<std::byte> AlignedBytes(size_t bytes) {
  constexpr std::align_val_t kAlign{kAlignment};
  return {static_cast<std::byte*>(::operator new(bytes, kAlign)), [](std::byte* p) { ::operator delete(p, kAlign); }};
}

std::shared_ptr<const std::byte> AlignedCopy(std::span<const std::byte> bytes) {
  std::shared_ptr<std::byte> copy = AlignedBytes(bytes.size());
  std::ranges::copy(bytes, copy.get());
  return copy;
}

}  // namespace thresher
