// Attention over keys and values in pages on a device: which kernel takes which operands, and how many blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "thresher/cuda/attention.h"
#include "thresher/cuda/call.h"
#include "thresher/cuda/kv_write_kernel.h"
#include "thresher/cuda/paged_source.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

// What is wrong with the numbers in integer operands shows only in the results: nothing is read or written outside of
// the state, and rows that would see it are NaN.
struct PagedAttentionFamily {
  static constexpr KernelId kKernels[] = {KernelId::kPagedAttention, KernelId::kKvWrite};

  static Verdict Check(const Call& call) {
    const bool attends = call.kernel() == KernelId::kPagedAttention;
    Verdict verdict =
        attends ? Fits(call, sizeof(kernels::PagedAttentionParams), 7) : Fits(call, sizeof(kernels::KvWriteParams), 6);
    if (!verdict.ok()) return verdict;
    const Encoding blocks =
        attends ? call.as<kernels::PagedAttentionParams>().blocks : call.as<kernels::KvWriteParams>().blocks;
    if (IsBlocked(blocks) && !kernels::KeepsBlocks(blocks, call.views[0].shape[4])) {
      return Unsupported(std::string(Name(call.kernel())) +
                         ": expected a state of floats, or in q8_0 or q4_0 with heads of a multiple of 32, got " +
                         std::string(Name(blocks)));
    }
    const auto is_float = [&](int i) { return IsFloat(call.views[i].dtype); };
    const auto got = [&](int i) { return std::string(Name(call.views[i].dtype)); };
    const int last = attends ? kOut : 2;
    if (!is_float(0) || !is_float(1) || !is_float(last)) {
      return Unsupported(std::string(Name(call.kernel())) + ": expected operands of floats on this device, got " +
                         got(0) + ", " + got(1) + " and " + got(last));
    }
    if (!attends && call.views[4].rank != 0 && (!is_float(4) || !is_float(5))) {
      return Unsupported("kv_write: expected cos and sin of floats on this device, got " + got(4) + " and " + got(5));
    }
    if (attends && call.views[0].shape[4] > kWidestHead) {
      return Unsupported("paged_attention: expected heads of at most " + std::to_string(kWidestHead) +
                         " elements on this device, got " + std::to_string(call.views[0].shape[4]));
    }
    return {};
  }

  static size_t ScratchBytes(const Call& call) {
    if (call.kernel() != KernelId::kPagedAttention) return 0;
    return IsInBlocks(call) ? PartialBytes(SourceOf<true>(call)) : PartialBytes(SourceOf<false>(call));
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    if (call.views[1].size() == 0) return launch.Nothing();
    if (call.kernel() == KernelId::kKvWrite) return LaunchWrite(launch, call);
    return IsInBlocks(call) ? LaunchAttention(launch, SourceOf<true>(call))
                            : LaunchAttention(launch, SourceOf<false>(call));
  }

 private:
  static constexpr int kOut = 5;

  static bool IsInBlocks(const Call& call) { return IsBlocked(call.as<kernels::PagedAttentionParams>().blocks); }

  template <bool kBlocked>
  static PagedSource<kBlocked> SourceOf(const Call& call) {
    const auto& p = call.as<kernels::PagedAttentionParams>();
    const View *state = call.views, *q = state + 1, *tables = state + 4, *out = state + kOut;
    PagedSource<kBlocked> s{};
    s.q = TokenRows(*q);
    s.out = TokenRows(*out);
    s.v = {state->data, {}, state->dtype, true};
    s.state = state->as<const char>();
    s.row_bytes = RowBytes(*state, p.blocks);
    s.part_bytes = state->shape[3] * s.row_bytes;
    s.head_bytes = 2 * s.part_bytes;
    s.page_bytes = state->shape[1] * s.head_bytes;
    s.wide = p.blocks == Encoding::kQ8_0;
    s.starts = state[2].as<const int32_t>();
    s.lengths = state[3].as<const int32_t>();
    s.tables = tables->as<const int32_t>();
    s.scores = Scores::Of(p.scale, p.softcap, false);
    s.pages = state->shape[0];
    s.sequences = tables->shape[0];
    s.table_width = tables->shape[1];
    s.tokens = static_cast<int>(q->shape[0]);
    s.page_tokens = static_cast<int>(state->shape[3]);
    s.heads = static_cast<int>(state->shape[1]);
    s.group = static_cast<int>(q->shape[1] / state->shape[1]);
    s.depth = s.width = static_cast<int>(state->shape[4]);
    s.window = static_cast<int>(std::min<int64_t>(p.window, INT32_MAX / 2));
    s.partials = {static_cast<float*>(call.scratch), q->shape[0] * q->shape[1], 1};
    if (IsNarrow(s)) {
      s.partials.splits = SplitsFor(s.Places(NarrowTiling::kRows), s.table_width * s.page_tokens);
    }
    return s;
  }

