// One run of PyTorch's profiler: from start to stop, then the trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "thresher/torch_shim/clock_map.h"
#include "thresher/torch_shim/collector.h"
#include "thresher/torch_shim/kineto.h"
#include "thresher/torch_shim/summary.h"

namespace thresher::torch_shim {

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<libkineto::ActivityType> wanted);
  // Kineto may drop a session without stopping it.
  ~Session() override;

  void start() override;
  void stop() override;
  std::vector<std::string> errors() override;
  void processTrace(libkineto::ActivityLogger& logger) override;
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback find_operator,
                    int64_t start_ns, int64_t stop_ns) override;
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override;
  std::vector<libkineto::ResourceInfo> getResourceInfos() override;
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override;

  // Called on the thread of an operator or record_function, at its beginning and end.
  void pushCorrelationId(uint64_t id) override;
  void popCorrelationId() override;
  void pushUserCorrelationId(uint64_t id) override;
  void popUserCorrelationId() override;

  std::string getDeviceProperties() override;
  std::unordered_map<std::string, std::string> getMetadata() override;

 private:
  const std::set<libkineto::ActivityType> wanted_;
  // On the heap and given away as it is: every row holds the address of its span.
  std::unique_ptr<libkineto::CpuTraceBuffer> trace_;
  std::optional<ClockMap> clock_;
  Collected collected_;
  std::vector<int64_t> streams_;
  Summary summary_;
  std::atomic<bool> collecting_{false};  // operators of all threads ask
};

}  // namespace thresher::torch_shim
