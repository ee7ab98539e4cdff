#include "thresher/kernels/peaks.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>

#include "thresher/base/arena.h"
#include "thresher/base/barrier.h"
#include "thresher/base/clock.h"
#include "thresher/base/cpu.h"
#include "thresher/base/thread_pool.h"

// The targets with dot products of int8 and bf16, too.
#define THRESHER_DOT_TARGETS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/peaks.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "thresher/kernels/amx_tile-inl.h"

#ifndef THRESHER_KERNELS_PEAKS_LOOP
#define THRESHER_KERNELS_PEAKS_LOOP

namespace thresher::kernels {
namespace {

// What one thread works on. `bytes` is a multiple of kGrain.
struct LoopArgs {
  uint8_t* data = nullptr;
  size_t bytes = 0;
  int64_t repeats = 0;
};

// Arithmetic reads its starting values from the buffer and leaves its result there, so that no compiler can know
// either.
using Loop = int64_t (*)(const LoopArgs&);

constexpr size_t kGrain = 4096;
constexpr int64_t kStepsPerRepeat = 1000;

}  // namespace
}  // namespace thresher::kernels

#endif  // THRESHER_KERNELS_PEAKS_LOOP

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Independent chains, enough to hide the latency of a multiply-add (4 cycles by up to 4 units) and few enough to stay
// in registers beside two constants.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
constexpr size_t kChains = 12;  // of 16 registers
#else
constexpr size_t kChains = 16;  // of 32 registers
#endif
using Chains = std::make_index_sequence<kChains>;

// The value stays in its register, in program order. Otherwise compilers spread a loop out until it spills.
template <class V>
HWY_INLINE void Keep(V& v) {
#if HWY_ARCH_X86
  asm volatile("" : "+v"(v.raw));
#elif HWY_TARGET & HWY_ALL_SVE
  asm volatile("" : "+w"(v));
#elif HWY_ARCH_ARM
  asm volatile("" : "+w"(v.raw));
#else
  (void)v;
#endif
}

// Runs step(chain) on every chain, over and over, and leaves their sum at `values`. The chains are parameters of their
// own because vectors of unknown length cannot be elements of an array.
template <class D, class Step, class... V>
HWY_INLINE void RunChains(D d, hn::TFromD<D>* values, int64_t steps, const Step& step, V... chains) {
  for (int64_t i = 0; i < steps; ++i) {
    ((step(chains), Keep(chains)), ...);
  }
  auto sum = hn::Zero(d);
  ((sum = hn::Add(sum, chains)), ...);
  hn::StoreU(sum, d, values);
}

// Chains with different starting values, lest the compiler merge them.
template <class D, class Step, size_t... kIndex>
HWY_INLINE void RunSeeded(D d, hn::TFromD<D>* values, int64_t steps, const Step& step, std::index_sequence<kIndex...>) {
  RunChains(d, values, steps, step, hn::Set(d, values[kIndex])...);
}

int64_t MultiplyAdds(const LoopArgs& args) {
  const hn::ScalableTag<float> d;
  float* values = reinterpret_cast<float*>(args.data);
  const auto a = hn::Set(d, values[kChains] * 1e-9f + 0.5f);
  const auto b = hn::Set(d, values[kChains + 1] * 1e-9f + 0.5f);
  const int64_t steps = args.repeats * kStepsPerRepeat;
  const auto step = [&](auto& chain) HWY_ATTR {
#if HWY_NATIVE_FMA
    chain = hn::MulAdd(a, b, chain);
#else
    // The product must change with every step, or it would be computed once.
    chain = hn::Add(hn::Mul(chain, a), b);
#endif
  };
  RunSeeded(d, values, steps, step, Chains());
  return steps * static_cast<int64_t>(kChains * 2 * hn::Lanes(d));
}

