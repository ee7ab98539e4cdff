#include "thresher/kernels/block_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "thresher/base/half.h"

namespace thresher::kernels {
namespace {

constexpr int8_t kIq4NlLevels[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// Twice the numbers of E2M1, which have halves.
constexpr int8_t kMxfp4Levels[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

uint16_t Load16(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

void Store16(uint8_t* to, uint16_t bits) { std::memcpy(to, &bits, sizeof(bits)); }

// Numbers i and i + 16 of a group share a byte.
void ReadNibbles(const uint8_t* from, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = from[i] & 15;
    codes[i + 16] = from[i] >> 4;
  }
}

// Bit i of 32 is the fifth of code i.
void ReadFifthBits(const uint8_t* from, uint8_t* codes) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  for (int i = 0; i < kGroupNumbers; i += 4) {
    uint32_t quad;
    std::memcpy(&quad, codes + i, sizeof(quad));
    quad |= ((bits >> i & 15) * 0x00204081u & 0x01010101u) << 4;  // four bits, each in a byte of its own
    std::memcpy(codes + i, &quad, sizeof(quad));
  }
}

// The factors, of 6 bits, of group `g` of eight in 12 bytes.
void ReadFactors(const uint8_t* from, int64_t g, uint8_t* factor) {
  if (g < 4) {
    factor[0] = from[g] & 63;
    factor[1] = from[g + 4] & 63;
  } else {
    factor[0] = static_cast<uint8_t>((from[g + 4] & 15) | (from[g - 4] >> 6) << 4);
    factor[1] = static_cast<uint8_t>((from[g + 4] >> 4) | (from[g] >> 6) << 4);
  }
}

// Groups 2 i and 2 i + 1 share 32 bytes.
void ReadPairedNibbles(const uint8_t* from, int64_t g, uint8_t* codes) {
  const int shift = g % 2 == 0 ? 0 : 4;
  for (int i = 0; i < kGroupNumbers; ++i) codes[i] = (from[g / 2 * 32 + i] >> shift) & 15;
}

// Of q6_k: four groups share 64 bytes of lower and 32 bytes of upper bits.
void ReadSixBits(const uint8_t* low, const uint8_t* high, int64_t g, uint8_t* codes) {
  const uint8_t* const nibbles = low + g / 4 * 64 + g % 2 * 32;
  const uint8_t* const pairs = high + g / 4 * 32;
  const int shift = g % 4 < 2 ? 0 : 4;
  for (int i = 0; i < kGroupNumbers; ++i) {
    codes[i] = static_cast<uint8_t>(((nibbles[i] >> shift) & 15) | ((pairs[i] >> (g % 4 * 2)) & 3) << 4);
  }
}

// How the formats that can be written store a group.
struct Writable {
  float least;  // the level of the smallest code
  float most;   // and of the largest
  bool offset;  // whether the smallest number has code 0, else 0 has one
  bool fifth;   // whether codes have a fifth bit, apart from the others
};

constexpr Writable WritableOf(Encoding encoding) {
  switch (encoding) {
    case Encoding::kQ8_0:
      return {-127, 127, false, false};
    case Encoding::kQ4_0:
      return {-8, 7, false, false};
    case Encoding::kQ4_1:
      return {0, 15, true, false};
    case Encoding::kQ5_0:
      return {-16, 15, false, true};
    case Encoding::kQ5_1:
      return {0, 31, true, true};
    default:
      return {};
  }
}

}  // namespace

BlockGroup ReadGroup(Encoding encoding, const uint8_t* row, int64_t index) {
  const int64_t groups = BlockNumbers(encoding) / kGroupNumbers;
  const uint8_t* const block = row + index / groups * BlockBytes(encoding);
  const int64_t g = index % groups;
  BlockGroup group;
  switch (encoding) {
    case Encoding::kQ8_0:
      group.scale = Load16(block);
      std::memcpy(group.codes, block + 2, kGroupNumbers);
      break;
    case Encoding::kQ4_0:
    case Encoding::kIq4Nl:
      group.scale = Load16(block);
      ReadNibbles(block + 2, group.codes);
      break;
    case Encoding::kMxfp4:
      group.exponent = block[0];
      ReadNibbles(block + 1, group.codes);
      break;
    case Encoding::kQ4_1:
      group.scale = Load16(block);
      group.offset = Load16(block + 2);
      ReadNibbles(block + 4, group.codes);
      break;
    case Encoding::kQ5_0:
      group.scale = Load16(block);
      ReadNibbles(block + 6, group.codes);
      ReadFifthBits(block + 2, group.codes);
      break;
    case Encoding::kQ5_1:
      group.scale = Load16(block);
      group.offset = Load16(block + 2);
      ReadNibbles(block + 8, group.codes);
      ReadFifthBits(block + 4, group.codes);
      break;
    case Encoding::kQ4K:
      group.scale = Load16(block);
      group.offset = Load16(block + 2);
      ReadFactors(block + 4, g, group.factor);
      ReadPairedNibbles(block + 16, g, group.codes);
      break;
    case Encoding::kQ5K:
      group.scale = Load16(block);
      group.offset = Load16(block + 2);
      ReadFactors(block + 4, g, group.factor);
      ReadPairedNibbles(block + 48, g, group.codes);
      for (int i = 0; i < kGroupNumbers; ++i) group.codes[i] |= ((block[16 + i] >> g) & 1) << 4;
      break;
    case Encoding::kQ6K:
      group.scale = Load16(block + 208);
      group.factor[0] = block[192 + 2 * g];
      group.factor[1] = block[192 + 2 * g + 1];
      ReadSixBits(block, block + 128, g, group.codes);
      break;
    default:
      break;
  }
  return group;
}

int Level(Encoding encoding, uint8_t code) {
  switch (encoding) {
    case Encoding::kQ8_0:
      return static_cast<int8_t>(code);
    case Encoding::kQ4_0:
      return code - 8;
    case Encoding::kQ5_0:
      return code - 16;
    case Encoding::kQ6K:
      return code - 32;
    case Encoding::kIq4Nl:
      return kIq4NlLevels[code & 15];
    case Encoding::kMxfp4:
      return kMxfp4Levels[code & 15];
    default:
      return code;
  }
}

float PowerOfTwo(uint8_t exponent) {
  // Below 2 are subnormal numbers.
  if (exponent < 2) return std::bit_cast<float>(uint32_t{0x00200000} << exponent);
  return std::bit_cast<float>((uint32_t{exponent} - 1) << 23);
}

float ScaleOf(Encoding encoding, const BlockGroup& group, int half) {
  const float scale = ToFloat(F16{group.scale});
  if (encoding == Encoding::kMxfp4) return PowerOfTwo(group.exponent);
  if (encoding == Encoding::kQ6K) return scale * static_cast<float>(static_cast<int8_t>(group.factor[half]));
  return BlockNumbers(encoding) == kGroupNumbers ? scale : scale * static_cast<float>(group.factor[0]);
}

float OffsetOf(Encoding encoding, const BlockGroup& group) {
  if (encoding == Encoding::kQ4_1 || encoding == Encoding::kQ5_1) return ToFloat(F16{group.offset});
  if (encoding != Encoding::kQ4K && encoding != Encoding::kQ5K) return 0;
  return -(ToFloat(F16{group.offset}) * static_cast<float>(group.factor[1]));
}

void DecodeNumbers(Encoding encoding, const void* blocks, int64_t numbers, float* out) {
  if (encoding == Encoding::kF32) {
    std::memcpy(out, blocks, static_cast<size_t>(numbers) * sizeof(float));
    return;
  }
  const auto* const bytes = static_cast<const uint8_t*>(blocks);
  if (!IsBlocked(encoding)) {
    for (int64_t i = 0; i < numbers; ++i) {
      const uint16_t bits = Load16(bytes + 2 * i);
      out[i] = encoding == Encoding::kBf16 ? ToFloat(BF16{bits}) : ToFloat(F16{bits});
    }
    return;
  }
  for (int64_t g = 0; g < numbers / kGroupNumbers; ++g) {
    const BlockGroup group = ReadGroup(encoding, bytes, g);
    const float scales[] = {ScaleOf(encoding, group, 0), ScaleOf(encoding, group, 1)};
    const float offset = OffsetOf(encoding, group);
    for (int i = 0; i < kGroupNumbers; ++i) {
      out[g * kGroupNumbers + i] = scales[i / 16] * static_cast<float>(Level(encoding, group.codes[i])) + offset;
    }
  }
}

Status EncodeNumbers(Encoding encoding, const float* x, int64_t numbers, int64_t group, void* blocks) {
  const Writable to = WritableOf(encoding);
  if (to.most == 0) {
    return Unsupported("expected to quantise to q8_0, q4_0, q4_1, q5_0 or q5_1, got " + std::string(Name(encoding)));
  }
  if (group <= 0 || group % kGroupNumbers != 0 || numbers % group != 0) {
    return InvalidArgument("expected groups of a multiple of 32 numbers and whole groups in every row, got " +
                           std::to_string(numbers) + " numbers in groups of " + std::to_string(group));
  }
  auto* block = static_cast<uint8_t*>(blocks);
  for (int64_t begin = 0; begin < numbers; begin += group) {
    const float* const all = x + begin;
    float low = all[0], high = all[0], far = 0;
    for (int64_t i = 0; i < group; ++i) {
      if (!std::isfinite(all[i])) {
        return InvalidArgument("expected finite numbers, got " + std::to_string(all[i]) + " at " +
                               std::to_string(begin + i));
      }
      low = std::min(low, all[i]);
      high = std::max(high, all[i]);
      if (std::abs(all[i]) > std::abs(far)) far = all[i];
    }
    // Without an offset the number that is farthest from 0 gets the level that is.
    const float scale = to.offset                     ? (high - low) / to.most
                        : encoding == Encoding::kQ8_0 ? std::abs(far) / to.most
                                                      : far / to.least;
    const float inverse = scale == 0 ? 0 : 1 / scale;
    const F16 stored = ToF16(scale), offset = ToF16(low);
    if (!std::isfinite(ToFloat(stored)) || (to.offset && !std::isfinite(ToFloat(offset)))) {
      return InvalidArgument("expected numbers that a scale in f16 reaches, got " + std::to_string(far) + " at " +
                             std::to_string(begin) + " or behind");
    }
    for (int64_t g = 0; g < group; g += kGroupNumbers, block += BlockBytes(encoding)) {
      const float* const from = all + g;
      uint8_t codes[kGroupNumbers];
      uint8_t* next = block;
      Store16(next, stored.bits);
      next += 2;
      if (encoding == Encoding::kQ8_0) {
        for (int i = 0; i < kGroupNumbers; ++i) {
          next[i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(from[i] * inverse)));
        }
        continue;
      }
      for (int i = 0; i < kGroupNumbers; ++i) {
        const double level = (static_cast<double>(from[i]) - (to.offset ? low : 0)) * inverse;
        codes[i] = static_cast<uint8_t>(std::clamp<double>(level - to.least + 0.5, 0, to.most - to.least));
      }
      if (to.offset) {
        Store16(next, offset.bits);
        next += 2;
      }
      if (to.fifth) {
        uint32_t bits = 0;
        for (int i = 0; i < kGroupNumbers; ++i) bits |= uint32_t{codes[i]} >> 4 << i;
        std::memcpy(next, &bits, sizeof(bits));
        next += sizeof(bits);
      }
      for (int i = 0; i < 16; ++i) next[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
    }
  }
  return Status::Ok();
}

}  // namespace thresher::kernels
