// GFLOP/s of Gemm on one thread, beside the multiply-add roof of the core it ran on.
//
//   gemm_bench [isa [m n k]]     isa: a name that THRESHER_ISA takes; without m n k, a table of shapes of transformer
//   encoders
//
// Every product runs many times; the table gives the median and the best run by the thread's own processor time, so
// that other processes disturb only through the caches. The roof is measured again between the runs.

#include <time.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
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

// Ten chains of multiply-adds, which hide each other's latency; they start from ten different values, lest the compiler
// merge them. Returns the operations done.
int64_t MultiplyAdds(float* values) {
  namespace hn = hwy::HWY_NAMESPACE;
  constexpr int64_t kSteps = 20000;
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, values[10]);
  auto c0 = hn::Set(d, values[0]), c1 = hn::Set(d, values[1]), c2 = hn::Set(d, values[2]), c3 = hn::Set(d, values[3]);
  auto c4 = hn::Set(d, values[4]), c5 = hn::Set(d, values[5]), c6 = hn::Set(d, values[6]), c7 = hn::Set(d, values[7]);
  auto c8 = hn::Set(d, values[8]), c9 = hn::Set(d, values[9]);
  for (int64_t step = 0; step < kSteps; ++step) {
    c0 = hn::MulAdd(c0, x, x);
    c1 = hn::MulAdd(c1, x, x);
    c2 = hn::MulAdd(c2, x, x);
    c3 = hn::MulAdd(c3, x, x);
    c4 = hn::MulAdd(c4, x, x);
    c5 = hn::MulAdd(c5, x, x);
    c6 = hn::MulAdd(c6, x, x);
    c7 = hn::MulAdd(c7, x, x);
    c8 = hn::MulAdd(c8, x, x);
    c9 = hn::MulAdd(c9, x, x);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)),
                           hn::Add(hn::Add(c4, c5), hn::Add(hn::Add(c6, c7), hn::Add(c8, c9))));
  values[11] = hn::ReduceSum(d, sum);
  return kSteps * 10 * 2 * static_cast<int64_t>(hn::Lanes(d));
}

}  // namespace
}  // namespace thresher::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher {
namespace {

HWY_EXPORT(MultiplyAdds);

double ThreadSeconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double RoofGflops() {
  float values[12] = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f, 1.0f, 1e-9f, 0.0f};
  const double begin = ThreadSeconds();
  const int64_t operations = HWY_DYNAMIC_DISPATCH(MultiplyAdds)(values);
  return 1e-9 * static_cast<double>(operations) / (ThreadSeconds() - begin);
}

struct Aligned {
  explicit Aligned(int64_t count)
      : data(static_cast<float*>(
            ::operator new(static_cast<size_t>(count) * sizeof(float) + 64, std::align_val_t{64}))) {
    for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i * 7919 % 2001 - 1000) * 1e-3f;
  }
  ~Aligned() { ::operator delete(data, std::align_val_t{64}); }
  Aligned(const Aligned&) = delete;
  Aligned& operator=(const Aligned&) = delete;
  float* data;
};

void Measure(int64_t m, int64_t n, int64_t k, kernels::Activation activation) {
  const Aligned a(m * k), b(n * k), c(m * n), bias(n), packed(kernels::PackedSize(k, n));
  kernels::PackB(b.data, k, n, 1, k, packed.data);
  kernels::GemmArgs args;
  args.m = m, args.n = n, args.k = k;
  args.a = a.data, args.lda = k;
  args.packed_b = packed.data;
  args.c = c.data, args.ldc = n;
  args.bias = bias.data;
  args.activation = activation;
  const double operations = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const int runs = static_cast<int>(std::clamp(5e9 / operations, 15.0, 400.0));
  std::vector<double> gflops, roofs;
  for (int i = 0; i < runs; ++i) {
    roofs.push_back(RoofGflops());
    const double begin = ThreadSeconds();
    kernels::Gemm(args);
    gflops.push_back(1e-9 * operations / (ThreadSeconds() - begin));
  }
  std::sort(gflops.begin(), gflops.end());
  std::sort(roofs.begin(), roofs.end());
  const double median = gflops[gflops.size() / 2];
  const double roof = roofs[roofs.size() / 2];
  std::printf("%6lld %6lld %6lld  %-9s  %8.1f %8.1f %8.1f  %5.1f %%  %5.1f %%\n", static_cast<long long>(m),
              static_cast<long long>(n), static_cast<long long>(k), std::string(kernels::Name(activation)).c_str(),
              median, gflops.back(), roof, 100.0 * median / roof, 100.0 * gflops.back() / roofs.back());
}

int Main(int argc, char** argv) {
  const Status status = argc > 1 ? isa::Force(argv[1]) : isa::Select().status();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }
  std::printf("instruction set %s, one thread\n", std::string(isa::Name(isa::Current())).c_str());
  std::printf("%6s %6s %6s  %-9s  %8s %8s %8s  %7s  %7s\n", "m", "n", "k", "epilogue", "median", "best", "roof",
              "median", "best");
  if (argc == 5) {
    Measure(std::atoll(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]), kernels::Activation::kNone);
    return 0;
  }
  for (const int64_t m : {128, 1024}) {
    for (const int64_t n : {384, 1536}) {
      for (const int64_t k : {384, 1536}) Measure(m, n, k, kernels::Activation::kNone);
    }
  }
  Measure(128, 1536, 384, kernels::Activation::kGelu);
  Measure(128, 768, 3072, kernels::Activation::kNone);
  for (const int64_t m : {1, 2, 4, 16}) Measure(m, 1536, 384, kernels::Activation::kNone);
  return 0;
}

}  // namespace
}  // namespace thresher

int main(int argc, char** argv) { return thresher::Main(argc, argv); }

#endif  // HWY_ONCE