#if THRESHER_UNIT_TARGET
// Four tiles of sums, as in products. Any bits are numbers enough: no product of tiles takes longer than another.
template <class Dot>
int64_t TileProducts(const LoopArgs& args) {
  static_assert(kGrain == 4 * kUnitTileBytes);
  const ConfiguredTiles<AmxUnit> tiles(kUnitRows);
  AmxUnit::Load<4>(args.data, kUnitRowBytes);
  AmxUnit::Load<5>(args.data + kUnitTileBytes, kUnitRowBytes);
  AmxUnit::Load<6>(args.data + 2 * kUnitTileBytes, kUnitRowBytes);
  AmxUnit::Load<7>(args.data + 3 * kUnitTileBytes, kUnitRowBytes);
  AmxUnit::Zero<0>();
  AmxUnit::Zero<1>();
  AmxUnit::Zero<2>();
  AmxUnit::Zero<3>();
  const int64_t steps = args.repeats * kStepsPerRepeat / 10;
  for (int64_t i = 0; i < steps; ++i) {
    UnitDot<AmxUnit, Dot, 0, 4, 6>();
    UnitDot<AmxUnit, Dot, 1, 4, 7>();
    UnitDot<AmxUnit, Dot, 2, 5, 6>();
    UnitDot<AmxUnit, Dot, 3, 5, 7>();
  }
  return steps * 4 * 2 * static_cast<int64_t>(kUnitRows * kUnitRows * kUnitSteps * Dot::kStep);
}
#endif

int64_t Bf16Products(const LoopArgs& args) {
#if THRESHER_UNIT_TARGET
  if (UnitInUse() == isa::Tiles::kInstructions) return TileProducts<Bf16Dot>(args);
#endif
#if THRESHER_NATIVE_DOT_BF16
  const hn::ScalableTag<float> d;
  const hn::Repartition<hwy::bfloat16_t, decltype(d)> d16;
  float* values = reinterpret_cast<float*>(args.data);
  const hn::RebindToUnsigned<decltype(d16)> bits;
  const auto a = hn::BitCast(d16, hn::Set(bits, uint16_t{0x3F00}));  // 0.5
  const auto b = a;
  auto unused = hn::Zero(d);  // where the dot product is native, all goes to the first sum
  const int64_t steps = args.repeats * kStepsPerRepeat;
  const auto step = [&](auto& chain) HWY_ATTR { chain = hn::ReorderWidenMulAccumulate(d, a, b, chain, unused); };
  RunSeeded(d, values, steps, step, Chains());
  return steps * static_cast<int64_t>(kChains * 4 * hn::Lanes(d));
#else
  (void)args;
  return 0;
#endif
}

// Where there are no tiles of fp16, nothing multiplies it.
int64_t Fp16Products(const LoopArgs& args) {
#if THRESHER_UNIT_TARGET
  if (UnitInUse() == isa::Tiles::kInstructions && isa::HasF16Tiles()) return TileProducts<F16Dot>(args);
#endif
  (void)args;
  return 0;
}

