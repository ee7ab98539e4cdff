// Products in every precision on one thread, beside the roof of the core they ran on.
//
//   gemm_bench [--isa NAME] [--json FILE] [--quick] [--blocks [--wide]] [--cached] [M N K]
//
// Many rows are held against the multiply-adds a core can do, few rows against the speed at which it reads memory. The
// weights of up to 32 rows are taken from so many copies in turn that none is in a cache, as in a model that is larger
// than the caches; with --cached from one copy, which shows what multiplying takes without waiting for memory. Every
// figure is a median; the roofs are measured before, in the middle and after, by the code of `thresher peaks`.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "thresher/base/cpu.h"
#include "thresher/base/isa.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/peaks.h"
#include "thresher/plan/packed_memory.h"

namespace thresher {
namespace {

using kernels::RowForm;

// Up to so many rows, the weights are read faster than they can be multiplied by.
constexpr int64_t kFewRows = 8;
// Up to so many rows, the weights come from memory.
constexpr int64_t kRowsFromMemory = 32;

struct Shape {
  int64_t m, n, k;
};

struct Row {
  Shape shape;
  Precision precision;
  kernels::Activation activation;
  double ns;          // of the product
  double convert_ns;  // of converting the rows of A; 0: they are used as they are
  double gops;
  double gb_per_s;  // of packed weights
};

double Now() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class T>
std::unique_ptr<T, void (*)(void*)> Aligned(int64_t bytes) {
  void* data = std::aligned_alloc(64, static_cast<size_t>(bytes + 127) / 64 * 64);
  if (data == nullptr) throw std::bad_alloc();
  return {static_cast<T*>(data), std::free};
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// How products are measured.
struct How {
  double budget_ns;  // of each
  kernels::Blocking blocking;
  bool cached;  // weights of few rows, too, are the same every time
  bool wide;    // rows of products with weights in blocks are bf16
};

Row Measure(const Shape& s, Precision precision, kernels::Activation activation, const How& how) {
  const auto a = Aligned<float>(s.m * s.k * 4);
  const auto b = Aligned<float>(s.n * s.k * 4);
  const auto c = Aligned<float>(s.m * s.n * 4);
  const auto bias = Aligned<float>(s.n * 4);
  for (int64_t i = 0; i < s.m * s.k; ++i) a.get()[i] = static_cast<float>(i * 7919 % 2001 - 1000) * 1e-3f;
  // Blocks of any codes, with ordinary scales.
  if (IsBlocked(precision)) std::memset(b.get(), 0x3c, static_cast<size_t>(s.n * s.k * 4));
  for (int64_t i = 0; i < s.n * s.k && !IsBlocked(precision); ++i)
    b.get()[i] = static_cast<float>(i * 7907 % 2001 - 1000) * 1e-3f;
  std::fill_n(bias.get(), s.n, 0.5f);
  const int64_t bytes = (kernels::PackedBytes(precision, s.k, s.n) + 63) / 64 * 64;
  const int64_t copies = s.m > kRowsFromMemory || how.cached
                             ? 1
                             : std::clamp<int64_t>(4 * Caches().l3 / bytes + 1, 1, (int64_t{1} << 30) / bytes + 1);
  const std::shared_ptr<void> packed = PackedMemory().Allocate(bytes * copies);
  const Encoding encoding = IsBlocked(precision) ? EncodingOf(precision) : Encoding::kF32;
  kernels::PackWeight(precision, DenseWeight(b.get(), s.k, s.n, true, encoding), packed.get());
  for (int64_t i = 1; i < copies; ++i) {
    std::memcpy(static_cast<std::byte*>(packed.get()) + i * bytes, packed.get(), static_cast<size_t>(bytes));
  }
  const RowForm form = kernels::RowsFor(precision, s.m);
  const auto rows = Aligned<std::byte>(s.m * kernels::RowBytes(form, s.k));
  std::vector<float> scale(static_cast<size_t>(s.m));
  std::vector<int32_t> zero(static_cast<size_t>(s.m));

  kernels::ConvertRowsArgs convert;
  convert.form = form;
  convert.m = s.m, convert.k = s.k;
  convert.x = a.get(), convert.ldx = s.k;
  convert.rows = rows.get(), convert.scale = scale.data(), convert.zero = zero.data();
  kernels::GemmArgs gemm;
  gemm.m = s.m, gemm.n = s.n, gemm.k = s.k;
  gemm.a = a.get(), gemm.lda = s.k;
  gemm.precision = precision;
  gemm.c = c.get(), gemm.ldc = s.n;
  gemm.bias = bias.get(), gemm.activation = activation;
  kernels::GemmDotArgs dot;
  dot.form = form;
  dot.precision = precision;
  dot.m = s.m, dot.n = s.n, dot.k = s.k;
  dot.rows = rows.get(), dot.scale = scale.data(), dot.zero = zero.data();
  dot.c = c.get(), dot.ldc = s.n;
  dot.bias = bias.get(), dot.activation = activation;
  if (how.wide) convert.wide_from = dot.wide_from = 0;
  gemm.blocking = dot.blocking = how.blocking;

  const size_t room = form == RowForm::kF32 ? 0 : kernels::GemmDotScratchBytes(dot);
  const auto scratch = Aligned<std::byte>(static_cast<int64_t>(std::max(room, kernels::kMostGemmScratchBytes)));
  std::vector<double> times, converts;
  const double begin = Now();
  for (int64_t run = 0; run < 5 || (Now() - begin < how.budget_ns && run < 2000); ++run) {
    const double start = Now();
    if (form != RowForm::kF32) kernels::ConvertRows(convert);
    const double middle = Now();
    gemm.packed_b = dot.packed_b = static_cast<std::byte*>(packed.get()) + run % copies * bytes;
    form == RowForm::kF32 ? kernels::Gemm(gemm, scratch.get()) : kernels::GemmDot(dot, scratch.get());
    times.push_back(Now() - middle);
    converts.push_back(form == RowForm::kF32 ? 0.0 : middle - start);
  }
  Row row{s, precision, activation, Median(times), Median(converts), 0, 0};
  row.gops = 2.0 * static_cast<double>(s.m * s.n * s.k) / row.ns;
  row.gb_per_s = static_cast<double>(bytes) / row.ns;
  return row;
}

// Medians of several measurements of the roofs.
class Roofs {
 public:
  bool Measure() {
    kernels::PeaksOptions options;
    options.budget_ns = 2'000'000'000;
    Result<kernels::Peaks> peaks = kernels::MeasurePeaks(options, [](int, int) {});
    if (!peaks.ok()) {
      std::fprintf(stderr, "%s\n", peaks.status().message().c_str());
      return false;
    }
    const kernels::ThreadPeaks& one = peaks.value().by_threads.front();
    fp32_.push_back(one.fp32.median);
    if (one.bf16) bf16_.push_back(one.bf16->median);
    int8_.push_back(one.int8.median);
    read_.push_back(one.dram_read.median);
    return true;
  }
  double fp32() const { return Median(fp32_); }
  std::optional<double> bf16() const { return bf16_.empty() ? std::nullopt : std::optional(Median(bf16_)); }
  double int8() const { return Median(int8_); }
  double read() const { return Median(read_); }

  // What bounds a product with many rows.
  double Compute(Precision precision) const {
    if (precision == Precision::kInt8 || IsBlocked(precision)) return int8();
    return precision == Precision::kBf16 && bf16() ? *bf16() : fp32();
  }

 private:
  std::vector<double> fp32_, bf16_, int8_, read_;
};

double Percent(const Row& row, const Roofs& roofs) {
  return row.shape.m > kFewRows ? 100 * row.gops / roofs.Compute(row.precision) : 100 * row.gb_per_s / roofs.read();
}

void Print(const std::vector<Row>& rows, const Roofs& roofs) {
  std::printf("roofs: fp32 %.1f GFLOP/s, bf16 %s, int8 %.1f GOP/s, read %.1f GB/s\n\n", roofs.fp32(),
              roofs.bf16() ? (std::to_string(*roofs.bf16()) + " GFLOP/s").c_str() : "not in this instruction set",
              roofs.int8(), roofs.read());
  std::printf("%6s %6s %6s  %-11s  %-9s %10s %9s %8s %9s  %s\n", "m", "n", "k", "precision", "epilogue", "us", "GOP/s",
              "GB/s", "convert", "of the roof");
  for (const Row& row : rows) {
    std::printf("%6lld %6lld %6lld  %-11s  %-9s %10.1f %9.1f %8.1f %7.1f %%  %5.1f %% %s\n",
                static_cast<long long>(row.shape.m), static_cast<long long>(row.shape.n),
                static_cast<long long>(row.shape.k), std::string(Name(row.precision)).c_str(),
                std::string(kernels::Name(row.activation)).c_str(), row.ns / 1e3, row.gops, row.gb_per_s,
                100 * row.convert_ns / row.ns, Percent(row, roofs), row.shape.m > kFewRows ? "compute" : "memory");
  }
}

bool WriteJson(const std::string& path, const std::vector<Row>& rows, const Roofs& roofs) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "cannot write %s: %s; name another file\n", path.c_str(), std::strerror(errno));
    return false;
  }
  std::fprintf(file, "{\n \"isa\": \"%s\",\n \"cpu\": \"%s\",\n \"threads\": 1,\n",
               std::string(isa::Name(isa::Current())).c_str(), CpuModel().c_str());
  std::fprintf(
      file, " \"roofs\": {\"fp32_gflops\": %.2f, \"bf16_gflops\": %s, \"int8_gops\": %.2f, \"read_gb_per_s\": %.2f},\n",
      roofs.fp32(), roofs.bf16() ? std::to_string(*roofs.bf16()).c_str() : "null", roofs.int8(), roofs.read());
  std::fprintf(file, " \"products\": [\n");
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::fprintf(
        file,
        "  {\"m\": %lld, \"n\": %lld, \"k\": %lld, \"precision\": \"%s\", \"epilogue\": \"%s\", \"median_us\": %.3f, "
        "\"convert_us\": %.3f, \"gops\": %.2f, \"gb_per_s\": %.2f, \"bound\": \"%s\", \"percent_of_roof\": %.1f}%s\n",
        static_cast<long long>(row.shape.m), static_cast<long long>(row.shape.n), static_cast<long long>(row.shape.k),
        std::string(Name(row.precision)).c_str(), std::string(kernels::Name(row.activation)).c_str(), row.ns / 1e3,
        row.convert_ns / 1e3, row.gops, row.gb_per_s, row.shape.m > kFewRows ? "compute" : "memory",
        Percent(row, roofs), i + 1 < rows.size() ? "," : "");
  }
  std::fprintf(file, " ]\n}\n");
  return std::fclose(file) == 0;
}

