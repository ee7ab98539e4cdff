"""Down-sampling: keeping the events that can be seen."""

from __future__ import annotations

import numpy as np

from thresher.profiler.trace.events import Array, Category

# A viewer that shows everything at once has about this many columns of pixels a lane; more only helps to zoom.
_PER_BUCKET = 4
_WEIGHT_BITS = 38  # more than four minutes, or 256 GiB, are alike


def _heaviest_first(key: Array, weight: Array) -> Array:
    """The order by key, and by descending weight among equal keys."""
    if int(key.max()) < 1 << (63 - _WEIGHT_BITS):
        # One sort of packed numbers is several times as fast as one by two columns.
        most = (1 << _WEIGHT_BITS) - 1
        return np.argsort(key << _WEIGHT_BITS | most - np.clip(weight, 0, most))
    return np.lexsort((-weight, key))


def visible(events: Array, limit: int) -> Array:
    """Which events to keep of a time line that holds too many.

    The time is divided into buckets. Each lane keeps the longest event of every bucket, then the second longest, and so
    on until the limit is reached, so that no part of a lane looks empty that is not. Memory events keep the highest
    amount of each bucket instead, so that the curve keeps its peaks.

    Args:
        events: Events in any order.
        limit: How many to keep at most.

    Returns:
        Indices of the kept events, ascending.
    """
    count = len(events)
    if count <= limit:
        return np.arange(count)
    if limit <= 0:
        return np.empty(0, np.int64)
    start = events["start_ns"]
    begin = int(start.min())
    extent = max(int(start.max()) - begin + 1, 1)
    memory = events["category"] == Category.MEMORY
    lane = events["lane"].astype(np.int64) * 2 + memory
    lanes, lane = np.unique(lane, return_inverse=True)
    buckets = max(limit // (_PER_BUCKET * len(lanes)), 1)
    # Floating point is exact enough to choose a bucket.
    bucket = ((start - begin) * (buckets / extent)).astype(np.int64)
    weight = np.where(memory, events["correlation"].astype(np.int64), events["dur_ns"])
    key = lane.reshape(-1) * (buckets + 1) + bucket
    order = _heaviest_first(key, weight)
    ordered = key[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    rank = np.arange(count) - np.repeat(first, np.diff(np.r_[first, count]))
    # Whole ranks fit as long as their counts add up to the limit; of the first that does not, the heaviest stay.
    per_rank = np.cumsum(np.bincount(rank))
    full = int(np.searchsorted(per_rank, limit, side="right"))
    kept = order[rank < full]
    missing = limit - len(kept)
    if missing > 0:
        candidates = order[rank == full]
        kept = np.concatenate([kept, candidates[np.argsort(-weight[candidates], kind="stable")[:missing]]])
    kept.sort()
    result: Array = kept
    return result
