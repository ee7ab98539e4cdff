// Numbers of cuDNN's binary interface, version 9. cudnn_check.cc compares them with its headers.
#pragma once

namespace thresher::cuda {

inline constexpr int kCudnnF32 = 0;
inline constexpr int kCudnnF16 = 2;
inline constexpr int kCudnnBf16 = 9;
inline constexpr int kCudnnNhwc = 1;
inline constexpr int kCudnnCrossCorrelation = 1;
inline constexpr int kCudnnTensorOpMath = 1;
inline constexpr int kCudnnFmaMath = 3;
inline constexpr int kCudnnPropagateNan = 1;
inline constexpr int kCudnnRelu = 1;
inline constexpr int kCudnnIdentity = 5;
inline constexpr int kCudnnImplicitGemm = 0;
inline constexpr int kCudnnImplicitPrecompGemm = 1;

}  // namespace thresher::cuda
