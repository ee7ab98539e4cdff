"""Which intervals lie inside which: depth, parent, and rows in which nothing overlaps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thresher.profiler.trace.events import Array


@dataclass(frozen=True)
class Nesting:
    """How intervals nest; all arrays follow the order of the intervals as they were given.

    Attributes:
        parent: Index of the innermost interval of the same lane that contains it, -1 for none.
        depth: How many intervals contain it.
        row: Row of its lane; intervals of one row do not overlap.
    """

    parent: Array
    depth: Array
    row: Array


def nest(lane: Array, start: Array, end: Array) -> Nesting:
    """Nests intervals lane by lane.

    Where all of a lane's intervals lie inside or outside of each other, the row is the depth. An interval that overlaps
    another in part gets a row of its own and counts as a child of neither.

    Args:
        lane: Lane of each interval.
        start: Begin.
        end: End, not before the begin. Of equal intervals the later one is inside.
    """
    count = len(start)
    parent = np.full(count, -1, np.int64)
    depth = np.zeros(count, np.int64)
    row = np.zeros(count, np.int64)
    if not count:
        return Nesting(parent, depth, row)
    # An interval without duration takes one nanosecond here; so it lies inside what surrounds it and has a row.
    stop = np.maximum(end, start + 1)
    order = np.lexsort((-stop, start, lane))
    ordered = lane[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    for begin, until in zip(begins.tolist(), [*begins[1:].tolist(), count], strict=True):
        chosen = order[begin:until]
        first, last = start[chosen], stop[chosen]
        if len(chosen) == 1 or (first[1:] >= last[:-1]).all():
            continue  # one after another: depth 0, no parents
        found = _proper(first, last)
        lane_parent, lane_depth, lane_row = found if found is not None else _overlapping(first, last)
        parent[chosen] = np.where(lane_parent >= 0, chosen[lane_parent], -1)
        depth[chosen] = lane_depth
        row[chosen] = lane_row
    return Nesting(parent, depth, row)


def _proper(start: Array, end: Array) -> tuple[Array, Array, Array] | None:
    """For intervals sorted by start and descending end; None if some overlap in part."""
    number = np.arange(len(start))
    depth = number - np.searchsorted(np.sort(end), start, side="right")
    parent = np.full(len(start), -1, np.int64)
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    for level in range(1, len(edges) - 1):
        inner = by_depth[edges[level] : edges[level + 1]]
        outer = by_depth[edges[level - 1] : edges[level]]
        # Both ascend; the parent is the last one that begins before.
        found = outer[np.searchsorted(outer, inner) - 1]
        if (end[found] < end[inner]).any():
            return None
        parent[inner] = found
    return parent, depth, depth


def _overlapping(start: Array, end: Array) -> tuple[Array, Array, Array]:
    starts, ends = start.tolist(), end.tolist()
    parent, depth, row = [-1] * len(starts), [0] * len(starts), [0] * len(starts)
    open_now: list[int] = []  # what has begun and not ended, in order of begin
    row_ends: list[int] = []
    for index, (begin, until) in enumerate(zip(starts, ends, strict=True)):
        open_now = [other for other in open_now if ends[other] > begin]
        for other in reversed(open_now):
            if ends[other] >= until:
                parent[index] = other
                depth[index] = depth[other] + 1
                break
        open_now.append(index)
        for number, busy_until in enumerate(row_ends):
            if busy_until <= begin:
                row[index] = number
                row_ends[number] = until
                break
        else:
            row[index] = len(row_ends)
            row_ends.append(until)
    return np.array(parent, np.int64), np.array(depth, np.int64), np.array(row, np.int64)


def self_times(nesting: Nesting, start: Array, end: Array) -> Array:
    """The part of each interval that none of its direct children covers.

    Children of one interval that overlap each other in part are counted once.
    """
    duration = end - start
    children = np.flatnonzero(nesting.parent >= 0)
    if not len(children):
        result: Array = duration.copy()
        return result
    # By parent and start: what a child covers begins where its earlier siblings end.
    order = children[np.lexsort((start[children], nesting.parent[children]))]
    parent = nesting.parent[order]
    # Times of different parents are moved apart, so that one running maximum serves all of them.
    begin = int(start.min())
    extent = int(end.max()) - begin + 1
    group = np.cumsum(np.r_[False, parent[1:] != parent[:-1]])
    if int(group[-1] + 1) * extent < 1 << 62:
        shifted_start = start[order] - begin + group * extent
        shifted_end = end[order] - begin + group * extent
        reached = np.r_[0, np.maximum.accumulate(shifted_end)[:-1]]
        covered = np.maximum(shifted_end - np.maximum(shifted_start, reached), 0)
    else:
        covered = duration[order]
    total = np.zeros(len(start), np.int64)
    edges = np.flatnonzero(np.r_[True, parent[1:] != parent[:-1]])
    total[parent[edges]] = np.add.reduceat(covered, edges)
    result = np.maximum(duration - total, 0)
    return result
