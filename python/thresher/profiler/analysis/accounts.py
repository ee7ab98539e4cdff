"""Exact accounts over all events of a trace: every nanosecond once, self times, events that overlap."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from thresher.profiler.analysis.nesting import nest, self_times
from thresher.profiler.trace.events import Array, Category, key_category
from thresher.profiler.trace.model import Trace
from thresher.profiler.trace.store import FROM_EARLIER, INTO_LATER, TWIN

CATEGORIES = ("kernel", "copy", "communication", "runtime", "host", "other", "gap")
_GAP = len(CATEGORIES) - 1
_FRAME = 255

# Which account an event's time belongs to; the lower number wins. Frames surround work and are none themselves: steps,
# ranges of the user, Python functions. Were they counted, there would be no gap wherever stacks are recorded.
_ACCOUNT = np.full(256, _FRAME, np.uint8)
_ACCOUNT[[Category.KERNEL, Category.COPY, Category.COMMUNICATION]] = [0, 1, 2]
_ACCOUNT[[Category.RUNTIME, Category.EXECUTION]] = 3
_ACCOUNT[Category.HOST] = 4
_ACCOUNT[[Category.CALL, Category.OTHER]] = 5

_WORK = np.zeros(256, bool)
_WORK[[Category.RUNTIME, Category.EXECUTION, Category.HOST, Category.CALL, Category.OTHER]] = True


@dataclass
class Accounts:
    """What one pass over all events gives.

    Attributes:
        begin_ns: Start of the first event.
        end_ns: End of the last.
        by_category: Nanoseconds by entry of CATEGORIES; they add up to the time between begin and end.
        at_edges: The same from the begin until each of the given edges, one line an edge.
        self_ns: Self time by key of group, for host work.
        overlapping: Hardware events that start while another one of their stream runs.
        out_of_window: Events that begin before or end after the recording.
    """

    begin_ns: int
    end_ns: int
    by_category: Array
    at_edges: Array
    self_ns: dict[int, int] = field(default_factory=dict)
    overlapping: int = 0
    out_of_window: int = 0

    @property
    def wall_ns(self) -> int:
        """Time between the first start and the last end."""
        return self.end_ns - self.begin_ns


def account(trace: Trace, edges: Array | None = None) -> Accounts:
    """Goes over all events once.

    Args:
        trace: The trace.
        edges: Times, ascending, up to which the categories are wanted.
    """
    store = trace.store
    edges = np.empty(0, np.int64) if edges is None else edges
    begin = 0 if store.first_ns is None else store.first_ns
    end = begin if store.last_ns is None else store.last_ns
    result = Accounts(
        begin, end, np.zeros(len(CATEGORIES), np.int64), np.zeros((len(edges), len(CATEGORIES)), np.int64)
    )
    is_device = np.array([lane.kind == "device" for lane in trace.lanes], bool)
    window = _recording(trace)
    for first, last, spans in store.windows():
        category = key_category(spans["key"])
        _sweep(result, first, last, spans, _ACCOUNT[category], edges)
        _add_self_times(result, spans, category)
        _count_overlaps(result, spans, (category <= Category.COMMUNICATION) & is_device[spans["lane"]])
        if window is not None:
            result.out_of_window += _count_outside(spans, _ACCOUNT[category] != _FRAME, window)
    return result


def _recording(trace: Trace) -> tuple[int, int] | None:
    start, stop = trace.meta.get("start_ns"), trace.meta.get("stop_ns")
    if isinstance(start, int) and isinstance(stop, int) and 0 < start < stop:
        return start, stop
    return None


def _sweep(result: Accounts, first: int, last: int, spans: Array, rank: Array, edges: Array) -> None:
    counted = (rank != _FRAME) & (spans["flags"] & TWIN == 0) & (spans["end"] > spans["start"])
    chosen, rank = spans[counted], rank[counted]
    # Both halves are nearly sorted, which this sort makes use of.
    times = np.concatenate([chosen["start"], chosen["end"]])
    order = np.argsort(times, kind="stable")
    times = times[order]
    ranks = np.concatenate([rank, rank])[order]
    step = np.where(order < len(chosen), 1, -1)
    active = np.full(len(times) + 1, _GAP, np.int8)
    for number in reversed(range(_GAP)):
        mine = ranks == number
        if mine.any():
            running = np.cumsum(np.where(mine, step, 0))
            active[1:][running > 0] = number
    points = np.concatenate([[first], times, [last]])
    length = np.diff(points)
    sums = np.array([int(length[active == number].sum()) for number in range(len(CATEGORIES))], np.int64)
    from_edge, to_edge = np.searchsorted(edges, [first, last], side="left")
    if last >= result.end_ns:
        to_edge = len(edges)
    if to_edge > from_edge:
        wanted = np.clip(edges[from_edge:to_edge], first, last)
        at = np.clip(np.searchsorted(points, wanted, side="right") - 1, 0, len(active) - 1)
        inside = wanted - points[at]
        for number in range(len(CATEGORIES)):
            mine = active == number
            until = np.concatenate([[0], np.cumsum(np.where(mine, length, 0))])
            value = until[at] + np.where(mine[at], inside, 0)
            result.at_edges[from_edge:to_edge, number] = result.by_category[number] + value
    result.by_category += sums


def _add_self_times(result: Accounts, spans: Array, category: Array) -> None:
    work = spans[_WORK[category]]
    if not len(work):
        return
    start, end = work["start"], work["end"]
    own = self_times(nest(work["lane"], start, end), start, end)
    order = np.argsort(work["key"], kind="stable")
    key = work["key"][order]
    first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
    for group, value in zip(key[first].tolist(), np.add.reduceat(own[order], first).tolist(), strict=True):
        result.self_ns[group] = result.self_ns.get(group, 0) + value


def _count_overlaps(result: Accounts, spans: Array, device: Array) -> None:
    chosen = spans[device & (spans["end"] > spans["start"])]
    for lane in np.unique(chosen["lane"]).tolist():
        mine = chosen[chosen["lane"] == lane]
        # What goes on from an earlier window began before what begins at the edge.
        mine = mine[np.lexsort((mine["flags"] & FROM_EARLIER == 0, mine["start"]))]
        reached = np.maximum.accumulate(mine["end"])[:-1]
        starts_here = mine["flags"][1:] & FROM_EARLIER == 0
        result.overlapping += int(np.count_nonzero((mine["start"][1:] < reached) & starts_here))


def _count_outside(spans: Array, work: Array, window: tuple[int, int]) -> int:
    work = work & (spans["flags"] & TWIN == 0)
    early = work & (spans["flags"] & FROM_EARLIER == 0) & (spans["start"] < window[0])
    late = work & (spans["flags"] & INTO_LATER == 0) & (spans["end"] > window[1])
    return int(np.count_nonzero(early | late))