int64_t Int8Products(const LoopArgs& args) {
#if THRESHER_UNIT_TARGET
  if (UnitInUse() == isa::Tiles::kInstructions) return TileProducts<Int8Dot>(args);
#endif
  const hn::ScalableTag<int32_t> d;
  int32_t* values = reinterpret_cast<int32_t*>(args.data);
  const int64_t steps = args.repeats * kStepsPerRepeat;
#if THRESHER_INT8_QUADS
  const hn::Repartition<int8_t, decltype(d)> d8;
#if HWY_ARCH_X86
  const hn::Repartition<uint8_t, decltype(d)> d8_left;
#else
  const hn::Repartition<int8_t, decltype(d)> d8_left;
#endif
  const auto a = hn::BitCast(d8_left, hn::Set(d, values[kChains]));
  const auto b = hn::BitCast(d8, hn::Set(d, values[kChains + 1]));
  const auto step = [&](auto& chain) HWY_ATTR { chain = hn::SumOfMulQuadAccumulate(d, a, b, chain); };
  constexpr size_t kOperations = 8;
#elif THRESHER_INT8_SHORT_SUMS
  // As the products of gemm_dot.cc: two times four of 8 bits, added in int16 and only then in int32.
  const hn::Repartition<int8_t, decltype(d)> d8;
  const hn::Repartition<uint8_t, decltype(d)> du8;
  const hn::Repartition<int16_t, decltype(d)> d16;
  auto a = hn::BitCast(du8, hn::Set(d, values[kChains]));
  auto a2 = a;
  const auto b = hn::BitCast(d8, hn::Set(d, values[kChains + 1]));
  const auto step = [&](auto& chain) HWY_ATTR {
    Keep(a);  // who knows what they hold now: the products are computed anew
    Keep(a2);
    const auto sums = hn::Add(hn::SatWidenMulPairwiseAdd(d16, a, b), hn::SatWidenMulPairwiseAdd(d16, a2, b));
    chain = hn::Add(chain, hn::WidenMulPairwiseAdd(d, sums, hn::Set(d16, 1)));
  };
  constexpr size_t kOperations = 16;
#else
  const hn::Repartition<int16_t, decltype(d)> d16;
  auto a = hn::BitCast(d16, hn::Set(d, values[kChains]));
  const auto b = hn::BitCast(d16, hn::Set(d, values[kChains + 1]));
  const auto step = [&](auto& chain) HWY_ATTR {
    Keep(a);                    // who knows what it holds now: the product is computed anew
    auto second = hn::Zero(d);  // x86 leaves it as it is; then the addition below is none
    chain = hn::ReorderWidenMulAccumulate(d, a, b, chain, second);
    chain = hn::Add(chain, second);
  };
  constexpr size_t kOperations = 4;
#endif
  RunSeeded(d, values, steps, step, Chains());
  return steps * static_cast<int64_t>(kChains * kOperations * hn::Lanes(d));
}

using Word = hn::ScalableTag<uint32_t>;

// Eight sums, so that the loads alone set the pace. With several streams, which are equal parts of the buffer read side
// by side, prefetching does not stop wherever one of them crosses a page; near caches are read as fast in one.
template <size_t kStreams>
int64_t ReadStreams(const LoopArgs& args) {
  const Word d;
  const size_t lanes = hn::Lanes(d);
  const size_t words = args.bytes / sizeof(uint32_t) / kStreams;
  uint32_t* data = reinterpret_cast<uint32_t*>(args.data);
  // Of the k-th vector in a step.
  const auto offset = [=](size_t k) { return k % kStreams * words + k / kStreams * lanes; };
  const auto add = [d](auto& sum, const uint32_t* from) HWY_ATTR {
    sum = hn::Add(sum, hn::Load(d, from));
    Keep(sum);
  };
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
  for (int64_t repeat = 0; repeat < args.repeats; ++repeat) {
    for (size_t i = 0; i < words; i += 8 / kStreams * lanes) {
      add(s0, data + i + offset(0));
      add(s1, data + i + offset(1));
      add(s2, data + i + offset(2));
      add(s3, data + i + offset(3));
      add(s4, data + i + offset(4));
      add(s5, data + i + offset(5));
      add(s6, data + i + offset(6));
      add(s7, data + i + offset(7));
    }
  }
  const auto sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  hn::Store(sum, d, data);
  return args.repeats * static_cast<int64_t>(args.bytes);
}

int64_t Read(const LoopArgs& args) { return ReadStreams<1>(args); }
int64_t ReadFar(const LoopArgs& args) { return ReadStreams<4>(args); }

int64_t Write(const LoopArgs& args) {
  const Word d;
  const size_t lanes = hn::Lanes(d);
  const size_t words = args.bytes / sizeof(uint32_t);
  uint32_t* data = reinterpret_cast<uint32_t*>(args.data);
  for (int64_t repeat = 0; repeat < args.repeats; ++repeat) {
    const auto value = hn::Set(d, data[0] + 1);
    for (size_t i = 0; i < words; i += 4 * lanes) {
      hn::Stream(value, d, data + i);
      hn::Stream(value, d, data + i + lanes);
      hn::Stream(value, d, data + i + 2 * lanes);
      hn::Stream(value, d, data + i + 3 * lanes);
    }
  }
  hwy::FlushStream();
  return args.repeats * static_cast<int64_t>(args.bytes);
}

