// The cores that a process may use, and what they share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thresher {

// A physical core. Where it runs two threads at a time, the system counts two CPUs; for arithmetic it is one core.
struct Core {
  std::vector<int> cpus;   // by the system's numbers, of those that the process may use, ascending
  int package = 0;         // the system's number
  int node = 0;            // of memory, the system's number
  int cache = 0;           // cores with equal numbers share their last level; counted from 0
  bool efficient = false;  // one of the slower ones, where a machine has two kinds

  friend bool operator==(const Core&, const Core&) = default;
};

struct Topology {
  // Fast ones before efficient ones; of each kind, those that share a cache, then those of a node lie side by side.
  std::vector<Core> cores;

  int num_cpus() const;
  int num_fast() const;
  int num_nodes() const;   // that the cores belong to
  int num_caches() const;  // that the cores share
  int most_cpus() const;   // of a core
};

// What the system tells under `root` ("" for the real machine) of the CPUs `allowed`; none: all that are online. CPUs
// of which it tells nothing are cores of their own on one node with one cache. At least one core.
Topology ReadTopology(const std::string& root, std::span<const int> allowed);

// That of this machine for this process's affinity mask. Read once.
const Topology& UsableTopology();

// The CPUs of the affinity mask of the calling thread; empty where the system does not tell.
std::vector<int> AffinityCpus();

// "0-3,8,10-11" as numbers; what is no such list has none.
std::vector<int> ParseCpuList(std::string_view text);

}  // namespace thresher
