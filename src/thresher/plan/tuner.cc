#include "thresher/plan/tuner.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "thresher/base/clock.h"
#include "thresher/base/cpu.h"
#include "thresher/base/thread_pool.h"
#include "thresher/kernels/arithmetic.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/plan/builder.h"

namespace thresher {
namespace {

using kernels::Blocking;
using kernels::RowForm;
using kernels::Split;
using kernels::Variant;

constexpr int32_t kPanelSizes[] = {8, 12, 16, 24, 32, 48, 64};
constexpr int32_t kRowCounts[] = {32, 48, 72, 96, 144, 208, 288};

// What a candidate must gain over the default to be worth the doubt.
constexpr double kLeastGain = 0.02;

// Calls that follow each other read weights from different copies, as the layers of a model do; more than this would
// take long to make.
constexpr int64_t kMostCopyBytes = int64_t{256} << 20;
constexpr int64_t kMostCopies = 64;

struct Release {
  void operator()(std::byte* data) const { ::operator delete(data, std::align_val_t{64}); }
};
using Memory = std::unique_ptr<std::byte, Release>;

// 64-byte aligned; null if there is no memory.
Memory Allocate(int64_t bytes) {
  const size_t size = static_cast<size_t>(bytes) + 64;
  return Memory(static_cast<std::byte*>(::operator new(size, std::align_val_t{64}, std::nothrow)));
}

// Reproducible, of both signs, none too small for any precision.
void Fill(float* data, int64_t count) {
  for (int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(i * 7919 % 2001 - 1000) * 1e-3f;
}

Quartiles QuartilesOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t last = values.size() - 1;
  return {values[last / 4], values[last / 2], values[last - last / 4]};
}

// One product with operands of its own.
class Bench {
 public:
  Bench(const ProductKey& key, const TuneOptions& options)
      : key_(key),
        options_(options),
        packed_bytes_((kernels::PackedBytes(key.precision, key.k, key.n) + 63) / 64 * 64),
        copies_(NumCopies()),
        pool_(key.num_threads) {
    const double flops = 2.0 * static_cast<double>(key.m) * static_cast<double>(key.n) * static_cast<double>(key.k);
    const double numbers = static_cast<double>(key.m * key.k + key.k * key.n + key.m * key.n);
    num_parts_ = PartsFor(flops, sizeof(float) * numbers, key.num_threads);
  }

  Status Prepare() {
    const std::string wanted = std::to_string((copies_ * packed_bytes_) >> 20) + " MiB of weights";
    const int64_t available = AvailableMemory();
    const int64_t floats = (key_.m * key_.k + key_.n * key_.k + key_.m * key_.n + key_.n) * 4;
    if (available > 0 && floats + copies_ * packed_bytes_ > available) return NoMemory(wanted);
    Memory plain = Allocate(key_.n * key_.k * 4);
    a_ = Allocate(key_.m * key_.k * 4);
    c_ = Allocate(key_.m * key_.n * 4);
    bias_ = Allocate(key_.n * 4);
    packed_ = Allocate(copies_ * packed_bytes_);
    scratch_ = Allocate(key_.num_threads * static_cast<int64_t>(kernels::kMostGemmScratchBytes));
    if (!plain || !a_ || !c_ || !bias_ || !packed_ || !scratch_) return NoMemory(wanted);
    Fill(Floats(plain), key_.n * key_.k);
    Fill(Floats(a_), key_.m * key_.k);
    Fill(Floats(bias_), key_.n);
    kernels::PackWeight(key_.precision, DenseWeight(plain.get(), key_.k, key_.n, true), packed_.get());
    for (int64_t i = 1; i < copies_; ++i) {
      std::memcpy(packed_.get() + i * packed_bytes_, packed_.get(), static_cast<size_t>(packed_bytes_));
    }
    for (const Variant variant : {Variant::kDirect, Variant::kWidened}) {
      const RowForm form = kernels::RowsFor(key_.precision, key_.m, variant);
      if (form == RowForm::kF32 || rows_) continue;
      rows_ = Allocate(key_.m * kernels::RowBytes(form, key_.k));
      if (!rows_) return NoMemory(wanted);
      scale_.resize(static_cast<size_t>(key_.m));
      zero_.resize(static_cast<size_t>(key_.m));
      kernels::ConvertRows(ConvertArgs(form));
    }
    // The shortest of three: the first one meets cold caches and sleeping threads.
    double shortest = 0;
    for (int i = 0; i < 3; ++i) {
      const double ns = Sample(Blocking{});
      shortest = i == 0 ? ns : std::min(shortest, ns);
    }
    calls_ = std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(options_.sample_ns) / shortest) + 1, 1, 1000);
    sample_ns_ = shortest * static_cast<double>(calls_);
    return Status::Ok();
  }

