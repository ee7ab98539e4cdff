// Faults on purpose: each sanitizer has to find those of its kind, in a program and through a library that Python
// loads. A fault is chosen by name; "none" has no fault and must give no report.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <thread>

namespace {

// The compiler may not see through these, or it would warn about the faults or remove them.
volatile int zero = 0;
volatile int many = 64;
int* volatile kept = nullptr;

[[gnu::noinline]] void Leak() {
  kept = new int[16]{};
  kept = nullptr;
}

[[gnu::noinline]] void Overflow() {
  int* values = new int[16]{};
  values[16 + zero] = 1;
  kept = values;
  delete[] values;
}

[[gnu::noinline]] void StackOverflow() {
  int values[16] = {};
  kept = values;
  kept[16 + zero] = 1;
  kept = nullptr;
}

[[gnu::noinline]] void UseAfterFree() {
  int* values = new int[16]{};
  kept = values;
  delete[] values;
  kept[zero] = 1;
}

[[gnu::noinline]] void Race() {
  int counter = 0;
  const auto count = [&counter] {
    for (int i = 0; i < 1000; ++i) counter = counter + 1;
  };
  std::thread one(count);
  std::thread two(count);
  one.join();
  two.join();
  std::fprintf(stderr, "counted %d\n", counter);
}

[[gnu::noinline]] void Deadlock() {
  std::mutex first;
  std::mutex second;
  // One after the other, so that nothing hangs: the order alone is the fault.
  std::thread([&] {
    const std::lock_guard one(first);
    const std::lock_guard two(second);
  }).join();
  std::thread([&] {
    const std::lock_guard two(second);
    const std::lock_guard one(first);
  }).join();
}

[[gnu::noinline]] void SignedOverflow() {
  volatile int32_t value = INT32_MAX - zero;
  value = value + 1;
}

[[gnu::noinline]] void Misaligned() {
  alignas(8) char bytes[16] = {};
  volatile uintptr_t address = reinterpret_cast<uintptr_t>(bytes) + 1 + zero;
  volatile int value = *reinterpret_cast<int*>(address);
  static_cast<void>(value);
}

[[gnu::noinline]] void Shift() {
  volatile int value = 1 << many;
  static_cast<void>(value);
}

[[gnu::noinline]] void Null() {
  int* volatile nothing = nullptr;
  volatile int value = *nothing;
  static_cast<void>(value);
}

struct Fault {
  std::string_view name;
  void (*commit)();
};

constexpr Fault kFaults[] = {
    {"none", [] {}},
    {"leak", Leak},
    {"overflow", Overflow},
    {"stack_overflow", StackOverflow},
    {"use_after_free", UseAfterFree},
    {"race", Race},
    {"deadlock", Deadlock},
    {"signed_overflow", SignedOverflow},
    {"misaligned", Misaligned},
    {"shift", Shift},
    {"null", Null},
};

}  // namespace

// 0, or 1 where there is no fault of that name.
extern "C" [[gnu::visibility("default")]] int thresher_commit_fault(const char* name) {
  for (const Fault& fault : kFaults) {
    if (fault.name == name) {
      fault.commit();
      return 0;
    }
  }
  return 1;
}

#ifdef THRESHER_PLANTED_PROGRAM
int main(int argc, char** argv) { return argc == 2 ? thresher_commit_fault(argv[1]) : 1; }
#endif