int Usage() {
  std::fprintf(
      stderr,
      "usage: gemm_bench [--isa NAME] [--json FILE] [--quick] [--blocks [--wide]] [--cached] [--panel-kib N] [--rows N]"
      " [M N K]\n"
      "  gemm_bench                       the table of docs/performance.md\n"
      "  gemm_bench --isa avx2 128 384 384\n"
      "  gemm_bench --blocks 1 4864 896   weights in blocks only; --wide: as bf16, where a matrix unit does\n"
      "  gemm_bench --cached 1 576 576    weights that stay in the caches\n"
      "  gemm_bench --panel-kib 16        blocks of a panel of so many KiB; --rows: rows of a block\n");
  return 2;
}

int Main(int argc, char** argv) {
  std::string json;
  std::string wanted;
  bool quick = false, blocks = false;
  How how{};
  std::vector<int64_t> numbers;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--quick") {
      quick = true;
    } else if (arg == "--blocks") {
      blocks = true;
    } else if (arg == "--wide") {
      how.wide = true;
    } else if (arg == "--cached") {
      how.cached = true;
    } else if ((arg == "--isa" || arg == "--json") && i + 1 < argc) {
      (arg == "--isa" ? wanted : json) = argv[++i];
    } else if ((arg == "--panel-kib" || arg == "--rows") && i + 1 < argc) {
      (arg == "--rows" ? how.blocking.most_rows : how.blocking.panel_kib) = std::atoi(argv[++i]);
    } else if (const int64_t number = std::atoll(arg.c_str()); number > 0) {
      numbers.push_back(number);
    } else {
      return Usage();
    }
  }
  if (numbers.size() != 0 && numbers.size() != 3) return Usage();
  Status status = wanted.empty() ? isa::Select().status() : isa::Force(wanted);
  if (status.ok()) status = kernels::CheckBlocking(how.blocking);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return 1;
  }

  std::vector<Precision> blocked;
  for (int i = 0; i < kNumEncodings; ++i) {
    if (IsBlocked(static_cast<Encoding>(i))) blocked.push_back(StoredPrecision(static_cast<Encoding>(i)));
  }
  std::vector<Precision> of_many = {Precision::kFp32, Precision::kBf16, Precision::kInt8};
  std::vector<Precision> of_few;
  for (size_t p = 0; p < std::size(kPrecisionNames); ++p) of_few.push_back(static_cast<Precision>(p));
  if (blocks) {
    of_many = of_few = blocked;
  } else {
    of_few.insert(of_few.end(), blocked.begin(), blocked.end());
  }
  std::vector<Shape> many, few;
  if (blocks && numbers.empty()) {
    many = {{32, 4864, 1024}, {128, 4864, 1024}, {512, 2048, 2048}};
    few = {{1, 4864, 1024}, {1, 1024, 4864}, {4, 4864, 1024}, {8, 4864, 1024}};
  } else if (!numbers.empty()) {
    (numbers[0] > kFewRows ? many : few).push_back({numbers[0], numbers[1], numbers[2]});
  } else {
    many.push_back({2048, 2048, 2048});
    for (const int64_t n : {384, 768, 1536, 3072}) {
      for (const int64_t k : {384, 768, 1536, 3072}) many.push_back({128, n, k});
    }
    for (const int64_t m : {12, 16, 24, 32}) {
      many.push_back({m, 1536, 384});
      many.push_back({m, 384, 1536});
    }
    for (const int64_t m : {1, 4, 8}) few.push_back({m, 896, 4864});
    few.push_back({1, 32000, 896});
  }
  how.budget_ns = quick ? 2e7 : 15e7;
  Roofs roofs;
  if (!roofs.Measure()) return 1;
  std::vector<Row> rows;
  const auto is_whole = [](const Shape& shape, Precision precision) {
    return !IsBlocked(precision) || shape.k % BlockNumbers(EncodingOf(precision)) == 0;
  };
  for (const Shape& shape : many) {
    for (const Precision precision : of_many) {
      if (!is_whole(shape, precision)) continue;
      rows.push_back(Measure(shape, precision, kernels::Activation::kNone, how));
    }
  }
  if (numbers.empty() && !blocks) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kInt8}) {
      rows.push_back(Measure({128, 1536, 384}, precision, kernels::Activation::kGelu, how));
    }
  }
  if (!roofs.Measure()) return 1;
  for (const Shape& shape : few) {
    for (const Precision precision : of_few) {
      if (!is_whole(shape, precision)) continue;
      rows.push_back(Measure(shape, precision, kernels::Activation::kNone, how));
    }
  }
  if (!roofs.Measure()) return 1;
  std::printf("%s, instruction set %s, one thread\n", CpuModel().c_str(),
              std::string(isa::Name(isa::Current())).c_str());
  Print(rows, roofs);
  return json.empty() || WriteJson(json, rows, roofs) ? 0 : 1;
}

}  // namespace
}  // namespace thresher

int main(int argc, char** argv) { return thresher::Main(argc, argv); }
