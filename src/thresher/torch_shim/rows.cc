#include "thresher/torch_shim/rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "thresher/torch_shim/engine.h"
#include "thresher/torch_shim/json.h"

namespace thresher::torch_shim {
namespace {

using libkineto::ActivityType;

// PyTorch numbers its operators from 1 and tells rows without an operator from operators by nothing but the number:
// ours must be others.
constexpr int32_t kFirstId = 1 << 30;

// Calls `visit` on each record that has at least the size of its kind in this version.
template <typename Visit>
void ForEachRecord(const std::vector<Buffer>& buffers, Visit visit) {
  const thresher_pti_api* api = Engine();
  for (const Buffer& buffer : buffers) {
    const thresher_pti_record* record = nullptr;
    while (api->next_record(buffer.bytes.get(), buffer.valid_size, &record) == THRESHER_PTI_OK) visit(*record);
  }
}

const thresher_pti_runtime* AsRuntime(const thresher_pti_record& record) {
  const bool fits = record.kind == THRESHER_PTI_KIND_RUNTIME && record.struct_size >= sizeof(thresher_pti_runtime);
  return fits ? reinterpret_cast<const thresher_pti_runtime*>(&record) : nullptr;
}

const thresher_pti_kernel* AsDevice(const thresher_pti_record& record) {
  const bool fits = (record.kind == THRESHER_PTI_KIND_KERNEL || record.kind == THRESHER_PTI_KIND_COPY) &&
                    record.struct_size >= sizeof(thresher_pti_kernel);
  return fits ? reinterpret_cast<const thresher_pti_kernel*>(&record) : nullptr;
}

ActivityType TypeOf(const thresher_pti_kernel& record) {
  if (record.header.kind == THRESHER_PTI_KIND_KERNEL) return ActivityType::CONCURRENT_KERNEL;
  const bool fill = std::strcmp(Engine()->event_name(record.event), "Memset") == 0;
  return fill ? ActivityType::GPU_MEMSET : ActivityType::GPU_MEMCPY;
}

const char* OrEmpty(const char* text) { return text != nullptr ? text : ""; }

void AddText(libkineto::GenericTraceActivity& row, const char* key, const char* text) {
  if (text != nullptr && *text != '\0') row.addMetadataQuoted(key, JsonSafe(text));
}

}  // namespace

RowWriter::RowWriter(const std::set<ActivityType>& wanted, const ClockMap& clock, Window window,
                     libkineto::getLinkedActivityCallback find_operator, libkineto::ActivityLogger& logger,
                     libkineto::CpuTraceBuffer& trace, Summary& summary)
    : wanted_(wanted),
      clock_(clock),
      window_(window),
      find_operator_(std::move(find_operator)),
      logger_(logger),
      trace_(trace),
      summary_(summary) {}

void RowWriter::Write(const std::vector<Buffer>& buffers) {
  CollectLaunches(buffers);
  ForEachRecord(buffers, [this](const thresher_pti_record& record) {
    if (const auto* runtime = AsRuntime(record)) {
      WriteRuntime(*runtime);
    } else if (const auto* device = AsDevice(record)) {
      WriteDevice(*device);
    }
  });
  WriteBars();
}

void RowWriter::CollectLaunches(const std::vector<Buffer>& buffers) {
  ForEachRecord(buffers, [this](const thresher_pti_record& record) {
    const auto* runtime = AsRuntime(record);
    if (runtime == nullptr || runtime->correlation == 0) return;
    Launch& launch = LaunchOf(runtime->correlation);
    launch.start_ns = runtime->start_ns;
    launch.seen = true;
  });
}

// Kineto's numbers have 32 bits, the engine's 64.
RowWriter::Launch& RowWriter::LaunchOf(uint64_t correlation) {
  const auto next = static_cast<int32_t>(kFirstId + launches_.size());
  return launches_.try_emplace(correlation, Launch{.id = next, .start_ns = 0, .seen = false}).first->second;
}

bool RowWriter::InWindow(int64_t start_ns, int64_t stop_ns) const {
  return start_ns >= window_.start_ns && stop_ns <= window_.stop_ns && start_ns <= stop_ns;
}

libkineto::GenericTraceActivity& RowWriter::NewRow(ActivityType type, std::string_view name, int64_t start_ns,
                                                   int64_t stop_ns) {
  trace_.emplace_activity(trace_.span, type, JsonSafe(name));
  libkineto::GenericTraceActivity& row = *trace_.activities.back();
  row.startTime = start_ns;
  row.endTime = stop_ns;
  return row;
}

const libkineto::ITraceActivity* RowWriter::Linked(uint32_t external_id, uint32_t user_id) const {
  const libkineto::ITraceActivity* linked = nullptr;
  if (external_id != 0) linked = find_operator_(static_cast<int32_t>(external_id));
  if (linked == nullptr && user_id != 0) linked = find_operator_(static_cast<int32_t>(user_id));
  return linked;
}

void RowWriter::WriteRuntime(const thresher_pti_runtime& record) {
  if (!wanted_.contains(ActivityType::PRIVATEUSE1_RUNTIME)) return;
  const int64_t start_ns = clock_.ToUnixNs(record.start_ns);
  const int64_t stop_ns = clock_.ToUnixNs(record.end_ns);
  if (!InWindow(start_ns, stop_ns)) {
    ++summary_.out_of_window;
    return;
  }
  auto& row = NewRow(ActivityType::PRIVATEUSE1_RUNTIME, OrEmpty(record.name), start_ns, stop_ns);
  row.device = libkineto::processId();
  row.resource = static_cast<int32_t>(record.thread);
  row.threadId = static_cast<int32_t>(record.thread);
  row.linked = Linked(record.external_id, record.user_id);
  if (record.correlation != 0) {
    row.id = LaunchOf(record.correlation).id;
    row.flow.id = static_cast<uint32_t>(row.id);
    row.flow.type = libkineto::kLinkAsyncCpuGpu;
    row.flow.start = 1;
    row.addMetadata("correlation", row.id);
  }
  AddText(row, "detail", record.detail);
  row.log(logger_);
  ++summary_.runtime;
}

void RowWriter::WriteDevice(const thresher_pti_kernel& record) {
  const ActivityType type = TypeOf(record);
  if (!wanted_.contains(type)) return;
  const int64_t start_ns = clock_.ToUnixNs(record.start_ns);
  const int64_t stop_ns = clock_.ToUnixNs(record.end_ns);
  if (!InWindow(start_ns, stop_ns)) {
    ++summary_.out_of_window;
    return;
  }
  const Launch& launch = LaunchOf(record.correlation);
  if (!launch.seen || record.start_ns < launch.start_ns) ++summary_.before_launch;
  auto& row = NewRow(type, OrEmpty(record.name), start_ns, stop_ns);
  row.id = launch.id;
  row.device = record.device;
  row.resource = static_cast<int32_t>(record.stream);
  row.linked = Linked(record.external_id, record.user_id);
  if (row.linked == nullptr) ++summary_.unlinked;
  if (launch.seen) {
    row.flow.id = static_cast<uint32_t>(row.id);
    row.flow.type = libkineto::kLinkAsyncCpuGpu;
    row.flow.start = 0;
  }
  Describe(record, type, row);
  row.log(logger_);
  streams_.insert(record.stream);
  ++trace_.gpuOpCount;
  ++(type == ActivityType::CONCURRENT_KERNEL ? summary_.kernels : summary_.copies);

  if (record.user_id == 0 || !wanted_.contains(ActivityType::GPU_USER_ANNOTATION)) return;
  const auto [bar, fresh] = bars_.try_emplace({record.user_id, record.stream});
  if (fresh) {
    const auto* annotation = find_operator_(static_cast<int32_t>(record.user_id));
    bar->second = {annotation != nullptr ? annotation->name() : "", start_ns, stop_ns};
  } else {
    bar->second.start_ns = std::min(bar->second.start_ns, start_ns);
    bar->second.stop_ns = std::max(bar->second.stop_ns, stop_ns);
  }
}

void RowWriter::Describe(const thresher_pti_kernel& record, ActivityType type,
                         libkineto::GenericTraceActivity& row) const {
  row.addMetadata("device", record.device);
  row.addMetadata("stream", record.stream);
  row.addMetadata("correlation", row.id);
  row.addMetadata("queued", clock_.ToUnixNs(record.queued_ns));
  row.addMetadata("submitted", clock_.ToUnixNs(record.submitted_ns));
  const bool knows_bytes = record.bytes >= 0 && record.bytes < 9e18;
  if (knows_bytes) row.addMetadata("bytes", static_cast<int64_t>(record.bytes));
  if (type == ActivityType::CONCURRENT_KERNEL) {
    if (record.flops >= 0 && record.flops < 9e18) row.addMetadata("flops", static_cast<int64_t>(record.flops));
  } else if (knows_bytes && record.end_ns > record.start_ns) {
    // Bytes in a nanosecond are gigabytes in a second.
    row.addMetadata("memory bandwidth (GB/s)", record.bytes / static_cast<double>(record.end_ns - record.start_ns));
  } else {
    row.addMetadataQuoted("memory bandwidth (GB/s)", "N/A");
  }
  AddText(row, "shapes", record.shapes);
  AddText(row, "dtypes", record.dtypes);
  AddText(row, "module", record.module);
  AddText(row, "source", record.source);
}

void RowWriter::WriteBars() {
  for (const auto& [key, bar] : bars_) {
    if (bar.name.empty()) continue;
    auto& row = NewRow(ActivityType::GPU_USER_ANNOTATION, bar.name, bar.start_ns, bar.stop_ns);
    row.id = static_cast<int32_t>(key.first);
    row.resource = static_cast<int32_t>(key.second);
    row.log(logger_);
    ++summary_.annotations;
  }
}

}  // namespace thresher::torch_shim
