// What the kernel tells about limits: the files of control groups and /proc/meminfo. The input holds their contents,
// one after another, with lines of three dashes between them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fuzz/target.h"
#include "thresher/base/cpu.h"

namespace thresher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBetween = "\n---\n";
constexpr std::array kFiles = {
    "proc/self/cgroup",
    "proc/meminfo",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/group/cpu.max",
    "sys/fs/cgroup/group/memory.max",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
};

// A folder that looks like the root of a machine; in memory where there is such a place.
class Root {
 public:
  Root() {
    std::string pattern = (fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string());
    pattern += "/thresher-fuzz-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
    for (const char* file : kFiles) fs::create_directories((path_ / file).parent_path());
  }
  ~Root() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

THRESHER_FUZZ_TARGET(machine_files, fuzz::MemoryLimit{}) {
  static const Root root;
  for (const char* file : kFiles) {
    const size_t end = std::min(bytes.find(kBetween), bytes.size());
    std::ofstream(root.path() / file, std::ios::binary) << bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + kBetween.size(), bytes.size()));
  }
  const double quota = CgroupQuota(root.path());
  THRESHER_FUZZ_REQUIRE(std::isfinite(quota) && quota >= 0 && quota <= 1 << 20, std::to_string(quota));
  const int64_t memory = AvailableMemory(root.path());
  THRESHER_FUZZ_REQUIRE(memory >= 0, std::to_string(memory));
}

}  // namespace thresher
