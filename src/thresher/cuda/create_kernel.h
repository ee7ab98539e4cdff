// Tensors made of nothing: one value, or a range of numbers.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/cuda/call.h"
#include "thresher/cuda/elements.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/stored.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

inline constexpr int kCreateWidth = 256;

// Words of 16 bytes, and single bytes before and behind them.
struct FillKernel {
  static constexpr int kMostThreads = kCreateWidth;
  uint8_t* to;
  int64_t head;   // bytes before the first word
  int64_t words;  // of 16 bytes
  int64_t bytes;  // of all
  uint64_t pattern;
  int32_t element;  // bytes of one; a power of two

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    const int64_t stride = t.num_blocks() * t.width();
    const int64_t first = t.block() * t.width() + t.x();
    const uint32_t word[4] = {Word(head), Word(head + 4), Word(head + 8), Word(head + 12)};
    for (int64_t i = first; i < words; i += stride) StoreWords<4>(word, to + head, i);
    const int64_t tail = head + words * 16;
    for (int64_t i = first; i < bytes - words * 16; i += stride) {
      const int64_t at = i < head ? i : tail + i - head;
      to[at] = Byte(at);
    }
  }

 private:
  THRESHER_DEVICE uint8_t Byte(int64_t at) const { return static_cast<uint8_t>(pattern >> (at & (element - 1)) * 8); }
  THRESHER_DEVICE uint32_t Word(int64_t at) const {
    uint32_t word = 0;
    THRESHER_UNROLL
    for (int i = 0; i < 4; ++i) word |= static_cast<uint32_t>(Byte(at + i)) << (i * 8);
    return word;
  }
};

struct ArangeKernel {
  static constexpr int kMostThreads = kCreateWidth;
  void* to;
  DType dtype;
  int64_t size;
  double start;
  double step;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    for (int64_t i = t.block() * t.width() + t.x(); i < size; i += t.num_blocks() * t.width()) {
      const double v = start + static_cast<double>(i) * step;
      if (dtype == DType::kI64) {
        static_cast<int64_t*>(to)[i] = Truncated<int64_t>(v);
      } else if (dtype == DType::kI32) {
        static_cast<int32_t*>(to)[i] = static_cast<int32_t>(Truncated<int32_t>(v));
      } else {
        const auto narrow = static_cast<float>(v);
        Floats::Store<1>(dtype, &narrow, to, i);
      }
    }
  }
};

struct CreateFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kFill, KernelId::kArange};

  static Verdict Check(const Call& call) {
    const bool fill = call.kernel() == KernelId::kFill;
    if (Verdict verdict = Fits(call, fill ? sizeof(kernels::FillParams) : sizeof(kernels::ArangeParams), 1);
        !verdict.ok()) {
      return verdict;
    }
    if (call.last().contiguous()) return {};
    return Unsupported(std::string(Name(call.kernel())) + ": expected a row-major result on this device, got another");
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    const View& out = call.last();
    if (out.size() == 0) return launch.Nothing();
    Shape shape;
    shape.width = kCreateWidth;
    if (call.kernel() == KernelId::kArange) {
      const auto& p = call.as<kernels::ArangeParams>();
      shape.blocks = AtMostBlocks(DivideUp(out.size(), kCreateWidth));
      return launch(shape, ArangeKernel{out.data, out.dtype, out.size(), p.start, p.step});
    }
    FillKernel kernel{};
    kernel.to = out.as<uint8_t>();
    kernel.element = static_cast<int32_t>(SizeOf(out.dtype));
    kernel.bytes = out.size() * kernel.element;
    kernel.head = static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(out.data) % 16) % 16);
    if (kernel.head > kernel.bytes) kernel.head = kernel.bytes;
    kernel.words = (kernel.bytes - kernel.head) / 16;
    kernel.pattern = static_cast<uint64_t>(call.as<kernels::FillParams>().bits);
    shape.blocks = AtMostBlocks(DivideUp(kernel.words + 32, int64_t{kCreateWidth} * 4));
    return launch(shape, kernel);
  }
};

}  // namespace thresher::cuda
