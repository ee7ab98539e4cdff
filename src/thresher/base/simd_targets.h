// The instruction sets that kernels are compiled for. Every kernel source includes this before any Highway header.
//
// A source that uses dot-product instructions defines THRESHER_DOT_TARGETS first and is compiled for the processors
// that have them as well; one that uses those of int8 alone, or of bf16 alone, defines THRESHER_INT8_TARGETS or
// THRESHER_BF16_TARGETS instead. One that keeps vectors in arrays, which those of SVE cannot be in, defines
// THRESHER_FIXED_VECTORS first and is not compiled for SVE. Highway dispatches each source among the targets it was
// compiled for.
#pragma once

// Each compiled target multiplies the size of every kernel, so targets whose extra instructions a source does not use
// are off.
#if defined(__x86_64__) || defined(_M_X64)

// Compiled: SSE2 (what the compiler assumes anyway), AVX2 with FMA, AVX-512 (F, BW, DQ, CD, VL); with dot products also
// AVX-512 with VNNI (Ice Lake; of int8) and with VNNI and BF16 (Zen 4, Sapphire Rapids).
#if defined(THRESHER_DOT_TARGETS)
#define HWY_WANT_AVX3_DL  // Highway leaves it out unless asked
#define THRESHER_DISABLED_SIMD_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_SPR)
#elif defined(THRESHER_INT8_TARGETS)
#define HWY_WANT_AVX3_DL
#define THRESHER_DISABLED_SIMD_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_ZEN4 | HWY_AVX3_SPR)
#elif defined(THRESHER_BF16_TARGETS)
#define THRESHER_DISABLED_SIMD_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_AVX3_SPR)
#else
#define THRESHER_DISABLED_SIMD_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR)
#endif

#elif defined(__aarch64__)

// Compiled: NEON, SVE, SVE2. The fixed-width variants of SVE run where plain SVE runs. Highway tells NEON with AES from
// NEON without; only the one that the compiler assumes is kept, for no kernel encrypts. With dot products also NEON
// with DotProd and BF16 (Armv8.4 and later without SVE).
#if defined(__ARM_FEATURE_AES)
#define THRESHER_OTHER_NEON HWY_NEON_WITHOUT_AES
#else
#define THRESHER_OTHER_NEON HWY_NEON
#endif
#if defined(THRESHER_FIXED_VECTORS)
#define THRESHER_OTHER_SVE (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#else
#define THRESHER_OTHER_SVE (HWY_SVE_256 | HWY_SVE2_128)
#endif
#if defined(THRESHER_DOT_TARGETS) || defined(THRESHER_INT8_TARGETS) || defined(THRESHER_BF16_TARGETS)
#define THRESHER_DISABLED_SIMD_TARGETS (THRESHER_OTHER_NEON | THRESHER_OTHER_SVE)
#else
#define THRESHER_DISABLED_SIMD_TARGETS (THRESHER_OTHER_NEON | HWY_NEON_BF16 | THRESHER_OTHER_SVE)
#endif

#endif

#if defined(THRESHER_DISABLED_SIMD_TARGETS) && !defined(HWY_DISABLED_TARGETS)
#define HWY_DISABLED_TARGETS THRESHER_DISABLED_SIMD_TARGETS
#endif

// Whether the target being compiled multiplies pairs of bf16 by an instruction. Highway's own macro holds for plain
// NEON what it held for NEON with BF16, when a source is compiled for both.
#define THRESHER_NATIVE_DOT_BF16 (HWY_NATIVE_DOT_BF16 && (!HWY_TARGET_IS_NEON || HWY_TARGET == HWY_NEON_BF16))

// How the target being compiled multiplies int8: four at a time by an instruction that adds to int32; else two at a
// time with sums in int16; else two at a time, widened to int16.
#define THRESHER_INT8_QUADS \
  ((HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL) || HWY_TARGET_IS_SVE || HWY_TARGET == HWY_NEON_BF16)
#define THRESHER_INT8_SHORT_SUMS (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && HWY_TARGET > HWY_AVX3_DL)