  int num_parts() const { return num_parts_; }

  bool HasVariants() const {
    const bool forms = kernels::RowsFor(key_.precision, key_.m, Variant::kDirect) !=
                       kernels::RowsFor(key_.precision, key_.m, Variant::kWidened);
    return forms || (key_.precision == Precision::kFp16 && !kernels::MultipliesF16()) ||
           key_.precision == Precision::kInt8Weight ||
           (key_.precision == Precision::kBf16 && kernels::RowsFor(key_.precision, key_.m) == RowForm::kF32);
  }

  // Candidates with equal signatures do the same: a panel that is one block anyway, say.
  using Signature = std::tuple<bool, int, size_t, size_t>;
  Signature SignatureOf(const Blocking& blocking) const {
    const RowForm form = kernels::RowsFor(key_.precision, key_.m, blocking.variant);
    const kernels::PanelRange share = kernels::ShareOfProduct(key_.m, key_.n, 0, num_parts_, blocking.split);
    const bool whole = num_parts_ == 1 || share.row_end == static_cast<size_t>(key_.m);
    const int variant = form == RowForm::kF32 && HasVariants() ? static_cast<int>(blocking.variant) : -1;
    if (form == RowForm::kInt16) return {whole, variant, 0, 0};
    const size_t k = static_cast<size_t>(std::max<int64_t>(key_.k, 1));
    const size_t width = static_cast<size_t>(kernels::PackedColumns());
    const size_t panel_bytes = form == RowForm::kF32
                                   ? sizeof(float) * width * k
                                   : static_cast<size_t>(kernels::PackedBytes(key_.precision, key_.k, key_.n)) /
                                         ((static_cast<size_t>(key_.n) + width - 1) / width);
    const size_t rows = share.row_end - share.row_begin;
    const size_t block_rows =
        form == RowForm::kF32
            ? kernels::BlockRows(FloatArgs(blocking, packed_.get()), rows, share.panel_end - share.panel_begin)
            : kernels::BlockRows(blocking, static_cast<size_t>(kernels::RowBytes(form, key_.k)));
    const auto blocks = [](size_t total, size_t most) { return (total + most - 1) / most; };
    return {whole, variant, blocks(panel_bytes, kernels::PanelBlockBytes(blocking, kernels::TileRows(form))),
            blocks(rows, block_rows)};
  }

  // Nanoseconds of one call, over as many calls as make a sample.
  double Sample(const Blocking& blocking) {
    const RowForm form = kernels::RowsFor(key_.precision, key_.m, blocking.variant);
    // Where candidates want rows in different forms, making them is part of the price.
    const bool convert = form == RowForm::kInt16;
    const int rounds = convert ? 2 : 1;  // of a call
    const int64_t begin = NowNs();
    pool_.RunRounds({.num_rounds = static_cast<int>(calls_) * rounds,
                     .parts = [&](int) { return num_parts_; },
                     .work =
                         [&](int round, int part, int thread) {
                           if (convert && round % 2 == 0) {
                             return kernels::ConvertRows(ConvertArgs(form), part, num_parts_);
                           }
                           const int64_t copy = (next_copy_ + round / rounds) % copies_;
                           Multiply(form, blocking, packed_.get() + copy * packed_bytes_, part, thread);
                         },
                     .ended = [](int) {}},
                    key_.num_threads);
    const int64_t end = NowNs();
    next_copy_ = (next_copy_ + calls_) % copies_;
    return static_cast<double>(std::max<int64_t>(end - begin, 1)) / static_cast<double>(calls_);
  }

