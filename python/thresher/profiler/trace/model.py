"""A trace in memory: one form for the engine's own files and for Chrome's."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from thresher.profiler.trace.store import Store

Array = npt.NDArray[Any]

EVENT = np.dtype(
    [
        ("start_ns", "<i8"),
        ("dur_ns", "<i8"),
        ("name", "<u4"),
        ("category", "u1"),
        ("phase", "u1"),
        ("lane", "<u2"),
        ("event", "<u2"),
        ("site", "<i4"),
        ("correlation", "<u8"),
        ("external", "<u4"),
        ("user", "<u4"),
        ("value", "<i8"),
        ("execution", "<u8"),
    ]
)
"""One event: an interval of a time line, or an allocation.

For events of the category MEMORY, `value` is the signed number of bytes, `execution` the address and `correlation`
the bytes
that are allocated after it; in traces from Chrome JSON, `reserved_bytes` gives the bytes reserved.
"""

PHASES = ("inference", "prefill", "decode")


class TraceError(ValueError):
    """A file that is not a trace, or not one that this version can read."""


class Category(enum.IntEnum):
    """What kind of work an event is."""

    KERNEL = 0
    COPY = 1
    COMMUNICATION = 2
    RUNTIME = 3
    HOST = 4
    ANNOTATION = 5
    CALL = 6
    EXECUTION = 7
    STEP = 8
    MEMORY = 9
    PYTHON = 10
    OTHER = 11


DEVICE_CATEGORIES = (Category.KERNEL, Category.COPY, Category.COMMUNICATION)


@dataclass(frozen=True)
class Lane:
    """A line of the time line.

    Attributes:
        index: What `event["lane"]` holds.
        kind: "host" or "device".
        pid: Process, or number of the device.
        tid: Thread, or number of the stream.
        name: How it is called.
    """

    index: int
    kind: str
    pid: int
    tid: int
    name: str


@dataclass(frozen=True)
class Site:
    """A place in a plan or a program that events come from; what is not known is empty or None.

    Attributes:
        id: What `event["site"]` holds.
        name: Operator.
        kernel: Kernel variant that runs it.
        section: "forward", "reshape", "alloc", or "" for what is not an operator.
        shapes: Shapes of the inputs.
        dtypes: Types of the inputs.
        outputs: Shapes of the outputs.
        precision: Precision of the arithmetic, such as "fp32".
        module: Module of the model, as `model.named_modules()` names it.
        source: Line of the model, such as "model.py:12 in forward".
        flops: Floating-point operations of one run.
        bytes: Bytes that one run reads and writes.
        graph: Graph that the step belongs to.
        step: Number of the step in its plan, -1 for none.
    """

    id: int
    name: str
    kernel: str = ""
    section: str = ""
    shapes: str = ""
    dtypes: str = ""
    outputs: str = ""
    precision: str = ""
    module: str = ""
    source: str = ""
    flops: float | None = None
    bytes: float | None = None
    graph: str = ""
    step: int = -1


@dataclass(frozen=True)
class Totals:
    """Exact sums over all events, one entry per group of events with equal category, phase, name and site.

    All attributes are arrays of equal length, one entry a group.

    Attributes:
        key: What `group_keys` gives for the events of the group, ascending.
        category: Category.
        phase: Phase.
        name: Index into the names of the trace.
        site: Site, -1 for none.
        count: Number of events.
        total_ns: Sum of their durations.
        min_ns: Shortest.
        max_ns: Longest.
        median_ns: Middle; within 1 % where the trace was too large for memory.
        durations: All durations, by group and ascending in each; None where the trace was too large for memory.
        bins: Then instead: index of the group, number of the bin, events in it; by group and bin.
    """

    key: Array
    category: Array
    phase: Array
    name: Array
    site: Array
    count: Array
    total_ns: Array
    min_ns: Array
    max_ns: Array
    median_ns: Array
    durations: Array | None = field(default=None, repr=False)
    bins: tuple[Array, Array, Array] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.key)

    @cached_property
    def begins(self) -> Array:
        """Where each group begins in `durations`."""
        result: Array = np.cumsum(self.count) - self.count
        return result


@dataclass
class Trace:
    """Everything a trace file says.

    Attributes:
        meta: "format" ("native" or "chrome"), "file", "complete", "truncated", "dropped", and what the file says of the
            machine, versions, peaks and energy.
        names: `event["name"]` indexes it.
        lanes: `event["lane"]` indexes it.
        sites: By number.
        events: Sorted by start; the longer first where two start together. Down-sampled if there were too many.
        total_events: How many there are in the file.
        totals: Exact sums over all of them.
        store: All events, from which they can be read again in pieces.
    """

    meta: dict[str, Any]
    names: list[str]
    lanes: list[Lane]
    sites: dict[int, Site]
    events: Array
    total_events: int
    totals: Totals
    store: Store = field(repr=False)

    @property
    def sampled(self) -> bool:
        """Whether `events` lacks some."""
        return len(self.events) < self.total_events

    def chunks(self) -> Iterator[Array]:
        """All events, each exactly once, in pieces of bounded size; not sorted between pieces."""
        return self.store.chunks()


# Bits of a group's key, from the top: category 4, phase 2, name 28, site + 1 28.
_NAME_SHIFT = 28
_PHASE_SHIFT = 56
_CATEGORY_SHIFT = 58
_LOW_28 = (1 << 28) - 1


def group_keys(events: Array) -> Array:
    """One number per event that is equal for events of equal category, phase, name and site."""
    key = events["category"].astype(np.int64) << _CATEGORY_SHIFT
    key |= (events["phase"].astype(np.int64) & 3) << _PHASE_SHIFT
    key |= (events["name"].astype(np.int64) & _LOW_28) << _NAME_SHIFT
    key |= (events["site"].astype(np.int64) + 1) & _LOW_28
    return key


def key_category(key: Array) -> Array:
    """The categories of group keys."""
    result: Array = (key >> _CATEGORY_SHIFT).astype(np.uint8)
    return result


def key_parts(key: Array) -> tuple[Array, Array, Array, Array]:
    """Category, phase, name and site of group keys."""
    return (
        key_category(key),
        ((key >> _PHASE_SHIFT) & 3).astype(np.uint8),
        ((key >> _NAME_SHIFT) & _LOW_28).astype(np.uint32),
        ((key & _LOW_28) - 1).astype(np.int32),
    )


def sort_events(events: Array) -> Array:
    """Events by start, the longer first where two start together."""
    order = np.argsort(events["start_ns"], kind="stable")
    start, duration = events["start_ns"][order], events["dur_ns"][order]
    ties = start[1:] == start[:-1]
    # Only a few events start together in the wrong order; a sort by both columns would take several times as long.
    wrong = np.flatnonzero(ties & (duration[1:] > duration[:-1]))
    if len(wrong):
        group = np.cumsum(np.r_[False, ~ties])
        mine = np.flatnonzero(np.isin(group, group[wrong]))
        order[mine] = order[mine][np.lexsort((-duration[mine], group[mine]))]
    result: Array = events[order]
    return result


def reserved_bytes(trace: Trace, memory_events: Array) -> Array | None:
    """Bytes reserved at each memory event, None where the trace does not say.

    Chrome JSON says it; the two halves stand in `external` and `user`, which memory events do not need.
    """
    if trace.meta.get("format") != "chrome":
        return None
    low = memory_events["external"].astype(np.int64)
    result: Array = low | (memory_events["user"].astype(np.int64) << 32)
    return result
