// Sorting along one dimension, of lines that fit into the shared memory of a block: by a bitonic network.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "thresher/cuda/call.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/reduce_kernel.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/stored.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

inline constexpr int kLongestSortedLine = 4096;

// A block sorts a line. Elements are there as numbers without a sign whose order is theirs, beside their positions,
// which decide between equal ones; those behind the line's end come last.
template <class Numbers>
struct SortKernel {
  using Value = typename Numbers::Value;
  static constexpr int kMostThreads = 512;
  static constexpr int kKeyWords = sizeof(Value) / sizeof(uint32_t);
  using Key = std::conditional_t<kKeyWords == 1, uint32_t, uint64_t>;
  Elements<3> lines;  // operands: x, values, indices
  const void* x;
  void* values;
  int64_t* indices;
  int64_t x_stride, values_stride, indices_stride;  // along the line
  int32_t size, wanted;                             // elements of a line, and how many of the first are results
  int32_t padded;                                   // a power of two, at least 2
  DType dtype;
  bool descending;

  static int SharedWords(int padded) { return (kKeyWords + 1) * padded; }

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    for (int64_t line = t.block(); line < lines.size; line += t.num_blocks()) {
      const int64_t base = lines.OffsetOf(line, 0);
      t.Sync();  // who still reads the last line
      for (int32_t i = t.x(); i < padded; i += t.width()) {
        Put(t, i, i < size ? KeyOf(NumberAt<Numbers>(dtype, x, base + i * x_stride)) : ~Key{0},
            static_cast<uint32_t>(i));
      }
      for (int32_t run = 2; run <= padded; run *= 2) {
        for (int32_t apart = run / 2; apart > 0; apart /= 2) {
          t.Sync();
          for (int32_t pair = t.x(); pair < padded / 2; pair += t.width()) {
            const int32_t low = pair % apart, first = 2 * (pair - low) + low;
            Order(t, first, first + apart, (first & run) == 0);
          }
        }
      }
      t.Sync();
      const int64_t to = lines.OffsetOf(line, 1), at = lines.OffsetOf(line, 2);
      for (int32_t i = t.x(); i < wanted; i += t.width()) {
        const auto position = static_cast<uint32_t>(t.shared_words()[kKeyWords * padded + i]);
        const Value value = NumberAt<Numbers>(dtype, x, base + int64_t{position} * x_stride);
        Numbers::template Store<1>(dtype, &value, values, to + i * values_stride);
        indices[at + i * indices_stride] = position;
      }
    }
  }

 private:
  // NaN above all numbers; -0 and 0 are equal.
  THRESHER_DEVICE Key KeyOf(Value value) const {
    Key key;
    if constexpr (kKeyWords == 1) {
      const uint32_t bits = BitsOf(value == 0 ? 0.0f : value);
      key = value != value ? ~0u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    } else {
      key = static_cast<uint64_t>(value) ^ (uint64_t{1} << 63);
    }
    return descending ? ~key : key;
  }

  template <class T>
  THRESHER_DEVICE void Put(T& t, int32_t at, Key key, uint32_t position) const {
    auto words = t.shared_words();
    words[at] = static_cast<uint32_t>(key);
    if constexpr (kKeyWords == 2) words[padded + at] = static_cast<uint32_t>(key >> 32);
    words[kKeyWords * padded + at] = position;
  }

  template <class T>
  THRESHER_DEVICE Key KeyAt(T& t, int32_t at) const {
    auto words = t.shared_words();
    Key key = static_cast<uint32_t>(words[at]);
    if constexpr (kKeyWords == 2) key |= static_cast<uint64_t>(static_cast<uint32_t>(words[padded + at])) << 32;
    return key;
  }

  // Puts the elements at two places in order, or the other way round.
  template <class T>
  THRESHER_DEVICE void Order(T& t, int32_t a, int32_t b, bool ascends) const {
    auto words = t.shared_words();
    const Key first = KeyAt(t, a), second = KeyAt(t, b);
    const uint32_t first_at = words[kKeyWords * padded + a], second_at = words[kKeyWords * padded + b];
    const bool above = first > second || (first == second && first_at > second_at);
    if (above != ascends) return;
    Put(t, a, second, second_at);
    Put(t, b, first, first_at);
  }
};

struct SortFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kSort};

  static Verdict Check(const Call& call) {
    if (Verdict verdict = Fits(call, sizeof(kernels::SortParams), 3); !verdict.ok()) return verdict;
    const int64_t size = SizeOfLine(call);
    if (size <= kLongestSortedLine) return {};
    return Unsupported("sort: expected lines of at most " + std::to_string(kLongestSortedLine) +
                       " elements on this device, got " + std::to_string(size));
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    if (call.last().size() == 0) return launch.Nothing();
    return IsFloat(call.views[0].dtype) ? LaunchOf<Floats>(launch, call) : LaunchOf<Integers>(launch, call);
  }

 private:
  static int64_t SizeOfLine(const Call& call) {
    const View& x = call.views[0];
    return x.rank == 0 ? 1 : x.shape[call.as<kernels::SortParams>().dim];
  }

  template <class Numbers, class Launcher>
  static auto LaunchOf(Launcher&& launch, const Call& call) {
    const auto& p = call.as<kernels::SortParams>();
    const View &x = call.views[0], &values = call.views[1], &indices = call.views[2];
    kernels::Loop<3> lines;
    for (int d = 0; d < x.rank; ++d) {
      const int64_t strides[] = {x.strides[d], values.strides[d], indices.strides[d]};
      if (d != p.dim) lines.Push(x.shape[d], strides);
    }
    lines.Collapse();
    SortKernel<Numbers> kernel{};
    kernel.lines = ElementsOf(lines);
    kernel.x = x.data;
    kernel.values = values.data;
    kernel.indices = indices.as<int64_t>();
    kernel.size = static_cast<int32_t>(SizeOfLine(call));
    kernel.wanted = 1;
    if (x.rank > 0) {
      kernel.x_stride = x.strides[p.dim];
      kernel.values_stride = values.strides[p.dim];
      kernel.indices_stride = indices.strides[p.dim];
      kernel.wanted = static_cast<int32_t>(values.shape[p.dim]);
    }
    kernel.padded = 2;
    while (kernel.padded < kernel.size) kernel.padded *= 2;
    kernel.dtype = x.dtype;
    kernel.descending = p.descending;
    Shape shape;
    shape.width = std::clamp(kernel.padded / 2, kWarp, SortKernel<Numbers>::kMostThreads);
    shape.blocks = AtMostBlocks(kernel.lines.size);
    shape.shared_floats = SortKernel<Numbers>::SharedWords(kernel.padded);
    return launch(shape, kernel);
  }
};

}  // namespace thresher::cuda
