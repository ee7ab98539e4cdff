#include "thresher/kernels/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "thresher/base/half.h"
#include "thresher/base/isa.h"
#include "thresher/kernels/arithmetic.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/paged_types.h"
#include "thresher/kernels/paged_work.h"

#define THRESHER_FIXED_VECTORS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/paged_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/paged_chunks-inl.h"
#include "thresher/kernels/paged_write-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

void AttendF32(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  paged_chunks::Attend<float>(a, memory, part, num_parts);
}

void AttendQ4(const PagedAttentionArgs& a, std::byte* memory, int part, int num_parts) {
  paged_chunks::Attend<paged::Blocks<Encoding::kQ4_0>>(a, memory, part, num_parts);
}

void WriteF32(const KvWriteArgs& a, int part, int num_parts) { paged_write::WriteAll<float>(a, part, num_parts); }
void WriteBF16(const KvWriteArgs& a, int part, int num_parts) { paged_write::WriteAll<BF16>(a, part, num_parts); }
void WriteF16(const KvWriteArgs& a, int part, int num_parts) { paged_write::WriteAll<F16>(a, part, num_parts); }
bool EncodeQ8(const float* x, int64_t depth, uint8_t* row) { return paged_write::EncodeQ8(x, depth, row); }

size_t ScratchBytes(const PagedAttentionArgs& a) { return paged_chunks::Scratch(paged::Sizes(a)).bytes(); }

