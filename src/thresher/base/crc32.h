// The checksum of zlib and gzip.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace thresher {

// CRC-32 (ISO 3309, polynomial 0xEDB88320 reflected) of `size` bytes; pass the result so far to go on.
inline uint32_t Crc32(const void* data, size_t size, uint32_t crc = 0) {
  // Four bytes a step ("slicing by four", Kounavis and Berry 2005): table k holds the effect of a byte k places back.
  static constexpr auto kTables = [] {
    std::array<std::array<uint32_t, 256>, 4> tables{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320u : 0u);
      tables[0][i] = value;
    }
    for (size_t k = 1; k < 4; ++k) {
      for (size_t i = 0; i < 256; ++i) {
        const uint32_t before = tables[k - 1][i];
        tables[k][i] = (before >> 8) ^ tables[0][before & 0xFF];
      }
    }
    return tables;
  }();
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 4; size -= 4, p += 4) {
    crc ^= uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
    crc =
        kTables[3][crc & 0xFF] ^ kTables[2][(crc >> 8) & 0xFF] ^ kTables[1][(crc >> 16) & 0xFF] ^ kTables[0][crc >> 24];
  }
  for (; size > 0; --size, ++p) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 0xFF];
  return ~crc;
}

}  // namespace thresher
