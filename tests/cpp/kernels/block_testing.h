// Weights in blocks, of every format.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "thresher/base/encoding.h"
#include "thresher/base/half.h"
#include "thresher/kernels/block_format.h"

namespace thresher::kernels::testing {

inline std::vector<Encoding> Blocked() {
  std::vector<Encoding> all;
  for (int i = 0; i < kNumEncodings; ++i) {
    if (IsBlocked(static_cast<Encoding>(i))) all.push_back(static_cast<Encoding>(i));
  }
  return all;
}

// Rows of blocks with any codes and factors, and scales of both signs.
inline std::vector<uint8_t> RandomBlocks(Encoding encoding, int64_t numbers, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> blocks(static_cast<size_t>(EncodedBytes(encoding, numbers)));
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random());
  for (int64_t block = 0; block < numbers / BlockNumbers(encoding); ++block) {
    uint8_t* const at = blocks.data() + block * BlockBytes(encoding);
    const auto half = [&](int64_t place) {
      const uint16_t bits = ToF16(static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 1e-4f).bits;
      std::memcpy(at + place, &bits, sizeof(bits));
    };
    if (encoding == Encoding::kMxfp4) {
      at[0] = static_cast<uint8_t>(block == 0 ? 0 : block == 1 ? 1 : 115 + random() % 20);
    } else if (encoding == Encoding::kQ6K) {
      half(208);
    } else {
      half(0);
      half(2);  // of formats without an offset these are codes
    }
  }
  return blocks;
}

}  // namespace thresher::kernels::testing
