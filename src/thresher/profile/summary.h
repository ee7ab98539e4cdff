// Sums over records: what the operator report is made of. Memory grows with the number of operator names, not with
// time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "thresher/profile/events.h"
#include "thresher/profile/ring.h"
#include "thresher/profile/site.h"

namespace thresher::profile {

// All records of one operator name in one section and phase.
struct SummaryRow {
  Phase phase = Phase::kInference;
  Section section = Section::kForward;
  std::string name;
  uint64_t count = 0;
  int64_t total_ns = 0;
  int64_t min_ns = 0;
  int64_t max_ns = 0;
  int64_t median_ns = 0;  // within 1 %
  double flops = -1;      // sum; < 0: not modelled for at least one record
  double bytes = -1;      // likewise
};

// All records of one place in one phase.
struct SiteRow {
  Phase phase = Phase::kInference;
  Site site;
  uint64_t count = 0;
  int64_t total_ns = 0;
};

// How many durations fell into one step of a histogram.
struct DurationCount {
  int64_t ns = 0;  // the middle of the step
  uint64_t count = 0;
};

struct PhaseTotals {
  Phase phase = Phase::kInference;
  uint64_t calls = 0;
  uint64_t executions = 0;
  int64_t tokens = 0;   // that the calls computed, of a language model
  int64_t wall_ns = 0;  // sum of the outermost calls and executions
  int64_t rows_ns = 0;  // sum of the phase's rows
  int64_t gap_ns = 0;   // wall_ns - rows_ns
};

struct Summary {
  bool enabled = false;
  int rank = 0;         // of this process among those that run one model together
  std::string isa;      // instruction set of the kernels
  int num_threads = 0;  // the most that a plan that ran has; where none did, those of the shared pool
  std::string cpu;      // model name
  uint64_t records = 0;
  uint64_t dropped = 0;              // records that are in no row, because memory for them was not to be had
  uint64_t overwritten = 0;          // records that are in the rows, but can no longer be read one by one
  std::vector<PhaseTotals> phases;   // those with records, in the order of Phase
  std::vector<DurationCount> calls;  // how long calls of models took, in all phases, in steps of less than 1.6 %
  std::vector<SummaryRow> rows;      // by phase, section, then falling total
  std::vector<SiteRow> sites;        // what the rows are made of
};

// Counts of durations in steps of less than 1.6 %, for the median.
class Histogram {
 public:
  void Add(int64_t ns);
  // The middle of the step that holds the lower median; 0 when empty.
  int64_t Median() const;
  // The steps that hold any, in order.
  std::vector<DurationCount> Counts() const;

 private:
  // Below 2^7 ns every value has its own step, above it every octave has 2^6 steps; the last takes all beyond 2^44 ns.
  static constexpr int kStepBits = 6;
  static constexpr int kOctaves = 44 - (kStepBits + 1);
  static constexpr size_t kSteps = (size_t{2} << kStepBits) + (size_t{kOctaves} << kStepBits);
  static size_t StepOf(int64_t ns);
  static int64_t MiddleOf(size_t step);

  std::array<uint32_t, kSteps> counts_{};
  uint64_t total_ = 0;
};

// Not thread safe; the profiler's lock guards it.
class Aggregator {
 public:
  // `ring` is where the record comes from: its wall-clock intervals tell nested ones from outermost ones. Sites of one
  // name share a row.
  void Add(Ring& ring, const Record& record, const SiteTable& sites);
  void Clear();

  // Fills in records, phases, rows and sites.
  void Fill(const SiteTable& sites, Summary& summary) const;

 private:
  struct Row {
    uint64_t count = 0;
    int64_t total_ns = 0;
    int64_t min_ns = 0;
    int64_t max_ns = 0;
    double flops = 0;
    double bytes = 0;
    Histogram histogram;
  };
  static constexpr size_t kRowsPerName = size_t{kNumPhases} * kNumOpSections;

  struct SiteSum {
    uint64_t count = 0;
    int64_t total_ns = 0;
  };

  size_t NameOf(uint32_t site, const SiteTable& sites);
  void AddOp(const Record& record, const SiteTable& sites);
  void AddWall(Ring& ring, const Record& record);

  std::vector<std::string> names_;
  std::map<std::string, size_t> numbers_;   // of names_
  std::vector<size_t> names_by_site_;       // 1 + the number of a site's name; 0: not looked up yet
  std::vector<std::unique_ptr<Row>> rows_;  // name * kRowsPerName + phase * kNumOpSections + section
  std::vector<SiteSum> site_sums_;          // site * kNumPhases + phase
  std::array<PhaseTotals, kNumPhases> totals_{};
  Histogram calls_;
  int num_threads_ = 0;  // of all plans that ran, the most
  uint64_t records_ = 0;
};

}  // namespace thresher::profile