// From the first half to the second.
int64_t Copy(const LoopArgs& args) {
  const Word d;
  const size_t lanes = hn::Lanes(d);
  const size_t words = args.bytes / kGrain / 2 * (kGrain / sizeof(uint32_t));
  const uint32_t* HWY_RESTRICT from = reinterpret_cast<const uint32_t*>(args.data);
  uint32_t* HWY_RESTRICT to = reinterpret_cast<uint32_t*>(args.data) + words;
  for (int64_t repeat = 0; repeat < args.repeats; ++repeat) {
    for (size_t i = 0; i < words; i += 4 * lanes) {
      const auto v0 = hn::Load(d, from + i);
      const auto v1 = hn::Load(d, from + i + lanes);
      const auto v2 = hn::Load(d, from + i + 2 * lanes);
      const auto v3 = hn::Load(d, from + i + 3 * lanes);
      hn::Stream(v0, d, to + i);
      hn::Stream(v1, d, to + i + lanes);
      hn::Stream(v2, d, to + i + 2 * lanes);
      hn::Stream(v3, d, to + i + 3 * lanes);
    }
  }
  hwy::FlushStream();
  return args.repeats * static_cast<int64_t>(words * sizeof(uint32_t) * 2);
}

const char* RunningTarget() { return hwy::TargetName(HWY_TARGET); }
bool HasBf16Dots() { return THRESHER_NATIVE_DOT_BF16; }
const char* Int8By() {
  if (UnitInUse() == isa::Tiles::kInstructions) return "tiles of int8";
  if (THRESHER_INT8_QUADS) return "quads of int8";
  return THRESHER_INT8_SHORT_SUMS ? "pairs of int8" : "pairs of int16";
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(MultiplyAdds);
HWY_EXPORT(Bf16Products);
HWY_EXPORT(Fp16Products);
HWY_EXPORT(Int8Products);
HWY_EXPORT(Read);
HWY_EXPORT(ReadFar);
HWY_EXPORT(Write);
HWY_EXPORT(Copy);
HWY_EXPORT(RunningTarget);
HWY_EXPORT(HasBf16Dots);
HWY_EXPORT(Int8By);

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// Memory straight from the system, in large pages where it has them, so that address translation does not count.
class Pages {
 public:
  explicit Pages(size_t bytes) : mapped_(RoundUp(bytes, kLargePage) + kLargePage) {
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    memory_ = memory;
    madvise(memory_, mapped_, MADV_HUGEPAGE);  // advice: without it the pages are small
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_);
    data_ = static_cast<uint8_t*>(memory_) + (RoundUp(address, kLargePage) - address);
  }
  ~Pages() {
    if (memory_ != nullptr) munmap(memory_, mapped_);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  uint8_t* data() const { return data_; }

 private:
  size_t mapped_;
  void* memory_ = nullptr;
  uint8_t* data_ = nullptr;
};

// One quantity with one number of threads.
struct Probe {
  Loop loop = nullptr;
  size_t bytes = 0;  // that each thread uses of its share of the buffer
  int64_t repeats = 1;
  Rate ThreadPeaks::* result = nullptr;
  std::optional<Rate> ThreadPeaks::* optional = nullptr;  // or one that may be missing
  std::vector<double> samples;
};

struct alignas(64) Lap {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t work = 0;
};

// Binds the threads of a measurement to one core each, where there are as many as cores. Between short runs the system
// may leave two threads on one core although another one idles, and then they measure half of what there is.
class Placement {
 public:
  explicit Placement(int num_threads) {
    if (num_threads < 2 || sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) cores_.push_back(cpu);
    }
    if (cores_.size() != static_cast<size_t>(num_threads)) cores_.clear();
  }
  // To these.
  explicit Placement(std::vector<int> cpus) : cores_(std::move(cpus)) {
    if (sched_getaffinity(0, sizeof(before_), &before_) != 0) cores_.clear();
  }

  void Bind(int part) const {
    if (cores_.empty()) return;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(cores_[static_cast<size_t>(part)], &core);
    sched_setaffinity(0, sizeof(core), &core);  // a refusal costs accuracy only
  }

  // The caller's thread is its own again between two runs.
  void Release() const {
    if (!cores_.empty()) sched_setaffinity(0, sizeof(before_), &before_);
  }

 private:
  cpu_set_t before_;
  std::vector<int> cores_;
};

