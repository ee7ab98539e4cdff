// The instruction sets that kernels are compiled for. Every kernel source includes this before any Highway header;
// every source must see the same list, because run-time dispatch indexes one table per kernel by it.
#pragma once

// Each compiled target multiplies the size of every kernel, so targets whose extra instructions no kernel uses are off.
#if defined(__x86_64__) || defined(_M_X64)

// Compiled: SSE2 (what the compiler assumes anyway), AVX2 with FMA, AVX-512 (F, BW, DQ, CD, VL).
#define THRESHER_DISABLED_SIMD_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR)

#elif defined(__aarch64__)

// Compiled: NEON, SVE, SVE2. The fixed-width variants of SVE run where plain SVE runs. Highway tells NEON with AES from
// NEON without; only the one that the compiler assumes is kept, for no kernel encrypts.
#if defined(__ARM_FEATURE_AES)
#define THRESHER_DISABLED_SIMD_TARGETS (HWY_NEON_WITHOUT_AES | HWY_NEON_BF16 | HWY_SVE_256 | HWY_SVE2_128)
#else
#define THRESHER_DISABLED_SIMD_TARGETS (HWY_NEON | HWY_NEON_BF16 | HWY_SVE_256 | HWY_SVE2_128)
#endif

#endif

#if defined(THRESHER_DISABLED_SIMD_TARGETS) && !defined(HWY_DISABLED_TARGETS)
#define HWY_DISABLED_TARGETS THRESHER_DISABLED_SIMD_TARGETS
#endif
