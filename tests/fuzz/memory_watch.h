// Ends the process when more memory is held at once than an input of its size may cost. Works where AddressSanitizer
// counts allocations and its header says so, as Clang's does; elsewhere nothing is watched.
#pragma once

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && __has_include(<sanitizer/allocator_interface.h>)
#define THRESHER_WATCHES_MEMORY 1
#endif
#endif

#if defined(THRESHER_WATCHES_MEMORY)
#include <sanitizer/allocator_interface.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#endif

namespace thresher::fuzz {

// Bytes that may be held at once: `base`, which covers tables made on first use, and `factor` for each byte of input.
struct MemoryLimit {
  size_t base = size_t{4} << 20;
  size_t factor = 512;
};

#if defined(THRESHER_WATCHES_MEMORY)

class MemoryWatch {
 public:
  MemoryWatch(const MemoryLimit& limit, size_t input_bytes) {
    static const bool installed = __sanitizer_install_malloc_and_free_hooks(Allocated, Freed) != 0;
    if (!installed) std::abort();
    limit_ = static_cast<long long>(limit.base + limit.factor * input_bytes);
    input_ = input_bytes;
    held_ = 0;
    watching_ = true;
  }
  ~MemoryWatch() { watching_ = false; }
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

 private:
  static void Allocated(const volatile void*, size_t size) {
    if (!watching_) return;
    const long long held = held_ += static_cast<long long>(size);
    if (held <= limit_) return;
    watching_ = false;
    std::fprintf(stderr, "memory: expected at most %lld bytes at once for an input of %zu, got %lld\n",
                 static_cast<long long>(limit_), static_cast<size_t>(input_), held);
    std::abort();
  }
  static void Freed(const volatile void* data) {
    if (watching_) held_ -= static_cast<long long>(__sanitizer_get_allocated_size(data));
  }

  static inline std::atomic<bool> watching_{false};
  static inline std::atomic<long long> held_{0};
  static inline std::atomic<long long> limit_{0};
  static inline std::atomic<size_t> input_{0};
};

#else

class MemoryWatch {
 public:
  MemoryWatch(const MemoryLimit&, size_t) {}
};

#endif

}  // namespace thresher::fuzz
