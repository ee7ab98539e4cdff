// Sorting along one dimension. What fits into the shared memory of a block is sorted there by a bitonic network. Longer
// lines are sorted in runs of that length, which are then merged two by two through scratch memory.
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

inline constexpr int kSortedRun = 4096;  // elements that a block sorts
inline constexpr int kMergeWidth = 256;

// Elements as numbers without a sign whose order is theirs: NaN above all numbers; -0 and 0 are equal.
template <class Numbers>
struct SortKeys {
  using Value = typename Numbers::Value;
  static constexpr int kWords = sizeof(Value) / sizeof(uint32_t);
  using Key = std::conditional_t<kWords == 1, uint32_t, uint64_t>;

  THRESHER_DEVICE static Key Of(Value value, bool descending) {
    Key key;
    if constexpr (kWords == 1) {
      const uint32_t bits = BitsOf(value == 0 ? 0.0f : value);
      key = value != value ? ~0u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    } else {
      key = static_cast<uint64_t>(value) ^ (uint64_t{1} << 63);
    }
    return descending ? ~key : key;
  }
};

// The lines, and where their elements go.
template <class Numbers>
struct SortedLines {
  using Value = typename Numbers::Value;
  Elements<3> lines;  // operands: x, values, indices
  const void* x;
  void* values;
  int64_t* indices;
  int64_t x_stride, values_stride, indices_stride;  // along the line
  int32_t size, wanted;                             // elements of a line, and how many of the first are results
  DType dtype;
  bool descending;

  THRESHER_DEVICE Value ValueAt(int64_t line, int32_t position) const {
    return NumberAt<Numbers>(dtype, x, lines.OffsetOf(line, 0) + int64_t{position} * x_stride);
  }

  // The element at `position` of a line, as number `i` of the results, if so many are wanted.
  THRESHER_DEVICE void Write(int64_t line, int32_t i, uint32_t position) const {
    if (i >= wanted) return;
    const Value value = ValueAt(line, static_cast<int32_t>(position));
    Numbers::template Store<1>(dtype, &value, values, lines.OffsetOf(line, 1) + i * values_stride);
    indices[lines.OffsetOf(line, 2) + i * indices_stride] = position;
  }
};

// What is kept of elements between two kernels, line after line.
template <class Key>
struct SortBuffer {
  Key* keys;
  uint32_t* positions;  // null: results are wanted
};

// A block sorts a run: a line, or kSortedRun elements of it. Elements are there as keys beside their positions, which
// decide between equal ones; those behind the run's end come last.
template <class Numbers>
struct SortKernel {
  using Keys = SortKeys<Numbers>;
  using Key = typename Keys::Key;
  static constexpr int kMostThreads = 512;
  static constexpr int kKeyWords = Keys::kWords;
  SortedLines<Numbers> lines;
  SortBuffer<Key> to;
  int32_t padded;  // of a run; a power of two, at least 2
  int32_t runs;    // of a line

  static int SharedWords(int padded) { return (kKeyWords + 1) * padded; }

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    for (int64_t run = t.block(); run < lines.lines.size * runs; run += t.num_blocks()) {
      const int64_t line = run / runs;
      const auto first = static_cast<int32_t>(run - line * runs) * kSortedRun;
      const int32_t size = lines.size - first < padded ? lines.size - first : padded;
      t.Sync();  // who still reads the last run
      for (int32_t i = t.x(); i < padded; i += t.width()) {
        Put(t, i, i < size ? Keys::Of(lines.ValueAt(line, first + i), lines.descending) : ~Key{0},
            static_cast<uint32_t>(i));
      }
      for (int32_t sorted = 2; sorted <= padded; sorted *= 2) {
        for (int32_t apart = sorted / 2; apart > 0; apart /= 2) {
          t.Sync();
          for (int32_t pair = t.x(); pair < padded / 2; pair += t.width()) {
            const int32_t low = pair % apart, at = 2 * (pair - low) + low;
            Order(t, at, at + apart, (at & sorted) == 0);
          }
        }
      }
      t.Sync();
      for (int32_t i = t.x(); i < size; i += t.width()) {
        const auto position = static_cast<uint32_t>(t.shared_words()[kKeyWords * padded + i]) + first;
        if (to.positions == nullptr) {
          lines.Write(line, i, position);
        } else {
          to.keys[line * lines.size + first + i] = KeyAt(t, i);
          to.positions[line * lines.size + first + i] = position;
        }
      }
    }
  }

 private:
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

