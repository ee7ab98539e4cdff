// The roofs of this machine: how fast its cores compute and move memory when nothing holds them up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "thresher/base/function_ref.h"
#include "thresher/base/status.h"
#include "thresher/base/topology.h"

namespace thresher::kernels {

// A rate that was measured several times: 1e9 operations or 1e9 bytes a second, all threads together.
struct Rate {
  double median = 0;
  double min = 0;
  double max = 0;
};

// A multiply-add counts as two operations. Reading adds up vectors of a buffer that fits the named level and not the
// one before; the stores of write and copy bypass the caches where the target can; copy counts what it reads and what
// it writes.
struct ThreadPeaks {
  int num_threads = 0;
  Rate fp32;
  std::optional<Rate> bf16;  // none where the target has no dot product of bf16
  std::optional<Rate> fp16;  // none where there are no tiles of fp16: it is computed in fp32 then
  Rate int8;                 // by the instructions that Peaks::int8_by names
  Rate l1_read, l2_read, l3_read;
  Rate dram_read, dram_write, dram_copy;
  int64_t l1_buffer = 0, l2_buffer = 0, l3_buffer = 0;  // bytes of one thread
  int64_t dram_buffer = 0;                              // bytes of all threads
  int rounds = 0;
};

// What the cores of a node of memory read together from their own node's.
struct NodePeaks {
  int node = 0;  // the system's number
  int num_threads = 0;
  Rate dram_read;
};

struct Peaks {
  std::string target;   // Highway's name of the code that ran, which may know more than the instruction set's name says
  std::string int8_by;  // "tiles of int8", "quads of int8", "pairs of int8" (sums in int16 first) or "pairs of int16"
  std::vector<ThreadPeaks> by_threads;
  std::vector<NodePeaks> by_node;  // of all nodes, where there are several
};

// The CPUs on which a node's memory is measured, one of each core.
struct NodeCpus {
  int node = 0;  // the system's number
  std::vector<int> cpus;
};

// Those of a machine with several nodes; else none.
std::vector<NodeCpus> NodesToMeasure(const Topology& topology);

struct PeaksOptions {
  std::vector<int> num_threads = {1};  // each is measured; 1 or more
  std::vector<NodeCpus> nodes;         // whose memory is measured by itself
  int rounds = 15;                     // every quantity is measured once a round
  int64_t sample_ns = 4'000'000;       // least time of one measurement
  int64_t most_dram_bytes = int64_t{1} << 30;
  int64_t budget_ns = 7'000'000'000;  // after that no round begins, but there are three at least
};

// Measures with the instruction set in use. `progress` is told on the calling thread how much of the whole is done, and
// may throw to end the measurement. Errors: a wrong option, no memory for the buffers.
Result<Peaks> MeasurePeaks(const PeaksOptions& options, FunctionRef<void(int done, int total)> progress);

// How fast a thread multiplies smaller numbers, where its multiply-adds of fp32 run at 1.
struct RelativeRates {
  float bf16 = 0;  // 0: there is no instruction
  float int8 = 0;
};

// The best of a few short runs in turn, with the instruction set in use: about a millisecond. Good for a decision, not
// for a report.
RelativeRates MeasureRelativeRates();

// Whether the instruction set in use multiplies bf16.
bool Bf16Dots();

}  // namespace thresher::kernels
