// Keys and values of new tokens, as pages keep them.

#if defined(THRESHER_KERNELS_PAGED_WRITE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_PAGED_WRITE_INL_H_
#undef THRESHER_KERNELS_PAGED_WRITE_INL_H_
#else
#define THRESHER_KERNELS_PAGED_WRITE_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "thresher/base/half.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/half-inl.h"
#include "thresher/kernels/paged_attention.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace paged_write {

namespace hn = hwy::HWY_NAMESPACE;

// A whole number of vectors of floats, as T.
template <class T>
HWY_INLINE void Convert(const float* HWY_RESTRICT x, int64_t count, T* HWY_RESTRICT to) {
  const hn::CappedTag<float, static_cast<size_t>(kPanelTokens)> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < count; i += lanes) {
    if constexpr (std::is_same_v<T, float>) {
      hn::StoreU(hn::LoadU(d, x + i), d, to + i);
    } else {
      hn::StoreU(Narrow<T>(d, hn::LoadU(d, x + i)), hn::Rebind<uint16_t, decltype(d)>(),
                 reinterpret_cast<uint16_t*>(to) + i);
    }
  }
}

// A row as blocks of q8_0, bit by bit as EncodeNumbers() has it; false, and nothing of worth, for numbers that those
// cannot hold.
HWY_INLINE bool EncodeQ8(const float* HWY_RESTRICT x, int64_t depth, uint8_t* HWY_RESTRICT block) {
  constexpr int64_t kNumbers = kGroupNumbers;
  constexpr float kMost = 127;
  const hn::CappedTag<float, static_cast<size_t>(kNumbers) / 2> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  // The largest number below a half: what is added before the fraction is dropped rounds halves away from zero.
  const auto half = hn::Set(d, 0.49999997f);
  for (const float* const end = x + depth; x < end; x += kNumbers, block += BlockBytes(Encoding::kQ8_0)) {
    // As integers the bits of magnitudes are in their order, and those of NaN behind all of them.
    auto most_of = hn::Zero(di);
    for (int64_t i = 0; i < kNumbers; i += lanes) {
      most_of = hn::Max(most_of, hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i))));
    }
    const float scale = hwy::BitCastScalar<float>(hn::ReduceMax(di, most_of)) / kMost;
    const F16 stored = ToF16(scale);
    if (!std::isfinite(ToFloat(stored))) return false;
    std::memcpy(block, &stored, sizeof(stored));
    const auto inverse = hn::Set(d, scale == 0 ? 0 : 1 / scale);
    for (int64_t i = 0; i < kNumbers; i += lanes) {
      const auto level = hn::Mul(hn::LoadU(d, x + i), inverse);
      const auto code = hn::ConvertTo(di, hn::Add(level, hn::CopySign(half, level)));
      hn::StoreU(hn::DemoteTo(d8, code), d8, reinterpret_cast<int8_t*>(block + sizeof(stored)) + i);
    }
  }
  return true;
}

// The heads and tokens of one part, heads first: neighbours in a page are written by one thread. A token's keys are
// every kPanelTokens-th number of a panel, so that they touch half as many lines as they are: those of the next one are
// asked for while this one is written.
template <class T>
void WriteAll(const KvWriteArgs& a, int part, int num_parts) {
  const int64_t tokens = a.k.shape[0], heads = a.state.shape[1], depth = a.state.shape[4];
  const auto page_tokens = static_cast<int32_t>(a.state.shape[3]);
  const int64_t values = page_tokens * depth, all = heads * tokens, end = all * (part + 1) / num_parts;
  alignas(64) T row[kMostHeadSize];
  T* const state = a.state.as<T>();
  const auto panel_of = [&](int64_t head, int32_t slot) -> T* {
    if (slot < 0) return nullptr;
    const int32_t page = slot / page_tokens, at = slot % page_tokens;
    return state + (page * heads + head) * 2 * values + at / kPanelTokens * kPanelTokens * depth;
  };
  int64_t i = all * part / num_parts;
  if (i >= end) return;
  HWY_ASSUME(state != nullptr);  // there is something to write
  int64_t head = i / tokens, token = i % tokens;
  T* next = panel_of(head, a.slots[token]);
  for (; i < end; ++i) {
    T* const panel = next;
    const int64_t own_head = head, own_token = token;
    if (++token == tokens) {
      token = 0;
      ++head;
    }
    next = i + 1 < end ? panel_of(head, a.slots[token]) : nullptr;
    if (next != nullptr && next != panel) {
      const auto* const line = reinterpret_cast<const uint8_t*>(next);
      const int64_t bytes = kPanelTokens * depth * static_cast<int64_t>(sizeof(T));
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(line + at, 1, 3);
    }
    if (panel == nullptr) continue;
    const int64_t lane = a.slots[own_token] % kPanelTokens;
    Convert(a.k.as<const float>() + own_token * a.k.strides[0] + own_head * a.k.strides[1], depth, row);
    T* HWY_RESTRICT keys = panel + lane;
    for (int64_t j = 0; j < depth; j += 4, keys += 4 * kPanelTokens) {
      keys[0] = row[j];
      keys[kPanelTokens] = row[j + 1];
      keys[2 * kPanelTokens] = row[j + 2];
      keys[3 * kPanelTokens] = row[j + 3];
    }
    // A panel's values lie as far behind its keys as the page's do.
    Convert(a.v.as<const float>() + own_token * a.v.strides[0] + own_head * a.v.strides[1], depth,
            panel + values + lane * depth);
  }
}

}  // namespace paged_write
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
