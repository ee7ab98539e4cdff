#include "thresher/base/cpu.h"

#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "thresher/base/clock.h"

namespace thresher {
namespace {

namespace fs = std::filesystem;

// A machine of our own making under a temporary folder.
class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("thresher_cgroup_" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  double Quota() const { return CgroupQuota(root_.string()); }

  fs::path root_;
};

TEST_F(CgroupTest, NoControlGroupsMeansNoLimit) { EXPECT_EQ(Quota(), 0); }

TEST_F(CgroupTest, Version2TakesTheTightestOnTheWayUp) {
  Write("proc/self/cgroup", "0::/pod/app\n");
  Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
  Write("sys/fs/cgroup/pod/app/cpu.max", "400000 100000\n");
  EXPECT_DOUBLE_EQ(Quota(), 1.5);
}

TEST_F(CgroupTest, Version2InsideAContainerOnlyTheRootExists) {
  Write("proc/self/cgroup", "0::/outer/path\n");
  Write("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_DOUBLE_EQ(Quota(), 2.0);
}

TEST_F(CgroupTest, Version1) {
  Write("proc/self/cgroup", "4:memory:/m\n3:cpu,cpuacct:/job\n");
  Write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "250000\n");
  Write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(Quota(), 2.5);
}

TEST_F(CgroupTest, NumbersThatNoKernelGivesAreNoLimit) {
  Write("proc/self/cgroup", "0::/\n");
  for (const char* text : {"1e300 1", "inf 100000", "nan nan", "-1 100000", "1 0", "99999999999 1"}) {
    Write("sys/fs/cgroup/cpu.max", text);
    Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "inf");
    Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "inf");
    EXPECT_EQ(Quota(), 0) << text;
  }
  for (const char* text : {"nan", "-5", "inf"}) {
    Write("proc/meminfo", std::string("MemAvailable: ") + text + " kB\n");
    EXPECT_GE(AvailableMemory(root_.string()), 0) << text;
  }
}

TEST_F(CgroupTest, MemoryIsTheTighterOfMachineAndControlGroup) {
  EXPECT_EQ(AvailableMemory(root_.string()), 0);
  Write("proc/meminfo", "MemTotal:       4096 kB\nMemAvailable:   2048 kB\n");
  EXPECT_EQ(AvailableMemory(root_.string()), 2 << 20);
  Write("proc/self/cgroup", "0::/pod\n");
  Write("sys/fs/cgroup/pod/memory.max", "max\n");
  EXPECT_EQ(AvailableMemory(root_.string()), 2 << 20);
  Write("sys/fs/cgroup/pod/memory.max", "1048576\n");
  EXPECT_EQ(AvailableMemory(root_.string()), 1 << 20);
}

TEST_F(CgroupTest, MemoryOfVersion1) {
  Write("proc/meminfo", "MemAvailable:   2048 kB\n");
  Write("proc/self/cgroup", "9:memory:/job\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "524288\n");
  EXPECT_EQ(AvailableMemory(root_.string()), 512 << 10);
}

TEST(Cpu, UsableCoresRespectsEveryLimit) {
  const CoreLimits limits = ReadCoreLimits();
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), limits.present);
  if (limits.affinity > 0) {
    EXPECT_LE(UsableCores(), limits.affinity);
    EXPECT_LE(limits.fast, limits.affinity);
  }
  if (limits.quota > 0) {
    EXPECT_LT(UsableCores(), limits.quota + 1);
  }
}

TEST(Cpu, CachesGrowWithTheirLevel) {
  EXPECT_GE(Caches().l1, 8 << 10);
  EXPECT_GE(Caches().l2, Caches().l1);
  EXPECT_GE(Caches().l3_cores, 1);
  EXPECT_GT(AvailableMemory(), 0);
  EXPECT_FALSE(CpuModel().empty());
}

TEST(Clock, IsCloseToTheWallClockAndNeverGoesBack) {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t wall_ns = int64_t{wall.tv_sec} * 1'000'000'000 + wall.tv_nsec;
  EXPECT_NEAR(static_cast<double>(NowNs() - wall_ns), 0, 1e9);
  int64_t last = NowNs();
  for (int i = 0; i < 10000; ++i) {
    const int64_t now = NowNs();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace thresher
