// Aligned blocks of memory: the home of a plan's temporaries, and what kernels read of constants.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "thresher/base/status.h"

namespace thresher {

// Cache line, and the widest vector of any instruction set the kernels know.
inline constexpr size_t kAlignment = 64;

// What blocks of so many bytes and more begin on, and ask the system for: finding out where a small page lies takes as
// long as several lines from memory where the table that says so is in no cache, and in a virtual machine twice that.
inline constexpr size_t kLargePage = size_t{2} << 20;

// Asks for the large pages that lie wholly within a block that begins on one. Advice: without them pages are small.
void WantLargePages(void* data, size_t bytes);

// `bytes` rounded up to a multiple of kAlignment.
constexpr size_t AlignUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Owns a block aligned to kAlignment, or to kLargePage if it is as large; movable, not copyable. The content is
// undefined at first.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  // Error: kResourceExhausted, naming the size asked for.
  static Result<Arena> Allocate(size_t bytes);

  // A block that Release() gave up, with the size it had.
  static Arena Adopt(void* data, size_t size) { return {static_cast<std::byte*>(data), size}; }
  // Gives the block up: it is freed when it has been adopted again.
  std::byte* Release();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Arena(std::byte* data, size_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// A block aligned to kAlignment, its content undefined; owned by whoever holds it. Throws std::bad_alloc.
std::shared_ptr<std::byte> AlignedBytes(size_t bytes);
// The same with a copy of `bytes`.
std::shared_ptr<const std::byte> AlignedCopy(std::span<const std::byte> bytes);

}  // namespace thresher
