#include "thresher/torch_shim/session.h"

#include <limits>
#include <utility>

#include "thresher/torch_shim/engine.h"
#include "thresher/torch_shim/rows.h"

namespace thresher::torch_shim {
namespace {

constexpr char kDeviceName[] = "thresher:0";

}  // namespace

Session::Session(std::set<libkineto::ActivityType> wanted)
    : wanted_(std::move(wanted)), trace_(std::make_unique<libkineto::CpuTraceBuffer>()) {
  trace_->gpuOpCount = 0;
}

Session::~Session() {
  if (collecting_) collector::Stop();
}

void Session::start() {
  summary_ = BeginSession();
  summary_.error = collector::Start();
  collecting_ = summary_.error.empty();
  if (collecting_) clock_.emplace(Engine()->timestamp_ns);
  StoreSession(summary_);
  status_ = libkineto::TraceStatus::RECORDING;
}

void Session::stop() {
  status_ = libkineto::TraceStatus::PROCESSING;
  if (!collecting_.exchange(false)) return;
  collected_ = collector::Stop();
  clock_->Stop();
  summary_.dropped = collected_.dropped;
  summary_.memory = MemoryEvents();
  StoreSession(summary_);
}

std::vector<std::string> Session::errors() {
  return summary_.error.empty() ? std::vector<std::string>{} : std::vector{"thresher: " + summary_.error};
}

void Session::processTrace(libkineto::ActivityLogger& logger) {
  const auto find_nothing = [](int32_t) -> const libkineto::ITraceActivity* { return nullptr; };
  processTrace(logger, find_nothing, 0, std::numeric_limits<int64_t>::max());
}

void Session::processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback find_operator,
                           int64_t start_ns, int64_t stop_ns) {
  trace_->span = libkineto::TraceSpan(start_ns, stop_ns, "thresher");
  summary_.start_ns = start_ns;
  summary_.stop_ns = stop_ns;
  if (clock_) {
    RowWriter writer(wanted_, *clock_, {start_ns, stop_ns}, std::move(find_operator), logger, *trace_, summary_);
    writer.Write(collected_.buffers);
    streams_ = writer.streams();
    collected_.buffers.clear();
  }
  summary_.finished = true;
  StoreSession(summary_);
}

std::unique_ptr<libkineto::DeviceInfo> Session::getDeviceInfo() {
  // Below all host processes, whose numbers are smaller.
  return std::unique_ptr<libkineto::DeviceInfo>(new libkineto::DeviceInfo{
      .id = 0, .sortIndex = libkineto::kExceedMaxPid, .name = "thresher", .label = kDeviceName});
}

std::vector<libkineto::ResourceInfo> Session::getResourceInfos() {
  std::vector<libkineto::ResourceInfo> infos;
  for (const int64_t stream : streams_) {
    infos.push_back({.id = stream, .sortIndex = stream, .deviceId = 0, .name = "stream " + std::to_string(stream)});
  }
  return infos;
}

std::unique_ptr<libkineto::CpuTraceBuffer> Session::getTraceBuffer() { return std::move(trace_); }

void Session::pushCorrelationId(uint64_t id) {
  if (collecting_) Engine()->push_external_id(THRESHER_PTI_ID_OPERATOR, static_cast<uint32_t>(id));
}

void Session::popCorrelationId() {
  if (collecting_) Engine()->pop_external_id(THRESHER_PTI_ID_OPERATOR);
}

void Session::pushUserCorrelationId(uint64_t id) {
  if (collecting_) Engine()->push_external_id(THRESHER_PTI_ID_USER, static_cast<uint32_t>(id));
}

void Session::popUserCorrelationId() {
  if (collecting_) Engine()->pop_external_id(THRESHER_PTI_ID_USER);
}

std::string Session::getDeviceProperties() {
  // The engine's object, led by what every reader of such traces looks for.
  const std::string properties = Engine()->device_properties();
  const size_t brace = properties.find('{');
  std::string json = std::string(R"({"id": 0, "name": ")") + kDeviceName + '"';
  if (brace == std::string::npos) return json + '}';
  const size_t member = properties.find_first_not_of(" \t\n", brace + 1);
  const bool has_members = member != std::string::npos && properties[member] != '}';
  return json + (has_members ? ", " : "") + properties.substr(brace + 1);
}

std::unordered_map<std::string, std::string> Session::getMetadata() {
  return {{"thresher_dropped", std::to_string(summary_.dropped)}};
}

}  // namespace thresher::torch_shim
