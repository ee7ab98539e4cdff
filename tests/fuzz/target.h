// What the fuzz targets of the C++ parsers are written with.
//
// The same source is a program of libFuzzer (THRESHER_LIBFUZZER, cmake/fuzz.cmake) and, in thresher_tests, a function
// that replays the inputs kept in tests/fuzz (tests/cpp/fuzz/replay_test.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/memory_watch.h"

namespace thresher::fuzz {

struct Target {
  const char* name;
  void (*run)(std::string_view bytes);
  MemoryLimit limit;
};

inline std::vector<Target>& Targets() {
  static std::vector<Target> targets;
  return targets;
}

inline bool Register(const Target& target) {
  Targets().push_back(target);
  return true;
}

inline void Replay(const Target& target, std::string_view bytes) {
  // Of exactly this size, so that sanitizers see a byte read too far.
  const std::vector<char> copy(bytes.begin(), bytes.end());
  const MemoryWatch watch(target.limit, copy.size());
  target.run({copy.data(), copy.size()});
}

[[noreturn]] inline void Fail(const char* file, int line, const char* condition, const std::string& found) {
  std::fprintf(stderr, "%s:%d: expected %s, got: %s\n", file, line, condition, found.c_str());
  std::abort();
}

}  // namespace thresher::fuzz

// What must hold for every input, beyond that nothing crashes. `found` is a text for the message.
#define THRESHER_FUZZ_REQUIRE(condition, found)                                      \
  do {                                                                               \
    if (!(condition)) ::thresher::fuzz::Fail(__FILE__, __LINE__, #condition, found); \
  } while (false)

// THRESHER_FUZZ_TARGET(graph_text, MemoryLimit{}) { ParseGraph(bytes); }
#if defined(THRESHER_LIBFUZZER)
#define THRESHER_FUZZ_TARGET(target_name, limit)                                      \
  static void RunTarget(std::string_view bytes);                                      \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);            \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {           \
    static const ::thresher::fuzz::Target kTarget = {#target_name, RunTarget, limit}; \
    ::thresher::fuzz::Replay(kTarget, {reinterpret_cast<const char*>(data), size});   \
    return 0;                                                                         \
  }                                                                                   \
  static void RunTarget([[maybe_unused]] std::string_view bytes)
#else
#define THRESHER_FUZZ_TARGET(target_name, limit)                                                                 \
  static void RunTarget(std::string_view bytes);                                                                 \
  [[maybe_unused]] static const bool kRegistered = ::thresher::fuzz::Register({#target_name, RunTarget, limit}); \
  static void RunTarget([[maybe_unused]] std::string_view bytes)
#endif
