// How a product stores its weights and what it computes with.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace thresher::kernels {

enum class Precision : uint8_t {
  kF32,
  kBF16,        // weights and, where the processor multiplies bf16, activations in bf16; sums in fp32
  kF16,         // weights in fp16, computed in fp32
  kInt8,        // weights in int8, one scale a column; activations in 8 bits, one scale and zero point a row
  kInt8Weight,  // weights in int8, one scale a column; computed in fp32
  kInt4Weight,  // weights in 4 bits, one scale for kInt4Group of them along k; computed in fp32
};

inline constexpr std::array<std::string_view, 6> kPrecisionNames = {"fp32", "bf16",        "fp16",
                                                                    "int8", "int8_weight", "int4_weight"};

// Weights along k that share a scale in kInt4Weight.
inline constexpr int64_t kInt4Group = 32;

constexpr std::string_view Name(Precision precision) { return kPrecisionNames[static_cast<size_t>(precision)]; }

constexpr std::optional<Precision> ParsePrecision(std::string_view name) {
  for (size_t i = 0; i < kPrecisionNames.size(); ++i) {
    if (kPrecisionNames[i] == name) return static_cast<Precision>(i);
  }
  return std::nullopt;
}

}  // namespace thresher::kernels
