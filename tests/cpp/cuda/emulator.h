// Runs a kernel of src/thresher/cuda on the CPU, one fiber a thread, and checks what a GPU does not tell:
//   - a barrier or a shuffle that not all threads of the block or warp reach;
//   - two threads that use the same float of shared memory between two barriers, one of them writing: a missing
//   barrier;
//   - shared memory that is read before it is written, or lies outside of what the launch asked for;
//   - a copy to shared memory (CopyFour) that is used before its thread has waited for it, or never waited for;
//   - rows of LoadMatrices that lie in one bank, so that a device reads them one after another;
//   - a launch that no device takes (threads, blocks, shared memory, parameters).
// A fiber runs until it has to wait, and each launch is done twice, with blocks and threads in opposite orders, after
// which the caller compares: results that depend on the order show as differences.
//
// What it cannot see: accesses outside of global memory (AddressSanitizer can, and guard bytes show writes), threads
// that meet in global memory, the memory model below barriers, the last bits of the device's exp, sin and the like,
// registers, speed.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "thresher/cuda/thread.h"

namespace thresher::cuda::testing {

class Block;

uint32_t LoadShared(Block& block, int thread, int64_t index);
void StoreShared(Block& block, int thread, int64_t index, uint32_t word);

// A float or a word of shared memory.
template <class Value>
class Shared {
 public:
  Shared(Block& block, int thread, int64_t index) : block_(block), thread_(thread), index_(index) {}
  Shared(const Shared&) = default;
  operator Value() const {  // NOLINT(google-explicit-constructor): it stands for its value
    return std::bit_cast<Value>(LoadShared(block_, thread_, index_));
  }
  Shared& operator=(Value value) {
    StoreShared(block_, thread_, index_, std::bit_cast<uint32_t>(value));
    return *this;
  }
  Shared& operator=(const Shared& other) { return *this = static_cast<Value>(other); }

 private:
  Block& block_;
  int thread_;
  int64_t index_;
};

template <class Value>
class SharedMemory {
 public:
  SharedMemory(Block& block, int thread) : block_(block), thread_(thread) {}
  Shared<Value> operator[](int64_t index) const { return {block_, thread_, index}; }

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
  bool Any(bool v);
  SharedMemory<float> shared() { return {block_, number_}; }
  SharedMemory<uint32_t> shared_words() { return {block_, number_}; }
  Four LoadFour(int at);
  void StoreFour(int at, const Four& v);
  void CopyFour(int at, const void* from, int bytes);
  void CommitCopies();
  template <int kBut = 0>
  void WaitCopies() {
    WaitCopies(kBut);
  }
  template <bool kTurned>
  void LoadMatrices(int at, uint32_t (&m)[4]) {
    LoadMatrices(at, kTurned, m);
  }
  template <class Half>
  void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
    MultiplyAdd(&Half::Widen, a, b0, b1, c);
  }
  bool Claim(uint32_t* word) { return std::exchange(*word, 1u) == 0; }
  void Publish(uint32_t* word) { *word = 1; }

 private:
  void WaitCopies(int but);
  void LoadMatrices(int at, bool turned, uint32_t (&m)[4]);
  void MultiplyAdd(float (*widen)(uint16_t), const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]);

  Block& block_;
  const int number_;  // in the block
};

enum class Order { kForward, kBackward };

// What is wrong with the kernel or its launch; empty if nothing was found.
std::string RunBlocks(const Shape& shape, size_t parameter_bytes, Order order,
                      const std::function<void(Thread&)>& kernel);

// How many operations of warps on the matrix units the calling thread has emulated so far.
int64_t MatrixOperations();

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
