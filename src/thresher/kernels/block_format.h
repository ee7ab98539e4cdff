// The formats that store numbers in blocks, one at a time: what the kernels of gemm_block.h are compared with, and how
// they read blocks when they pack them. Layouts are those of GGUF files.
//
// A number is scale * Level(code) + offset, where 32 numbers along k, a group, share an offset and, in halves of 16, a
// scale. In the K formats both are products of a float of 256 numbers and a small integer.
#pragma once

#include <cstdint>

#include "thresher/base/encoding.h"
#include "thresher/base/status.h"

namespace thresher::kernels {

inline constexpr int kGroupNumbers = 32;

// A group as it is stored, and what that stands for.
struct BlockGroup {
  uint8_t codes[kGroupNumbers];  // of q8_0: the bits of int8; else unsigned, of 4 to 6 bits
  uint16_t scale = 0;            // f16; of the K formats that of 256 numbers; mxfp4: none
  uint16_t offset = 0;           // f16, of q4_1 and q5_1; of q4_k and q5_k that of 256 numbers, to be subtracted
  uint8_t factor[2] = {};        // q6_k: int8, of either half; q4_k, q5_k: of the scale and of the offset
  uint8_t exponent = 0;          // mxfp4: the scale is 2 to the power of (exponent - 128)
};

// Group `index` of a row of blocks.
BlockGroup ReadGroup(Encoding encoding, const uint8_t* row, int64_t index);

// What a code of a format of blocks stands for before it is scaled.
int Level(Encoding encoding, uint8_t code);

// The scale of a half of a group, and the offset of a group.
float ScaleOf(Encoding encoding, const BlockGroup& group, int half);
float OffsetOf(Encoding encoding, const BlockGroup& group);

// 2 to the power of (exponent - 128).
float PowerOfTwo(uint8_t exponent);

// `numbers` numbers, whole blocks of them, as floats. Any encoding.
void DecodeNumbers(Encoding encoding, const void* blocks, int64_t numbers, float* out);

// The inverse for q8_0, q4_0, q4_1, q5_0 and q5_1, as llama.cpp rounds; `group` numbers, a multiple of 32, share a
// scale and an offset. Errors: another encoding; numbers or group are no whole blocks; a number is not finite, or
// beyond what a scale in f16 reaches.
Status EncodeNumbers(Encoding encoding, const float* x, int64_t numbers, int64_t group, void* blocks);

}  // namespace thresher::kernels
