// Contents for the inputs and constants of graphs that fuzz targets read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/graph/parser.h"

namespace thresher::fuzz {

inline constexpr int64_t kMostElements = int64_t{1} << 14;

// A few numbers of each kind over and over; of indices some are valid in small tensors and some are not.
inline const void* Contents(DType dtype) {
  static const auto kFloats = [] {
    std::array<float, kMostElements> values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25f * static_cast<float>(i * 7 % 23) - 2.5f;
    return values;
  }();
  static const auto kLongs = [] {
    std::array<int64_t, kMostElements> values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i * 5 % 7) - 1;
    return values;
  }();
  static const auto kInts = [] {
    std::array<int32_t, kMostElements> values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i * 5 % 7) - 1;
    return values;
  }();
  static const auto kBools = [] {
    std::array<uint8_t, kMostElements> values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0;
    return values;
  }();
  static const auto kHalves = [] {  // every kind of number: zeros, subnormal ones, infinities, NaN
    std::array<uint16_t, kMostElements> values{};
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i * 40503);
    return values;
  }();
  switch (dtype) {
    case DType::kF32:
      return kFloats.data();
    case DType::kI64:
      return kLongs.data();
    case DType::kI32:
      return kInts.data();
    case DType::kBool:
      return kBools.data();
    case DType::kBF16:
    case DType::kF16:
      return kHalves.data();
  }
  return nullptr;
}

// The sizes of parsed tensors have been checked, so that their product does not overflow.
inline Result<Constant> Resolve(const ConstantRequest& request) {
  if (NumElements(request.shape) > kMostElements) return InvalidArgument("expected a small constant");
  return Constant{Contents(request.dtype), nullptr, request.is_weight};
}

}  // namespace thresher::fuzz