// Every two neighbouring runs of a line become one. A thread has an element, which it puts behind those of the other
// run that come before it: of equal ones, those of the first run.
template <class Numbers>
struct SortMergeKernel {
  using Key = typename SortKeys<Numbers>::Key;
  static constexpr int kMostThreads = kMergeWidth;
  SortedLines<Numbers> lines;
  SortBuffer<Key> from, to;
  int32_t run;  // elements of a run; the last of a line may be shorter

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t count = lines.lines.size * lines.size, step = t.num_blocks() * t.width();
    for (int64_t i = t.block() * t.width() + t.x(); i < count; i += step) {
      const int64_t line = i / lines.size, base = line * lines.size;
      const auto at = static_cast<int32_t>(i - base);
      const int32_t own = at / run * run;
      const bool is_first = at / run % 2 == 0;
      const Key key = from.keys[i];
      // How many of the other run come before.
      const int64_t other = is_first ? int64_t{own} + run : int64_t{own} - run;
      int64_t low = other, high = other + run < lines.size ? other + run : lines.size;
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        const Key found = from.keys[base + middle];
        if (found < key || (found == key && !is_first)) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      const int64_t before = low - other > 0 ? low - other : 0;
      const auto place = static_cast<int32_t>((is_first ? own : other) + (at - own) + before);
      const uint32_t position = from.positions[i];
      if (to.positions == nullptr) {
        lines.Write(line, place, position);
      } else {
        to.keys[base + place] = key;
        to.positions[base + place] = position;
      }
    }
  }
};

struct SortFamily {
  static constexpr KernelId kKernels[] = {KernelId::kSort};

  static Verdict Check(const Call& call) {
    if (Verdict verdict = Fits(call, sizeof(kernels::SortParams), 3); !verdict.ok()) return verdict;
    const int64_t size = SizeOfLine(call);
    if (size <= INT32_MAX) return {};
    return Unsupported("sort: expected lines of fewer than 2^31 elements on this device, got " + std::to_string(size));
  }

  static size_t ScratchBytes(const Call& call) {
    const View& x = call.views[0];
    if (SizeOfLine(call) <= kSortedRun) return 0;
    return 2 * BufferBytes(x.size(), IsFloat(x.dtype) ? sizeof(uint32_t) : sizeof(uint64_t));
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

  // Keys, then positions; the next buffer begins at a multiple of 16 bytes.
  static size_t BufferBytes(int64_t elements, size_t key_bytes) {
    return (static_cast<size_t>(elements) * (key_bytes + sizeof(uint32_t)) + 15) / 16 * 16;
  }

  template <class Numbers>
  static SortedLines<Numbers> LinesOf(const Call& call) {
    const auto& p = call.as<kernels::SortParams>();
    const View &x = call.views[0], &values = call.views[1], &indices = call.views[2];
    kernels::Loop<3> loop;
    for (int d = 0; d < x.rank; ++d) {
      const int64_t strides[] = {x.strides[d], values.strides[d], indices.strides[d]};
      if (d != p.dim) loop.Push(x.shape[d], strides);
    }
    loop.Collapse();
    SortedLines<Numbers> lines{};
    lines.lines = ElementsOf(loop);
    lines.x = x.data;
    lines.values = values.data;
    lines.indices = indices.as<int64_t>();
    lines.size = static_cast<int32_t>(SizeOfLine(call));
    lines.wanted = 1;
    if (x.rank > 0) {
      lines.x_stride = x.strides[p.dim];
      lines.values_stride = values.strides[p.dim];
      lines.indices_stride = indices.strides[p.dim];
      lines.wanted = static_cast<int32_t>(values.shape[p.dim]);
    }
    lines.dtype = x.dtype;
    lines.descending = p.descending;
    return lines;
  }

  template <class Numbers, class Launcher>
  static auto LaunchOf(Launcher&& launch, const Call& call) {
    using Key = typename SortKeys<Numbers>::Key;
    const SortedLines<Numbers> lines = LinesOf<Numbers>(call);
    const int64_t elements = lines.lines.size * lines.size;
    SortBuffer<Key> buffers[2] = {};
    if (lines.size > kSortedRun) {
      auto* at = static_cast<std::byte*>(call.scratch);
      for (SortBuffer<Key>& buffer : buffers) {
        buffer.keys = reinterpret_cast<Key*>(at);
        buffer.positions = reinterpret_cast<uint32_t*>(buffer.keys + elements);
        at += BufferBytes(elements, sizeof(Key));
      }
    }
    auto result = LaunchRuns(launch, lines, buffers[0]);
    int from = 0;
    for (int64_t run = kSortedRun; run < lines.size && result == launch.Nothing(); run *= 2) {
      SortMergeKernel<Numbers> merge{lines, buffers[from], buffers[1 - from], static_cast<int32_t>(run)};
      if (2 * run >= lines.size) merge.to = {};
      Shape shape;
      shape.width = kMergeWidth;
      shape.blocks = AtMostBlocks(DivideUp(elements, kMergeWidth));
      result = launch(shape, merge);
      from = 1 - from;
    }
    return result;
  }

  template <class Numbers, class Launcher>
  static auto LaunchRuns(Launcher&& launch, const SortedLines<Numbers>& lines,
                         const SortBuffer<typename SortKeys<Numbers>::Key>& to) {
    SortKernel<Numbers> kernel{lines, to, 2, static_cast<int32_t>(DivideUp(lines.size, kSortedRun))};
    while (kernel.padded < lines.size && kernel.padded < kSortedRun) kernel.padded *= 2;
    Shape shape;
    shape.width = std::clamp(kernel.padded / 2, kWarp, SortKernel<Numbers>::kMostThreads);
    shape.blocks = AtMostBlocks(lines.lines.size * kernel.runs);
    shape.shared_floats = SortKernel<Numbers>::SharedWords(kernel.padded);
    return launch(shape, kernel);
  }
};

}  // namespace thresher::cuda
