// What a profile record can be about. The one list of event names: documentation and reports are made from it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace thresher::profile {

// What kind of interval a record covers.
enum class Kind : uint8_t {
  kOp = 0,         // one executed step of a plan: a launch on the host and a kernel on the device
  kExecution = 1,  // one run of a plan
  kCall = 2,       // one call of a compiled model, from its entry to its return
  kRuntime = 3,    // anything else that a host thread does
  kMemory = 4,     // memory obtained or given back, at one instant
  kRange = 5,      // what the user's program marked
  kStep = 6,       // from one mark between the steps of the user's program to the next
  kDevice = 7,     // what a device of its own does: a kernel, a copy or a fill; its launch is a kRuntime of its own
};

// Which section of the operator report an operator's time belongs to. kForward, kReshape and kAlloc have the values of
// thresher::Section (graph/operator.h). kCall is the section of everything that is not an operator.
enum class Section : uint8_t { kForward = 0, kReshape = 1, kAlloc = 2, kCall = 3 };

// Which part of a model's work: one banner of the report each.
enum class Phase : uint8_t { kInference = 0, kPrefill = 1, kDecode = 2 };

inline constexpr std::array<std::string_view, 8> kKindNames = {"op",     "execution", "call", "runtime",
                                                               "memory", "range",     "step", "device"};
inline constexpr std::array<std::string_view, 4> kSectionNames = {"forward", "reshape", "alloc", "call"};
inline constexpr std::array<std::string_view, 3> kPhaseNames = {"inference", "prefill", "decode"};

inline constexpr int kNumOpSections = 3;
inline constexpr int kNumPhases = 3;

constexpr std::string_view Name(Kind kind) { return kKindNames[static_cast<size_t>(kind)]; }
constexpr std::string_view Name(Section section) { return kSectionNames[static_cast<size_t>(section)]; }
constexpr std::string_view Name(Phase phase) { return kPhaseNames[static_cast<size_t>(phase)]; }

// Which part of the project emits an event. Only kEngine exists today; the others are names that traces reserve.
enum class Area : uint8_t {
  kEngine,
  kLanguageModels,
  kPreloading,
  kOtherDevices,
  kPlanFiles,
  kSeveralProcesses,
};
inline constexpr std::array<std::string_view, 6> kAreaNames = {"engine",        "language models", "preloading",
                                                               "other devices", "plan files",      "several processes"};
constexpr std::string_view Name(Area area) { return kAreaNames[static_cast<size_t>(area)]; }

// Which event of the engine an interval is, for time lines. The number is what a trace stores: append, never reorder.
struct Event {
  std::string_view name;
  Area area;
  std::string_view doc;
};

