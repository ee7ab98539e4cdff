// Element types the engine stores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace thresher {

// The numeric values are part of the plan's text form: append, never reorder.
enum class DType : uint8_t { kF32 = 0, kI64 = 1, kI32 = 2, kBool = 3 };

inline constexpr int kNumDTypes = 4;

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
  }
  return 0;
}

// "f32", "i64", "i32", "bool".
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
  }
  return "?";
}

constexpr bool IsFloat(DType dtype) { return dtype == DType::kF32; }

inline std::optional<DType> ParseDType(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = static_cast<DType>(i);
    if (Name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

}  // namespace thresher