  // Samples of each candidate, by round.
  std::vector<std::vector<double>> Compare(const std::vector<Blocking>& candidates, int rounds,
                                           FunctionRef<void(double)> progress) {
    std::vector<std::vector<double>> samples(candidates.size());
    for (const Blocking& candidate : candidates) Sample(candidate);  // warms up
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < candidates.size(); ++i) {
        // Each one follows each other one in some round.
        const size_t at = (i + static_cast<size_t>(round)) % candidates.size();
        samples[at].push_back(Sample(candidates[at]));
      }
      progress(static_cast<double>(round + 1) / rounds);
    }
    return samples;
  }

  int RoundsFor(size_t candidates) const {
    const double fitting = static_cast<double>(options_.stage_ns) / (sample_ns_ * static_cast<double>(candidates));
    return static_cast<int>(std::clamp<double>(fitting, options_.least_rounds, options_.most_rounds));
  }

 private:
  int64_t NumCopies() const {
    const int64_t bytes = std::max<int64_t>(packed_bytes_, 64);
    int64_t most = kMostCopyBytes;
    if (const int64_t available = AvailableMemory(); available > 0) most = std::min(most, available / 4);
    return std::clamp<int64_t>(std::min(2 * Caches().l3, most) / bytes, 1, kMostCopies);
  }

  static Status NoMemory(const std::string& wanted) {
    return ResourceExhausted("tune: expected memory for a product with " + wanted +
                             ", the system has less; tune a smaller one or free memory");
  }

  static float* Floats(const Memory& memory) { return reinterpret_cast<float*>(memory.get()); }

  kernels::ConvertRowsArgs ConvertArgs(RowForm form) {
    kernels::ConvertRowsArgs args;
    args.form = form;
    args.m = key_.m;
    args.k = key_.k;
    args.x = Floats(a_);
    args.ldx = key_.k;
    args.rows = rows_.get();
    args.scale = scale_.data();
    args.zero = zero_.data();
    return args;
  }

  kernels::GemmArgs FloatArgs(const Blocking& blocking, const std::byte* packed) const {
    kernels::GemmArgs args;
    args.m = key_.m, args.n = key_.n, args.k = key_.k;
    args.a = Floats(a_), args.lda = key_.k;
    args.precision = key_.precision;
    args.packed_b = packed;
    args.c = Floats(c_), args.ldc = key_.n;
    args.bias = Floats(bias_);
    args.blocking = blocking;
    return args;
  }

  void Multiply(RowForm form, const Blocking& blocking, const std::byte* packed, int part, int thread) const {
    std::byte* const scratch = scratch_.get() + static_cast<size_t>(thread) * kernels::kMostGemmScratchBytes;
    if (form == RowForm::kF32) return kernels::Gemm(FloatArgs(blocking, packed), scratch, part, num_parts_);
    kernels::GemmDotArgs args;
    args.form = form;
    args.m = key_.m, args.n = key_.n, args.k = key_.k;
    args.rows = rows_.get();
    args.scale = scale_.data();
    args.zero = zero_.data();
    args.packed_b = packed;
    args.c = Floats(c_), args.ldc = key_.n;
    args.bias = Floats(bias_);
    args.blocking = blocking;
    kernels::GemmDot(args, scratch, part, num_parts_);
  }

  const ProductKey key_;
  const TuneOptions options_;
  const int64_t packed_bytes_;
  const int64_t copies_;
  ThreadPool pool_;
  int num_parts_ = 1;
  Memory a_, c_, bias_, packed_, scratch_;
  Memory rows_;  // a in the form that the product wants; none where that is fp32
  std::vector<float> scale_;
  std::vector<int32_t> zero_;
  int64_t calls_ = 1;
  double sample_ns_ = 0;
  int64_t next_copy_ = 0;
};

