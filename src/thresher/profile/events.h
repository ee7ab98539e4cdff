// What a profile record can be about. The one list of event names: documentation and reports are made from it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace thresher::profile {

// What kind of interval a record covers.
enum class Kind : uint8_t {
  kOp = 0,         // one executed step of a plan
  kExecution = 1,  // one run of a plan
  kCall = 2,       // one call of a compiled model, from its entry to its return
};

// Which section of the operator report an operator's time belongs to. kForward, kReshape and kAlloc have the values of
// thresher::Section (graph/operator.h). kCall is the section of everything that is not an operator.
enum class Section : uint8_t { kForward = 0, kReshape = 1, kAlloc = 2, kCall = 3 };

// Which part of a model's work: one banner of the report each.
enum class Phase : uint8_t { kInference = 0, kPrefill = 1, kDecode = 2 };

inline constexpr std::array<std::string_view, 3> kKindNames = {"op", "execution", "call"};
inline constexpr std::array<std::string_view, 4> kSectionNames = {"forward", "reshape", "alloc", "call"};
inline constexpr std::array<std::string_view, 3> kPhaseNames = {"inference", "prefill", "decode"};

inline constexpr int kNumOpSections = 3;
inline constexpr int kNumPhases = 3;

constexpr std::string_view Name(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }
constexpr std::string_view Name(Section section) { return kSectionNames[static_cast<size_t>(section)]; }
constexpr std::string_view Name(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

// Which event of the engine an interval is, for time lines. The number is what a trace stores: append, never reorder.
struct Event {
  std::string_view name;
  std::string_view doc;
};

// Host events are prefixed as their readers expect them; hardware events are not.
inline constexpr std::array<Event, 40> kEvents = {{
    {"thresherCompileGraph", "A graph is turned into a plan: passes, kernel choice, memory plan"},
    {"thresherInitGraph", "A plan's first preparation for running: arena and packed weights"},
    {"thresherMalloc", "Memory is taken from the system"},
    {"thresherFree", "Memory is given back to the system"},
    {"thresherResizeTensor", "A tensor gets another shape"},
    {"thresherGraphExecution", "One run of a plan"},
    {"thresherLaunchSubgraph", "A supported part of a larger model is entered"},
    {"thresherSubgraphExecution", "A supported part of a larger model runs"},
    {"thresherLaunchKernels", "The kernels of one step are handed to the threads"},
    {"thresherNodeCompute", "One step of a plan runs"},
    {"thresherDataConvert", "Data changes its type or layout"},
    {"thresherInitScheduler", "The request scheduler starts"},
    {"thresherLaunchSchedule", "One round of the request scheduler"},
    {"thresherScheduleWait", "The request scheduler waits for work"},
    {"thresherCreateBlockTable", "The pages of a sequence are laid out"},
    {"thresherPrepareCopies", "Copies between pages are gathered"},
    {"thresherPreloadCache", "A cache is filled ahead of use"},
    {"thresherClearCache", "A cache is emptied"},
    {"thresherLaunchStream", "Work is handed to a device stream"},
    {"thresherDataTransferHtoD", "Copy from host to device"},
    {"thresherDataTransferDtoH", "Copy from device to host"},
    {"thresherFileTransferFtoM", "Copy from file to memory"},
    {"thresherFileTransferMtoF", "Copy from memory to file"},
    {"thresherFileTransferFtoD", "Copy from file to device"},
    {"thresherFileTransferDtoF", "Copy from device to file"},
    {"thresherClockCalibration", "The clocks of two devices are compared"},
    {"thresherBarrier1", "Several processes: first barrier"},
    {"thresherBarrier2", "Several processes: second barrier"},
    {"thresherBarrier3", "Several processes: third barrier"},
    {"thresherPostKeys", "Several processes: memory keys are published"},
    {"thresherFetchKeys", "Several processes: memory keys are read"},
    {"thresherUpdateRemote", "Several processes: remote memory is written"},
    {"thresherPrepareAndSyncRemote", "Several processes: remote memory is prepared and agreed on"},
    {"thresherCheckDeadlock", "Several processes: progress of the others is checked"},
    {"Kernel", "Hardware: one kernel, named by operator and kernel variant"},
    {"Memcpy", "Hardware: one copy"},
    {"Memset", "Hardware: one fill"},
    {"Memory (Allocation)", "Hardware: memory is reserved"},
    {"Memory (Release)", "Hardware: memory is given back"},
    {"thresherCall", "One call of a compiled model, from its entry to its return"},
}};

inline constexpr uint16_t kGraphExecutionEvent = 5;
inline constexpr uint16_t kNodeComputeEvent = 9;
inline constexpr uint16_t kCallEvent = 39;

// The event that records of this kind are.
constexpr uint16_t EventOf(Kind kind) {
  switch (kind) {
    case Kind::kOp:
      return kNodeComputeEvent;
    case Kind::kExecution:
      return kGraphExecutionEvent;
    case Kind::kCall:
      return kCallEvent;
  }
  return kNodeComputeEvent;
}

// "Unknown event <n>" for a number this version does not know, such as one from a newer version's trace.
inline std::string EventName(uint32_t event) {
  return event < kEvents.size() ? std::string(kEvents[event].name) : "Unknown event " + std::to_string(event);
}

}  // namespace thresher::profile