  // Of a token's keys or values. States have no gaps.
  static int RowBytes(const View& state, Encoding blocks) {
    const int64_t depth = state.shape[4];
    return static_cast<int>(IsBlocked(blocks) ? EncodedBytes(blocks, depth)
                                              : depth * static_cast<int64_t>(SizeOf(state.dtype)));
  }

  // Few rows a sequence: those of tokens that are made one by one.
  template <class Source>
  static bool IsNarrow(const Source& s) {
    return s.tokens * int64_t{s.group} <= s.sequences * NarrowTiling::kRows ||
           s.Places(WideTiling::kRows) < kEnoughBlocks;
  }

  template <class Source, class Launcher>
  static auto LaunchAttention(Launcher&& launch, const Source& source) {
    auto result = LaunchRows(launch, source);
    if (source.partials.splits == 1 || result != launch.Nothing()) return result;
    return LaunchMerge(launch, source);
  }

  template <class Half, class Source, class Launcher>
  static auto LaunchTiles(Launcher&& launch, const Source& source) {
    return IsNarrow(source) ? LaunchHalves<Half, NarrowTiling>(launch, source)
                            : LaunchHalves<Half, WideTiling>(launch, source);
  }

  template <class Launcher>
  static auto LaunchRows(Launcher&& launch, const PagedSource<true>& source) {
    return LaunchTiles<Fp16>(launch, source);
  }

  template <class Launcher>
  static auto LaunchRows(Launcher&& launch, const PagedSource<false>& source) {
    switch (source.v.dtype) {
      case DType::kBF16:
        return LaunchTiles<Bf16>(launch, source);
      case DType::kF16:
        return LaunchTiles<Fp16>(launch, source);
      default:
        return LaunchF32(launch, source);
    }
  }

  template <class Launcher>
  static auto LaunchWrite(Launcher&& launch, const Call& call) {
    const auto& p = call.as<kernels::KvWriteParams>();
    const View *state = call.views, *k = state + 1, *cos = state + 4;
    KvWriteKernel kernel{};
    kernel.k = TokenRows(k[0]);
    kernel.v = TokenRows(k[1]);
    kernel.state = state->as<char>();
    kernel.dtype = state->dtype;
    kernel.block_bytes = IsBlocked(p.blocks) ? static_cast<int>(BlockBytes(p.blocks)) : 0;
    kernel.wide = p.blocks == Encoding::kQ8_0;
    kernel.row_bytes = RowBytes(*state, p.blocks);
    kernel.part_bytes = state->shape[3] * kernel.row_bytes;
    kernel.head_bytes = 2 * kernel.part_bytes;
    kernel.page_bytes = state->shape[1] * kernel.head_bytes;
    if (cos->rank != 0) {
      kernel.cos = {cos->data, {0, 0, cos->strides[0]}, cos->dtype, false};
      kernel.sin = {cos[1].data, {0, 0, cos[1].strides[0]}, cos[1].dtype, false};
      kernel.pairs = static_cast<int>(cos->shape[1]);
      kernel.interleaved = p.interleaved;
    }
    kernel.slots = state[3].as<const int32_t>();
    kernel.tokens = k->shape[0];
    kernel.num_slots = state->shape[0] * state->shape[3];
    kernel.heads = static_cast<int>(state->shape[1]);
    kernel.page_tokens = static_cast<int>(state->shape[3]);
    kernel.depth = static_cast<int>(state->shape[4]);
    Shape shape;
    shape.height = kRowsPerBlock;
    shape.blocks = AtMostBlocks(DivideUp(kernel.tokens * kernel.heads, kRowsPerBlock));
    return launch(shape, kernel);
  }
};

}  // namespace thresher::cuda
