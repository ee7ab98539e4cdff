// The number formats a matrix product with constant weights may be computed in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "thresher/base/encoding.h"

namespace thresher {

enum class Precision : uint8_t {
  kFp32,
  kBf16,        // weights and, where the processor multiplies bf16, activations in bf16; sums in fp32
  kFp16,        // weights in fp16, computed in fp32, or, where the processor multiplies fp16, activations in fp16
  kInt8,        // weights in int8, one scale a column; activations in 8 bits, one scale and zero point a row
  kInt8Weight,  // weights in int8, one scale a column; computed in fp32
  kInt4Weight,  // weights in 4 bits, one scale for 32 of them along k; computed in fp32
  // Weights in the blocks they came in, in the order of Encoding; activations in 8 bits, one scale for 32 along k.
  kBlocks,
};

// Those that can be asked for.
inline constexpr std::string_view kPrecisionNames[] = {"fp32", "bf16", "fp16", "int8", "int8_weight", "int4_weight"};

constexpr bool IsBlocked(Precision precision) { return precision >= Precision::kBlocks; }

// Of a blocked precision.
constexpr Encoding EncodingOf(Precision precision) {
  const int index = static_cast<int>(precision) - static_cast<int>(Precision::kBlocks);
  return static_cast<Encoding>(static_cast<int>(Encoding::kQ8_0) + index);
}

inline std::string_view Name(Precision precision) {
  return IsBlocked(precision) ? Name(EncodingOf(precision)) : kPrecisionNames[static_cast<size_t>(precision)];
}

// How a constant is stored among packed weights if nothing else is asked for.
constexpr Precision StoredPrecision(Encoding encoding) {
  if (IsBlocked(encoding)) {
    const int index = static_cast<int>(encoding) - static_cast<int>(Encoding::kQ8_0);
    return static_cast<Precision>(static_cast<int>(Precision::kBlocks) + index);
  }
  if (encoding == Encoding::kBf16) return Precision::kBf16;
  return encoding == Encoding::kF16 ? Precision::kFp16 : Precision::kFp32;
}

inline std::optional<Precision> ParsePrecision(std::string_view name) {
  for (size_t i = 0; i < std::size(kPrecisionNames); ++i) {
    if (kPrecisionNames[i] == name) return static_cast<Precision>(i);
  }
  return std::nullopt;
}

// What storing a weight W in another format Q does to it.
struct WeightError {
  double relative = 0;     // |Q(W) - W| / |W| in the Frobenius norm
  bool finite = true;      // W holds neither infinities nor NaN
  bool overflows = false;  // an element of W is beyond the format's range
};

// What became of one product, and why.
struct PrecisionDecision {
  std::string module;
  std::string source;
  std::string op;
  int64_t k = 0;
  int64_t n = 0;
  Precision precision = Precision::kFp32;
  std::optional<double> weight_error;  // relative; nullopt: not measured
  std::string reason;
};

}  // namespace thresher
