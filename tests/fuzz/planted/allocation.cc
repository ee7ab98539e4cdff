// Holds as much memory as the input says behind a word: what the self-check of `nox -s fuzz` must find.
#include <cstring>

#include "fuzz/target.h"

THRESHER_FUZZ_TARGET(planted_allocation, thresher::fuzz::MemoryLimit{}) {
  uint32_t count = 0;
  constexpr std::string_view kWord = "grain";
  if (!bytes.starts_with(kWord) || bytes.size() < kWord.size() + sizeof(count)) return;
  std::memcpy(&count, bytes.data() + kWord.size(), sizeof(count));
  // No more than 32 MiB: that the limit is broken is to be seen, not that the machine has no memory.
  std::vector<char> rows(count & ((1u << 25) - 1));
  if (!rows.empty()) static_cast<volatile char*>(rows.data())[0] = 1;
}
