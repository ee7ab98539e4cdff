#include "thresher/base/clock.h"
#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"
#include "thresher/profile/memory.h"
#include "thresher/profile/nvtx.h"
#include "thresher/profile/profiler.h"
#include "thresher/profile/rank.h"
#include "thresher/profile/trace_file.h"
#include "thresher/pti.h"
#include "thresher/run/device_library.h"

namespace thresher::bindings {
namespace {

// What a function gives that may not hold the interpreter's lock.
template <class Function>
auto Released(Function function) {
  const GilRelease release;
  return function();
}

nb::list Records() {
  const std::vector<profile::PlacedRecord> placed = Released([] { return profile::Records(); });
  nb::list records;
  for (const auto& [r, site] : placed) {
    nb::dict entry;
    entry["kind"] = std::string(profile::Name(r.kind));
    entry["event"] = profile::EventName(r.event);
    entry["section"] = std::string(profile::Name(r.section));
    entry["phase"] = std::string(profile::Name(r.phase));
    entry["name"] = site.name;
    entry["kernel"] = site.kernel;
    entry["shapes"] = site.shapes;
    entry["dtypes"] = site.dtypes;
    entry["module"] = site.module;
    entry["source"] = site.source;
    entry["start_ns"] = r.start_ns;
    entry["end_ns"] = r.end_ns;
    entry["flops"] = site.flops;
    entry["bytes"] = site.bytes;
    entry["execution"] = r.execution;
    entry["correlation"] = r.correlation;
    entry["value"] = r.value;
    entry["thread"] = r.thread;
    entry["lane"] = r.lane;
    entry["device"] = r.device;
    records.append(entry);
  }
  return records;
}

nb::list Events() {
  nb::list events;
  for (size_t i = 0; i < profile::kEvents.size(); ++i) {
    nb::dict entry;
    entry["number"] = i;
    entry["name"] = std::string(profile::kEvents[i].name);
    entry["area"] = std::string(profile::Name(profile::kEvents[i].area));
    entry["doc"] = std::string(profile::kEvents[i].doc);
    events.append(entry);
  }
  return events;
}

nb::dict ToPython(const profile::TraceStatus& status) {
  nb::dict entry;
  entry["running"] = status.running;
  entry["path"] = status.path;
  entry["records"] = status.records;
  entry["dropped"] = status.dropped;
  entry["bytes"] = status.bytes;
  entry["problem"] = status.problem;
  return entry;
}

uint32_t NumberOf(const std::string& name, const std::string& section) {
  profile::Site site;
  site.name = name;
  for (size_t i = 0; i < profile::kSectionNames.size(); ++i) {
    if (profile::kSectionNames[i] == section) site.section = static_cast<profile::Section>(i);
  }
  const GilRelease release;
  return profile::NumberOf(std::move(site));
}

// Kinds of intervals that Python records, by event.
profile::Kind KindOf(uint16_t event) {
  switch (event) {
    case profile::kCallEvent:
    case profile::kSubgraphExecutionEvent:
      return profile::Kind::kCall;
    case profile::kRangeEvent:
      return profile::Kind::kRange;
    case profile::kStepEvent:
      return profile::Kind::kStep;
    default:
      return profile::Kind::kRuntime;
  }
}

// An interval on the calling thread, from `start_ns` until now.
void RecordEvent(uint16_t event, uint32_t site, int64_t start_ns, int64_t value) {
  if (!profile::Enabled()) return;
  profile::Record record;
  record.start_ns = start_ns;
  record.end_ns = NowNs();
  record.kind = KindOf(event);
  record.event = event;
  record.site = site;
  record.section = profile::SiteOf(site).section;
  record.value = value;
  profile::Add(record);
}

void SetPhase(const std::string& name) {
  for (size_t i = 0; i < profile::kPhaseNames.size(); ++i) {
    if (profile::kPhaseNames[i] == name) return profile::SetPhase(static_cast<profile::Phase>(i));
  }
  throw nb::value_error(("expected a phase of inference, prefill, decode, got '" + name + "'").c_str());
}

nb::dict Summarize() {
  const profile::Summary summary = Released([] { return profile::Summarize(); });
  nb::list phases, rows;
  for (const profile::PhaseTotals& totals : summary.phases) {
    nb::dict entry;
    entry["phase"] = std::string(profile::Name(totals.phase));
    entry["calls"] = totals.calls;
    entry["executions"] = totals.executions;
    entry["tokens"] = totals.tokens;
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
  nb::list sites;
  for (const profile::SiteRow& row : summary.sites) {
    nb::dict entry;
    entry["phase"] = std::string(profile::Name(row.phase));
    entry["section"] = std::string(profile::Name(row.site.section));
    entry["name"] = row.site.name;
    entry["kernel"] = row.site.kernel;
    entry["shapes"] = row.site.shapes;
    entry["dtypes"] = row.site.dtypes;
    entry["precision"] = row.site.precision;
    entry["module"] = row.site.module;
    entry["source"] = row.site.source;
    entry["flops"] = row.site.flops;
    entry["bytes"] = row.site.bytes;
    entry["count"] = row.count;
    entry["total_ns"] = row.total_ns;
    sites.append(entry);
  }
  nb::list calls;
  for (const profile::DurationCount& step : summary.calls) calls.append(nb::make_tuple(step.ns, step.count));
  nb::dict result;
  result["enabled"] = summary.enabled;
  result["rank"] = summary.rank;
  result["isa"] = summary.isa;
  result["num_threads"] = summary.num_threads;
  result["cpu"] = summary.cpu;
  result["records"] = summary.records;
  result["dropped"] = summary.dropped;
  result["overwritten"] = summary.overwritten;
  result["calls"] = calls;
  result["phases"] = phases;
  result["rows"] = rows;
  result["sites"] = sites;
  return result;
}

}  // namespace

void BindProfile(nb::module_& m) {
  // None of these may hold the interpreter's lock: a tool's callbacks may be waiting for it (pti.h).
  using Release = nb::call_guard<GilRelease>;
  m.def("profile_start", &profile::Start, Release());
  m.def(
      "profile_stop",
      [] {
        WaitForRecords();
        profile::Stop();
        ReleaseExactTimes();
      },
      Release());
  m.def("profile_reset", &profile::Reset, Release());
  m.def("profile_started", &profile::Started, "Whether the sums of the operator report are kept.");
  m.def("profile_enabled", &profile::Enabled, "Whether anybody wants records.");
  m.def("profile_dropped", &profile::Dropped);
  m.def("profile_records", &Records, nb::sig("def profile_records() -> list[dict[str, object]]"),
        "The newest records of every thread, one dict each.");
  m.def("profile_events", &Events, nb::sig("def profile_events() -> list[dict[str, object]]"),
        "Every kind of event: number, name, area (\"engine\": exists today) and doc.");
  m.def(
      "profile_rank",
      [](int rank, int size) {
        if (size < 1 || rank < 0 || rank >= size) {
          throw nb::value_error(
              ("expected a rank below their number, got " + std::to_string(rank) + " of " + std::to_string(size))
                  .c_str());
        }
        profile::SetRank(rank, size);
      },
      nb::arg("rank"), nb::arg("size"),
      "Which process this is, in reports and traces, among those that run one model together.");
  m.def("profile_site", &NumberOf, nb::arg("name"), nb::arg("section") = "call",
        "The number of a place, for profile_event().");
  m.def("profile_event", &RecordEvent, nb::arg("event"), nb::arg("site"), nb::arg("start_ns"), nb::arg("value") = 0,
        "Records an interval on the calling thread, from start_ns until now; of a call, value is its tokens.");
  m.def("profile_phase", &SetPhase, nb::arg("name"),
        "The phase of what the calling thread records from now on: inference, prefill or decode.");
  m.def(
      "device_times",
      [] {
        const TimesOfRecords times = HowRecordsAreTimed();
        nb::dict entry;
        entry["exact"] = times.exact;
        entry["obstacle"] = times.obstacle;
        return entry;
      },
      nb::sig("def device_times() -> dict[str, typing.Any]"),
      "Whether the last records of devices have exact times (CUPTI), else why they are those of events.");
  m.def("nvtx_listening", &profile::nvtx::Listening, "Whether a tool takes NVTX ranges.");
  m.def(
      "nvtx_push", [](const std::string& name) { profile::nvtx::Push(name.c_str()); }, nb::arg("name"),
      "Begins an NVTX range on the calling thread.");
  m.def("nvtx_pop", &profile::nvtx::Pop, "Ends the last one.");
  m.def(
      "trace_start",
      [](const std::string& path, int64_t max_bytes) {
        Check(Released([&] { return profile::StartTrace({path, max_bytes}); }));
      },
      nb::arg("path"), nb::arg("max_bytes"), "Starts a trace into a new file, or in memory if path is empty.");
  m.def(
      "trace_stop",
      [] {
        return ToPython(Released([] {
          WaitForRecords();
          const profile::TraceStatus status = profile::StopTrace();
          ReleaseExactTimes();
          return status;
        }));
      },
      nb::sig("def trace_stop() -> dict[str, object]"));
  m.def(
      "trace_status", [] { return ToPython(Released([] { return profile::GetTraceStatus(); })); },
      nb::sig("def trace_status() -> dict[str, object]"));
  m.def(
      "trace_annotate",
      [](const std::string& json_object) { Check(Released([&] { return profile::AnnotateTrace(json_object); })); },
      nb::arg("json_object"), "Adds a JSON object to what the running trace tells about itself.");
  m.def(
      "trace_save", [](const std::string& path) { Check(Released([&] { return profile::SaveTrace(path); })); },
      nb::arg("path"), "Writes what the trace holds so far to a new file.");
  m.def(
      "allocated_bytes", [] { return profile::AllocatedBytes(); },
      "Memory that the engine holds for plans and packed weights.");
  m.def(
      "pti_api", [](uint32_t version) { return reinterpret_cast<uintptr_t>(thresher_pti_get_api(version)); },
      nb::arg("version"), "Address of the functions of pti.h; 0 if this engine does not know that version.");
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
