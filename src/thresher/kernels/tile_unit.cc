// The plain form of the matrix unit. The rules are those of the instructions' manual.
#include "thresher/kernels/tile_unit.h"

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "thresher/base/half.h"

namespace thresher::kernels {
namespace {

struct State {
  TileConfig config;
  bool configured = false;
  alignas(64) uint8_t tiles[kUnitTiles][kUnitRows][kUnitRowBytes];

  size_t Rows(int tile) const { return config.rows[tile]; }
  size_t RowBytes(int tile) const { return config.row_bytes[tile]; }
  uint8_t* Row(int tile, size_t row) { return tiles[tile][row]; }
};

thread_local State t_state;

[[noreturn]] void Fault(const char* what, int tile) {
  std::fprintf(stderr, "thresher: fault of the matrix unit: %s (tile %d)\n", what, tile);
  std::abort();
}

State& Configured(int tile) {
  State& state = t_state;
  if (!state.configured) Fault("tiles are not configured", tile);
  if (tile < 0 || tile >= static_cast<int>(kUnitTiles)) Fault("expected tile 0 to 7", tile);
  if (state.Rows(tile) == 0 || state.RowBytes(tile) == 0) Fault("the tile is not configured", tile);
  return state;
}

// Of a product, whose tiles' sizes must fit.
State& Product(int c, int a, int b) {
  Configured(a), Configured(b);
  State& state = Configured(c);
  if (c == a || c == b || a == b) Fault("expected three tiles", c);
  if (state.Rows(c) != state.Rows(a)) Fault("sums and left factor differ in rows", c);
  if (state.RowBytes(c) != state.RowBytes(b)) Fault("sums and right factor differ in bytes of a row", c);
  if (state.Rows(b) * 4 != state.RowBytes(a)) Fault("expected a row of the right factor for 4 bytes of the left", b);
  return state;
}

// What lies beyond a tile's rows and bytes is 0.
void ClearRest(State& state, int tile) {
  for (size_t row = 0; row < kUnitRows; ++row) {
    const size_t used = row < state.Rows(tile) ? state.RowBytes(tile) : 0;
    std::memset(state.Row(tile, row) + used, 0, kUnitRowBytes - used);
  }
}

// Denormals to zero.
float Flushed(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7F800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : x;
}

// x * y + sum, rounded once: products of 16-bit floats are exact in double, and sums that are not lie far from where
// rounding twice would matter.
float MultiplyAdd(float x, float y, float sum) {
  return Flushed(static_cast<float>(static_cast<double>(x) * static_cast<double>(y) + static_cast<double>(sum)));
}

template <class T>
T At(const uint8_t* row, size_t index) {
  T value;
  std::memcpy(&value, row + index * sizeof(T), sizeof(T));
  return value;
}

float Bf16At(const uint8_t* row, size_t index) {
  return Flushed(std::bit_cast<float>(uint32_t{At<uint16_t>(row, index)} << 16));
}

float F16At(const uint8_t* row, size_t index) { return ToFloat(At<F16>(row, index)); }

template <class Read>
void DotFloats(int c, int a, int b, const Read& read) {
  State& state = Product(c, a, b);
  const size_t columns = state.RowBytes(c) / sizeof(float);
  const size_t steps = state.Rows(b);
  float right[kUnitRows][2 * kUnitRows] = {};
  for (size_t k = 0; k < steps; ++k) {
    for (size_t j = 0; j < 2 * columns; ++j) right[k][j] = read(state.Row(b, k), j);
  }
  for (size_t row = 0; row < state.Rows(c); ++row) {
    float even[kUnitRows] = {}, odd[kUnitRows] = {};
    for (size_t k = 0; k < steps; ++k) {
      const float x = read(state.Row(a, row), 2 * k), y = read(state.Row(a, row), 2 * k + 1);
      for (size_t j = 0; j < columns; ++j) {
        even[j] = MultiplyAdd(x, right[k][2 * j], even[j]);
        odd[j] = MultiplyAdd(y, right[k][2 * j + 1], odd[j]);
      }
    }
    float sums[kUnitRows];
    std::memcpy(sums, state.Row(c, row), columns * sizeof(float));
    for (size_t j = 0; j < columns; ++j) sums[j] = Flushed(Flushed(sums[j]) + Flushed(even[j] + odd[j]));
    std::memcpy(state.Row(c, row), sums, columns * sizeof(float));
  }
  ClearRest(state, c);
}

template <class Left, class Right>
void DotBytes(int c, int a, int b) {
  State& state = Product(c, a, b);
  const size_t columns = state.RowBytes(c) / sizeof(int32_t);
  for (size_t row = 0; row < state.Rows(c); ++row) {
    uint32_t sums[kUnitRows];
    std::memcpy(sums, state.Row(c, row), columns * sizeof(uint32_t));
    for (size_t k = 0; k < state.Rows(b); ++k) {
      for (size_t j = 0; j < columns; ++j) {
        for (size_t i = 0; i < 4; ++i) {
          const int product = At<Left>(state.Row(a, row), 4 * k + i) * At<Right>(state.Row(b, k), 4 * j + i);
          sums[j] += static_cast<uint32_t>(product);
        }
      }
    }
    std::memcpy(state.Row(c, row), sums, columns * sizeof(uint32_t));
  }
  ClearRest(state, c);
}

}  // namespace

void PlainUnit::Configure(const TileConfig& config) {
  if (config.palette != 1 || config.start_row != 0) Fault("expected palette 1 from row 0 on", config.palette);
  for (const uint8_t byte : config.reserved) {
    if (byte != 0) Fault("expected reserved bytes of 0", 0);
  }
  for (int tile = 0; tile < 16; ++tile) {
    const size_t rows = config.rows[tile], bytes = config.row_bytes[tile];
    const bool unused = rows == 0 && bytes == 0;
    if (tile >= static_cast<int>(kUnitTiles) && !unused) Fault("expected eight tiles", tile);
    if (rows > kUnitRows || bytes > kUnitRowBytes || bytes % 4 != 0 || (rows == 0) != (bytes == 0)) {
      Fault("expected up to 16 rows of up to 64 bytes, a multiple of 4", tile);
    }
  }
  State& state = t_state;
  state.config = config;
  state.configured = true;
  std::memset(state.tiles, 0, sizeof(state.tiles));
}

void PlainUnit::Release() { t_state.configured = false; }

void PlainUnit::Zero(int tile) {
  State& state = Configured(tile);
  std::memset(state.tiles[tile], 0, sizeof(state.tiles[tile]));
}

void PlainUnit::Load(int tile, const void* from, size_t stride) {
  State& state = Configured(tile);
  for (size_t row = 0; row < state.Rows(tile); ++row) {
    std::memcpy(state.Row(tile, row), static_cast<const uint8_t*>(from) + row * stride, state.RowBytes(tile));
  }
  ClearRest(state, tile);
}

void PlainUnit::Store(int tile, void* to, size_t stride) {
  State& state = Configured(tile);
  for (size_t row = 0; row < state.Rows(tile); ++row) {
    std::memcpy(static_cast<uint8_t*>(to) + row * stride, state.Row(tile, row), state.RowBytes(tile));
  }
}

void PlainUnit::DotBf16(int c, int a, int b) { DotFloats(c, a, b, Bf16At); }
void PlainUnit::DotF16(int c, int a, int b) { DotFloats(c, a, b, F16At); }
void PlainUnit::DotUint8Int8(int c, int a, int b) { DotBytes<uint8_t, int8_t>(c, a, b); }
void PlainUnit::DotInt8Uint8(int c, int a, int b) { DotBytes<int8_t, uint8_t>(c, a, b); }

}  // namespace thresher::kernels
