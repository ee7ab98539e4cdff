// Keys and values in pages of a state (kernels/paged_attention.h), as attention kernels of a device read them.
#pragma once

#include <cstdint>

#include "thresher/base/encoding.h"
#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/blocks.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/paged_attention.h"

namespace thresher::cuda {

// A batch is a sequence. Numbers that come as data are used only as far as they fit; rows whose keys they do not name
// become NaN. kBlocked: the state is in q8_0 or q4_0, and halves are made of it on the way, always fp16, which has as
// many digits as they.
template <bool kBlocked>
struct PagedSource {
  static constexpr bool kPanels = true;
  static constexpr bool kCaps = true;
  static constexpr bool kMasks = false;
  RowsOf q, v, out;  // q and out: [1, heads, tokens, head size]; v: how values are stored
  const char* state;
  int64_t page_bytes, head_bytes, part_bytes;  // from page to page and so on
  const int32_t* starts;
  const int32_t* lengths;
  const int32_t* tables;
  Scores scores;
  Partials partials;
  int64_t pages, sequences, table_width;
  int tokens, page_tokens, heads, group, depth, width, window;
  int row_bytes;  // of a token's keys or values
  bool wide;      // q8_0, where the state is in blocks

  // Tiles of each sequence begin at a number that its start tells, whatever is before it; there is room for each
  // sequence's last one, which may not be full.
  int64_t Places(int tile_rows) const {
    return (int64_t{tokens} * group / tile_rows + sequences) * heads * partials.splits;
  }
  THRESHER_DEVICE int64_t FirstTile(int64_t sequence, int tile_rows) const {
    return int64_t{starts[sequence]} * group / tile_rows + sequence;
  }

  THRESHER_DEVICE bool Find(int64_t number, int tile_rows, int step, Place& place) const {
    const int64_t tiles = int64_t{tokens} * group / tile_rows + sequences;
    const int64_t tile = number % tiles;
    int64_t low = 0, high = sequences - 1;  // the last sequence that begins at this tile or before
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (FirstTile(middle, tile_rows) <= tile) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    place.batch = low;
    place.head = static_cast<int>(number / tiles % heads);
    place.split = static_cast<int>(number / tiles / heads);
    place.start = starts[low];
    const int queries = starts[low + 1] - place.start;
    if (place.start < 0 || queries <= 0 || queries > tokens - place.start) return false;
    const int64_t first = (tile - FirstTile(low, tile_rows)) * tile_rows;
    place.rows = queries * group;
    if (first < 0 || first >= place.rows) return false;
    place.first = static_cast<int>(first);
    const int length = lengths[low];
    place.context = length - queries;
    place.broken = length < queries || length > table_width * page_tokens;
    place.begin = place.end = 0;
    place.masks = false;
    if (place.broken) return true;
    place.begin = KeysFrom(place, place.first) / kPanel * kPanel;
    place.end = KeysTo(place, Least(place.first + tile_rows, place.rows) - 1);
    Split(partials, step, place);
    return true;
  }

  THRESHER_DEVICE int KeysFrom(const Place& place, int row) const {
    return window > 0 ? Most(place.context + row / group - window + 1, 0) : 0;
  }
  THRESHER_DEVICE int KeysTo(const Place& place, int row) const { return place.context + row / group + 1; }

  THRESHER_DEVICE const char* Query(const Place& place, int row) const { return RowOf(q, place, row); }
  THRESHER_DEVICE char* Out(const Place& place, int row) const { return const_cast<char*>(RowOf(out, place, row)); }
  THRESHER_DEVICE int64_t RowNumber(const Place& place, int row) const {
    return int64_t{place.start + row / group} * heads * group + place.head * group + row % group;
  }
  THRESHER_DEVICE char* OutNumber(int64_t number) const {
    const int64_t all = int64_t{heads} * group;
    return const_cast<char*>(out.Row(0, number % all, number / all));
  }

  // Where the keys of the 16 tokens from `token` on are; null where the table names no page.
  THRESHER_DEVICE const char* KeyPanel(const Place& place, int token) const {
    const int page = tables[place.batch * table_width + token / page_tokens];
    if (page < 0 || page >= pages) return nullptr;
    return state + page * page_bytes + place.head * head_bytes + int64_t{token % page_tokens} * row_bytes;
  }
  // Likewise their values, which take the same room.
  THRESHER_DEVICE const char* ValuePanel(const Place& place, int token) const {
    const char* const keys = KeyPanel(place, token);
    return keys == nullptr ? nullptr : keys + part_bytes;
  }

