"""Names of the engine's events by number, as src/thresher/profile/events.h lists them."""

from __future__ import annotations

EVENT_NAMES = (
    "thresherCompileGraph",
    "thresherInitGraph",
    "thresherMalloc",
    "thresherFree",
    "thresherResizeTensor",
    "thresherGraphExecution",
    "thresherLaunchSubgraph",
    "thresherSubgraphExecution",
    "thresherLaunchKernels",
    "thresherNodeCompute",
    "thresherDataConvert",
    "thresherInitScheduler",
    "thresherLaunchSchedule",
    "thresherScheduleWait",
    "thresherCreateBlockTable",
    "thresherPrepareCopies",
    "thresherPreloadCache",
    "thresherClearCache",
    "thresherLaunchStream",
    "thresherDataTransferHtoD",
    "thresherDataTransferDtoH",
    "thresherFileTransferFtoM",
    "thresherFileTransferMtoF",
    "thresherFileTransferFtoD",
    "thresherFileTransferDtoF",
    "thresherClockCalibration",
    "thresherBarrier1",
    "thresherBarrier2",
    "thresherBarrier3",
    "thresherPostKeys",
    "thresherFetchKeys",
    "thresherUpdateRemote",
    "thresherPrepareAndSyncRemote",
    "thresherCheckDeadlock",
    "Kernel",
    "Memcpy",
    "Memset",
    "Memory (Allocation)",
    "Memory (Release)",
    "thresherCall",
    "thresherRange",
    "thresherStep",
    "thresherFallback",
    "thresherCaptureGraph",
    "thresherImportGraph",
)

COMPILE_GRAPH = 0
INIT_GRAPH = 1
GRAPH_EXECUTION = 5
SUBGRAPH_EXECUTION = 7
NODE_COMPUTE = 9
BARRIER_1 = 26
UPDATE_REMOTE = 31
KERNEL = 34
MEMCPY = 35
MEMSET = 36
ALLOCATION = 37
RELEASE = 38
CALL = 39
FALLBACK = 42
UNKNOWN = 0xFFFF

NUMBERS = {name: number for number, name in enumerate(EVENT_NAMES)}


def event_name(number: int) -> str:
    """The name of an event; "Unknown event <n>" for one that this version does not know."""
    return EVENT_NAMES[number] if 0 <= number < len(EVENT_NAMES) else f"Unknown event {number}"
