"""Memory over time, and the largest changes of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from thresher.profiler.trace.event_names import RELEASE
from thresher.profiler.trace.events import Array
from thresher.profiler.trace.model import Trace, reserved_bytes

MAX_POINTS = 4000
MAX_EVENTS = 2000
_MAX_BYTES = 1 << 60  # what is more is damaged


def memory(trace: Trace, begin_ns: int) -> dict[str, Any]:
    """The part "memory" of the report.

    Args:
        trace: The trace.
        begin_ns: Start of the report's time.
    """
    events = trace.store.memory()
    total = trace.store.memory_events
    if not len(events):
        return {
            "curve": {"time_ns": [], "allocated": [], "reserved": []},
            "peak_bytes": None,
            "peak_time_ns": None,
            "events": [],
            "total_events": 0,
            "reason": "the trace holds no memory events; torch.profiler records them with profile_memory=True",
        }
    time = events["start_ns"] - begin_ns
    allocated = _over_devices(events, np.minimum(events["correlation"], _MAX_BYTES).astype(np.int64))
    reserved = reserved_bytes(trace, events)
    if reserved is not None:
        reserved = _over_devices(events, reserved)
    peak = int(np.argmax(allocated))
    points = _corners(allocated, MAX_POINTS)
    amount = np.abs(np.maximum(events["value"], -_MAX_BYTES))
    largest = np.sort(np.argsort(-amount, kind="stable")[:MAX_EVENTS])
    return {
        "curve": {
            "time_ns": time[points].tolist(),
            "allocated": allocated[points].tolist(),
            "reserved": reserved[points].tolist() if reserved is not None and reserved.any() else [],
        },
        "peak_bytes": int(allocated[peak]),
        "peak_time_ns": int(time[peak]),
        "events": [_event(trace, events[index], begin_ns) for index in largest.tolist()],
        "total_events": total,
        "reason": None,
    }


def _event(trace: Trace, event: Any, begin_ns: int) -> dict[str, Any]:
    site = trace.sites.get(int(event["site"]))
    amount = int(event["value"])
    released = amount < 0 or (amount == 0 and int(event["event"]) == RELEASE)
    return {
        "time_ns": int(event["start_ns"]) - begin_ns,
        "kind": "Release" if released else "Allocation",
        "bytes": min(abs(amount), _MAX_BYTES),
        "address": int(event["execution"]),
        "allocated": min(int(event["correlation"]), _MAX_BYTES),
        "name": site.name if site is not None else None,
    }


def _over_devices(events: Array, amount: Array) -> Array:
    """The sum over all devices; each event says the amount of its own device only."""
    site = events["site"]
    devices = np.unique(site)
    if len(devices) == 1:
        return amount
    total = np.zeros(len(events), np.int64)
    number = np.arange(len(events))
    for device in devices.tolist():
        latest = np.maximum.accumulate(np.where(site == device, number, -1))
        total += np.where(latest >= 0, amount[np.maximum(latest, 0)], 0)
    return total


def _corners(values: Array, limit: int) -> Array:
    """Indices of the points of a curve that show its shape: of each bucket the first, lowest, highest and last."""
    count = len(values)
    if count <= limit:
        return np.arange(count)
    edges = np.linspace(0, count, limit // 4 + 1).astype(np.int64)
    kept = []
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[first:last]
        kept += [first, first + int(part.argmin()), first + int(part.argmax()), last - 1]
    return np.unique(np.array(kept))
