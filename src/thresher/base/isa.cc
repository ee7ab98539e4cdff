#include "thresher/base/isa.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <optional>

#include "thresher/base/amx.h"
#include "thresher/base/env.h"

// The longest list of targets that any kernel is compiled for.
#define THRESHER_DOT_TARGETS
#include "thresher/base/simd_targets.h"

// After simd_targets.h, which says what Highway compiles.
#include "hwy/highway.h"

namespace thresher::isa {
namespace {

struct Row {
  Isa isa;
  std::string_view name;
  int64_t target;  // Highway's bit; within an architecture a better target has a lower bit
};

constexpr Row kRows[] = {
    {Isa::kSse2, "sse2", HWY_SSE2},
    {Isa::kAvx2, "avx2", HWY_AVX2},
    {Isa::kAvx512, "avx512", HWY_AVX3},
    {Isa::kAvx512Vnni, "avx512_vnni", HWY_AVX3_DL},
    {Isa::kAvx512Bf16, "avx512_bf16", HWY_AVX3_ZEN4},
    {Isa::kAmx, "amx", HWY_AVX3_ZEN4},
    {Isa::kAmxFp16, "amx_fp16", HWY_AVX3_ZEN4},
#if HWY_ARCH_ARM && !defined(__ARM_FEATURE_AES)
    {Isa::kNeon, "neon", HWY_NEON_WITHOUT_AES},
#else
    {Isa::kNeon, "neon", HWY_NEON},
#endif
    {Isa::kNeonBf16, "neon_bf16", HWY_NEON_BF16},
    {Isa::kSve, "sve", HWY_SVE},
    {Isa::kSve2, "sve2", HWY_SVE2},
};

const Row& Find(Isa isa) {
  return *std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& row) { return row.isa == isa; });
}

// What the CPU has. Sampled before anything is forced, since forcing replaces what Highway reports.
int64_t DetectedTargets() {
  static const int64_t targets = [] {
    const int64_t found = hwy::SupportedTargets();
    // Highway chooses AVX3_ZEN4 on processors of AMD only. One with AVX3_SPR has all of its instructions too.
    return (found & HWY_AVX3_SPR) != 0 ? found | HWY_AVX3_ZEN4 : found;
  }();
  return targets;
}

std::vector<Isa> Filter(int64_t targets, bool tiles, bool f16_tiles) {
  std::vector<Isa> found;
  for (const Row& row : kRows) {
    const bool fits = row.isa == Isa::kAmx ? tiles : row.isa == Isa::kAmxFp16 ? tiles && f16_tiles : true;
    if ((row.target & targets) != 0 && fits) found.push_back(row.isa);
  }
  return found;
}

// Highway knows no target with tiles: kernels of kAvx512Bf16 ask for them.
std::atomic<Tiles> g_tiles = Tiles::kNone;
std::atomic<bool> g_f16_tiles = false;

// Kernels run what is compiled for `targets`.
void Use(int64_t targets, Tiles tiles, bool f16_tiles) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  g_tiles.store(tiles, std::memory_order_relaxed);
  g_f16_tiles.store(f16_tiles, std::memory_order_relaxed);
}

// Everything from a target downwards, because a source may lack the one that is wanted.
int64_t TargetsUpTo(Isa isa) { return DetectedTargets() & ~(Find(isa).target - 1); }

template <class Rows>
std::string Join(const Rows& isas) {
  std::string text;
  for (const Isa isa : isas) text += (text.empty() ? "" : ", ") + std::string(Name(isa));
  return text;
}

bool Contains(const std::vector<Isa>& isas, Isa isa) { return std::find(isas.begin(), isas.end(), isa) != isas.end(); }

}  // namespace

std::string_view Name(Isa isa) { return Find(isa).name; }

const std::vector<Isa>& Compiled() {
  static const std::vector<Isa> compiled = Filter(HWY_TARGETS, true, true);
  return compiled;
}

const std::vector<Isa>& Available() {
  static const std::vector<Isa> available =
      Filter(HWY_TARGETS & DetectedTargets(), DetectAmx().usable, DetectAmx().fp16);
  return available;
}

Isa Current() {
  DetectedTargets();
  return Filter(HWY_TARGETS & hwy::SupportedTargets(), CurrentTiles() != Tiles::kNone, HasF16Tiles()).back();
}

Status Force(std::string_view name) {
  std::vector<Isa> known;
  std::optional<Isa> wanted;
  for (const Row& row : kRows) {
    known.push_back(row.isa);
    if (row.name == name) wanted = row.isa;
  }
  if (!wanted) {
    return InvalidArgument("THRESHER_ISA: expected one of " + Join(known) + ", got \"" + std::string(name) +
                           "\". This machine can run " + Join(Available()) + "; unset the variable to get the best.");
  }
  if (!Contains(Compiled(), *wanted)) {
    return InvalidArgument("THRESHER_ISA=" + std::string(name) + ": this build has kernels for " + Join(Compiled()) +
                           " only. Choose one of " + Join(Available()) + " or unset the variable.");
  }
  if (!Contains(Available(), *wanted)) {
    const bool refused = (*wanted == Isa::kAmx || *wanted == Isa::kAmxFp16) && !Refusal().empty();
    const std::string why = refused ? std::string(Refusal()) : "this CPU lacks " + std::string(name);
    return InvalidArgument("THRESHER_ISA=" + std::string(name) + ": " + why + "; it has " + Join(Available()) +
                           ". Choose one of these or unset the variable.");
  }
  const bool f16_tiles = *wanted == Isa::kAmxFp16;
  Use(TargetsUpTo(*wanted), *wanted == Isa::kAmx || f16_tiles ? Tiles::kInstructions : Tiles::kNone, f16_tiles);
  return Status::Ok();
}

void UseBest() {
  Use(DetectedTargets(), Contains(Available(), Isa::kAmx) ? Tiles::kInstructions : Tiles::kNone,
      Contains(Available(), Isa::kAmxFp16));
}

std::string_view Refusal() { return DetectAmx().refusal; }

Tiles CurrentTiles() { return g_tiles.load(std::memory_order_relaxed); }

bool HasF16Tiles() { return g_f16_tiles.load(std::memory_order_relaxed); }

bool ForcePlainTiles() {
  if (!Contains(Available(), Isa::kAvx512Bf16)) return false;
  Use(TargetsUpTo(Isa::kAmxFp16), Tiles::kPlain, true);
  return true;
}

Result<Isa> Select() {
  std::string name = env::Raw("THRESHER_ISA");  // Force() has the better message for a wrong name
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name.empty()) {
    UseBest();
  } else {
    THRESHER_TRY(Force(name));
  }
  return Current();
}

}  // namespace thresher::isa
