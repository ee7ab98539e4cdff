"""Exact sums by group, added up chunk by chunk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from thresher.profiler.trace.events import Array, group_keys, key_parts
from thresher.profiler.trace.model import Totals

# Bins of durations, a factor of 1.02 wide each: their middle lies within 1 % of every duration in them.
_BIN_FACTOR = 1.02
_BINS = 4096


class TotalsSum:
    """Adds up groups of events; memory grows with the number of groups, not of events.

    Args:
        exact: Keep nothing but one chunk, whose medians are then exact.
    """

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._durations: Array | None = None
        self._key = np.empty(0, np.int64)
        self._sums = np.empty((4, 0), np.int64)  # count, total, min, max
        self._bin_key = np.empty(0, np.int64)
        self._bin_group = np.empty(0, np.int64)
        self._bin_count = np.empty(0, np.int64)
        self._pending: list[tuple[Array, Array]] = []
        self._pending_bins: list[tuple[Array, Array, Array]] = []

    def add(self, events: Array) -> None:
        """Adds a chunk of events."""
        if not len(events):
            return
        key = group_keys(events)
        duration = events["dur_ns"]
        order = np.lexsort((duration, key)) if self._exact else np.argsort(key)
        key, duration = key[order], duration[order]
        first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
        count = np.diff(np.r_[first, len(key)])
        if self._exact:
            if self._durations is not None:
                raise RuntimeError("exact medians need all events in one chunk")
            self._durations = duration
            low, high = duration[first], duration[first + count - 1]
        else:
            low, high = np.minimum.reduceat(duration, first), np.maximum.reduceat(duration, first)
            self._add_bins(key, duration)
        sums = np.stack([count, np.add.reduceat(duration, first), low, high])
        self._pending.append((key[first], sums))
        if len(self._pending) >= 32:
            self._merge()

    def _add_bins(self, key: Array, duration: Array) -> None:
        index = np.log(np.maximum(duration, 1)) / np.log(_BIN_FACTOR)
        bins = np.minimum(index.astype(np.int64), _BINS - 1)
        # The keys are sorted, so the groups of one chunk can be numbered densely.
        group = np.cumsum(np.r_[False, key[1:] != key[:-1]])
        packed, count = np.unique(group * _BINS + bins, return_counts=True)
        of_group = key[np.flatnonzero(np.r_[True, key[1:] != key[:-1]])]
        self._pending_bins.append((of_group[packed // _BINS], packed % _BINS, count))

    def _merge(self) -> None:
        if self._pending:
            key = np.concatenate([self._key, *(part[0] for part in self._pending)])
            sums = np.concatenate([self._sums, *(part[1] for part in self._pending)], axis=1)
            self._pending = []
            order = np.argsort(key, kind="stable")
            key, sums = key[order], sums[:, order]
            first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
            self._key = key[first]
            self._sums = np.stack(
                [
                    np.add.reduceat(sums[0], first),
                    np.add.reduceat(sums[1], first),
                    np.minimum.reduceat(sums[2], first),
                    np.maximum.reduceat(sums[3], first),
                ]
            )
        if self._pending_bins:
            group = np.concatenate([self._bin_group, *(part[0] for part in self._pending_bins)])
            bins = np.concatenate([self._bin_key, *(part[1] for part in self._pending_bins)])
            count = np.concatenate([self._bin_count, *(part[2] for part in self._pending_bins)])
            self._pending_bins = []
            order = np.lexsort((bins, group))
            group, bins, count = group[order], bins[order], count[order]
            first = np.flatnonzero(np.r_[True, (group[1:] != group[:-1]) | (bins[1:] != bins[:-1])])
            self._bin_group, self._bin_key = group[first], bins[first]
            self._bin_count = np.add.reduceat(count, first)

    def result(self) -> Totals:
        """The sums of all chunks added so far."""
        self._merge()
        category, phase, name, site = key_parts(self._key)
        count, total, low, high = self._sums
        bins = None
        if self._durations is None:
            bins = (np.searchsorted(self._key, self._bin_group), self._bin_key, self._bin_count)
        found = Totals(self._key, category, phase, name, site, count, total, low, high, low, self._durations, bins)
        median = np.array([median_of(found, np.array([index])) for index in range(len(found))], np.int64)
        return replace(found, median_ns=median)


def median_of(totals: Totals, groups: Array) -> int:
    """The median of all events of some groups together.

    Args:
        totals: The sums.
        groups: Indices of groups, at least one.
    """
    low, high = int(totals.min_ns[groups].min()), int(totals.max_ns[groups].max())
    if totals.durations is not None:
        begins = totals.begins[groups].tolist()
        counts = totals.count[groups].tolist()
        parts = [totals.durations[begin : begin + count] for begin, count in zip(begins, counts, strict=True)]
        values = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
        middle = len(values)
        return (int(values[(middle - 1) // 2]) + int(values[middle // 2])) // 2
    if totals.bins is None:
        return low
    group, bins, count = totals.bins
    first, last = np.searchsorted(group, groups, "left"), np.searchsorted(group, groups, "right")
    index = np.concatenate([np.arange(a, b) for a, b in zip(first.tolist(), last.tolist(), strict=True)])
    order = index[np.argsort(bins[index], kind="stable")]
    running = np.cumsum(count[order])
    half = (int(running[-1]) + 1) // 2
    middle_bin = int(bins[order[np.searchsorted(running, half)]])
    middle_ns: int = round(_BIN_FACTOR ** (middle_bin + 0.5))
    return min(max(middle_ns, low), high)
