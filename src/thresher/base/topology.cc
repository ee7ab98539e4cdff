#include "thresher/base/topology.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace thresher {
namespace {

constexpr int kMostCpus = 1 << 16;

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The number that a text begins with and that `text` is left without.
std::optional<int> TakeNumber(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number >= kMostCpus) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::optional<int> ReadNumber(const std::string& path) {
  const std::string line = ReadLine(path);
  std::string_view text = line;
  return TakeNumber(text);
}

// What tells the last-level cache of a CPU from others.
std::string CacheOf(const std::string& cpu) {
  std::string last;
  int deepest = 2;  // smaller ones belong to a core or a few
  for (int index = 0; index < 10; ++index) {
    const std::string folder = cpu + "/cache/index" + std::to_string(index);
    const int level = ReadNumber(folder + "/level").value_or(0);
    if (level == 0) break;
    if (level <= deepest) continue;
    deepest = level;
    last = ReadLine(folder + "/shared_cpu_list");
  }
  return last;
}

// Whether CPUs are of the slower kind: Intel's hybrid processors list them; Arm's give each a capacity.
std::set<int> EfficientCpus(const std::string& root, const std::vector<int>& cpus) {
  const std::vector<int> listed = ParseCpuList(ReadLine(root + "/sys/devices/cpu_atom/cpus"));
  if (!listed.empty()) return {listed.begin(), listed.end()};
  std::map<int, int> capacities;
  int most = 0;
  for (const int cpu : cpus) {
    const std::string path = root + "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpu_capacity";
    capacities[cpu] = ReadNumber(path).value_or(0);
    most = std::max(most, capacities[cpu]);
  }
  std::set<int> efficient;
  for (const auto& [cpu, capacity] : capacities) {
    if (capacity > 0 && capacity * 4 < most * 3) efficient.insert(cpu);
  }
  return efficient;
}

std::map<int, int> Nodes(const std::string& root) {
  std::map<int, int> node_of;
  for (const int node : ParseCpuList(ReadLine(root + "/sys/devices/system/node/online"))) {
    const std::string path = root + "/sys/devices/system/node/node" + std::to_string(node) + "/cpulist";
    for (const int cpu : ParseCpuList(ReadLine(path))) node_of.emplace(cpu, node);
  }
  return node_of;
}

template <class Value>
int Distinct(const std::vector<Core>& cores, Value Core::* member) {
  std::set<Value> values;
  for (const Core& core : cores) values.insert(core.*member);
  return static_cast<int>(values.size());
}

}  // namespace

std::vector<int> ParseCpuList(std::string_view text) {
  std::vector<int> numbers;
  while (!text.empty()) {
    const std::optional<int> first = TakeNumber(text);
    if (!first) return {};
    int last = *first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      const std::optional<int> second = TakeNumber(text);
      if (!second || *second < *first) return {};
      last = *second;
    }
    for (int number = *first; number <= last; ++number) numbers.push_back(number);
    while (!text.empty() && (text.front() == ',' || text.front() == '\n' || text.front() == ' ')) text.remove_prefix(1);
    if (static_cast<int>(numbers.size()) > kMostCpus) return {};
  }
  return numbers;
}

int Topology::num_cpus() const {
  int count = 0;
  for (const Core& core : cores) count += static_cast<int>(core.cpus.size());
  return count;
}

int Topology::num_fast() const {
  return static_cast<int>(std::count_if(cores.begin(), cores.end(), [](const Core& core) { return !core.efficient; }));
}

int Topology::num_nodes() const { return Distinct(cores, &Core::node); }
int Topology::num_caches() const { return Distinct(cores, &Core::cache); }

int Topology::most_cpus() const {
  size_t most = 0;
  for (const Core& core : cores) most = std::max(most, core.cpus.size());
  return static_cast<int>(most);
}

Topology ReadTopology(const std::string& root, std::span<const int> allowed) {
  const std::string folder = root + "/sys/devices/system/cpu";
  std::vector<int> cpus = ParseCpuList(ReadLine(folder + "/online"));
  if (!allowed.empty()) {
    const std::set<int> online(cpus.begin(), cpus.end());
    cpus.clear();
    for (const int cpu : allowed) {
      if (online.empty() || online.contains(cpu)) cpus.push_back(cpu);
    }
    if (cpus.empty()) cpus.assign(allowed.begin(), allowed.end());
  }
  if (cpus.empty()) cpus = {0};
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());

  const std::set<int> efficient = EfficientCpus(root, cpus);
  const std::map<int, int> node_of = Nodes(root);
  std::map<std::string, int> caches;
  std::map<std::string, size_t> core_of;  // by the list of the CPUs of one core
  Topology topology;
  for (const int cpu : cpus) {
    const std::string path = folder + "/cpu" + std::to_string(cpu);
    std::string siblings = ReadLine(path + "/topology/core_cpus_list");
    if (siblings.empty()) siblings = ReadLine(path + "/topology/thread_siblings_list");
    // A list without the CPU itself tells nothing.
    const std::vector<int> listed = ParseCpuList(siblings);
    if (std::find(listed.begin(), listed.end(), cpu) == listed.end()) siblings = std::to_string(cpu);
    const auto [known, added] = core_of.emplace(siblings, topology.cores.size());
    if (!added) {
      topology.cores[known->second].cpus.push_back(cpu);
      continue;
    }
    Core core;
    core.cpus = {cpu};
    core.package = ReadNumber(path + "/topology/physical_package_id").value_or(0);
    const auto node = node_of.find(cpu);
    core.node = node == node_of.end() ? 0 : node->second;
    std::string cache = CacheOf(path);
    // Without a shared level of their own, the cores of a package share what is between them and memory.
    if (cache.empty()) cache = "package " + std::to_string(core.package);
    core.cache = caches.emplace(cache, static_cast<int>(caches.size())).first->second;
    core.efficient = efficient.contains(cpu);
    topology.cores.push_back(std::move(core));
  }
  std::stable_sort(topology.cores.begin(), topology.cores.end(), [](const Core& a, const Core& b) {
    return std::tie(a.efficient, a.node, a.cache, a.cpus.front()) <
           std::tie(b.efficient, b.node, b.cache, b.cpus.front());
  });
  return topology;
}

std::vector<int> AffinityCpus() {
  // A machine may have more CPUs than cpu_set_t has bits: grow until the kernel is content.
  for (int most = CPU_SETSIZE; most <= (1 << 20); most *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(most));
    if (set == nullptr) return {};
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    const bool ok = sched_getaffinity(0, bytes, set) == 0;
    std::vector<int> cpus;
    for (int cpu = 0; ok && cpu < most; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (ok) return cpus;
  }
  return {};
}

const Topology& UsableTopology() {
  static const Topology topology = ReadTopology("", AffinityCpus());
  return topology;
}

}  // namespace thresher
