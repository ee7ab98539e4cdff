// What a thread will want of memory when it has work again, asked for while it has none.
#pragma once

#include <cstddef>
#include <span>

namespace thresher {

class ReadAhead {
 public:
  // Goes on where it was if these are the bytes that it is at. They are asked for, not read, so that they need not
  // exist any more.
  void Want(std::span<const std::byte> bytes) {
    if (bytes.data() + bytes.size() == end_) return;
    next_ = bytes.data();
    end_ = bytes.data() + bytes.size();
  }

  // Asks for the next few lines, into the core's second cache; false: there are none left.
  bool ReadSome() {
    if (next_ >= end_) return false;
    for (size_t line = 0; line < kLines; ++line) __builtin_prefetch(next_ + line * kLineBytes, 0, 2);
    next_ += kLines * kLineBytes;
    return true;
  }

 private:
  static constexpr size_t kLineBytes = 64;
  static constexpr size_t kLines = 8;  // asked for in less time than a look at what another thread has written takes

  const std::byte* next_ = nullptr;
  const std::byte* end_ = nullptr;
};

}  // namespace thresher
