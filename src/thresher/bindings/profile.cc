#include "thresher/base/clock.h"
#include "thresher/bindings/convert.h"
#include "thresher/bindings/module.h"
#include "thresher/profile/profiler.h"

namespace thresher::bindings {
namespace {

nb::list Records() {
  nb::list records;
  for (const profile::NamedRecord& named : profile::Records()) {
    const profile::Record& r = named.record;
    nb::dict entry;
    entry["kind"] = std::string(profile::Name(r.kind));
    entry["section"] = std::string(profile::Name(r.section));
    entry["phase"] = std::string(profile::Name(r.phase));
    entry["name"] = named.name;
    entry["detail"] = named.detail;
    entry["start_ns"] = r.start_ns;
    entry["end_ns"] = r.end_ns;
    entry["flops"] = r.flops;
    entry["bytes"] = r.bytes;
    entry["execution"] = r.execution;
    entry["thread"] = r.thread;
    records.append(entry);
  }
  return records;
}

nb::dict Summarize() {
  const profile::Summary summary = profile::Summarize();
  nb::list phases, rows;
  for (const profile::PhaseTotals& totals : summary.phases) {
    nb::dict entry;
    entry["phase"] = std::string(profile::Name(totals.phase));
    entry["calls"] = totals.calls;
    entry["executions"] = totals.executions;
    entry["wall_ns"] = totals.wall_ns;
    entry["rows_ns"] = totals.rows_ns;
    entry["gap_ns"] = totals.gap_ns;
    phases.append(entry);
  }
  for (const profile::SummaryRow& row : summary.rows) {
    nb::dict entry;
    entry["phase"] = std::string(profile::Name(row.phase));
    entry["section"] = std::string(profile::Name(row.section));
    entry["name"] = row.name;
    entry["count"] = row.count;
    entry["total_ns"] = row.total_ns;
    entry["min_ns"] = row.min_ns;
    entry["max_ns"] = row.max_ns;
    entry["median_ns"] = row.median_ns;
    entry["flops"] = row.flops;
    entry["bytes"] = row.bytes;
    rows.append(entry);
  }
  nb::dict result;
  result["enabled"] = summary.enabled;
  result["rank"] = summary.rank;
  result["isa"] = summary.isa;
  result["num_threads"] = summary.num_threads;
  result["cpu"] = summary.cpu;
  result["records"] = summary.records;
  result["dropped"] = summary.dropped;
  result["overwritten"] = summary.overwritten;
  result["phases"] = phases;
  result["rows"] = rows;
  return result;
}

}  // namespace

void BindProfile(nb::module_& m) {
  m.def("profile_start", &profile::Start);
  m.def("profile_stop", &profile::Stop);
  m.def("profile_reset", &profile::Reset);
  m.def("profile_enabled", &profile::Enabled);
  m.def("profile_dropped", &profile::Dropped);
  m.def("profile_records", &Records, nb::sig("def profile_records() -> list[dict[str, object]]"),
        "The newest records of every thread, one dict each.");
  m.def("profile_summary", &Summarize, nb::sig("def profile_summary() -> dict[str, object]"),
        "Sums over all records since the start or the last reset.");
  m.def("profile_now_ns", &NowNs, "Nanoseconds since the Unix epoch on the profiler's clock.");
  m.def(
      "profile_record",
      [](const std::string& section, const std::string& name, int64_t start_ns, int64_t end_ns) {
        Check(profile::AddInterval(section, name, start_ns, end_ns));
      },
      nb::arg("section"), nb::arg("name"), nb::arg("start_ns"), nb::arg("end_ns"));
}

}  // namespace thresher::bindings
