#include "thresher/base/amx.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace thresher {
namespace {

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros where the processor has no such leaf.
Leaf ReadLeaf(uint32_t leaf, uint32_t part) {
  Leaf found;
  if (__get_cpuid_count(leaf, part, &found.eax, &found.ebx, &found.ecx, &found.edx) == 0) return {};
  return found;
}

constexpr bool Bit(uint64_t bits, int index) { return (bits >> index & 1) != 0; }

// State components of XSAVE: the configuration and the data of tiles.
constexpr int kTileConfig = 17;
constexpr int kTileData = 18;

// Whether the system saves the state of tiles at all.
bool SystemKnowsTiles() {
  if (!Bit(ReadLeaf(1, 0).ecx, 27)) return false;  // OSXSAVE, without which xgetbv faults
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return Bit(low, kTileConfig) && Bit(low, kTileData);
}

// Palette 1 is what tile_unit.h configures.
bool HasPalette() {
  if (ReadLeaf(0x1D, 0).eax < 1) return false;
  const Leaf palette = ReadLeaf(0x1D, 1);
  const uint32_t bytes_per_tile = palette.eax >> 16, bytes_per_row = palette.ebx & 0xFFFF;
  const uint32_t tiles = palette.ebx >> 16, rows = palette.ecx & 0xFFFF;
  return bytes_per_tile >= 1024 && bytes_per_row >= 64 && tiles >= 8 && rows >= 16;
}

// 0, or the number of the error. The system refuses where the alternative signal stack of a thread is too small for
// 8 KiB more.
int AskPermission() {
  constexpr long kRequest = 0x1023, kGet = 0x1022;  // ARCH_REQ_XCOMP_PERM, ARCH_GET_XCOMP_PERM
  if (syscall(SYS_arch_prctl, kRequest, kTileData) != 0) return errno;
  uint64_t granted = 0;
  if (syscall(SYS_arch_prctl, kGet, &granted) != 0) return errno;
  return Bit(granted, kTileData) ? 0 : EPERM;
}

Amx Detect() {
  Amx amx;
  const Leaf features = ReadLeaf(7, 0);
  const bool bf16 = Bit(features.edx, 22), tile = Bit(features.edx, 24), int8 = Bit(features.edx, 25);
  if (!tile || !bf16 || !int8 || !HasPalette()) return amx;
  if (!SystemKnowsTiles()) {
    amx.refusal = "the processor has AMX, the operating system does not save its tiles; Linux 5.16 and later does";
    return amx;
  }
  if (const int error = AskPermission(); error != 0) {
    amx.refusal = std::string("the processor has AMX, the system refused its use: ") + std::strerror(error);
    return amx;
  }
  amx.usable = true;
  amx.fp16 = Bit(ReadLeaf(7, 1).eax, 21);
  return amx;
}

}  // namespace

const Amx& DetectAmx() {
  static const Amx amx = Detect();
  return amx;
}

}  // namespace thresher

#else

namespace thresher {

const Amx& DetectAmx() {
  static const Amx none;
  return none;
}

}  // namespace thresher

#endif
