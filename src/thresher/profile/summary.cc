#include "thresher/profile/summary.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <tuple>

namespace thresher::profile {
namespace {

// A sum in which one unknown part makes the whole unknown.
void AddModelled(double& sum, double part) { sum = sum < 0 || part < 0 ? -1 : sum + part; }

}  // namespace

size_t Histogram::StepOf(int64_t ns) {
  const uint64_t value = static_cast<uint64_t>(std::max<int64_t>(ns, 0));
  if (value < (uint64_t{2} << kStepBits)) return static_cast<size_t>(value);
  const int octave = static_cast<int>(std::bit_width(value)) - 1 - kStepBits;  // >= 1
  const uint64_t top = value >> octave;  // the leading bit and the kStepBits after it
  return std::min(kSteps - 1, (static_cast<size_t>(octave) << kStepBits) + static_cast<size_t>(top));
}

int64_t Histogram::MiddleOf(size_t step) {
  if (step < (size_t{2} << kStepBits)) return static_cast<int64_t>(step);
  const int octave = static_cast<int>(step >> kStepBits) - 1;
  const int64_t top = static_cast<int64_t>(step) - (int64_t{octave} << kStepBits);
  return (top << octave) + ((int64_t{1} << octave) - 1) / 2;
}

void Histogram::Add(int64_t ns) {
  ++counts_[StepOf(ns)];
  ++total_;
}

int64_t Histogram::Median() const {
  const uint64_t wanted = (total_ + 1) / 2;
  uint64_t seen = 0;
  for (size_t step = 0; step < kSteps; ++step) {
    seen += counts_[step];
    if (seen >= wanted && seen > 0) return MiddleOf(step);
  }
  return 0;
}

std::vector<DurationCount> Histogram::Counts() const {
  std::vector<DurationCount> found;
  for (size_t step = 0; step < kSteps; ++step) {
    if (counts_[step] > 0) found.push_back({MiddleOf(step), counts_[step]});
  }
  return found;
}

void Aggregator::Add(Ring& ring, const Record& record, const SiteTable& sites) {
  if (record.section != Section::kCall) {
    ++records_;
    AddOp(record, sites);
  } else if (record.kind == Kind::kExecution || record.kind == Kind::kCall) {
    ++records_;
    AddWall(ring, record);
  }
}

size_t Aggregator::NameOf(uint32_t site, const SiteTable& sites) {
  if (site >= names_by_site_.size()) names_by_site_.resize(sites.size());
  size_t& number = names_by_site_[site];
  if (number == 0) {
    const auto [it, added] = numbers_.emplace(sites[site].name, names_.size());
    if (added) names_.push_back(it->first);
    number = 1 + it->second;
  }
  return number - 1;
}

void Aggregator::AddOp(const Record& record, const SiteTable& sites) {
  const size_t name = NameOf(record.site, sites);
  const size_t index =
      name * kRowsPerName + static_cast<size_t>(record.phase) * kNumOpSections + static_cast<size_t>(record.section);
  if (index >= rows_.size()) rows_.resize((name + 1) * kRowsPerName);
  if (!rows_[index]) rows_[index] = std::make_unique<Row>();
  Row& row = *rows_[index];
  const int64_t ns = record.end_ns - record.start_ns;
  row.min_ns = row.count == 0 ? ns : std::min(row.min_ns, ns);
  row.max_ns = std::max(row.max_ns, ns);
  ++row.count;
  row.total_ns += ns;
  AddModelled(row.flops, sites[record.site].flops);
  AddModelled(row.bytes, sites[record.site].bytes);
  row.histogram.Add(ns);
  totals_[static_cast<size_t>(record.phase)].rows_ns += ns;
  const size_t place = size_t{record.site} * kNumPhases + static_cast<size_t>(record.phase);
  if (place >= site_sums_.size()) site_sums_.resize(sites.size() * kNumPhases);
  ++site_sums_[place].count;
  site_sums_[place].total_ns += ns;
}

// A call contains the executions of its graphs, and a compiled model may call another; only the outermost interval
// counts. An inner interval ends, and so is recorded, before the one around it on the same thread.
void Aggregator::AddWall(Ring& ring, const Record& record) {
  PhaseTotals& totals = totals_[static_cast<size_t>(record.phase)];
  if (record.kind == Kind::kExecution) {
    ++totals.executions;
    num_threads_ = std::max(num_threads_, static_cast<int>(record.value));
  }
  if (record.kind == Kind::kCall && record.event == kCallEvent) {  // a part of a model is no call of it
    ++totals.calls;
    calls_.Add(record.end_ns - record.start_ns);
    totals.tokens += record.value;
  }
  while (ring.num_wall_items > 0) {
    const Ring::WallItem& inner = ring.wall_items[ring.num_wall_items - 1];
    if (inner.start_ns < record.start_ns) break;
    totals_[static_cast<size_t>(inner.phase)].wall_ns -= inner.end_ns - inner.start_ns;
    --ring.num_wall_items;
  }
  if (ring.num_wall_items == Ring::kWallItems) {
    std::move(ring.wall_items + 1, ring.wall_items + Ring::kWallItems, ring.wall_items);
    --ring.num_wall_items;
  }
  ring.wall_items[ring.num_wall_items++] = {record.start_ns, record.end_ns, record.phase};
  totals.wall_ns += record.end_ns - record.start_ns;
}

void Aggregator::Clear() {
  rows_.clear();
  site_sums_.clear();
  totals_ = {};
  calls_ = {};
  num_threads_ = 0;
  records_ = 0;
}

void Aggregator::Fill(const SiteTable& sites, Summary& summary) const {
  summary.records = records_;
  summary.calls = calls_.Counts();
  if (num_threads_ > 0) summary.num_threads = num_threads_;
  for (size_t i = 0; i < totals_.size(); ++i) {
    PhaseTotals totals = totals_[i];
    totals.phase = static_cast<Phase>(i);
    totals.gap_ns = totals.wall_ns - totals.rows_ns;
    if (totals.calls + totals.executions > 0 || totals.rows_ns > 0) summary.phases.push_back(totals);
  }
  for (size_t index = 0; index < rows_.size(); ++index) {
    if (!rows_[index]) continue;
    const Row& row = *rows_[index];
    SummaryRow& out = summary.rows.emplace_back();
    out.name = names_[index / kRowsPerName];
    out.phase = static_cast<Phase>(index % kRowsPerName / kNumOpSections);
    out.section = static_cast<Section>(index % kNumOpSections);
    out.count = row.count;
    out.total_ns = row.total_ns;
    out.min_ns = row.min_ns;
    out.max_ns = row.max_ns;
    out.median_ns = std::clamp(row.histogram.Median(), row.min_ns, row.max_ns);
    out.flops = row.flops;
    out.bytes = row.bytes;
  }
  for (size_t place = 0; place < site_sums_.size(); ++place) {
    if (site_sums_[place].count == 0) continue;
    SiteRow& out = summary.sites.emplace_back();
    out.site = sites[static_cast<uint32_t>(place / kNumPhases)];
    out.phase = static_cast<Phase>(place % kNumPhases);
    out.count = site_sums_[place].count;
    out.total_ns = site_sums_[place].total_ns;
  }
  std::sort(summary.rows.begin(), summary.rows.end(), [](const SummaryRow& a, const SummaryRow& b) {
    return std::make_tuple(a.phase, a.section, -a.total_ns, std::string_view(a.name)) <
           std::make_tuple(b.phase, b.section, -b.total_ns, std::string_view(b.name));
  });
}

}  // namespace thresher::profile
