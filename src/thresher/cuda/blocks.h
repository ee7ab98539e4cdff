// Numbers in blocks of a few bits (kernels/block_format.h), as kernels of a device read them.
#pragma once

#include <cstdint>
#include <cstring>

#include "thresher/base/encoding.h"
#include "thresher/cuda/halves.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

inline constexpr int kBlockNumbers = 32;
inline constexpr int kPieceNumbers = 8;  // unpacked at a time

// 2^23 + byte `i` of a word.
THRESHER_DEVICE float ByteAboveTwo23(uint32_t word, int i) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u + static_cast<uint32_t>(i)));
#else
  const uint32_t bits = (word >> (8 * i) & 0xffu) | 0x4b000000u;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
#endif
}

// A block whose codes follow `kHead` bytes, as words: the head, then the codes. Blocks are at even addresses.
template <int kHead, int kCodeWords>
struct StoredBlock {
  static constexpr int kBytes = kHead + 4 * kCodeWords;

  // Every word is read once and nothing that lies outside of the block's own bytes but for what shares a word with
  // them before it.
  THRESHER_DEVICE void Load(const uint8_t* from) {
    if constexpr (kHead == 4) {
      const auto* const words = reinterpret_cast<const uint32_t*>(from);
      head = words[0];
      THRESHER_UNROLL
      for (int i = 0; i < kCodeWords; ++i) codes[i] = words[1 + i];
    } else {
      const bool odd = (reinterpret_cast<uintptr_t>(from) & 2) != 0;
      const auto* const words = reinterpret_cast<const uint32_t*>(from - (odd ? 2 : 0));
      const auto* const last = reinterpret_cast<const uint16_t*>(words + kCodeWords);
      uint32_t word[kCodeWords + 1];
      THRESHER_UNROLL
      for (int i = 0; i < kCodeWords; ++i) word[i] = words[i];
      word[kCodeWords] = last[0];
      if (odd) word[kCodeWords] |= static_cast<uint32_t>(last[1]) << 16;
      head = odd ? word[0] >> 16 : word[0] & 0xffffu;
      THRESHER_UNROLL
      for (int i = 0; i < kCodeWords; ++i) codes[i] = odd ? word[i + 1] : word[i] >> 16 | word[i + 1] << 16;
    }
  }

  uint32_t head;
  uint32_t codes[kCodeWords];
};

// ---- The formats: a number is scale * Piece() + Offset() ----

struct BlockQ8_0 : StoredBlock<2, 8> {
  static constexpr Encoding kEncoding = Encoding::kQ8_0;
  static constexpr bool kHasOffset = false;

  THRESHER_DEVICE float Offset() const { return 0.0f; }
  THRESHER_DEVICE void Piece(int p, float* out) const {
    THRESHER_UNROLL
    for (int i = 0; i < kPieceNumbers; ++i) {
      const uint32_t shifted = codes[2 * p + i / 4] ^ 0x80808080u;
      out[i] = ByteAboveTwo23(shifted, i % 4) - (8388608.0f + 128.0f);
    }
  }
};

// Numbers i and i + 16 share a byte.
template <Encoding kWhich, int kHead>
struct BlockOfNibbles : StoredBlock<kHead, 4> {
  static constexpr Encoding kEncoding = kWhich;
  static constexpr bool kHasOffset = kHead == 4;
  static constexpr float kZero = kHasOffset ? 0.0f : 8.0f;

  THRESHER_DEVICE float Offset() const {
    return kHasOffset ? Fp16::Widen(static_cast<uint16_t>(this->head >> 16)) : 0.0f;
  }
  THRESHER_DEVICE void Piece(int p, float* out) const {
    THRESHER_UNROLL
    for (int i = 0; i < kPieceNumbers; ++i) {
      const uint32_t word = this->codes[2 * (p % 2) + i / 4];
      const uint32_t nibbles = (p < 2 ? word : word >> 4) & 0x0f0f0f0fu;
      out[i] = ByteAboveTwo23(nibbles, i % 4) - (8388608.0f + kZero);
    }
  }
};
using BlockQ4_0 = BlockOfNibbles<Encoding::kQ4_0, 2>;
using BlockQ4_1 = BlockOfNibbles<Encoding::kQ4_1, 4>;

template <class Block>
THRESHER_DEVICE float BlockScale(const Block& block) {
  return Fp16::Widen(static_cast<uint16_t>(block.head));
}

inline bool HasBlocks(Encoding encoding) {
  return encoding == Encoding::kQ8_0 || encoding == Encoding::kQ4_0 || encoding == Encoding::kQ4_1;
}

// launch.template operator()<Block>() of one of these formats.
template <class Launch>
auto ForBlocks(Encoding encoding, Launch&& launch) {
  if (encoding == Encoding::kQ4_0) return launch.template operator()<BlockQ4_0>();
  if (encoding == Encoding::kQ4_1) return launch.template operator()<BlockQ4_1>();
  return launch.template operator()<BlockQ8_0>();
}

}  // namespace thresher::cuda