void MergeParts(const PagedAttentionArgs& a, int part, int num_parts) {
  const paged::Sizes sizes(a, num_parts);
  if (!paged::Cut(a, sizes, num_parts).by_keys) return;
  int64_t slot = 0, number = 0;
  paged::ForEachUnit(a, sizes, [&](const paged::Unit& unit) {
    const int64_t rows = unit.rows(sizes);
    for (int64_t row = 0; row < rows; ++row) {
      if (number++ % num_parts != part) continue;
      float* const out = paged_chunks::OutRow(a, sizes, unit, row);
      std::fill_n(out, sizes.depth, 0.0f);
      float m = paged::kNoKey, l = 0;
      for (int64_t chunk = 0; chunk < unit.chunks(); ++chunk) {
        const float* const kept = a.partial + (slot + chunk * rows + row) * (sizes.depth + 2);
        paged_chunks::Merge(kept, kept[sizes.depth], kept[sizes.depth + 1], sizes.depth, out, &m, &l);
      }
      paged_chunks::Finish(out, l, sizes.depth, out);
    }
    slot += rows * unit.chunks();
  });
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {

using paged::Sizes;
using paged::Unit;

HWY_EXPORT(AttendF32);
HWY_EXPORT(AttendQ4);
HWY_EXPORT(MergeParts);
HWY_EXPORT(WriteF32);
HWY_EXPORT(WriteBF16);
HWY_EXPORT(WriteF16);
HWY_EXPORT(EncodeQ8);
HWY_EXPORT(ScratchBytes);

namespace {

std::string Text(int64_t number) { return std::to_string(number); }

// Everything that says where memory is read, so that no number reaches beyond it.
Status Check(const PagedAttentionArgs& a) {
  const Sizes sizes(a);
  const int64_t tokens = a.q.shape[0];
  if (a.starts[0] != 0 || a.starts[a.sequences] != tokens) {
    return OutOfRange("paged_attention: expected starts from 0 to the number of tokens, " + Text(tokens) + ", got " +
                      Text(a.starts[0]) + " to " + Text(a.starts[a.sequences]));
  }
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t queries = int64_t{a.starts[s + 1]} - a.starts[s], length = a.lengths[s];
    if (queries == 0) continue;
    if (queries < 0 || length < queries || length > a.table_width * sizes.page_tokens) {
      return OutOfRange("paged_attention: expected 1 or more queries and at least as many keys, at most " +
                        Text(a.table_width * sizes.page_tokens) + ", got " + Text(queries) + " and " + Text(length) +
                        " for sequence " + Text(s));
    }
    const int64_t first = a.window > 0 ? std::max<int64_t>(0, length - queries - a.window + 1) : 0;
    for (int64_t p = first / sizes.page_tokens; p * sizes.page_tokens < length; ++p) {
      const int64_t page = a.tables[s * a.table_width + p];
      if (page < 0 || page >= sizes.pages) {
        return OutOfRange("paged_attention: expected pages in [0, " + Text(sizes.pages) + "), got " + Text(page) +
                          " as page " + Text(p) + " of sequence " + Text(s));
      }
    }
  }
  return Status::Ok();
}

// Where an element stands in the part of one head, in elements.
int64_t KeyOffset(int64_t token, int64_t i, int64_t depth) {
  return (token / kPanelTokens * depth + i) * kPanelTokens + token % kPanelTokens;
}

float Number(float x) { return x; }
float Number(BF16 x) { return ToFloat(x); }
float Number(F16 x) { return ToFloat(x); }
// A row in blocks; one that they cannot hold becomes NaN.
void Encode(Encoding blocks, const float* x, int64_t depth, uint8_t* row) {
  const bool encoded = blocks == Encoding::kQ8_0 ? HWY_DYNAMIC_DISPATCH(EncodeQ8)(x, depth, row)
                                                 : EncodeNumbers(blocks, x, depth, kGroupNumbers, row).ok();
  if (encoded) return;
  const F16 nan = ToF16(std::numeric_limits<float>::quiet_NaN());
  for (int64_t b = 0; b < depth / kGroupNumbers; ++b) std::memcpy(row + b * BlockBytes(blocks), &nan, sizeof(nan));
}

// A row of blocks to where they lie among those of the other tokens of a panel.
void Scatter(Encoding blocks, const uint8_t* row, int64_t depth, int64_t token, const paged::CodePlaces& codes,
             uint8_t* panel) {
  const int64_t count = paged::CodesOfBlock(blocks);
  for (int64_t block = 0; block < depth / kGroupNumbers; ++block, row += BlockBytes(blocks)) {
    uint8_t* const to = panel + paged::BlocksAt(blocks, block);
    std::memcpy(to + paged::ScaleAt(token), row, sizeof(F16));
    for (int64_t i = 0; i < count; ++i) to[codes.at(i)] = row[sizeof(F16) + static_cast<size_t>(i)];
  }
}

// The other way round, one block.
void Gather(Encoding blocks, const uint8_t* panel, int64_t block, int64_t token, const paged::CodePlaces& codes,
            uint8_t* row) {
  const uint8_t* const from = panel + paged::BlocksAt(blocks, block);
  std::memcpy(row, from + paged::ScaleAt(token), sizeof(F16));
  for (int64_t i = 0; i < paged::CodesOfBlock(blocks); ++i) row[2 + i] = from[codes.at(i)];
}

void WriteBlocks(const KvWriteArgs& a, int64_t token, uint8_t* head_part, int64_t head, int64_t at) {
  const int64_t depth = a.state.shape[4], row_bytes = EncodedBytes(a.blocks, depth), lane = at % kPanelTokens;
  uint8_t* const panel = head_part + (at - lane) * row_bytes;
  uint8_t row[kMostHeadSize / kGroupNumbers * BlockBytes(Encoding::kQ8_0)];
  Encode(a.blocks, a.k.as<const float>() + token * a.k.strides[0] + head * a.k.strides[1], depth, row);
  Scatter(a.blocks, row, depth, lane, paged::KeyCodes(lane), panel);
  Encode(a.blocks, a.v.as<const float>() + token * a.v.strides[0] + head * a.v.strides[1], depth, row);
  Scatter(a.blocks, row, depth, lane, paged::ValueCodes(a.blocks, lane), panel + a.state.shape[3] * row_bytes);
}

Status CheckSlots(const KvWriteArgs& a) {
  const int64_t slots = a.state.shape[0] * a.state.shape[3];
  for (int64_t token = 0; token < a.k.shape[0]; ++token) {
    if (a.slots[token] >= slots) {
      return OutOfRange("kv_write: expected slots below " + Text(slots) + ", got " + Text(a.slots[token]) +
                        " for token " + Text(token));
    }
  }
  return Status::Ok();
}

void WriteAllBlocks(const KvWriteArgs& a, int part, int num_parts) {
  const int64_t tokens = a.k.shape[0], heads = a.state.shape[1], page_tokens = a.state.shape[3];
  const int64_t bytes = page_tokens * Sizes::RowBytes(a.state, a.blocks) * 2;
  // Heads first: neighbours in a page are written by one thread.
  const int64_t all = heads * tokens;
  for (int64_t i = all * part / num_parts; i < all * (part + 1) / num_parts; ++i) {
    const int64_t head = i / tokens, token = i % tokens, slot = a.slots[token];
    if (slot < 0) continue;
    WriteBlocks(a, token, a.state.as<uint8_t>() + (slot / page_tokens * heads + head) * bytes, head,
                slot % page_tokens);
  }
}

// Number i of a token's keys or values, of the part of one head that has all keys or all values.
template <class T>
float Decoded(const uint8_t* part, int64_t token, int64_t i, bool keys, const Sizes& sizes) {
  const int64_t lane = token % kPanelTokens;
  uint8_t block[BlockBytes(T::encoding)];
  Gather(T::encoding, part + (token - lane) * sizes.row_bytes, i / kGroupNumbers, lane,
         keys ? paged::KeyCodes(lane) : paged::ValueCodes(T::encoding, lane), block);
  float numbers[kGroupNumbers];
  DecodeNumbers(T::encoding, block, kGroupNumbers, numbers);
  return numbers[i % kGroupNumbers];
}

template <class T>
float Key(const uint8_t* part, int64_t token, int64_t i, const Sizes& sizes) {
  if constexpr (paged::kInBlocks<T>) {
    return Decoded<T>(part, token, i, true, sizes);
  } else {
    return Number(reinterpret_cast<const T*>(part)[KeyOffset(token, i, sizes.depth)]);
  }
}

template <class T>
float Value(const uint8_t* part, int64_t token, int64_t i, const Sizes& sizes) {
  if constexpr (paged::kInBlocks<T>) {
    return Decoded<T>(part, token, i, false, sizes);
  } else {
    return Number(reinterpret_cast<const T*>(part + token * sizes.row_bytes)[i]);
  }
}

template <class T>
void ReferenceRow(const PagedAttentionArgs& a, const Sizes& sizes, int64_t sequence, int64_t position, int64_t head,
                  const float* q, float* out) {
  const int64_t first = a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
  std::vector<double> scores;
  const auto part = [&](int64_t token) {
    const int64_t page = a.tables[sequence * a.table_width + token / sizes.page_tokens];
    return a.state.as<const uint8_t>() + sizes.part(page, head);
  };
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t token = first; token <= position; ++token) {
    double score = 0;
    for (int64_t i = 0; i < sizes.depth; ++i) {
      score +=
          static_cast<double>(q[i]) * static_cast<double>(Key<T>(part(token), token % sizes.page_tokens, i, sizes));
    }
    score *= static_cast<double>(a.scale);
    if (a.softcap > 0) score = static_cast<double>(a.softcap) * std::tanh(score / static_cast<double>(a.softcap));
    scores.push_back(score);
    most = std::max(most, score);
  }
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - most);
  for (int64_t i = 0; i < sizes.depth; ++i) {
    double value = 0;
    for (int64_t token = first; token <= position; ++token) {
      const uint8_t* const values = part(token) + sizes.values();
      value += scores[static_cast<size_t>(token - first)] *
               static_cast<double>(Value<T>(values, token % sizes.page_tokens, i, sizes));
    }
    out[i] = static_cast<float>(value / sum);
  }
}

