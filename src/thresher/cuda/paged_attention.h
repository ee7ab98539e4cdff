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
        attends ? Fits(call, sizeof(kernels::PagedAttentionParams), 7) : Fits(call, sizeof(kernels::KvWriteParams), 4);
    if (!verdict.ok()) return verdict;
    const Encoding blocks =
        attends ? call.as<kernels::PagedAttentionParams>().blocks : call.as<kernels::KvWriteParams>().blocks;
    if (IsBlocked(blocks)) {
      return Unsupported(std::string(Name(call.kernel())) + ": expected a state of floats on this device, got " +
                         std::string(Name(blocks)));
    }
    const auto is_float = [&](int i) { return IsFloat(call.views[i].dtype); };
    const auto got = [&](int i) { return std::string(Name(call.views[i].dtype)); };
    const int last = attends ? kOut : 2;
    if (!is_float(0) || !is_float(1) || !is_float(last)) {
      return Unsupported(std::string(Name(call.kernel())) + ": expected operands of floats on this device, got " +
                         got(0) + ", " + got(1) + " and " + got(last));
    }
    if (attends && call.views[0].shape[4] > kWidestHead) {
      return Unsupported("paged_attention: expected heads of at most " + std::to_string(kWidestHead) +
                         " elements on this device, got " + std::to_string(call.views[0].shape[4]));
    }
    return {};
  }

  static size_t ScratchBytes(const Call& call) {
    if (call.kernel() != KernelId::kPagedAttention) return 0;
    return PartialBytes(SourceOf(call));
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    if (call.views[1].size() == 0) return launch.Nothing();
    if (call.kernel() == KernelId::kKvWrite) return LaunchWrite(launch, call);
    const PagedSource source = SourceOf(call);
    auto result = LaunchRows(launch, source);
    if (source.partials.splits == 1 || result != launch.Nothing()) return result;
    return LaunchMerge(launch, source);
  }

  static PagedSource SourceOf(const Call& call) {
    const auto& p = call.as<kernels::PagedAttentionParams>();
    const View *state = call.views, *q = state + 1, *tables = state + 4, *out = state + kOut;
    PagedSource s{};
    s.q = TokenRows(*q);
    s.out = TokenRows(*out);
    s.v = {state->data, {}, state->dtype, true};
    s.state = state->as<const char>();
    s.page_stride = state->strides[0];
    s.head_stride = state->strides[1];
    s.part_stride = state->strides[2];
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

 private:
  static constexpr int kOut = 5;

  // Few rows a sequence: those of tokens that are made one by one.
  static bool IsNarrow(const PagedSource& s) {
    return s.tokens * int64_t{s.group} <= s.sequences * NarrowTiling::kRows ||
           s.Places(WideTiling::kRows) < kEnoughBlocks;
  }

  template <class Launcher>
  static auto LaunchRows(Launcher&& launch, const PagedSource& source) {
    switch (source.v.dtype) {
      case DType::kBF16:
        return IsNarrow(source) ? LaunchHalves<Bf16, NarrowTiling>(launch, source)
                                : LaunchHalves<Bf16, WideTiling>(launch, source);
      case DType::kF16:
        return IsNarrow(source) ? LaunchHalves<Fp16, NarrowTiling>(launch, source)
                                : LaunchHalves<Fp16, WideTiling>(launch, source);
      default:
        return LaunchF32(launch, source);
    }
  }

  template <class Launcher>
  static auto LaunchWrite(Launcher&& launch, const Call& call) {
    const View *state = call.views, *k = state + 1;
    KvWriteKernel kernel{};
    kernel.k = TokenRows(k[0]);
    kernel.v = TokenRows(k[1]);
    kernel.state = state->as<char>();
    kernel.dtype = state->dtype;
    kernel.page_stride = state->strides[0];
    kernel.head_stride = state->strides[1];
    kernel.part_stride = state->strides[2];
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
