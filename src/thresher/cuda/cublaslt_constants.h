// Numbers of cuBLASLt's binary interface, version 13. cublaslt_check.cc compares them with its header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thresher::cuda {

inline constexpr int kTypeF32 = 0;
inline constexpr int kTypeF16 = 2;
inline constexpr int kTypeBf16 = 14;
inline constexpr int kComputeF32 = 68;
inline constexpr int kComputeTf32 = 77;
inline constexpr uint32_t kNoTranspose = 0;
inline constexpr uint32_t kTranspose = 1;
// Bits of an epilogue; none of them: kEpilogueNone.
inline constexpr uint32_t kEpilogueNone = 1;
inline constexpr uint32_t kEpilogueRelu = 2;
inline constexpr uint32_t kEpilogueBias = 4;
inline constexpr uint32_t kEpilogueGeluTanh = 32;

inline constexpr int kDescTransposeA = 3;
inline constexpr int kDescTransposeB = 4;
inline constexpr int kDescEpilogue = 7;
inline constexpr int kDescBiasPointer = 8;

inline constexpr int kLayoutBatchCount = 5;
inline constexpr int kLayoutBatchStride = 6;

inline constexpr int kPreferWorkspace = 1;
inline constexpr int kPreferAlignmentA = 5;
inline constexpr int kPreferAlignmentB = 6;
inline constexpr int kPreferAlignmentC = 7;
inline constexpr int kPreferAlignmentD = 8;

struct HeuristicResult {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int status;
  float waves;
  int reserved[4];
};

}  // namespace thresher::cuda