template <class T>
void ReferenceAll(const PagedAttentionArgs& a) {
  const Sizes sizes(a);
  for (int64_t s = 0; s < a.sequences; ++s) {
    const int64_t queries = a.starts[s + 1] - a.starts[s];
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t token = a.starts[s] + i;
      for (int64_t head = 0; head < a.q.shape[1]; ++head) {
        ReferenceRow<T>(a, sizes, s, a.lengths[s] - queries + i, head / sizes.group,
                        a.q.as<const float>() + token * a.q.strides[0] + head * a.q.strides[1],
                        a.out.as<float>() + token * a.out.strides[0] + head * a.out.strides[1]);
      }
    }
  }
}

}  // namespace

Status KvWrite(const KvWriteArgs& args, int part, int num_parts) {
  THRESHER_TRY(CheckSlots(args));
  if (IsBlocked(args.blocks)) {
    WriteAllBlocks(args, part, num_parts);
    return Status::Ok();
  }
  switch (args.state.dtype) {
    case DType::kBF16:
      HWY_DYNAMIC_DISPATCH(WriteBF16)(args, part, num_parts);
      break;
    case DType::kF16:
      HWY_DYNAMIC_DISPATCH(WriteF16)(args, part, num_parts);
      break;
    default:
      HWY_DYNAMIC_DISPATCH(WriteF32)(args, part, num_parts);
  }
  return Status::Ok();
}

