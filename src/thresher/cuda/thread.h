// What a kernel sees of the device. A kernel is a struct of parameters whose operator() takes the thread as an
// argument, so that one source runs on a GPU (Thread below, launched by launcher.cuh) and, in the tests, on the CPU
// (tests/cpp/cuda/emulator.h), where every barrier, shuffle and access to shared memory is checked.
//
// A thread has
//   x(), y()                position in its block; width(), height(): size of the block
//   block(), num_blocks()   position in the grid, and its size
//   Sync()                  barrier of the block
//   ShuffleXor(v, mask)     v of the thread of this warp whose number differs by `mask`; the whole warp calls it
//   Any(v)                  whether it is true for a thread of this warp; the whole warp calls it
//   shared()                the floats that the launch asked for, uninitialised
//   shared_words()          the same memory as words of 32 bits
//   LoadFour, StoreFour     four floats of it at once, at a multiple of 4
//   CopyFour(at, from, n)   begins to copy 16 bytes there from global memory (cp.async), of which all behind the first
//   n
//                           become zero; `from` is a multiple of 16. What has been begun until CommitCopies() is a
//                           group;
//   WaitCopies()            waits for the thread's own groups; others see what was copied after a Sync()
//   LoadMatrices<kTurned>   four 8 x 8 matrices of 16-bit elements from shared memory (ldmatrix): lanes 8m to 8m + 7
//   say
//                           where the 8 rows of matrix m begin, each 4 words at a multiple of 4; lane l gets elements
//                           2 (l % 4) and the next of row l / 4, where kTurned of column l / 4
//   MultiplyAdd<Half>       c += a b of a warp (mma.sync m16n8k16): c is f32, of lane l rows l / 4 and l / 4 + 8,
//   columns
//                           2 (l % 4) and the next; a in four such matrices (rows 0-7, rows 8-15, then the same of
//                           columns 8-15), b in two, turned: lane l has column l / 4
//   Claim(word)             whether this thread is the first to set a word of global memory that was 0
//   Publish(word)           sets a word that the host sees, after all that the thread has written before
// A kernel says in kMostThreads how many threads its blocks have at most, so that the compiler knows how many registers
// each may take, and may say in kLeastBlocks how many blocks a multiprocessor shall hold.
//
// Threads with the same y() and neighbouring x() form a warp: width() is a multiple of 32.
#pragma once

#include <cstdint>

#include "thresher/base/dtype.h"

#if defined(__CUDACC__)
#define THRESHER_DEVICE __device__ __forceinline__
#define THRESHER_UNROLL _Pragma("unroll")
#define THRESHER_ROLLED _Pragma("unroll 1")  // of a loop whose body is long: its code is there once
#else
#define THRESHER_DEVICE inline
#define THRESHER_UNROLL
#define THRESHER_ROLLED
#endif

namespace thresher::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 1024;
// Of a block: what every device gives that asks for it, and what needs no asking.
inline constexpr int kMostSharedBytes = 99 * 1024;
inline constexpr int kFreeSharedBytes = 48 * 1024;

// How a kernel is launched. Blocks walk over the work in steps of the grid, so any number of them is right.
struct Shape {
  int64_t blocks = 1;
  int width = kWarp;
  int height = 1;
  int shared_floats = 0;
};

// Enough blocks to fill any device many times over, and within what a grid can have.
inline constexpr int64_t kMaxBlocks = int64_t{1} << 20;

struct alignas(16) Four {
  float x, y, z, w;
};

// Loads that come later in the code are not begun before this.
THRESHER_DEVICE void LoadsStayBehind() {
#if defined(__CUDACC__)
  asm volatile("" ::: "memory");
#endif
}

// What is made of it is made here each time, rather than once and then kept in registers that are wanted elsewhere.
THRESHER_DEVICE int Anew(int x) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(x));
#endif
  return x;
}

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
  THRESHER_DEVICE bool Any(bool v) const { return __any_sync(0xffffffffu, v) != 0; }
  THRESHER_DEVICE bool Claim(uint32_t* word) const { return atomicCAS(word, 0u, 1u) == 0u; }
  THRESHER_DEVICE void Publish(uint32_t* word) const {
    __threadfence_system();
    *static_cast<volatile uint32_t*>(word) = 1;
  }
  THRESHER_DEVICE float* shared() const {
    extern __shared__ float memory[];
    return memory;
  }
  THRESHER_DEVICE uint32_t* shared_words() const { return reinterpret_cast<uint32_t*>(shared()); }
  THRESHER_DEVICE Four LoadFour(int at) const { return *reinterpret_cast<const Four*>(shared() + at); }
  THRESHER_DEVICE void StoreFour(int at, const Four& v) const { *reinterpret_cast<Four*>(shared() + at) = v; }
  THRESHER_DEVICE void CopyFour(int at, const void* from, int bytes) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(Address(at)), "l"(from), "r"(bytes) : "memory");
  }
  THRESHER_DEVICE void CommitCopies() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  // kBut: the last groups that may still be under way.
  template <int kBut = 0>
  THRESHER_DEVICE void WaitCopies() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(kBut) : "memory");
  }
  template <bool kTurned>
  THRESHER_DEVICE void LoadMatrices(int at, uint32_t (&m)[4]) const {
    if constexpr (kTurned) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                   : "r"(Address(at)));
    } else {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                   : "r"(Address(at)));
    }
  }
  template <class Half>
  THRESHER_DEVICE void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) const {
    if constexpr (Half::kDType == DType::kBF16) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }

 private:
  THRESHER_DEVICE static uint32_t Address(int word) {
    extern __shared__ float memory[];
    return static_cast<uint32_t>(__cvta_generic_to_shared(memory + word));
  }
};
#endif

}  // namespace thresher::cuda
