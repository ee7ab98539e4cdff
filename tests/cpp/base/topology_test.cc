#include "thresher/base/topology.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "thresher/base/cpu.h"

namespace thresher {
namespace {

namespace fs = std::filesystem;

// Machines of our own making under a temporary folder.
class TopologyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("thresher_topology_" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void Online(int cpus) { Write("sys/devices/system/cpu/online", "0-" + std::to_string(cpus - 1)); }
  static std::string Cpu(int cpu) { return "sys/devices/system/cpu/cpu" + std::to_string(cpu); }
  void AddCpu(int cpu, int package, const std::string& siblings, const std::string& cache) {
    Write(Cpu(cpu) + "/topology/physical_package_id", std::to_string(package));
    Write(Cpu(cpu) + "/topology/core_cpus_list", siblings);
    const char* const shared[] = {siblings.c_str(), siblings.c_str(), siblings.c_str(), cache.c_str()};
    const char* const levels[] = {"1", "1", "2", "3"};
    for (int index = 0; index < (cache.empty() ? 3 : 4); ++index) {
      const std::string folder = Cpu(cpu) + "/cache/index" + std::to_string(index);
      Write(folder + "/level", levels[index]);
      Write(folder + "/shared_cpu_list", shared[index]);
    }
  }
  Topology Read(const std::vector<int>& allowed = {}) const { return ReadTopology(root_.string(), allowed); }
  static std::vector<int> FirstCpus(const Topology& topology) {
    std::vector<int> cpus;
    for (const Core& core : topology.cores) cpus.push_back(core.cpus.front());
    return cpus;
  }

  fs::path root_;
};

TEST_F(TopologyTest, AMachineThatTellsNothingIsOneCore) {
  const Topology topology = Read();
  ASSERT_EQ(topology.cores.size(), 1u);
  EXPECT_EQ(topology.cores[0], (Core{.cpus = {0}}));
  EXPECT_EQ(UsableCores(topology, 0), 1);
}

TEST_F(TopologyTest, CpusWithoutTopologyAreCores) {
  Online(2);
  const Topology topology = Read();
  EXPECT_EQ(FirstCpus(topology), (std::vector<int>{0, 1}));
  EXPECT_EQ(topology.num_nodes(), 1);
  EXPECT_EQ(topology.num_caches(), 1);
  EXPECT_EQ(topology.most_cpus(), 1);
  EXPECT_EQ(UsableCores(topology, 0), 2);
  EXPECT_EQ(UsableCores(topology, 1.5), 2);
  EXPECT_EQ(UsableCores(topology, 0.5), 1);
}

// As a server of two sockets numbers them: first one CPU of every core, then the others.
TEST_F(TopologyTest, TwoNodesWithTwoCpusToACore) {
  constexpr int kCores = 64;
  Online(2 * kCores);
  Write("sys/devices/system/node/online", "0-1");
  Write("sys/devices/system/node/node0/cpulist", "0-31,64-95");
  Write("sys/devices/system/node/node1/cpulist", "32-63,96-127");
  for (int cpu = 0; cpu < 2 * kCores; ++cpu) {
    const int core = cpu % kCores;
    const int package = core / 32;
    AddCpu(cpu, package, std::to_string(core) + "," + std::to_string(core + kCores),
           package == 0 ? "0-31,64-95" : "32-63,96-127");
  }
  const Topology topology = Read();
  EXPECT_EQ(topology.cores.size(), 64u);
  EXPECT_EQ(topology.num_cpus(), 128);
  EXPECT_EQ(topology.num_nodes(), 2);
  EXPECT_EQ(topology.num_caches(), 2);
  EXPECT_EQ(topology.most_cpus(), 2);
  EXPECT_EQ(topology.cores[40], (Core{.cpus = {40, 104}, .package = 1, .node = 1, .cache = 1}));
  EXPECT_EQ(UsableCores(topology, 0), 64) << "siblings are not cores";
  EXPECT_EQ(UsableCores(topology, 24), 24);

  // An affinity mask that has one CPU of some cores and both of others, on both nodes.
  const Topology some = Read({40, 2, 66, 3, 104});
  EXPECT_EQ(FirstCpus(some), (std::vector<int>{2, 3, 40}));
  EXPECT_EQ(some.cores[0].cpus, (std::vector<int>{2, 66}));
  EXPECT_EQ(some.num_nodes(), 2);
  EXPECT_EQ(UsableCores(some, 0), 3);
}

// Sixteen cores in four complexes of four, each with its own cache.
TEST_F(TopologyTest, CoresThatShareACacheLieSideBySide) {
  Online(16);
  for (int cpu = 0; cpu < 16; ++cpu) {
    const int complex = cpu % 4;  // numbered across
    std::string cache;
    for (int other = complex; other < 16; other += 4) cache += (cache.empty() ? "" : ",") + std::to_string(other);
    AddCpu(cpu, 0, std::to_string(cpu), cache);
  }
  const Topology topology = Read();
  EXPECT_EQ(topology.num_caches(), 4);
  EXPECT_EQ(FirstCpus(topology), (std::vector<int>{0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15}));
}

// Six fast cores of two CPUs each, then eight efficient ones.
TEST_F(TopologyTest, EfficientCoresOfAHybridComeLastAndAreNotCounted) {
  Online(20);
  Write("sys/devices/cpu_core/cpus", "0-11");
  Write("sys/devices/cpu_atom/cpus", "12-19");
  for (int cpu = 0; cpu < 20; ++cpu) {
    const int first = cpu / 2 * 2;
    AddCpu(cpu, 0, cpu < 12 ? std::to_string(first) + "-" + std::to_string(first + 1) : std::to_string(cpu), "0-19");
  }
  const Topology topology = Read();
  EXPECT_EQ(topology.cores.size(), 14u);
  EXPECT_EQ(topology.num_fast(), 6);
  EXPECT_TRUE(topology.cores.back().efficient);
  EXPECT_EQ(UsableCores(topology, 0), 6);
  const Topology slow = Read({12, 13, 14});
  EXPECT_EQ(UsableCores(slow, 0), 3) << "where there are no others";
}

TEST_F(TopologyTest, CapacitiesTellBigFromLittle) {
  Online(8);
  for (int cpu = 0; cpu < 8; ++cpu) {
    Write(Cpu(cpu) + "/cpu_capacity", cpu < 4 ? "406" : cpu < 7 ? "871" : "1024");
    Write(Cpu(cpu) + "/topology/thread_siblings_list", std::to_string(cpu));
    Write(Cpu(cpu) + "/topology/physical_package_id", "0");
  }
  const Topology topology = Read();
  EXPECT_EQ(FirstCpus(topology), (std::vector<int>{4, 5, 6, 7, 0, 1, 2, 3}));
  EXPECT_EQ(topology.num_fast(), 4);
}

TEST_F(TopologyTest, NonsenseIsAsGoodAsNothing) {
  Write("sys/devices/system/cpu/online", "0-1");
  Write("sys/devices/system/node/online", "0-99999999999");
  Write(Cpu(0) + "/topology/core_cpus_list", "7-3");
  Write(Cpu(1) + "/topology/core_cpus_list", "0");  // not of itself
  Write(Cpu(0) + "/cache/index0/level", "minus three");
  const Topology topology = Read();
  EXPECT_EQ(FirstCpus(topology), (std::vector<int>{0, 1}));
}

TEST(CpuList, IsReadWhole) {
  EXPECT_EQ(ParseCpuList("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ParseCpuList("5\n"), (std::vector<int>{5}));
  for (const char* text : {"", "-1", "a", "3-1", "1-", "0-70000", "99999999999999"}) {
    EXPECT_TRUE(ParseCpuList(text).empty()) << text;
  }
}

TEST(Topology, OfThisMachineHasTheCpusOfTheMask) {
  const std::vector<int> allowed = AffinityCpus();
  ASSERT_FALSE(allowed.empty());
  std::vector<int> found;
  for (const Core& core : UsableTopology().cores) found.insert(found.end(), core.cpus.begin(), core.cpus.end());
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, allowed);
  EXPECT_GE(UsableCpus(), UsableCores());
}

}  // namespace
}  // namespace thresher