Status PagedAttention(const PagedAttentionArgs& args, std::byte* scratch, int part, int num_parts) {
  THRESHER_TRY(Check(args));
  if (args.blocks == Encoding::kQ8_0) {
    paged::AttendToQ8(args, scratch, part, num_parts);
    return Status::Ok();
  }
  if (args.blocks == Encoding::kQ4_0) {
    HWY_DYNAMIC_DISPATCH(AttendQ4)(args, scratch, part, num_parts);
    return Status::Ok();
  }
  switch (args.state.dtype) {
    case DType::kBF16: {
      // Asked once for all chunks: the answer is what has been measured or set.
      PagedAttentionArgs own = args;
      const bool any = args.wide_from < args.starts[args.sequences];
      if (any && !RoundsToPages(DType::kBF16)) own.wide_from = PagedAttentionArgs().wide_from;
      paged::AttendToBF16(own, scratch, part, num_parts);
      break;
    }
    case DType::kF16:
      paged::AttendToF16(args, scratch, part, num_parts);
      break;
    default:
      HWY_DYNAMIC_DISPATCH(AttendF32)(args, scratch, part, num_parts);
  }
  return Status::Ok();
}

Status PagedAttentionMerge(const PagedAttentionArgs& args, int part, int num_parts) {
  HWY_DYNAMIC_DISPATCH(MergeParts)(args, part, num_parts);
  return Status::Ok();
}

size_t PagedAttentionScratchBytes(const PagedAttentionArgs& args) {
  if (args.blocks == Encoding::kQ8_0) return paged::ScratchBytesOfQ8(args);
  const bool halves = args.state.dtype == DType::kBF16 || args.state.dtype == DType::kF16;
  return halves ? paged::ScratchBytesOfHalves(args) : HWY_DYNAMIC_DISPATCH(ScratchBytes)(args);
}

bool RoundsToPages(DType state) {
  if (isa::CurrentTiles() != isa::Tiles::kNone) {
    return state == DType::kBF16 || (state == DType::kF16 && isa::HasF16Tiles());
  }
  return state == DType::kBF16 && isa::Current() == isa::Isa::kAvx512Bf16 && MultipliesBf16();
}

int64_t PartialRows(int64_t query_heads, int64_t heads, int64_t head_size, int64_t most_keys, int num_parts) {
  constexpr int64_t kMostFloats = int64_t{1} << 22;
  if (num_parts < 2) return 0;
  const int64_t chunks = (most_keys + kChunkTokens - 1) / kChunkTokens + 1;
  const int64_t rows = paged::kUnitsPerPart * num_parts * std::max<int64_t>(query_heads / heads, 1) * chunks;
  return std::min(rows, kMostFloats / (head_size + 2));
}

Status PagedAttentionReference(const PagedAttentionArgs& args) {
  THRESHER_TRY(Check(args));
  if (args.blocks == Encoding::kQ8_0) {
    ReferenceAll<paged::Blocks<Encoding::kQ8_0>>(args);
    return Status::Ok();
  }
  if (args.blocks == Encoding::kQ4_0) {
    ReferenceAll<paged::Blocks<Encoding::kQ4_0>>(args);
    return Status::Ok();
  }
  switch (args.state.dtype) {
    case DType::kBF16:
      ReferenceAll<BF16>(args);
      break;
    case DType::kF16:
      ReferenceAll<F16>(args);
      break;
    default:
      ReferenceAll<float>(args);
  }
  return Status::Ok();
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
