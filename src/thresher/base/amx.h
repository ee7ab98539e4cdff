// Intel's matrix unit, AMX: eight tiles of 16 rows of 64 bytes, which a process may use once the system lets it.
#pragma once

#include <string>

namespace thresher {

struct Amx {
  bool usable = false;  // tiles of bf16 and int8: the processor has them, and the system lets this process use them
  bool fp16 = false;    // tiles of fp16, too
  // Why not, for people; empty where usable, and where the processor has no tiles at all.
  std::string refusal;
};

// Asks the processor, and for permission the system, once a process. Threads and child processes have what it has.
const Amx& DetectAmx();

}  // namespace thresher
