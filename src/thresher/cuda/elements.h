// Where the elements of operands lie that one loop walks in row-major order, whatever their strides. The loop counts
// runs: kRun neighbouring elements of the innermost dimension where every operand allows it, else single ones.
#pragma once

#include <algorithm>
#include <cstdint>

#include "thresher/base/view.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/iterate.h"

namespace thresher::cuda {

inline constexpr int kRun = 4;

constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Division by a number that is known at the launch: of up to 2^31, by a multiplication.
struct Divisor {
  uint32_t divisor = 1;
  uint32_t factor = 1;
  uint32_t shift = 0;

  static Divisor By(int64_t divisor) {
    Divisor d;
    // Of dimensions that are empty, or too long for a narrow index, nothing is divided.
    d.divisor = divisor > 0 && divisor <= UINT32_MAX ? static_cast<uint32_t>(divisor) : 1;
    while (d.shift < 31 && (uint64_t{1} << d.shift) < d.divisor) ++d.shift;
    d.factor = static_cast<uint32_t>((((uint64_t{1} << d.shift) - d.divisor) << 32) / d.divisor + 1);
    return d;
  }

  // number < 2^31.
  THRESHER_DEVICE uint32_t Quotient(uint32_t number) const {
    const auto high = static_cast<uint32_t>(static_cast<uint64_t>(number) * factor >> 32);
    return (high + number) >> shift;
  }
};

inline constexpr int64_t kMostNarrowRuns = (int64_t{1} << 31) - 1;

template <int N>
struct Elements {
  int64_t size;       // of the shape, as a product, in runs
  int32_t rank;       // at least 1; outermost dimension first
  int32_t run;        // elements of a run: kRun or 1
  uint32_t dense;     // bit i: operand i is row-major, so that its strides need not be read
  uint32_t single;    // bit i: operand i is one value for all elements
  uint32_t repeated;  // bit i: operand i has one value for all elements of a run
  int64_t shape[kMaxRank];
  Divisor divisors[kMaxRank];
  int64_t strides[N][kMaxRank];  // in elements from run to run

  // In the operand, of a run counted in row-major order. kWide: there may be 2^31 runs or more.
  template <bool kWide>
  THRESHER_DEVICE int64_t OffsetOf(int64_t at, int operand) const {
    const int64_t* stride = strides[operand];
    if (rank == 1) return at * stride[0];
    if ((dense >> operand & 1u) != 0) return at * run;
    if ((single >> operand & 1u) != 0) return 0;
    int64_t offset = 0;
    if constexpr (kWide) {
      int64_t rest = at;
      for (int d = rank - 1; d > 0; --d) {
        offset += rest % shape[d] * stride[d];
        rest /= shape[d];
      }
      return offset + rest * stride[0];
    } else {
      auto rest = static_cast<uint32_t>(at);
      for (int d = rank - 1; d > 0; --d) {
        const uint32_t quotient = divisors[d].Quotient(rest);
        offset += static_cast<int64_t>(rest - quotient * divisors[d].divisor) * stride[d];
        rest = quotient;
      }
      return offset + static_cast<int64_t>(rest) * stride[0];
    }
  }

  // The same where both may be.
  THRESHER_DEVICE int64_t OffsetOf(int64_t at, int operand) const {
    return size > kMostNarrowRuns ? OffsetOf<true>(at, operand) : OffsetOf<false>(at, operand);
  }
};

// The elements of a collapsed loop that is not empty.
template <int N>
Elements<N> ElementsOf(const kernels::Loop<N>& loop, int count = N) {
  Elements<N> to{};
  to.rank = loop.rank;
  to.run = 1;
  to.size = loop.size();
  for (int d = 0; d < loop.rank; ++d) {
    to.shape[d] = loop.shape[d];
    to.divisors[d] = Divisor::By(loop.shape[d]);
  }
  for (int i = 0; i < count; ++i) {
    bool dense = true;
    int64_t step = 1;
    for (int d = loop.rank - 1; d >= 0; --d) {
      dense = dense && loop.strides[i][d] == step;
      step *= loop.shape[d];
    }
    if (dense) to.dense |= 1u << i;
    if (loop.Constant(i)) to.single |= 1u << i;
    if (loop.inner_stride(i) == 0) to.repeated |= 1u << i;
    std::copy_n(loop.strides[i], loop.rank, to.strides[i]);
  }
  return to;
}

// Of operands that all have one shape, in runs where they allow it. The last one is written to.
template <int N>
Elements<N> ElementsOf(const View* operands, int count) {
  kernels::Loop<N> loop;
  for (int d = 0; d < operands[0].rank; ++d) {
    int64_t strides[N] = {};
    for (int i = 0; i < count; ++i) strides[i] = operands[i].strides[d];
    loop.Push(operands[0].shape[d], strides);
  }
  loop.Collapse();
  const int last = loop.rank - 1;
  bool by_runs = loop.inner() % kRun == 0 && loop.inner_stride(count - 1) == 1 && loop.size() / kRun <= kMostNarrowRuns;
  for (int i = 0; i < count && by_runs; ++i) {
    if (loop.inner_stride(i) == 0) continue;
    const size_t alignment = std::min<size_t>(kRun * SizeOf(operands[i].dtype), 16);
    by_runs = loop.inner_stride(i) == 1 && reinterpret_cast<uintptr_t>(operands[i].data) % alignment == 0;
    for (int d = 0; d < last; ++d) by_runs = by_runs && loop.strides[i][d] % kRun == 0;
  }
  Elements<N> to = ElementsOf(loop, count);
  if (!by_runs) return to;
  to.run = kRun;
  to.size /= kRun;
  to.shape[last] /= kRun;
  to.divisors[last] = Divisor::By(to.shape[last]);
  for (int i = 0; i < count; ++i) to.strides[i][last] *= kRun;
  return to;
}

// make.template operator()<run, wide>() for what OffsetOf() wants.
template <int N, class Make>
auto ForLayout(const Elements<N>& elements, Make&& make) {
  if (elements.size > kMostNarrowRuns) return make.template operator()<1, true>();
  if (elements.run == kRun) return make.template operator()<kRun, false>();
  return make.template operator()<1, false>();
}

}  // namespace thresher::cuda
