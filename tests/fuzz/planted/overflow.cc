// Reads a byte too far behind a word: what the self-check of `nox -s fuzz` must find.
#include "fuzz/target.h"

THRESHER_FUZZ_TARGET(planted_overflow, thresher::fuzz::MemoryLimit{}) {
  if (!bytes.starts_with("chaff")) return;
  const std::vector<char> copy(bytes.begin(), bytes.end());
  const volatile char* const data = copy.data();
  static_cast<void>(data[bytes.size()]);
}
