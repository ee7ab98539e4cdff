// What marks code that nvcc compiles for devices, and any compiler for the CPU.
#pragma once

#if defined(__CUDACC__)
#define THRESHER_DEVICE __device__ __forceinline__
#define THRESHER_UNROLL _Pragma("unroll")
#else
#define THRESHER_DEVICE inline
#define THRESHER_UNROLL
#endif

namespace thresher::cuda {

// Loads that come later in the code are not begun before this.
THRESHER_DEVICE void LoadsStayBehind() {
#if defined(__CUDACC__)
  asm volatile("" ::: "memory");
#endif
}

}  // namespace thresher::cuda
