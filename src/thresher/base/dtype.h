// Element types the engine stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace thresher {

// The numeric values are part of the plan's text form: append, never reorder.
enum class DType : uint8_t { kF32 = 0, kI64 = 1, kI32 = 2, kBool = 3, kBF16 = 4, kF16 = 5 };

inline constexpr int kNumDTypes = 6;

// Bytes of one element.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kI64:
      return 8;
    case DType::kI32:
      return 4;
    case DType::kBool:
      return 1;
    case DType::kBF16:
    case DType::kF16:
      return 2;
  }
  return 0;
}

// "f32", "i64", "i32", "bool", "bf16", "f16".
constexpr std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
    case DType::kBool:
      return "bool";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
  }
  return "?";
}

// A float of 16 bits: stored so, computed with as f32.
constexpr bool IsHalf(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

constexpr bool IsFloat(DType dtype) { return dtype == DType::kF32 || IsHalf(dtype); }

// What kernels compute elements of this type in.
constexpr DType ComputeType(DType dtype) { return IsHalf(dtype) ? DType::kF32 : dtype; }

inline std::optional<DType> ParseDType(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (Name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace thresher
