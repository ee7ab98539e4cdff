#include "thresher/kernels/arithmetic.h"

#include <array>
#include <atomic>
#include <cstdio>

#include "thresher/base/env.h"
#include "thresher/base/isa.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/peaks.h"
#include "thresher/kernels/window_image.h"

namespace thresher::kernels {
namespace {

// As they were measured first: plans of one process agree. A fork() needs no lock here.
RelativeRates Rates() {
  static std::array<std::atomic<RelativeRates>, 16> known;
  std::atomic<RelativeRates>& slot = known[static_cast<size_t>(isa::Current())];
  RelativeRates rates = slot.load();
  if (rates.int8 > 0) return rates;
  RelativeRates unknown = rates;
  rates = MeasureRelativeRates();
  return slot.compare_exchange_strong(unknown, rates) ? rates : unknown;
}

enum class Choice : uint8_t { kMeasured, kAlways, kNever };

Choice Wanted() {
  const Result<std::string> text = env::GetString("THRESHER_SMALL_PRODUCTS");
  if (!text.ok()) return Choice::kMeasured;  // an invalid value is reported by env::Validate()
  if (text.value() == "always") return Choice::kAlways;
  return text.value() == "never" ? Choice::kNever : Choice::kMeasured;
}

// Whether to multiply as such what runs at `rate`, which gives 0 where there is no instruction.
template <class Rate>
bool Pays(const Rate& rate) {
  const Choice wanted = Wanted();
  if (wanted == Choice::kNever) return false;
  const float found = rate();
  return found > 0 && (wanted == Choice::kAlways || found >= 1);
}

std::string Because(std::string_view name, float rate) {
  const std::string numbers(name);
  if (Wanted() == Choice::kNever) return "multiplied in fp32, as THRESHER_SMALL_PRODUCTS says";
  if (rate == 0) return "multiplied in fp32, since this instruction set does not multiply " + numbers;
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", static_cast<double>(rate));
  return "multiplied in fp32, since " + numbers + " runs at " + text + " times its rate on this machine";
}

}  // namespace

bool MultipliesBf16() {
  return Bf16Dots() && Pays([] { return Rates().bf16; });
}

bool MultipliesInt8() {
  return Pays([] { return Rates().int8; });
}

bool MultipliesF16() { return isa::HasF16Tiles() && Wanted() != Choice::kNever; }

bool HasBf16Tiles() { return isa::CurrentTiles() != isa::Tiles::kNone && MultipliesBf16(); }

bool FillsChannels(int64_t channels) {
  if (channels > kPaddedChannels) return false;
  return HasBf16Tiles() || (2 * channels > kPaddedChannels && MultipliesBf16());
}

bool Int8Pays(int64_t outputs, int64_t k) {
  if (Wanted() == Choice::kAlways || !StoresRows(RowForm::kBF16) || !MultipliesBf16()) return true;
  // How many products take as long, on an Intel Xeon with AMX (docs/performance.md); by vectors, on an AMD EPYC (Zen
  // 5).
  const bool tiles = HasBf16Tiles();
  const double quantising = tiles ? 160 : 40, scaling = tiles ? 100 : 25;
  return quantising / static_cast<double>(outputs) + scaling / static_cast<double>(k) < 1;
}

bool Int8BeatsFloats(int64_t outputs, int64_t k, double floats) {
  if (Wanted() == Choice::kAlways || MultipliesBf16()) return true;
  // How many multiplications of floats take as long, by AVX2 on an AMD EPYC (Zen 3).
  constexpr double kQuantising = 8, kScaling = 50;
  const double overhead = kQuantising / static_cast<double>(outputs) + kScaling / static_cast<double>(k);
  return 1 / static_cast<double>(Rates().int8) + overhead < floats;
}

Arithmetic ArithmeticFor(Precision wanted) {
  if (wanted == Precision::kBf16 && !MultipliesBf16()) {
    return {wanted, Because("bf16", Bf16Dots() && Wanted() != Choice::kNever ? Rates().bf16 : 0)};
  }
  if (wanted == Precision::kInt8 && !MultipliesInt8()) {
    return {Precision::kInt8Weight, Because("int8", Wanted() != Choice::kNever ? Rates().int8 : 0)};
  }
  return {wanted, ""};
}

}  // namespace thresher::kernels
