#include <dlfcn.h>

#include <map>
#include <mutex>

#include "thresher/base/version.h"
#include "thresher/ops/outside.h"

namespace thresher {
namespace {

constexpr const char* kEntry = "thresher_operator_package";

OperatorLibrary Described(const operators::Package& package) {
  OperatorLibrary library{package.name, package.version == nullptr ? "" : package.version, {}};
  for (int i = 0; i < package.num_rows; ++i) library.operators.emplace_back(package.rows[i].name);
  return library;
}

Result<const operators::Package*> PackageIn(void* handle, const std::string& path) {
  using Entry = const operators::Package* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(handle, kEntry));
  const operators::Package* package = entry == nullptr ? nullptr : entry();
  if (package == nullptr || package->engine_version == nullptr) {
    return InvalidArgument("expected a library with THRESHER_OPERATOR_PACKAGE in one of its sources, got " + path);
  }
  if (std::string_view(package->engine_version) != kVersion) {
    return Unsupported("expected a library of operators for thresher " + std::string(kVersion) + ", got " + path +
                       " for thresher " + package->engine_version +
                       "; build its package again with this release's C++ package, or install the release it is for");
  }
  return package;
}

}  // namespace

Result<OperatorLibrary> LoadOperators(const std::string& path) {
  static std::mutex mutex;
  static auto* const loaded = new std::map<void*, const operators::Package*>;
  const std::lock_guard lock(mutex);
  // A library without a dot in its path would be looked for in the system's folders.
  void* const handle =
      dlopen(path.find('/') == std::string::npos ? ("./" + path).c_str() : path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const reason = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps one for each thread
    return InvalidArgument("expected a library of operators, got " + path +
                           ", which cannot be opened: " + (reason == nullptr ? "no reason is given" : reason));
  }
  if (const auto found = loaded->find(handle); found != loaded->end()) return Described(*found->second);
  Result<const operators::Package*> package = PackageIn(handle, path);
  Status status = package.status();
  if (status.ok()) {
    Result<std::vector<OpDef>> rows = OutsideRows(*package.value());
    status = rows.ok() ? AddOps(std::move(rows).value()) : rows.status();
    if (!status.ok()) status = Status(status.code(), path + ": " + status.message());
  }
  if (!status.ok()) {
    dlclose(handle);
    return status;
  }
  loaded->emplace(handle, package.value());
  return Described(*package.value());
}

}  // namespace thresher
