// What a kernel sees of the device. A kernel is a struct of parameters whose operator() takes the thread as an
// argument, so that one source runs on a GPU (Thread below, launched by launcher.cuh) and, in the tests, on the CPU
// (tests/cpp/cuda/emulator.h), where every barrier, shuffle and access to shared memory is checked.
//
// A thread has
//   x(), y()                position in its block; width(), height(): size of the block
//   block(), num_blocks()   position in the grid, and its size
//   Sync()                  barrier of the block
//   ShuffleXor(v, mask)     v of the thread of this warp whose number differs by `mask`; the whole warp calls it
//   shared()                the floats that the launch asked for, uninitialised
// A kernel says in kMostThreads how many threads its blocks have at most, so that the compiler knows how many registers
// each may take, and may say in kLeastBlocks how many blocks a multiprocessor shall hold.
//
// Threads with the same y() and neighbouring x() form a warp: width() is a multiple of 32.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define THRESHER_DEVICE __device__ __forceinline__
#define THRESHER_UNROLL _Pragma("unroll")
#else
#define THRESHER_DEVICE inline
#define THRESHER_UNROLL
#endif

namespace thresher::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 1024;

// How a kernel is launched. Blocks walk over the work in steps of the grid, so any number of them is right.
struct Shape {
  int64_t blocks = 1;
  int width = kWarp;
  int height = 1;
  int shared_floats = 0;
};

// Enough blocks to fill any device many times over, and within what a grid can have.
inline constexpr int64_t kMaxBlocks = int64_t{1} << 20;

#if defined(__CUDACC__)
class Thread {
 public:
  THRESHER_DEVICE int x() const { return static_cast<int>(threadIdx.x); }
  THRESHER_DEVICE int y() const { return static_cast<int>(threadIdx.y); }
  THRESHER_DEVICE int width() const { return static_cast<int>(blockDim.x); }
  THRESHER_DEVICE int height() const { return static_cast<int>(blockDim.y); }
  THRESHER_DEVICE int64_t block() const { return blockIdx.x; }
  THRESHER_DEVICE int64_t num_blocks() const { return gridDim.x; }
  THRESHER_DEVICE void Sync() const { __syncthreads(); }
  THRESHER_DEVICE float ShuffleXor(float v, int mask) const { return __shfl_xor_sync(0xffffffffu, v, mask); }
  THRESHER_DEVICE float* shared() const {
    extern __shared__ float memory[];
    return memory;
  }
};
#endif

}  // namespace thresher::cuda
