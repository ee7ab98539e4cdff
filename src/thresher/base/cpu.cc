#include "thresher/base/cpu.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace thresher {
namespace {

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The folder of this process in a hierarchy, from /proc/self/cgroup. `controller` is "" for version 2.
std::string CgroupFolder(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::stringstream names(line.substr(first + 1, second - first - 1));
    if (controller.empty() && second == first + 1) return line.substr(second + 1);
    for (std::string name; std::getline(names, name, ',');) {
      if (!controller.empty() && name == controller) return line.substr(second + 1);
    }
  }
  return "/";
}

// Calls `read` on the process's folder and all above it, since each may set a limit; gives the smallest limit found.
// Inside a container the path of the outside may not exist; then only the mounted root counts.
template <class Read>
double SmallestUpwards(const std::string& mount, std::string folder, const Read& read) {
  double smallest = 0;
  for (;;) {
    const double quota = read(mount + folder);
    if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
    if (folder.empty() || folder == "/") return smallest;
    folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/'));
  }
}

// The number that a text begins with, 0 if it begins with none.
double Number(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

// Cores' worth of time; 0, no limit, where the numbers are none that a kernel gives.
double Quota(double quota, double period) {
  constexpr double kMostCores = 1 << 20;
  const double cores = quota > 0 && period > 0 ? quota / period : 0;
  return cores > 0 && cores <= kMostCores ? cores : 0;
}

double QuotaV2(const std::string& folder) {
  std::istringstream line(ReadLine(folder + "/cpu.max"));  // "max 100000" or "150000 100000"
  double quota = 0;
  double period = 0;
  return line >> quota >> period ? Quota(quota, period) : 0;
}

double QuotaV1(const std::string& folder) {
  const double quota = Number(ReadLine(folder + "/cpu.cfs_quota_us"));  // -1: none
  const double period = Number(ReadLine(folder + "/cpu.cfs_period_us"));
  return Quota(quota, period);
}

// "48K", "2M", or bytes.
int64_t ParseSize(const std::string& text) {
  std::istringstream in(text);
  int64_t size = 0;
  char unit = 0;
  in >> size >> unit;
  return unit == 'K' ? size << 10 : unit == 'M' ? size << 20 : size;
}

CacheSizes ReadCaches() {
  CacheSizes sizes;
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    const std::string level = ReadLine(folder + "/level");
    if (level.empty()) break;
    if (ReadLine(folder + "/type") == "Instruction") continue;
    const int64_t size = ParseSize(ReadLine(folder + "/size"));
    if (size <= 0) continue;
    if (level == "1") sizes.l1 = size;
    if (level == "2") sizes.l2 = size;
    if (level == "3") {
      sizes.l3 = size;
      // Two CPUs of one core are one.
      const Topology sharing = ReadTopology("", ParseCpuList(ReadLine(folder + "/shared_cpu_list")));
      sizes.l3_cores = static_cast<int>(sharing.cores.size());
    }
  }
  return sizes;
}

std::string ReadCpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || !line.starts_with("model name")) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    if (start != std::string::npos) return line.substr(start);
  }
  return Architecture();
}

}  // namespace

const std::string& Architecture() {
  static const std::string architecture = [] {
    utsname name;
    return std::string(uname(&name) == 0 ? name.machine : "unknown");
  }();
  return architecture;
}

double CgroupQuota(const std::string& root) {
  const double v2 = SmallestUpwards(root + "/sys/fs/cgroup", CgroupFolder(root, ""), QuotaV2);
  const double v1 = SmallestUpwards(root + "/sys/fs/cgroup/cpu", CgroupFolder(root, "cpu"), QuotaV1);
  if (v1 == 0 || v2 == 0) return std::max(v1, v2);
  return std::min(v1, v2);
}

int64_t AvailableMemory(const std::string& root) {
  double available = 0;
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kName = "MemAvailable:";  // in KiB
    if (line.starts_with(kName)) available = 1024 * Number(line.substr(kName.size()));
  }
  const auto limit_in = [](const std::string& name) {
    return [name](const std::string& folder) { return Number(ReadLine(folder + name)); };  // "max": 0
  };
  const double limits[] = {
      SmallestUpwards(root + "/sys/fs/cgroup", CgroupFolder(root, ""), limit_in("/memory.max")),
      SmallestUpwards(root + "/sys/fs/cgroup/memory", CgroupFolder(root, "memory"), limit_in("/memory.limit_in_bytes")),
  };
  for (const double limit : limits) {
    if (limit > 0 && (available == 0 || limit < available)) available = limit;
  }
  return available > 0 ? static_cast<int64_t>(std::min(available, 0x1p62))
                       : 0;  // not a number: the system does not tell
}

CoreLimits ReadCoreLimits() {
  CoreLimits limits;
  limits.present = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  limits.affinity = static_cast<int>(AffinityCpus().size());
  limits.fast = UsableTopology().num_fast();
  limits.quota = CgroupQuota("");
  return limits;
}

int UsableCores(const Topology& topology, double quota) {
  const int fast = topology.num_fast();
  int cores = fast > 0 ? fast : static_cast<int>(topology.cores.size());
  if (quota > 0) cores = std::min(cores, static_cast<int>(std::ceil(quota)));
  return std::max(cores, 1);
}

int UsableCores() {
  static const int usable = UsableCores(UsableTopology(), CgroupQuota(""));
  return usable;
}

int UsableCpus() {
  static const int usable = [] {
    const double quota = CgroupQuota("");
    const int cpus = UsableTopology().num_cpus();
    return std::max(quota > 0 ? std::min(cpus, static_cast<int>(std::ceil(quota))) : cpus, 1);
  }();
  return usable;
}

const CacheSizes& Caches() {
  static const CacheSizes sizes = ReadCaches();
  return sizes;
}

bool IsIntel() {
#if defined(__x86_64__)
  static const bool intel = __builtin_cpu_is("intel") != 0;
  return intel;
#else
  return false;
#endif
}

bool IsZen4() {
#if defined(__x86_64__)
  static const bool zen4 = __builtin_cpu_is("amdfam19h") != 0 && __builtin_cpu_supports("avx512f") != 0;
  return zen4;
#else
  return false;
#endif
}

const std::string& CpuModel() {
  static const std::string model = ReadCpuModel();
  return model;
}

}  // namespace thresher
