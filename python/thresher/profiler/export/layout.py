"""What the writers of traces share: processes and threads, lanes without overlaps, arrows, arguments of an event."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from thresher.profiler.trace import Category

if TYPE_CHECKING:
    import numpy.typing as npt

    from thresher.profiler.trace import Lane, Site, Trace

_CHUNK = 1 << 16
_COLUMNS = (
    *("start_ns", "dur_ns", "name", "category", "lane", "event"),
    *("site", "correlation", "external", "user", "value", "execution"),
)
_NEXT_ROW = 1_000_000  # further rows of a thread are shown as threads with numbers that no system gives
_MEMSET_EVENT = 36
_PRIVATE_USE_1 = 20  # c10::DeviceType of a device that PyTorch was not built with
_STEP = re.compile(r"Step#(\d+)")
_DEVICE_KINDS = (Category.KERNEL, Category.COPY, Category.COMMUNICATION)
_HOST_LABELS = {
    Category.COMMUNICATION: "cpu_op",
    Category.RUNTIME: "privateuse1_runtime",
    Category.HOST: "cpu_op",
    Category.ANNOTATION: "user_annotation",
    Category.CALL: "privateuse1_runtime",
    Category.EXECUTION: "privateuse1_runtime",
    Category.STEP: "user_annotation",
    Category.MEMORY: "cpu_instant_event",
    Category.PYTHON: "python_function",
    Category.OTHER: "overhead",
}


@dataclass(frozen=True)
class Track:
    """One row of a time line; its events nest.

    Attributes:
        lane: The lane of the trace that it shows.
        row: 0; 1 and more for events of that lane that overlap others without lying inside them.
        pid: Process, or for hardware the number of the device.
        tid: Thread, or the number of the stream; unique within `pid`.
        name: What a person reads.
        process: Name of the process or the device.
        is_device: Whether it shows hardware.
    """

    lane: int
    row: int
    pid: int
    tid: int
    name: str
    process: str
    is_device: bool


class Entry(NamedTuple):
    """One event, ready to be written.

    Attributes:
        start_ns: Start, in ns since the Unix epoch.
        dur_ns: How long it took.
        name: Index into `Layout.names`.
        label: Its category as torch.profiler calls it.
        category: Its category.
        track: Index into `Layout.tracks`.
        site: Number of its site, -1 for none.
        correlation: What links a launch to its kernel, 0 for nothing.
        external: The PyTorch operator that it belongs to, 0 for none.
        user: The record_function that it belongs to, 0 for none.
        value: Bytes, for memory.
        execution: Number of the plan's run; for memory the address.
        is_launch: An arrow begins here.
        is_launched: An arrow ends here.
    """

    start_ns: int
    dur_ns: int
    name: int
    label: str
    category: int
    track: int
    site: int
    correlation: int
    external: int
    user: int
    value: int
    execution: int
    is_launch: bool
    is_launched: bool


class Layout:
    """A trace prepared for writing.

    Attributes:
        trace: The trace.
        base_ns: Start of its first event, in ns since the Unix epoch.
        names: Names of the events, as torch.profiler would write them.
        tracks: The rows of the time line that `entries` has named so far.
    """

    def __init__(self, trace: Trace) -> None:
        """Prepares a trace."""
        self.trace = trace
        self.base_ns = min((int(part["start_ns"].min()) for part in self._parts()), default=0)
        # What reads traces of PyTorch finds the steps by this name.
        self.names = [f"ProfilerStep#{m[1]}" if (m := _STEP.fullmatch(name)) else name for name in trace.names]
        self.tracks: list[Track] = []
        self._places: dict[tuple[int, int], int] = {}
        self._taken: set[tuple[int, int]] = set()
        self._lanes = {lane.index: lane for lane in trace.lanes}
        hosts = {lane.pid for lane in trace.lanes if lane.kind != "device"}
        free = (number for number in itertools.count() if number not in hosts)
        devices = sorted({_device_name(lane) for lane in trace.lanes if lane.kind == "device"})
        self._device_pids = dict(zip(devices, free, strict=False))
        for lane in trace.lanes:  # the lanes themselves keep their numbers
            self._place(lane.index, 0)

    @property
    def device_pids(self) -> dict[str, int]:
        """The number of each device by its name."""
        return dict(self._device_pids)

    def entries(self) -> Iterator[Entry]:
        """All events, also those that a sampled trace does not hold in memory.

        By start, and of two that start together the longer first; a trace that is too large for memory comes in
        pieces that are sorted each by itself.
        """
        labels = _Labels(self.trace)
        for events in self._parts():
            order = _outer_first(events)
            rows = _rows_of(events, order)
            launch, launched = _arrows(events)
            for begin in range(0, len(events), _CHUNK):
                chosen = order[begin : begin + _CHUNK]
                part = events[chosen]
                columns = zip(
                    *(part[name].tolist() for name in _COLUMNS),
                    *(flags[chosen].tolist() for flags in (rows, launch, launched)),
                    strict=True,
                )
                for (
                    start,
                    dur,
                    name,
                    category,
                    lane,
                    event,
                    site,
                    corr,
                    ext,
                    user,
                    value,
                    run,
                    row,
                    out,
                    into,
                ) in columns:
                    label = labels.of(category, lane, event, name)
                    track = self._place(lane, row)
                    yield Entry(start, dur, name, label, category, track, site, corr, ext, user, value, run, out, into)

    def arguments(self, entry: Entry) -> dict[str, Any]:
        """What is known of one event alone; what its site knows is in `site_arguments`."""
        track = self.tracks[entry.track]
        if entry.category == Category.MEMORY:
            return self._memory_arguments(entry, track)
        found: dict[str, Any] = {}
        if entry.external:
            found["External id"] = entry.external
        if track.is_device:
            found["device"] = track.pid
            found["stream"] = self._lanes[track.lane].tid
        if entry.correlation:
            found["correlation"] = entry.correlation
        if entry.user:
            found["User id"] = entry.user
        if entry.execution:
            found["execution"] = entry.execution
        if entry.category == Category.COPY:
            site = self.trace.sites.get(entry.site)
            moved = None if site is None else known(site.bytes)
            speed = "N/A" if moved is None or entry.dur_ns <= 0 else round(moved / entry.dur_ns, 3)
            found["memory bandwidth (GB/s)"] = speed
        return found

    def site_arguments(self, site: Site, *, is_operator: bool) -> dict[str, Any]:
        """What is known of a place in a model.

        Args:
            site: The place.
            is_operator: Whether the event is an operator of PyTorch, whose shapes have names of their own.
        """
        found: dict[str, Any] = {"operator": site.name} if site.kernel and site.name != site.kernel else {}
        dims = _dimensions(site.shapes) if is_operator and site.shapes else None
        if dims is not None:
            found["Input Dims"] = dims
        elif site.shapes:
            found["shapes"] = site.shapes
        if site.dtypes:
            found["Input type" if is_operator else "dtypes"] = site.dtypes.split(", ") if is_operator else site.dtypes
        texts = ("outputs", "kernel", "precision", "section", "module", "source", "graph")
        found |= {name: value for name in texts if (value := getattr(site, name))}
        for name in ("flops", "bytes"):
            value = known(getattr(site, name))
            if value is not None:
                found[name] = int(value) if value.is_integer() else value
        return found

    def _memory_arguments(self, entry: Entry, track: Track) -> dict[str, Any]:
        found: dict[str, Any] = {"Bytes": entry.value, "Addr": entry.execution, "Total Allocated": entry.correlation}
        native = self.trace.meta.get("format") == "native"
        if not native:
            # The reader keeps the bytes reserved in the two numbers that memory events do not need.
            found["Total Reserved"] = entry.external | entry.user << 32
        on_device = native or track.is_device
        return {**found, "Device Id": 0 if on_device else -1, "Device Type": _PRIVATE_USE_1 if on_device else 0}

    def _parts(self) -> Iterator[npt.NDArray[Any]]:
        parts = self.trace.chunks() if self.trace.sampled else iter([self.trace.events])
        return (part for part in parts if len(part))

    def _place(self, index: int, row: int) -> int:
        found = self._places.get((index, row))
        if found is not None:
            return found
        lane = self._lanes[index]
        is_device = lane.kind == "device"
        process = _device_name(lane) if is_device else "python"
        pid = self._device_pids[process] if is_device else lane.pid
        tid = lane.tid
        while (pid, tid) in self._taken:
            tid += _NEXT_ROW
        self._taken.add((pid, tid))
        name = lane.name or (f"stream {lane.tid}" if is_device else f"thread {lane.tid}")
        self._places[index, row] = len(self.tracks)
        label = f"{name} (overlapping {row})" if row else name
        self.tracks.append(Track(index, row, pid, tid, label, process, is_device))
        return len(self.tracks) - 1


class _Labels:
    """Categories as torch.profiler writes them."""

    def __init__(self, trace: Trace) -> None:
        self._is_device = {lane.index: lane.kind == "device" for lane in trace.lanes}
        self._names = trace.names

    def of(self, category: int, lane: int, event: int, name: int) -> str:
        """The label of one event."""
        if category in (Category.KERNEL, Category.COMMUNICATION) and self._is_device[lane]:
            return "kernel"
        if category == Category.COPY:
            is_fill = event == _MEMSET_EVENT or "memset" in self._names[name].lower()
            return "gpu_memset" if is_fill else "gpu_memcpy"
        if category == Category.RUNTIME and self._names[name].startswith(("cuda", "hip")):
            return "cuda_runtime"  # a trace of another device, read and written again
        if category == Category.KERNEL:
            return "kernel"
        return _HOST_LABELS.get(Category(category), "overhead")


def known(value: float | None) -> float | None:
    """FLOPs or bytes of a site, None where they are not modelled."""
    return None if value is None or value < 0 or not math.isfinite(value) else float(value)


def _outer_first(events: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The order by start, and of events that start together the longer first."""
    return np.lexsort((-events["dur_ns"], events["start_ns"]))


