"""A trace in memory: one form for the engine's own files and for Chrome's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from thresher.profiler.trace.events import Array
from thresher.profiler.trace.store import Store


class TraceError(ValueError):
    """A file that is not a trace, or not one that this version can read."""


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


def reserved_bytes(trace: Trace, memory_events: Array) -> Array | None:
    """Bytes reserved at each memory event, None where the trace does not say.

    Chrome JSON says it; the two halves stand in `external` and `user`, which memory events do not need.
    """
    if trace.meta.get("format") != "chrome":
        return None
    low = memory_events["external"].astype(np.int64)
    result: Array = low | (memory_events["user"].astype(np.int64) << 32)
    return result