// Everything that is measured with one number of threads, or of a node's memory.
class Bench {
 public:
  Bench(int num_threads, const PeaksOptions& options) : pool_(num_threads), placement_(pool_.num_threads()) {
    const Buffers buffers = Prepare(options);
    Add(HWY_DYNAMIC_POINTER(MultiplyAdds), kGrain, &ThreadPeaks::fp32);
    if (Bf16Dots()) Add(HWY_DYNAMIC_POINTER(Bf16Products), kGrain, &ThreadPeaks::bf16);
    if (isa::HasF16Tiles()) Add(HWY_DYNAMIC_POINTER(Fp16Products), kGrain, &ThreadPeaks::fp16);
    Add(HWY_DYNAMIC_POINTER(Int8Products), kGrain, &ThreadPeaks::int8);
    Add(HWY_DYNAMIC_POINTER(Read), buffers.l1, &ThreadPeaks::l1_read);
    Add(HWY_DYNAMIC_POINTER(Read), buffers.l2, &ThreadPeaks::l2_read);
    Add(HWY_DYNAMIC_POINTER(Read), buffers.l3, &ThreadPeaks::l3_read);
    Add(HWY_DYNAMIC_POINTER(ReadFar), buffers.dram, &ThreadPeaks::dram_read);
    Add(HWY_DYNAMIC_POINTER(Write), buffers.dram, &ThreadPeaks::dram_write);
    Add(HWY_DYNAMIC_POINTER(Copy), buffers.dram, &ThreadPeaks::dram_copy);
  }

  Bench(const NodeCpus& node, const PeaksOptions& options)
      : pool_(static_cast<int>(node.cpus.size())), placement_(node.cpus) {
    Add(HWY_DYNAMIC_POINTER(ReadFar), Prepare(options).dram, &ThreadPeaks::dram_read);
  }

  Status status() const {
    if (pages_->data() != nullptr) return Status::Ok();
    return ResourceExhausted("peaks: expected " + std::to_string(share_ * laps_.size()) +
                             " bytes to measure memory with, the system gave none; measure with fewer threads");
  }

  size_t size() const { return probes_.size(); }

  // Makes the pages, each by the thread that will use it, so that it lies near that thread.
  void Touch() {
    pool_.Run([this](int part, int) {
      placement_.Bind(part);
      uint8_t* share = Share(part);
      for (size_t i = 0; i < share_; i += kGrain) std::fill_n(share + i, kGrain, static_cast<uint8_t>(i / kGrain));
    });
    placement_.Release();
  }

  // Finds how often the loop must run to take long enough to be timed. Warms up caches and clocks on the way.
  void Calibrate(size_t index, int64_t sample_ns) {
    Probe& probe = probes_[index];
    for (;;) {
      // The fastest of three: a single run that something interrupts would pass for a long one.
      int64_t taken = std::numeric_limits<int64_t>::max();
      for (int i = 0; i < 3; ++i) taken = std::clamp<int64_t>(Run(probe).ns, 1, taken);
      if (taken >= sample_ns || probe.repeats > (int64_t{1} << 40)) return;
      // A little more than it seems to need, and at most tenfold, for short runs are not timed well.
      const int64_t needed = probe.repeats * sample_ns / taken + probe.repeats / 8 + 1;
      probe.repeats = std::min(needed, probe.repeats * 10);
    }
  }

  void Sample(size_t index) {
    Probe& probe = probes_[index];
    const Outcome outcome = Run(probe);
    probe.samples.push_back(static_cast<double>(outcome.work) / static_cast<double>(std::max<int64_t>(outcome.ns, 1)));
  }

  ThreadPeaks Finish() {
    for (Probe& probe : probes_) {
      std::sort(probe.samples.begin(), probe.samples.end());
      const Rate rate{probe.samples[probe.samples.size() / 2], probe.samples.front(), probe.samples.back()};
      if (probe.result == nullptr) {
        peaks_.*probe.optional = rate;
      } else {
        peaks_.*probe.result = rate;
      }
      peaks_.rounds = static_cast<int>(probe.samples.size());
    }
    return peaks_;
  }

