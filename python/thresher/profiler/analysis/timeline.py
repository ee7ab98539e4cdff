"""The time line: lanes with rows in which nothing overlaps, and arrows from launches to kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from thresher.profiler.analysis.nesting import nest
from thresher.profiler.trace.events import Array, Category
from thresher.profiler.trace.model import Trace
from thresher.profiler.trace.sampling import visible

DEFAULT_MAX_EVENTS = 40_000
_SITE_KEYS = ("shapes", "module", "source", "kernel", "flops", "bytes")


def timeline(trace: Trace, begin_ns: int, *, max_events: int = DEFAULT_MAX_EVENTS) -> dict[str, Any]:
    """The part "timeline" of the report.

    Args:
        trace: The trace.
        begin_ns: Start of the report's time.
        max_events: How many events to show at most; of more, those that can be seen.
    """
    bars = trace.events[trace.events["category"] != Category.MEMORY]
    shown = bars[visible(bars, max_events)]
    lanes, lane = _lanes(trace, shown)
    start = shown["start_ns"]
    rows = nest(lane, start, start + shown["dur_ns"]).row
    height = np.zeros(len(lanes), np.int64)
    if len(shown):
        np.maximum.at(height, lane, rows + 1)
    name_ids, name = np.unique(shown["name"], return_inverse=True)
    site_ids, site = np.unique(shown["site"], return_inverse=True)
    sites = [trace.sites.get(number) for number in site_ids.tolist()]
    offset = 1 if len(site_ids) and site_ids[0] < 0 else 0
    return {
        "lanes": [{**line, "rows": int(rows_of)} for line, rows_of in zip(lanes, height.tolist(), strict=True)],
        "names": [trace.names[index] for index in name_ids.tolist()],
        "categories": [category.name.lower() for category in Category],
        "events": {
            "lane": lane.tolist(),
            "row": rows.tolist(),
            "start_ns": (start - begin_ns).tolist(),
            "dur_ns": shown["dur_ns"].tolist(),
            "name": name.reshape(-1).tolist(),
            "category": shown["category"].tolist(),
            "site": (site.reshape(-1) - offset).tolist(),
            "id": shown["correlation"].tolist(),
        },
        "flows": _flows(shown),
        "sites": [
            {key: None if (value := getattr(site_of, key, None)) == "" else value for key in _SITE_KEYS}
            for site_of in sites[offset:]
        ],
        "shown": len(shown),
        "total": trace.total_events - trace.store.memory_events,
    }


def _lanes(trace: Trace, events: Array) -> tuple[list[dict[str, Any]], Array]:
    """The lanes with events, hosts before devices, and each event's number among them."""
    used = np.unique(events["lane"]).tolist()
    order = sorted(used, key=lambda index: (trace.lanes[index].kind == "device", trace.lanes[index].pid, index))
    new = np.zeros(len(trace.lanes) or 1, np.int64)
    new[order] = np.arange(len(order))
    lines = [
        {
            "name": trace.lanes[index].name,
            "kind": trace.lanes[index].kind,
            "pid": trace.lanes[index].pid,
            "tid": trace.lanes[index].tid,
        }
        for index in order
    ]
    return lines, new[events["lane"]]


def _flows(events: Array) -> dict[str, list[int]]:
    """Arrows from each launch to its kernel, where both are shown."""
    number = events["correlation"]
    device = np.flatnonzero((events["category"] <= Category.COMMUNICATION) & (number != 0))
    host = np.flatnonzero((events["category"] == Category.RUNTIME) & (number != 0))
    if not len(device) or not len(host):
        return {"from": [], "to": []}
    launches, first = np.unique(number[host], return_index=True)
    position = np.minimum(np.searchsorted(launches, number[device]), len(launches) - 1)
    found = launches[position] == number[device]
    return {"from": host[first[position[found]]].tolist(), "to": device[found].tolist()}
