"""All events of a trace, in memory or read again from a file in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from thresher.profiler.trace.event_names import NODE_COMPUTE
from thresher.profiler.trace.events import EVENT, Array, Category, group_keys, sort_events
from thresher.profiler.trace.sampling import visible

SPAN = np.dtype([("start", "<i8"), ("end", "<i8"), ("key", "<i8"), ("lane", "<u2"), ("flags", "u1")])
"""An interval with the key of its group: as little of an event as exact accounts need.

`flags` is a sum of FROM_EARLIER, INTO_LATER and TWIN.
"""

FROM_EARLIER = 1  # it begins in an earlier window
INTO_LATER = 2  # it ends in a later window
TWIN = 4  # the host row of an operator; its hardware row covers the same nanoseconds

CHUNK_EVENTS = 1 << 18
_WINDOW_EVENTS = 1 << 20
# Long events would make their chunk look as if it had a part in every window. They are few and kept aside.
_LONG_PER_CHUNK = 512
_SAMPLE_EVERY = 32
_MAX_FRAMES = 1_000_000
_MAX_MEMORY_EVENTS = 400_000


def spans_of(events: Array, *, has_twins: bool) -> Array:
    """The intervals that exact accounts are made of: all events but those of memory, which have no duration.

    Args:
        events: The events.
        has_twins: Whether the host row of each operator stands beside a hardware row of the same interval.
    """
    category = events["category"]
    if (category == Category.MEMORY).any():
        events = events[category != Category.MEMORY]
    spans = np.empty(len(events), SPAN)
    spans["start"] = events["start_ns"]
    spans["end"] = events["start_ns"] + events["dur_ns"]
    spans["key"] = group_keys(events)
    spans["lane"] = events["lane"]
    spans["flags"] = 0
    if has_twins:
        spans["flags"][(events["category"] == Category.RUNTIME) & (events["event"] == NODE_COMPUTE)] = TWIN
    return spans


class Store:
    """Gives all events again and again, in pieces of bounded size.

    Readers `add` each chunk once; what the analyses need of all events is noted on the way.
    """

    def __init__(self, load: Callable[[int], Array] | None = None, *, has_twins: bool = False) -> None:
        # load reads a chunk again by its number; without it the chunks are kept in memory.
        self._load = load
        self._has_twins = has_twins
        self._kept: list[Array] = []
        self._bounds: list[tuple[int, int]] = []
        self._long: list[Array] = []
        self._starts: list[Array] = []
        self._thresholds: list[int] = []
        self._frames: dict[int, list[Array]] = {int(Category.STEP): [], int(Category.CALL): []}
        self._frame_counts = dict.fromkeys(self._frames, 0)
        self._memory: list[Array] = []
        self._memory_kept = 0
        self.memory_events = 0
        self.unlinked = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None

    def add(self, events: Array) -> None:
        """Notes a chunk of events; chunks are numbered in the order in which they come."""
        category = events["category"]
        device = category <= Category.COMMUNICATION
        self.unlinked += int(np.count_nonzero(device & (events["correlation"] == 0) & (events["external"] == 0)))
        memory = events[category == Category.MEMORY]
        self._add_memory(memory)
        for wanted, parts in self._frames.items():
            found = events[category == wanted]
            self._frame_counts[wanted] += len(found)
            if len(found) and self._frame_counts[wanted] <= _MAX_FRAMES:
                parts.append(found)
        if len(events):
            first = int(events["start_ns"].min())
            last = int((events["start_ns"] + events["dur_ns"]).max())
            self.first_ns = first if self.first_ns is None else min(self.first_ns, first)
            self.last_ns = last if self.last_ns is None else max(self.last_ns, last)
        if self._load is None:
            self._kept.append(events)
            return
        spans = spans_of(events, has_twins=self._has_twins)
        duration = spans["end"] - spans["start"]
        if len(spans) > _LONG_PER_CHUNK:
            longest = np.argpartition(duration, len(spans) - _LONG_PER_CHUNK)[-_LONG_PER_CHUNK:]
            threshold = int(duration[longest].min())
        else:
            threshold = 0
        is_long = duration > threshold
        self._long.append(spans[is_long])
        rest = spans[~is_long]
        self._starts.append(rest["start"][::_SAMPLE_EVERY].copy())
        self._bounds.append((int(rest["start"].min()), int(rest["end"].max())) if len(rest) else (0, -1))
        self._thresholds.append(threshold)

    def _add_memory(self, memory: Array) -> None:
        self.memory_events += len(memory)
        if not len(memory):
            return
        self._memory.append(memory)
        self._memory_kept += len(memory)
        if self._memory_kept > 2 * _MAX_MEMORY_EVENTS:
            together = np.concatenate(self._memory)
            # All in one lane, so that the peak over all threads survives.
            alike = together.copy()
            alike["lane"] = 0
            kept = together[visible(alike, _MAX_MEMORY_EVENTS)]
            self._memory, self._memory_kept = [kept], len(kept)

    def chunks(self) -> Iterator[Array]:
        """All events, each exactly once."""
        if self._load is None:
            yield from self._kept
        else:
            for number in range(len(self._bounds)):
                yield self._load(number)

    def frames(self, category: Category) -> Array | None:
        """All steps or all calls, sorted by start; None if there are too many to keep."""
        if self._frame_counts[int(category)] > _MAX_FRAMES:
            return None
        parts = self._frames[int(category)]
        return sort_events(np.concatenate(parts)) if parts else np.empty(0, EVENT)

    def memory(self) -> Array:
        """Memory events, sorted by start; of very many, those that show the curve."""
        return sort_events(np.concatenate(self._memory)) if self._memory else np.empty(0, EVENT)

    def windows(self) -> Iterator[tuple[int, int, Array]]:
        """The whole time in windows that follow one another.

        Yields:
            Begin and end of a window and the spans of all events that have a part in it, cut off at its edges. An event
            without duration belongs to one window.
        """
        if self.first_ns is None or self.last_ns is None:
            return
        if self._load is None:
            yield self.first_ns, self.last_ns, spans_of(np.concatenate(self._kept), has_twins=self._has_twins)
            return
        edges = self._edges()
        long = np.concatenate(self._long) if self._long else np.empty(0, SPAN)
        bounds = np.array(self._bounds, np.int64).reshape(-1, 2)
        cache: dict[int, Array] = {}
        for index, (begin, end) in enumerate(pairwise(edges)):
            is_last = index == len(edges) - 2
            parts = [_cut(long, begin, end, is_last)]
            wanted = np.flatnonzero((bounds[:, 0] < end + is_last) & (bounds[:, 1] >= begin))
            # In a file that is nearly sorted, neighbours share a chunk or two.
            cache = {number: spans for number, spans in cache.items() if number in wanted[:4]}
            for number in wanted.tolist():
                spans = cache.get(number)
                if spans is None:
                    spans = self._short_spans(number)
                    if len(cache) < 4:
                        cache[number] = spans
                parts.append(_cut(spans, begin, end, is_last))
            yield begin, end, np.concatenate(parts)

    def _short_spans(self, number: int) -> Array:
        assert self._load is not None
        spans = spans_of(self._load(number), has_twins=self._has_twins)
        result: Array = spans[spans["end"] - spans["start"] <= self._thresholds[number]]
        return result

    def _edges(self) -> list[int]:
        assert self.first_ns is not None and self.last_ns is not None
        starts = np.sort(np.concatenate(self._starts)) if self._starts else np.empty(0, np.int64)
        step = max(_WINDOW_EVENTS // _SAMPLE_EVERY, 1)
        inner = [edge for edge in np.unique(starts[step::step]).tolist() if self.first_ns < edge < self.last_ns]
        return [self.first_ns, *inner, self.last_ns]


def _cut(spans: Array, begin: int, end: int, is_last: bool) -> Array:
    start, stop = spans["start"], spans["end"]
    inside = (start < end) & (stop > begin)
    # Without duration: in the window where it starts, the last one including its end.
    inside |= (start == stop) & (start >= begin) & ((start < end) | is_last)
    part: Array = spans[inside]
    part["flags"] |= np.where(part["start"] < begin, FROM_EARLIER, 0).astype(np.uint8)
    part["flags"] |= np.where(part["end"] > end, INTO_LATER, 0).astype(np.uint8)
    np.clip(part["start"], begin, None, out=part["start"])
    np.clip(part["end"], None, end, out=part["end"])
    return part
