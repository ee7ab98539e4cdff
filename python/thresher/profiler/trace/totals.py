"""Exact sums by group, added up chunk by chunk."""

from __future__ import annotations

import numpy as np

from thresher.profiler.trace.model import Array, Totals, group_keys, key_parts

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
        self._median: Array | None = None
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
        order = np.lexsort((duration, key)) if self._exact else np.argsort(key, kind="stable")
        key, duration = key[order], duration[order]
        first = np.flatnonzero(np.r_[True, key[1:] != key[:-1]])
        count = np.diff(np.r_[first, len(key)])
        if self._exact:
            if self._median is not None:
                raise RuntimeError("exact medians need all events in one chunk")
            last = first + count - 1
            self._median = (duration[first + (count - 1) // 2] + duration[first + count // 2]) // 2
            low, high = duration[first], duration[last]
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
        count, total, low, high = self._sums
        if not len(self._key):
            median = np.empty(0, np.int64)
        elif self._exact and self._median is not None:
            median = self._median
        else:
            median = np.clip(self._binned_medians(count), low, high)
        category, phase, name, site = key_parts(self._key)
        return Totals(self._key, category, phase, name, site, count, total, low, high, median)

    def _binned_medians(self, count: Array) -> Array:
        # The bins of a group follow one another: the median lies in the first where the running count reaches the half.
        group = np.searchsorted(self._key, self._bin_group)
        running = np.cumsum(self._bin_count)
        before = np.r_[0, running][np.searchsorted(group, np.arange(len(self._key)))]
        index = np.searchsorted(running, before + (count + 1) // 2)
        middle = _BIN_FACTOR ** (self._bin_key[index] + 0.5)
        result: Array = np.rint(middle).astype(np.int64)
        return result