// Host events are prefixed as their readers expect them; hardware events are not.
inline constexpr std::array<Event, 45> kEvents = {{
    {"thresherCompileGraph", Area::kEngine, "A graph is turned into a plan: passes, kernel choice, memory plan"},
    {"thresherInitGraph", Area::kEngine, "A plan's first preparation for running: arena and packed weights"},
    {"thresherMalloc", Area::kEngine, "Memory is taken from the system"},
    {"thresherFree", Area::kEngine, "Memory is given back to the system"},
    {"thresherResizeTensor", Area::kLanguageModels, "A tensor gets another shape"},
    {"thresherGraphExecution", Area::kEngine, "One run of a plan"},
    {"thresherLaunchSubgraph", Area::kEngine, "A graph is entered: its plan is picked and its results get memory"},
    {"thresherSubgraphExecution", Area::kEngine,
     "One call of a compiled part of a model of which other parts run in PyTorch"},
    {"thresherLaunchKernels", Area::kEngine, "The kernels of a run are handed to the threads"},
    {"thresherNodeCompute", Area::kEngine, "One step of a plan is launched and waited for"},
    {"thresherDataConvert", Area::kEngine, "Data changes its type or layout, such as an input that is not row-major"},
    {"thresherInitScheduler", Area::kLanguageModels, "The request scheduler starts"},
    {"thresherLaunchSchedule", Area::kLanguageModels, "One round of the request scheduler"},
    {"thresherScheduleWait", Area::kLanguageModels, "The request scheduler waits for work"},
    {"thresherCreateBlockTable", Area::kLanguageModels, "The pages of a sequence are laid out"},
    {"thresherPrepareCopies", Area::kLanguageModels, "Copies between pages are gathered"},
    {"thresherPreloadCache", Area::kPreloading, "A cache is filled ahead of use"},
    {"thresherClearCache", Area::kEngine, "A cache is emptied"},
    {"thresherLaunchStream", Area::kEngine, "Work is handed to a device stream"},
    {"thresherDataTransferHtoD", Area::kEngine, "Copy from host to device"},
    {"thresherDataTransferDtoH", Area::kEngine, "Copy from device to host"},
    {"thresherFileTransferFtoM", Area::kPlanFiles, "Copy from file to memory"},
    {"thresherFileTransferMtoF", Area::kPlanFiles, "Copy from memory to file"},
    {"thresherFileTransferFtoD", Area::kOtherDevices, "Copy from file to device"},
    {"thresherFileTransferDtoF", Area::kOtherDevices, "Copy from device to file"},
    {"thresherClockCalibration", Area::kEngine, "The clocks of two devices are compared"},
    {"thresherBarrier1", Area::kEngine, "Several processes: all ranks have loaded their share of a model"},
    {"thresherBarrier2", Area::kSeveralProcesses, "Several processes: second barrier"},
    {"thresherBarrier3", Area::kSeveralProcesses, "Several processes: third barrier"},
    {"thresherPostKeys", Area::kSeveralProcesses, "Several processes: memory keys are published"},
    {"thresherFetchKeys", Area::kSeveralProcesses, "Several processes: memory keys are read"},
    {"thresherUpdateRemote", Area::kEngine, "Several processes: ranks add up or gather what each has computed"},
    {"thresherPrepareAndSyncRemote", Area::kEngine, "Several processes: rank 0 tells the others of a step"},
    {"thresherCheckDeadlock", Area::kSeveralProcesses, "Several processes: progress of the others is checked"},
    {"Kernel", Area::kEngine, "Hardware: one kernel, named by operator and kernel variant"},
    {"Memcpy", Area::kEngine, "Hardware: one copy"},
    {"Memset", Area::kEngine, "Hardware: one fill"},
    {"Memory (Allocation)", Area::kEngine, "Hardware: memory is reserved"},
    {"Memory (Release)", Area::kEngine, "Hardware: memory is given back"},
    {"thresherCall", Area::kEngine, "One call of a compiled model, from its entry to its return"},
    {"thresherRange", Area::kEngine, "What the program marked with record_function"},
    {"thresherStep", Area::kEngine, "From one call of step() to the next"},
    {"thresherFallback", Area::kEngine, "A graph or its operators run in PyTorch"},
    {"thresherCaptureGraph", Area::kEngine,
     "TorchDynamo traces a model, or makes code and guards of what was compiled"},
    {"thresherImportGraph", Area::kEngine,
     "A captured graph is made functional, checked and cut, or becomes the engine's"},
}};

inline constexpr uint16_t kCompileGraphEvent = 0;
inline constexpr uint16_t kInitGraphEvent = 1;
inline constexpr uint16_t kMallocEvent = 2;
inline constexpr uint16_t kFreeEvent = 3;
inline constexpr uint16_t kGraphExecutionEvent = 5;
inline constexpr uint16_t kLaunchSubgraphEvent = 6;
inline constexpr uint16_t kSubgraphExecutionEvent = 7;
inline constexpr uint16_t kLaunchKernelsEvent = 8;
inline constexpr uint16_t kNodeComputeEvent = 9;
inline constexpr uint16_t kDataConvertEvent = 10;
inline constexpr uint16_t kClearCacheEvent = 17;
inline constexpr uint16_t kLaunchStreamEvent = 18;
inline constexpr uint16_t kTransferToDeviceEvent = 19;
inline constexpr uint16_t kTransferToHostEvent = 20;
inline constexpr uint16_t kClockCalibrationEvent = 25;
inline constexpr uint16_t kUpdateRemoteEvent = 31;
inline constexpr uint16_t kKernelEvent = 34;
inline constexpr uint16_t kMemcpyEvent = 35;
inline constexpr uint16_t kMemsetEvent = 36;
inline constexpr uint16_t kAllocationEvent = 37;
inline constexpr uint16_t kReleaseEvent = 38;
inline constexpr uint16_t kCallEvent = 39;
inline constexpr uint16_t kRangeEvent = 40;
inline constexpr uint16_t kStepEvent = 41;
inline constexpr uint16_t kFallbackEvent = 42;

// Devices in records and in pti.h: 0 is the CPU, 1 + i the CUDA device i.
constexpr uint8_t CudaDevice(int index) { return static_cast<uint8_t>(1 + index); }
inline std::string DeviceName(uint8_t device) { return device == 0 ? "cpu" : "cuda:" + std::to_string(device - 1); }

// "Unknown event <n>" for a number this version does not know, such as one from a newer version's trace.
inline std::string EventName(uint32_t event) {
  return event < kEvents.size() ? std::string(kEvents[event].name) : "Unknown event " + std::to_string(event);
}

}  // namespace thresher::profile
