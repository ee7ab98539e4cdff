// Which instruction set the kernels run with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "thresher/base/status.h"

namespace thresher::isa {

// Within one architecture, later is better.
enum class Isa : uint8_t {
  kSse2,
  kAvx2,
  kAvx512,
  kAvx512Vnni,
  kAvx512Bf16,
  kAmx,
  kAmxFp16,
  kNeon,
  kNeonBf16,
  kSve,
  kSve2
};

// The name that THRESHER_ISA takes: "sse2", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx", "amx_fp16",
// "neon", "neon_bf16", "sve", "sve2".
std::string_view Name(Isa isa);

// Those this build has kernels for, worst first.
const std::vector<Isa>& Compiled();

// Those of Compiled() that this CPU and operating system can run, worst first. Never empty. Forcing does not change it.
const std::vector<Isa>& Available();

// The one that kernels dispatch to now.
Isa Current();

// Applies THRESHER_ISA, or the best available one where it is not set. Called once before the first plan is made;
// calling again re-reads the variable. Errors: an unknown name (the message lists the known ones), and one that this
// CPU or build lacks (the message names it and what there is).
Result<Isa> Select();

// Makes kernels use `name` from the next call on. Packed weights of one instruction set do not fit another, so plans
// made before are void; meant for start-up and tests, not for use while kernels run. Errors as Select().
Status Force(std::string_view name);

// Why this process may not use an instruction set that the processor has, "" where it may use all it has.
std::string_view Refusal();

// Undoes Force: the best available instruction set.
void UseBest();

// kAmx is kAvx512Bf16 with tiles (base/amx.h), which kernels use where they pay; packed weights are the same. kAmxFp16
// has tiles of fp16, too, for which weights in fp16 are packed.
enum class Tiles : uint8_t { kNone, kInstructions, kPlain };

// What multiplies tiles now: kNone unless Current() is kAmx or kAmxFp16.
Tiles CurrentTiles();

// Whether Current() is kAmxFp16.
bool HasF16Tiles();

// Force("amx_fp16") with plain code in place of the tile instructions, for tests; until the next Force(), Select() or
// UseBest(). False, and nothing happens, where this CPU or build lacks kAvx512Bf16.
bool ForcePlainTiles();

}  // namespace thresher::isa