  // Into shared memory at `at`, kKeys tokens from `tile` on as Panels has them. Halves.
  template <class Panels, int kDepth, int kKeys, int kWarps, class T>
  THRESHER_DEVICE void LoadKeyPanels(T& t, const Place& place, int tile, int at) const {
    for (int p = t.x() / kWarp; p < kKeys / kPanel; p += kWarps) {
      const char* const panel = tile + p * kPanel < place.end ? KeyPanel(place, tile + p * kPanel) : nullptr;
      for (int i = t.x() % kWarp; i < kDepth * 2; i += kWarp) {
        const bool has = panel != nullptr && i / 2 < depth;
        const int to = at + Panels::At(p, i / 2, i % 2);
        if constexpr (kBlocked) {
          t.StoreFour(to, has ? KeysOf(panel, i / 2, i % 2) : Four{0.0f, 0.0f, 0.0f, 0.0f});
        } else {
          t.CopyFour(to, has ? panel + i * 16 : state, has ? 16 : 0);
        }
      }
    }
  }
  template <class Rows, int kDepth, int kKeys, int kWarps, class T>
  THRESHER_DEVICE void LoadValuePanels(T& t, const Place& place, int tile, int at) const {
    for (int p = t.x() / kWarp; p < kKeys / kPanel; p += kWarps) {
      const int token = tile + p * kPanel;
      const char* const panel = token < place.end ? ValuePanel(place, token) : nullptr;
      const bool broken = token < place.end && panel == nullptr;
      for (int i = t.x() % kWarp; i < kPanel * Rows::kChunks; i += kWarp) {
        const int row = i / Rows::kChunks, chunk = i % Rows::kChunks;
        const int to = at + Rows::At(p * kPanel + row, chunk);
        if (broken) {
          THRESHER_UNROLL
          for (int w = 0; w < 4; ++w) t.shared_words()[to + w] = kNanHalves;
          continue;
        }
        const bool has = panel != nullptr && token + row < place.end && chunk * 8 < depth;
        if constexpr (kBlocked) {
          t.StoreFour(to, has ? ValuesOf(panel, row, chunk) : Four{0.0f, 0.0f, 0.0f, 0.0f});
        } else {
          t.CopyFour(to, has ? panel + (row * depth + chunk * 8) * 2 : state, has ? 16 : 0);
        }
      }
    }
  }

 private:
  static constexpr int kPanel = static_cast<int>(kernels::kPanelTokens);
  static constexpr uint32_t kNanHalves = 0x7fff7fffu;  // two NaN of either type

  static constexpr int kHead = 2;  // bytes of a block's scale
  static constexpr int kQuad = static_cast<int>(kernels::kQuadTokens);

  THRESHER_DEVICE int BlockSize() const { return wide ? 34 : 18; }
  // A code as it stands in a byte, of which q4_0 has another in the upper half.
  THRESHER_DEVICE float Level(int byte, bool upper) const {
    if (wide) return static_cast<float>(static_cast<int8_t>(byte));
    return static_cast<float>((upper ? byte >> 4 : byte & 15) - 8);
  }
  THRESHER_DEVICE int ByteOf(int number) const { return wide ? number : number % 16; }

  // Number `column` of eight tokens of a panel of keys, the first or the last ones.
  THRESHER_DEVICE Four KeysOf(const char* panel, int column, int half) const {
    const int number = column % kBlockNumbers;
    const char* const block = panel + column / kBlockNumbers * BlockSize() * kPanel;
    const auto* const scales = reinterpret_cast<const uint16_t*>(block) + half * 8;
    const auto* const codes = reinterpret_cast<const uint8_t*>(block + (kHead + ByteOf(number)) * kPanel) + half * 8;
    float four[4];
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) {
      four[i] = FloatOf(Fp16::RoundTwo(Fp16::Widen(scales[2 * i]) * Level(codes[2 * i], number >= 16),
                                       Fp16::Widen(scales[2 * i + 1]) * Level(codes[2 * i + 1], number >= 16)));
    }
    return {four[0], four[1], four[2], four[3]};
  }

  // Eight neighbours of the values of a token, row `row` of a panel, whose codes lie by those of three more.
  THRESHER_DEVICE Four ValuesOf(const char* panel, int row, int chunk) const {
    const int number = chunk * 8 % kBlockNumbers, first = row / kQuad * (BlockSize() - kHead) + ByteOf(number);
    const char* const block = panel + chunk * 8 / kBlockNumbers * BlockSize() * kPanel;
    const float scale = Fp16::Widen(reinterpret_cast<const uint16_t*>(block)[row]);
    const auto* const codes = reinterpret_cast<const uint8_t*>(block + kHead * kPanel) + first * kQuad + row % kQuad;
    float four[4];
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) {
      four[i] = FloatOf(Fp16::RoundTwo(scale * Level(codes[2 * i * kQuad], number >= 16),
                                       scale * Level(codes[(2 * i + 1) * kQuad], number >= 16)));
    }
    return {four[0], four[1], four[2], four[3]};
  }

  THRESHER_DEVICE const char* RowOf(const RowsOf& rows, const Place& place, int row) const {
    return rows.Row(0, int64_t{place.head} * group + row % group, place.start + row / group);
  }
};

}  // namespace thresher::cuda
