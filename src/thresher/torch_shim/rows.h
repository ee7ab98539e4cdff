// From the engine's records to Kineto's rows.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "thresher/pti.h"
#include "thresher/torch_shim/clock_map.h"
#include "thresher/torch_shim/collector.h"
#include "thresher/torch_shim/kineto.h"
#include "thresher/torch_shim/summary.h"

namespace thresher::torch_shim {

// PyTorch's window, in Unix nanoseconds.
struct Window {
  int64_t start_ns;
  int64_t stop_ns;
};

// Makes the rows of one session and logs them.
class RowWriter {
 public:
  // `wanted`: the types of rows that the profile was asked for. `summary` is counted up.
  RowWriter(const std::set<libkineto::ActivityType>& wanted, const ClockMap& clock, Window window,
            libkineto::getLinkedActivityCallback find_operator, libkineto::ActivityLogger& logger,
            libkineto::CpuTraceBuffer& trace, Summary& summary);

  void Write(const std::vector<Buffer>& buffers);

  // Streams that have rows, ascending.
  std::vector<int64_t> streams() const { return {streams_.begin(), streams_.end()}; }

 private:
  struct Launch {
    int32_t id;
    int64_t start_ns;
    bool seen;
  };
  struct Bar {
    std::string name;
    int64_t start_ns;
    int64_t stop_ns;
  };

  void CollectLaunches(const std::vector<Buffer>& buffers);
  Launch& LaunchOf(uint64_t correlation);
  bool InWindow(int64_t start_ns, int64_t stop_ns) const;
  void WriteRuntime(const thresher_pti_runtime& record);
  void WriteDevice(const thresher_pti_kernel& record);
  void WriteBars();
  void Describe(const thresher_pti_kernel& record, libkineto::ActivityType type,
                libkineto::GenericTraceActivity& row) const;
  // The operator or, where none was open, the user's annotation; null for neither.
  const libkineto::ITraceActivity* Linked(uint32_t external_id, uint32_t user_id) const;
  libkineto::GenericTraceActivity& NewRow(libkineto::ActivityType type, std::string_view name, int64_t start_ns,
                                          int64_t stop_ns);

  const std::set<libkineto::ActivityType>& wanted_;
  const ClockMap& clock_;
  const Window window_;
  const libkineto::getLinkedActivityCallback find_operator_;
  libkineto::ActivityLogger& logger_;
  libkineto::CpuTraceBuffer& trace_;
  Summary& summary_;
  std::unordered_map<uint64_t, Launch> launches_;
  std::map<std::pair<uint32_t, uint32_t>, Bar> bars_;  // by user annotation and stream
  std::set<int64_t> streams_;
};

}  // namespace thresher::torch_shim
