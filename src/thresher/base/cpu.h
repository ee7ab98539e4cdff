// What this process may use of the machine.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/base/topology.h"

namespace thresher {

// Cores this process may use for one piece of work, at least 1: the fast ones (all, where it has no other) of which the
// affinity mask has a CPU, and no more than the CPU quota of the control group (rounded up). Two CPUs that run on one
// core are one. The first is of this process, read once.
int UsableCores();
int UsableCores(const Topology& topology, double quota);

// Threads that may run at the same time: CPUs in the affinity mask, and no more than the quota. Read once.
int UsableCpus();

// The parts that UsableCores() is made of; 0 where there is no such limit.
struct CoreLimits {
  int present = 0;
  int affinity = 0;
  int fast = 0;      // cores of the affinity mask
  double quota = 0;  // cores' worth of time per period
};
CoreLimits ReadCoreLimits();

// The CPU quota in cores that control groups impose on a process, 0 if none. `root` is where the file systems are
// mounted ("" for the real machine), so that a test can lay out its own.
double CgroupQuota(const std::string& root);

// Data cache of one core and the last level, in bytes. Values the system does not tell are typical ones.
struct CacheSizes {
  int64_t l1 = 32 << 10;
  int64_t l2 = 512 << 10;
  int64_t l3 = 4 << 20;  // whole, however many cores share it
  int l3_cores = 1;      // that share it
};
const CacheSizes& Caches();

// Bytes this process may still take without harm: the free memory of the machine, at most the limit of the control
// group. 0 where the system does not tell. `root` as above.
int64_t AvailableMemory(const std::string& root = "");

// "x86_64", "aarch64": what the kernel calls it.
const std::string& Architecture();

// Whether Intel made it: its caches take other hints than AMD's.
bool IsIntel();

// Whether it is AMD's Zen 4: of its family 25 the one with AVX-512.
bool IsZen4();

// "AMD EPYC 7763 64-Core Processor"; the machine's architecture where no name is known.
const std::string& CpuModel();

}  // namespace thresher