 private:
  // What a thread uses of its share, for each level of the memory.
  struct Buffers {
    size_t l1, l2, l3, dram;
  };

  Buffers Prepare(const PeaksOptions& options) {
    const size_t threads = static_cast<size_t>(pool_.num_threads());
    const CacheSizes& caches = Caches();
    const size_t l2 = static_cast<size_t>(caches.l2);
    const size_t l3 = static_cast<size_t>(caches.l3);
    const size_t l3_cores = static_cast<size_t>(caches.l3_cores);
    const size_t threads_of_l3 = std::min(threads, l3_cores);
    const size_t num_l3 = (threads + l3_cores - 1) / l3_cores;
    // Half of a core's own cache, for the rest of the process lives there, too, and a quarter of the shared one.
    const size_t in_l1 = RoundUp(static_cast<size_t>(caches.l1) / 2, kGrain);
    const size_t in_l2 = RoundUp(l2 / 2, kGrain);
    const size_t in_l3 = RoundUp(std::max(l3 / 4 / threads_of_l3, l2 + l2 / 2), kGrain);
    size_t in_dram = std::min(4 * l3 * num_l3, static_cast<size_t>(options.most_dram_bytes));
    if (const int64_t available = AvailableMemory(); available > 0) {
      in_dram =
          std::min(in_dram, static_cast<size_t>(available) / 4 / (options.num_threads.size() + options.nodes.size()));
    }
    const size_t dram_share = std::max(RoundUp(in_dram / threads, 4 * kGrain), 4 * kGrain);

    share_ = RoundUp(std::max(dram_share, in_l3), kLargePage);
    pages_ = std::make_unique<Pages>(share_ * threads);
    laps_.resize(threads);
    peaks_.num_threads = pool_.num_threads();
    peaks_.l1_buffer = static_cast<int64_t>(in_l1);
    peaks_.l2_buffer = static_cast<int64_t>(in_l2);
    peaks_.l3_buffer = static_cast<int64_t>(in_l3);
    peaks_.dram_buffer = static_cast<int64_t>(dram_share * threads);
    return {in_l1, in_l2, in_l3, dram_share};
  }

  struct Outcome {
    int64_t work = 0;
    int64_t ns = 0;
  };

  void Add(Loop loop, size_t bytes, Rate ThreadPeaks::* result) {
    probes_.push_back({loop, bytes, 1, result, nullptr, {}});
  }
  void Add(Loop loop, size_t bytes, std::optional<Rate> ThreadPeaks::* result) {
    probes_.push_back({loop, bytes, 1, nullptr, result, {}});
  }

  uint8_t* Share(int part) const { return pages_->data() + static_cast<size_t>(part) * share_; }

  // All threads at once: from the start of the first to the end of the last.
  Outcome Run(const Probe& probe) {
    SpinBarrier barrier(pool_.num_threads());
    pool_.Run([&](int part, int) {
      const LoopArgs args{Share(part), probe.bytes, probe.repeats};
      placement_.Bind(part);
      barrier.Wait();
      Lap lap;
      lap.begin = NowNs();
      lap.work = probe.loop(args);
      lap.end = NowNs();
      laps_[static_cast<size_t>(part)] = lap;
    });
    placement_.Release();
    Outcome outcome;
    int64_t begin = laps_[0].begin;
    int64_t end = laps_[0].end;
    for (const Lap& lap : laps_) {
      begin = std::min(begin, lap.begin);
      end = std::max(end, lap.end);
      outcome.work += lap.work;
    }
    outcome.ns = end - begin;
    return outcome;
  }

  ThreadPool pool_;
  Placement placement_;
  size_t share_ = 0;  // bytes of the buffer that one thread has
  std::unique_ptr<Pages> pages_;
  std::vector<Lap> laps_;
  std::vector<Probe> probes_;
  ThreadPeaks peaks_;
};

