// How the numbers of a constant are stored: one by one, or in blocks of a few bits a number with scales in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "thresher/base/dtype.h"

namespace thresher {

// From kQ8_0 on formats of blocks, with the names and layouts of GGUF files (kernels/block_format.h); a row begins with
// a block. The numeric values stand in model files: append, never reorder.
enum class Encoding : uint8_t {
  kF32,
  kBf16,
  kF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Nl,
  kMxfp4,
};

inline constexpr std::string_view kEncodingNames[] = {"f32",  "bf16", "f16",  "q8_0", "q4_0",   "q4_1", "q5_0",
                                                      "q5_1", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4"};
inline constexpr int kNumEncodings = static_cast<int>(std::size(kEncodingNames));

constexpr std::string_view Name(Encoding encoding) { return kEncodingNames[static_cast<size_t>(encoding)]; }

constexpr bool IsBlocked(Encoding encoding) { return encoding >= Encoding::kQ8_0; }

// Numbers of a block; 1 where there are none.
constexpr int64_t BlockNumbers(Encoding encoding) {
  if (!IsBlocked(encoding)) return 1;
  return encoding == Encoding::kQ4K || encoding == Encoding::kQ5K || encoding == Encoding::kQ6K ? 256 : 32;
}

// Bytes of a block.
constexpr int64_t BlockBytes(Encoding encoding) {
  constexpr int64_t kBytes[] = {4, 2, 2, 34, 18, 20, 22, 24, 144, 176, 210, 18, 17};
  static_assert(std::size(kBytes) == std::size(kEncodingNames));
  return kBytes[static_cast<size_t>(encoding)];
}

// Bytes of `numbers` numbers, whole blocks of them.
constexpr int64_t EncodedBytes(Encoding encoding, int64_t numbers) {
  return numbers / BlockNumbers(encoding) * BlockBytes(encoding);
}

inline std::optional<Encoding> ParseEncoding(std::string_view name) {
  for (size_t i = 0; i < std::size(kEncodingNames); ++i) {
    if (kEncodingNames[i] == name) return static_cast<Encoding>(i);
  }
  return std::nullopt;
}

constexpr std::optional<Encoding> EncodingOf(DType dtype) {
  if (dtype == DType::kF32) return Encoding::kF32;
  if (dtype == DType::kBF16) return Encoding::kBf16;
  if (dtype == DType::kF16) return Encoding::kF16;
  return std::nullopt;
}

}  // namespace thresher