def _rows_of(events: npt.NDArray[Any], order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each event the row of its lane in which it overlaps only events that it contains or lies inside of."""
    rows = np.zeros(len(events), np.int64)
    order = order[events["category"][order] != Category.MEMORY]
    lanes = events["lane"][order]
    for lane in np.unique(lanes):
        chosen = order[lanes == lane]
        start = events["start_ns"][chosen]
        end = start + events["dur_ns"][chosen]
        # Mostly nothing overlaps at all: then there is nothing to do.
        if not np.all(start[1:] >= np.maximum.accumulate(end)[:-1]):
            rows[chosen] = _nest(start.tolist(), end.tolist())
    return rows


def _nest(starts: list[int], ends: list[int]) -> list[int]:
    stacks: list[list[int]] = []  # per row: the ends of what is open, the innermost last
    found = []
    for start, end in zip(starts, ends, strict=True):
        row = 0
        while row < len(stacks):
            open_ends = stacks[row]
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if not open_ends or end <= open_ends[-1]:
                break
            row += 1
        else:
            stacks.append([])
        stacks[row].append(end)
        found.append(row)
    return found


def _arrows(events: npt.NDArray[Any]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """From which events an arrow begins and at which it ends: launches and kernels with the same correlation."""
    numbers = events["correlation"]
    on_device = np.isin(events["category"], [int(kind) for kind in _DEVICE_KINDS]) & (numbers != 0)
    on_host = (events["category"] == Category.RUNTIME) & (numbers != 0)
    both = np.intersect1d(numbers[on_device], numbers[on_host])
    has_both = np.isin(numbers, both)
    return on_host & has_both, on_device & has_both


def _device_name(lane: Lane) -> str:
    name = re.match(r"([A-Za-z_]+:\d+)", lane.name or "")
    return name[1] if name else f"device {lane.pid}"


def _dimensions(shapes: str) -> list[list[int]] | None:
    """Shapes as lists of numbers, None if the text is something else."""
    found: list[list[int]] = []
    for shape in shapes.split(", "):
        if not re.fullmatch(r"\d+(x\d+)*|scalar|\[\]|", shape):
            return None
        found.append([int(size) for size in shape.split("x")] if shape[:1].isdigit() else [])
    return found