Status Validate(const PeaksOptions& options) {
  for (const int threads : options.num_threads) {
    if (threads < 1 || threads > 1024) {
      return InvalidArgument("peaks: expected 1 to 1024 threads, got " + std::to_string(threads));
    }
  }
  for (const NodeCpus& node : options.nodes) {
    if (node.cpus.empty()) {
      return InvalidArgument("peaks: expected a core of every node, got none of node " + std::to_string(node.node));
    }
  }
  if (options.num_threads.empty() || options.rounds < 1 || options.sample_ns < 1 || options.most_dram_bytes < 1) {
    return InvalidArgument("peaks: expected a number of threads, a round, a sample's time and a buffer, got one empty");
  }
  return Status::Ok();
}

}  // namespace

Result<Peaks> MeasurePeaks(const PeaksOptions& options, FunctionRef<void(int done, int total)> progress) {
  THRESHER_TRY(Validate(options));
  constexpr int kFewestRounds = 3;
  const int64_t begin = NowNs();
  std::vector<std::unique_ptr<Bench>> benches;
  int total = 0;
  for (size_t i = 0; i < options.num_threads.size() + options.nodes.size(); ++i) {
    const size_t threads = options.num_threads.size();
    benches.push_back(i < threads ? std::make_unique<Bench>(options.num_threads[i], options)
                                  : std::make_unique<Bench>(options.nodes[i - threads], options));
    THRESHER_TRY(benches.back()->status());
    total += static_cast<int>(benches.back()->size()) * (options.rounds + 1);
  }
  int done = 0;
  progress(done, total);
  for (const auto& bench : benches) {
    bench->Touch();
    for (size_t i = 0; i < bench->size(); ++i) {
      bench->Calibrate(i, options.sample_ns);
      progress(++done, total);
    }
  }
  // Round by round rather than quantity by quantity, so that what disturbs the machine for a while disturbs all alike.
  for (int round = 0; round < options.rounds; ++round) {
    if (round >= kFewestRounds && NowNs() - begin > options.budget_ns) break;
    for (const auto& bench : benches) {
      for (size_t i = 0; i < bench->size(); ++i) {
        bench->Sample(i);
        progress(++done, total);
      }
    }
  }
  Peaks peaks;
  peaks.target = HWY_DYNAMIC_DISPATCH(RunningTarget)();
  peaks.int8_by = HWY_DYNAMIC_DISPATCH(Int8By)();
  for (size_t i = 0; i < benches.size(); ++i) {
    const ThreadPeaks found = benches[i]->Finish();
    if (i < options.num_threads.size()) {
      peaks.by_threads.push_back(found);
    } else {
      peaks.by_node.push_back({options.nodes[i - options.num_threads.size()].node, found.num_threads, found.dram_read});
    }
  }
  progress(total, total);
  return peaks;
}

std::vector<NodeCpus> NodesToMeasure(const Topology& topology) {
  std::vector<NodeCpus> nodes;
  if (topology.num_nodes() < 2) return nodes;
  for (const Core& core : topology.cores) {
    if (core.efficient) continue;
    const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const NodeCpus& n) { return n.node == core.node; });
    if (found == nodes.end()) {
      nodes.push_back({core.node, {core.cpus.front()}});
    } else {
      found->cpus.push_back(core.cpus.front());
    }
  }
  return nodes;
}

bool Bf16Dots() { return HWY_DYNAMIC_DISPATCH(HasBf16Dots)(); }

RelativeRates MeasureRelativeRates() {
  constexpr int kRounds = 8;
  constexpr int64_t kRepeats = 4;  // 10 to 50 us
  Loop loops[] = {HWY_DYNAMIC_POINTER(MultiplyAdds), HWY_DYNAMIC_POINTER(Int8Products),
                  HWY_DYNAMIC_POINTER(Bf16Products)};
  const int count = Bf16Dots() ? 3 : 2;
  alignas(64) uint8_t data[kGrain] = {};
  double best[3] = {};
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < count; ++i) {
      const int64_t begin = NowNs();
      const int64_t work = loops[i]({data, sizeof(data), kRepeats});
      const int64_t ns = std::max<int64_t>(NowNs() - begin, 1);
      best[i] = std::max(best[i], static_cast<double>(work) / static_cast<double>(ns));
    }
  }
  return {static_cast<float>(best[2] / best[0]), static_cast<float>(best[1] / best[0])};
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
