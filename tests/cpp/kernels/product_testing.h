// Runs products with just the scratch memory that they ask for.
#pragma once

#include <algorithm>
#include <cstddef>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"

namespace thresher::kernels::testing {

// Scratch memory whose last float is guarded by others.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : size_(bytes / sizeof(float)), floats_(size_ + kGuards) {
    EXPECT_LE(bytes, kMostGemmScratchBytes);
    std::fill_n(floats_.data() + size_, kGuards, kGuard);
  }
  ~Scratch() {
    for (size_t i = 0; i < kGuards; ++i)
      EXPECT_EQ(floats_.data()[size_ + i], kGuard) << "expected " << size_ << " floats";
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() { return floats_.data(); }

 private:
  static constexpr size_t kGuards = 32;
  static constexpr float kGuard = -54321.0f;
  size_t size_;
  AlignedFloats floats_;
};

// All parts, one after the other.
inline void Multiply(const GemmArgs& args, int num_parts = 1) {
  Scratch scratch(GemmScratchBytes(args));
  for (int part = 0; part < num_parts; ++part) Gemm(args, scratch.data(), part, num_parts);
}
inline void Multiply(const GemmDotArgs& args, int num_parts = 1) {
  Scratch scratch(GemmDotScratchBytes(args));
  for (int part = 0; part < num_parts; ++part) GemmDot(args, scratch.data(), part, num_parts);
}

}  // namespace thresher::kernels::testing
