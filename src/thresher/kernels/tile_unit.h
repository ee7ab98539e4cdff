// What multiplies tiles: a matrix unit with eight registers of up to 16 rows of 64 bytes, as AMX has it.
//
// AmxUnit is its instructions. PlainUnit does the same in plain code on any machine, down to the last bit and to what
// is a fault, so that what is written for tiles can be tested anywhere. Both keep the state of the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thresher::kernels {

inline constexpr size_t kUnitTiles = 8;
inline constexpr size_t kUnitRows = 16;
inline constexpr size_t kUnitRowBytes = 64;
inline constexpr size_t kUnitTileBytes = kUnitRows * kUnitRowBytes;

// The sizes of the tiles, in the form that AMX reads.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // a multiple of 4; of a tile that is not used 0, as are its rows
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Tiles that are used must be configured, and their sizes must fit each other: for c += a * b those of c and a are
// equal in rows, those of c and b in bytes of a row, and b has a row for every 4 bytes of a row of a. Else it is a
// fault, which ends the process.
//
// DotBf16: pairs of bf16 in a row of a times the pairs that a row of b has for each column, in fp32: the sums of even
// and of odd elements are kept apart until the end, then added up, then added to c. Denormals count as 0.
// DotF16: the same with fp16, of which denormals count as what they are; sums that are denormals in fp32 count as 0.
// DotUint8Int8: quads of uint8 in a, of int8 in b, exact in int32 (which wraps around). DotInt8Uint8: the other way.
struct PlainUnit {
  static void Configure(const TileConfig& config);
  static void Release();
  static void Zero(int tile);
  // Rows `stride` bytes apart; 0: one row for all. LoadOnce: of what is not read again soon, which does not push out of
  // L1 what is.
  static void Load(int tile, const void* from, size_t stride);
  static void Store(int tile, void* to, size_t stride);
  static void DotBf16(int c, int a, int b);
  static void DotF16(int c, int a, int b);
  static void DotUint8Int8(int c, int a, int b);
  static void DotInt8Uint8(int c, int a, int b);

  template <int kTile>
  static void Zero() {
    Zero(kTile);
  }
  template <int kTile>
  static void Load(const void* from, size_t stride) {
    Load(kTile, from, stride);
  }
  template <int kTile>
  static void LoadOnce(const void* from, size_t stride) {
    Load(kTile, from, stride);
  }
  template <int kTile>
  static void Store(void* to, size_t stride) {
    Store(kTile, to, stride);
  }
  template <int kC, int kA, int kB>
  static void DotBf16() {
    DotBf16(kC, kA, kB);
  }
  template <int kC, int kA, int kB>
  static void DotF16() {
    DotF16(kC, kA, kB);
  }
  template <int kC, int kA, int kB>
  static void DotUint8Int8() {
    DotUint8Int8(kC, kA, kB);
  }
  template <int kC, int kA, int kB>
  static void DotInt8Uint8() {
    DotInt8Uint8(kC, kA, kB);
  }
};

#if defined(__x86_64__)

// Only where Amx::usable (base/amx.h), DotF16 where Amx::fp16. In assembly, which no compiler flag forbids: compilers'
// own forms want one that would let them use the instructions elsewhere, and GCC's _tile_loadconfig forgets that it
// reads memory.
struct AmxUnit {
  static void Configure(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  static void Release() { asm volatile("tilerelease" ::: "memory"); }

  template <int kTile>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  static void Load(const void* from, size_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void LoadOnce(const void* from, size_t stride) {
    asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void Store(void* to, size_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kC, int kA, int kB>
  static void DotBf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
  // As bytes: assemblers learned its name, tdpfp16ps, years after the others'.
  template <int kC, int kA, int kB>
  static void DotF16() {
    asm volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"((15 - kB) << 3 | 3), "i"(0xc0 | kC << 3 | kA));
  }
  template <int kC, int kA, int kB>
  static void DotInt8Uint8() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  static void DotUint8Int8() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

#endif

}  // namespace thresher::kernels
