// Rotary positions: pairs of elements of a head turned by their token's angle.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/call.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/kernel_params.h"

namespace thresher::cuda {

// A warp for each token and head.
struct RotaryKernel {
  static constexpr int kMostThreads = kWarp * kRowsPerBlock;
  RowsOf x, cos, sin, out;  // x and out: [1, heads, tokens, head size]; cos and sin: [1, 1, tokens, pairs]
  int64_t tokens;
  int heads, depth, pairs;
  bool interleaved;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachRow<true>(t, tokens * heads, [&](int64_t row) {
      const int64_t token = row / heads, head = row % heads;
      const char* const from = x.Row(0, head, token);
      char* const to = const_cast<char*>(out.Row(0, head, token));
      for (int i = t.x(); i < pairs; i += kWarp) {
        const int first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + pairs;
        const float a = LoadElement(from, x.dtype, first), b = LoadElement(from, x.dtype, second);
        const float c = LoadElement(cos.Row(0, 0, token), cos.dtype, i);
        const float s = LoadElement(sin.Row(0, 0, token), sin.dtype, i);
        StoreElement(to, out.dtype, first, a * c - b * s);
        StoreElement(to, out.dtype, second, b * c + a * s);
      }
      for (int i = 2 * pairs + t.x(); i < depth; i += kWarp) {
        StoreElement(to, out.dtype, i, LoadElement(from, x.dtype, i));
      }
    });
  }
};

struct RotaryFamily : NoScratch {
  static constexpr KernelId kKernels[] = {KernelId::kRotary};

  static Verdict Check(const Call& call) {
    Verdict verdict = Fits(call, sizeof(kernels::RotaryParams), 4);
    for (int i = 0; i < 4 && verdict.ok(); ++i) {
      if (!IsFloat(call.views[i].dtype)) {
        verdict = Unsupported("rotary: expected operands of floats on this device, got " +
                              std::string(Name(call.views[i].dtype)));
      }
    }
    return verdict;
  }

  template <class Launcher>
  static auto Launch(Launcher&& launch, const Call& call) {
    const View *x = call.views, *cos = x + 1;
    if (x->size() == 0) return launch.Nothing();
    RotaryKernel kernel{};
    kernel.x = TokenRows(x[0]);
    kernel.cos = {cos->data, {0, 0, cos->strides[0]}, cos->dtype, false};
    kernel.sin = {cos[1].data, {0, 0, cos[1].strides[0]}, cos[1].dtype, false};
    kernel.out = TokenRows(x[3]);
    kernel.tokens = x->shape[0];
    kernel.heads = static_cast<int>(x->shape[1]);
    kernel.depth = static_cast<int>(x->shape[2]);
    kernel.pairs = static_cast<int>(cos->shape[1]);
    kernel.interleaved = call.as<kernels::RotaryParams>().interleaved;
    Shape shape;
    shape.height = kRowsPerBlock;
    shape.blocks = AtMostBlocks(DivideUp(kernel.tokens * kernel.heads, kRowsPerBlock));
    return launch(shape, kernel);
  }
};

}  // namespace thresher::cuda
