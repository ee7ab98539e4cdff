// Memory for packed weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace thresher {

// Asks for large pages, where the system gives them: products of few rows read all weights once, and would else wait
// for the translation of every 4 KiB of addresses. Weights too small for a large page of their own share a slab, and
// very small ones do without. Not thread safe.
class PackedMemory {
 public:
  // `bytes` bytes, aligned to 64, which live as long as the pointer. Throws std::bad_alloc.
  std::shared_ptr<void> Allocate(int64_t bytes);

 private:
  std::shared_ptr<std::byte> slab_;
  size_t used_ = 0;
};

}  // namespace thresher