// The best of the candidates, of which the first is kept unless another one is faster by more than a little.
size_t Best(const std::vector<std::vector<double>>& samples) {
  size_t best = 0;
  double least = 1 - kLeastGain / 2;
  for (size_t i = 1; i < samples.size(); ++i) {
    std::vector<double> ratios;
    ratios.reserve(samples[i].size());
    for (size_t round = 0; round < samples[i].size(); ++round) ratios.push_back(samples[i][round] / samples[0][round]);
    const double ratio = QuartilesOf(std::move(ratios)).median;
    if (ratio < least) {
      least = ratio;
      best = i;
    }
  }
  return best;
}

Status CheckKey(const ProductKey& key) {
  constexpr int64_t kMost = int64_t{1} << 28;
  if (key.isa != isa::Current()) {
    return InvalidArgument("tune: expected the instruction set in use, " + std::string(isa::Name(isa::Current())) +
                           ", got " + std::string(isa::Name(key.isa)));
  }
  for (const int64_t size : {key.m, key.n, key.k}) {
    if (size < 1 || size > kMost) {
      return InvalidArgument("tune: expected sizes from 1 to 2^28, got " + std::to_string(size));
    }
  }
  if (key.num_threads < 1 || key.num_threads > 1024) {
    return InvalidArgument("tune: expected 1 to 1024 threads, got " + std::to_string(key.num_threads));
  }
  return Status::Ok();
}

}  // namespace

Result<TuneResult> TuneProduct(const ProductKey& key, const TuneOptions& options,
                               FunctionRef<void(double done)> progress) {
  THRESHER_TRY(CheckKey(key));
  progress(0);
  Bench bench(key, options);
  THRESHER_TRY(bench.Prepare());

  TuneResult result;
  result.candidates = 1;
  Blocking best;
  std::set<Bench::Signature> seen = {bench.SignatureOf(best)};
  // One choice after the other, each with what was best of those before it.
  constexpr int kStages = 4;
  int stage = 0;
  const auto advance = [&](double part) { progress((stage + part) / kStages); };
  const auto choose = [&](const std::vector<Blocking>& proposed) {
    std::vector<Blocking> candidates = {best};
    for (const Blocking& candidate : proposed) {
      if (seen.insert(bench.SignatureOf(candidate)).second) candidates.push_back(candidate);
    }
    if (candidates.size() > 1) {
      result.candidates += static_cast<int>(candidates.size()) - 1;
      best = candidates[Best(bench.Compare(candidates, bench.RoundsFor(candidates.size()), advance))];
    }
    ++stage;
  };
  std::vector<Blocking> made;
  for (const Split split : {Split::kAuto, Split::kRows, Split::kPanels}) {
    if (split != Split::kAuto && bench.num_parts() == 1) continue;
    for (const Variant variant : {Variant::kAuto, Variant::kDirect, Variant::kWidened}) {
      if (variant != Variant::kAuto && !bench.HasVariants()) continue;
      made.push_back({0, 0, split, variant});
    }
  }
  choose(made);
  made.clear();
  for (const int32_t kib : kPanelSizes) made.push_back({kib, 0, best.split, best.variant});
  choose(made);
  made.clear();
  for (const int32_t rows : kRowCounts) made.push_back({best.panel_kib, rows, best.split, best.variant});
  choose(made);

  // Candidates were picked because they looked fast, by luck perhaps: what decides is measured anew.
  std::vector<Blocking> finalists = {Blocking{}};
  if (best != Blocking{}) finalists.push_back(best);
  result.rounds = std::min(options.confirm_rounds, 2 * bench.RoundsFor(finalists.size()) + 1);
  const std::vector<std::vector<double>> samples = bench.Compare(finalists, result.rounds, advance);
  result.by_default = result.tuned = QuartilesOf(samples.front());
  result.ratio = {1, 1, 1};
  if (finalists.size() == 1) return result;
  std::vector<double> ratios;
  ratios.reserve(samples[0].size());
  for (size_t i = 0; i < samples[0].size(); ++i) ratios.push_back(samples[1][i] / samples[0][i]);
  result.ratio = QuartilesOf(std::move(ratios));
  if (result.ratio.median < 1 - kLeastGain && result.ratio.upper < 1) {
    result.blocking = best;
    result.tuned = QuartilesOf(samples[1]);
  }
  return result;
}

}  // namespace thresher
