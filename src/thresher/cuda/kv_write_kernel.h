// Keys and values of new tokens, put into the pages of a state (kernels/paged_attention.h). Keys may be turned by their
// token's angles on the way, as RotaryKernel turns them.
#pragma once

#include <cmath>
#include <cstdint>

#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/blocks.h"
#include "thresher/cuda/reduce.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/paged_attention.h"

namespace thresher::cuda {

// A warp for each token and head.
struct KvWriteKernel {
  static constexpr int kMostThreads = kWarp * kRowsPerBlock;
  RowsOf k, v;      // [1, heads, tokens, head size]
  RowsOf cos, sin;  // [1, 1, tokens, pairs]
  char* state;
  DType dtype;                                 // of the state
  int block_bytes;                             // where the state is in blocks; 0: it is not
  bool wide;                                   // these are of q8_0, else of q4_0
  int64_t page_bytes, head_bytes, part_bytes;  // from page to page and so on
  const int32_t* slots;
  int64_t tokens, num_slots;
  int heads, page_tokens, depth, row_bytes;
  int pairs;  // that are turned
  bool interleaved;

  // A slot that the state does not have takes nothing, as one below 0.
  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachRow<true>(t, tokens * heads, [&](int64_t row) {
      const int64_t token = row / heads, head = row % heads, slot = slots[token];
      if (slot < 0 || slot >= num_slots) return;
      const auto at = static_cast<int>(slot % page_tokens);
      char* const part = state + slot / page_tokens * page_bytes + head * head_bytes;
      if (block_bytes > 0) {
        WriteBlocks(t, token, head, part, at);
      } else {
        WriteFloats(t, token, head, part, at);
      }
    });
  }

 private:
  static constexpr int kPanel = static_cast<int>(kernels::kPanelTokens);

  THRESHER_DEVICE float KeyAt(int64_t token, int64_t head, int i) const {
    const char* const row = k.Row(0, head, token);
    if (i >= 2 * pairs) return LoadElement(row, k.dtype, i);
    const int pair = interleaved ? i / 2 : i % pairs;
    const int first = interleaved ? 2 * pair : pair, second = interleaved ? first + 1 : pair + pairs;
    const float a = LoadElement(row, k.dtype, first), b = LoadElement(row, k.dtype, second);
    const float c = LoadElement(cos.Row(0, 0, token), cos.dtype, pair);
    const float s = LoadElement(sin.Row(0, 0, token), sin.dtype, pair);
    return i == first ? a * c - b * s : b * c + a * s;
  }
  THRESHER_DEVICE float ValueAt(int64_t token, int64_t head, int i) const {
    return LoadElement(v.Row(0, head, token), v.dtype, i);
  }

  template <class T>
  THRESHER_DEVICE void WriteFloats(T& t, int64_t token, int64_t head, char* part, int at) const {
    const int64_t key = int64_t{at} / kPanel * kPanel * depth + at % kPanel;
    for (int i = t.x(); i < depth; i += kWarp) {
      StoreElement(part, dtype, key + int64_t{i} * kPanel, KeyAt(token, head, i));
      StoreElement(part + part_bytes, dtype, int64_t{at} * depth + i, ValueAt(token, head, i));
    }
  }

  template <class T>
  THRESHER_DEVICE void WriteBlocks(T& t, int64_t token, int64_t head, char* part, int at) const {
    auto* const panel = reinterpret_cast<uint8_t*>(part) + int64_t{at} / kPanel * kPanel * row_bytes;
    const int lane = at % kPanel;
    constexpr int kQuad = static_cast<int>(kernels::kQuadTokens), kHead = 2;  // bytes of a block's scale
    // What puts the codes of the token into blocks from `to` on, `first` bytes into each, `step` apart.
    const auto put = [&](uint8_t* to, int first, int step) {
      return [=, this](int block, int byte, uint8_t bits) {
        const int place = byte < kHead ? kHead * lane + byte : first + (byte - kHead) * step;
        to[block * block_bytes * kPanel + place] = bits;
      };
    };
    constexpr int kCodes = kHead * kPanel;
    Encode(t, [&](int i) { return KeyAt(token, head, i); }, put(panel, kCodes + lane, kPanel));
    const int quad = kCodes + lane / kQuad * kQuad * (block_bytes - kHead);
    Encode(t, [&](int i) { return ValueAt(token, head, i); }, put(panel + part_bytes, quad + lane % kQuad, kQuad));
  }

  // A row in blocks, bit by bit as EncodeNumbers() has it: number(i) of the row, put(block, byte, bits). One that
  // blocks cannot hold becomes NaN.
  template <class T, class Number, class Put>
  THRESHER_DEVICE void Encode(T& t, Number number, Put put) const {
    float wrong = 0.0f;
    for (int first = 0; first < depth; first += kBlockNumbers) {
      const float x = number(first + t.x()), scale = ScaleOf(t, x);
      const float kept = Fp16::Widen(Fp16::Round(scale));
      if (!(fabsf(x) < __builtin_huge_valf()) || !(fabsf(kept) < __builtin_huge_valf())) wrong = 1.0f;
    }
    const bool broken = ReduceWarp<Max>(t, wrong) != 0.0f;
    for (int first = 0; first < depth; first += kBlockNumbers) {
      const int block = first / kBlockNumbers;
      const float x = number(first + t.x()), scale = ScaleOf(t, x);
      const float inverse = scale == 0 ? 0.0f : 1.0f / scale;
      const uint32_t stored = broken ? 0x7e00u : Fp16::Round(scale);
      if (t.x() < 2) put(block, t.x(), static_cast<uint8_t>(stored >> (8 * t.x())));
      const float finite = broken ? 0.0f : x;
      if (wide) {
        put(block, 2 + t.x(), static_cast<uint8_t>(static_cast<int>(roundf(finite * inverse))));
        continue;
      }
      const double level = static_cast<double>(finite) * static_cast<double>(inverse) + 8.5;
      const auto code = static_cast<float>(static_cast<int>(level < 0 ? 0 : level > 15 ? 15 : level));
      const float upper = t.ShuffleXor(code, 16);
      if (t.x() < 16)
        put(block, 2 + t.x(), static_cast<uint8_t>(static_cast<int>(code) | static_cast<int>(upper) << 4));
    }
  }

  // Of the block whose numbers the lanes have: the first of those that are farthest from 0 gets the level that is.
  template <class T>
  THRESHER_DEVICE float ScaleOf(T& t, float x) const {
    const float far = ReduceWarp<Max>(t, fabsf(x));
    if (wide) return far / 127.0f;
    const float first = ReduceWarp<Max>(t, fabsf(x) == far ? static_cast<float>(kWarp - t.x()) : 0.0f);
    const float own = static_cast<float>(kWarp - t.x()) == first && far > 0 ? x : 0.0f;
    return ReduceWarp<Sum>(t, own) / -8.0f;
  }
};

}  // namespace thresher::cuda
