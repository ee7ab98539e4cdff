// Runs a kernel of src/thresher/cuda on the CPU, one fiber a thread, and checks what a GPU does not tell:
//   - a barrier or a shuffle that not all threads of the block or warp reach;
//   - two threads that use the same float of shared memory between two barriers, one of them writing: a missing
//   barrier;
//   - shared memory that is read before it is written, or lies outside of what the launch asked for;
//   - a launch that no device takes (threads, blocks, shared memory, parameters).
// A fiber runs until it has to wait, and each launch is done twice, with blocks and threads in opposite orders, after
// which the caller compares: results that depend on the order show as differences.
//
// What it cannot see: accesses outside of global memory (AddressSanitizer can, and guard bytes show writes), threads
// that meet in global memory, the memory model below barriers, the last bits of the device's exp, sin and the like,
// registers, speed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "thresher/cuda/thread.h"

namespace thresher::cuda::testing {

class Block;

class SharedFloats;

// One float of shared memory.
class SharedFloat {
 public:
  SharedFloat(Block& block, int thread, int64_t index) : block_(block), thread_(thread), index_(index) {}
  SharedFloat(const SharedFloat&) = default;
  operator float() const;  // NOLINT(google-explicit-constructor): it stands for a float
  SharedFloat& operator=(float value);
  SharedFloat& operator=(const SharedFloat& other) { return *this = static_cast<float>(other); }

 private:
  Block& block_;
  int thread_;
  int64_t index_;
};

class SharedFloats {
 public:
  SharedFloats(Block& block, int thread) : block_(block), thread_(thread) {}
  SharedFloat operator[](int64_t index) const { return {block_, thread_, index}; }

 private:
  Block& block_;
  int thread_;
};

// As cuda::Thread.
class Thread {
 public:
  Thread(Block& block, int number) : block_(block), number_(number) {}
  int x() const;
  int y() const;
  int width() const;
  int height() const;
  int64_t block() const;
  int64_t num_blocks() const;
  void Sync();
  float ShuffleXor(float v, int mask);
  SharedFloats shared() { return {block_, number_}; }

 private:
  Block& block_;
  const int number_;  // in the block
};

enum class Order { kForward, kBackward };

// What is wrong with the kernel or its launch; empty if nothing was found.
std::string RunBlocks(const Shape& shape, size_t parameter_bytes, Order order,
                      const std::function<void(Thread&)>& kernel);

// A launcher for LaunchNorm() and the like. Gives what RunBlocks gives.
struct Launcher {
  Order order = Order::kForward;

  template <class Kernel>
  std::string operator()(const Shape& shape, const Kernel& kernel) const {
    if (shape.width * shape.height > Kernel::kMostThreads) return "more threads than the kernel says";
    return RunBlocks(shape, sizeof kernel, order, [&](Thread& thread) { kernel(thread); });
  }
  std::string Nothing() const { return {}; }
};

}  // namespace thresher::cuda::testing
