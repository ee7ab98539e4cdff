#include "thresher/profile/nvtx.h"

#include <dlfcn.h>

#include <cstdlib>

#include "thresher/profile/nvtx_interface.h"

namespace thresher::profile::nvtx {
namespace {

// Where the tool puts its functions. Those that are not called here have a place, too: tools fill in all they know.
struct Tool {
  std::array<std::array<Function, kMostFunctions>, kModuleSizes.size()> functions{};
  std::array<std::array<Function*, kMostFunctions + 1>, kModuleSizes.size()> tables{};
  Domain domain = nullptr;
  PushRange push = nullptr;
  PopRange pop = nullptr;
};
// Constant-initialised and never destroyed: threads may mark ranges while the process ends.
constinit Tool tool;

std::string& ProblemText() {
  static auto& text = *new std::string;
  return text;
}

int ModuleTable(int module, Function*** table, unsigned int* size) {
  if (module <= 0 || static_cast<size_t>(module) >= kModuleSizes.size()) return 0;
  const auto m = static_cast<size_t>(module);
  for (uint32_t i = 1; i < kModuleSizes[m]; ++i) tool.tables[m][i] = &tool.functions[m][i];
  if (size != nullptr) *size = kModuleSizes[m];
  if (table != nullptr) *table = tool.tables[m].data();
  return 1;
}

const void* TableOf(uint32_t id) {
  static constexpr Callbacks callbacks = {sizeof(Callbacks), &ModuleTable};
  static constexpr VersionInfo version = {sizeof(VersionInfo), kVersion, 0, [](uint32_t) {}};
  if (id == kCallbacksTable) return &callbacks;
  return id == kVersionTable ? &version : nullptr;
}

// Returns what is in the way.
std::string Load(const char* path) {
  const std::string wanted = std::string(kVariable) + ": expected the library of a tool for NVTX ranges, got " + path;
  // The path is the tool's own word. NOLINTNEXTLINE(clang-analyzer-optin.taint.GenericTaint)
  void* const library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps one for each thread
    return wanted + ", which cannot be opened (" + (reason != nullptr ? reason : "no reason") + "); no ranges are sent";
  }
  const auto entry = reinterpret_cast<Entry>(dlsym(library, kEntry));
  if (entry == nullptr) return wanted + ", which has no function " + kEntry + "; no ranges are sent";
  if (entry(&TableOf) == 0) return wanted + ", which refused; no ranges are sent";
  const auto& core2 = tool.functions[kCore2];
  const auto create = reinterpret_cast<CreateDomain>(core2[kDomainCreate]);
  tool.push = reinterpret_cast<PushRange>(core2[kDomainRangePush]);
  tool.pop = reinterpret_cast<PopRange>(core2[kDomainRangePop]);
  // A tool need not take all functions, nor every domain.
  if (create == nullptr || tool.push == nullptr || tool.pop == nullptr) return {};
  tool.domain = create("thresher");
  internal::listening.store(tool.domain != nullptr, std::memory_order_release);
  return {};
}

}  // namespace

void Connect() {
  const char* const path = std::getenv(kVariable);  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
  if (path != nullptr && *path != '\0') ProblemText() = Load(path);
}

const std::string& Problem() { return ProblemText(); }

void Push(const char* name) {
  if (!internal::listening.load(std::memory_order_acquire)) return;
  Attributes attributes;
  attributes.message = name;
  tool.push(tool.domain, &attributes);
}

void Pop() {
  if (internal::listening.load(std::memory_order_acquire)) tool.pop(tool.domain);
}

}  // namespace thresher::profile::nvtx
