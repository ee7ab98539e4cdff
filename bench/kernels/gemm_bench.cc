// GFLOP/s of Gemm on one thread beside the machine's measured multiply-add roof.
//
//   gemm_bench [ISA]         a table of shapes; each figure is the median of short runs
//
// The roof is re-measured next to every shape, so that a busy machine slows both alike.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "thresher/base/isa.h"
#include "thresher/base/simd_targets.h"
#include "thresher/kernels/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gemm_bench.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kRoofSteps = 20000;

// Ten independent chains of multiply-adds, enough to hide their latency. Returns the operations done.
int64_t RunRoof(float* sink) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, sink[0]);
  auto a = hn::Set(d, 0.1f), b = a, c = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a;
  for (int64_t step = 0; step < kRoofSteps; ++step) {
    a = hn::MulAdd(a, x, x), b = hn::MulAdd(b, x, x), c = hn::MulAdd(c, x, x), e = hn::MulAdd(e, x, x);
    f = hn::MulAdd(f, x, x), g = hn::MulAdd(g, x, x), h = hn::MulAdd(h, x, x), i = hn::MulAdd(i, x, x);
    j = hn::MulAdd(j, x, x), k = hn::MulAdd(k, x, x);
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
    // Equal chains would otherwise be merged into one.
    __asm__ volatile("" ::: "memory");
#endif
    hn::StoreU(b, d, sink + 64), hn::StoreU(c, d, sink + 128);
  }
  a = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, i)));
  hn::StoreU(hn::Add(a, hn::Add(j, k)), d, sink);
  return kRoofSteps * 10 * 2 * static_cast<int64_t>(hn::Lanes(d));
}

}  // namespace
}  // namespace thresher::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
