"""Whether a trace can be trusted: what is lost, not linked, at the wrong time."""

from __future__ import annotations

from typing import Any

import numpy as np

from thresher.profiler.analysis.accounts import Accounts
from thresher.profiler.trace.events import Array, Category
from thresher.profiler.trace.model import Trace


def health(trace: Trace, accounts: Accounts) -> dict[str, Any]:
    """The part "health" of the report.

    Args:
        trace: The trace.
        accounts: Its accounts.
    """
    unlinked, before_launch = _links(trace)
    found: dict[str, Any] = {
        "dropped": int(trace.meta.get("dropped") or 0),
        "unlinked": unlinked,
        "out_of_window": accounts.out_of_window,
        "before_launch": before_launch,
        "overlapping": accounts.overlapping,
        "bad_times": int(trace.meta.get("bad_times") or 0),
        "unknown_events": int(trace.meta.get("unknown_events") or 0),
        "malformed": int(trace.meta.get("malformed") or 0),
    }
    found["messages"] = _messages(trace, found)
    return found


def _links(trace: Trace) -> tuple[int, int]:
    if trace.meta.get("format") == "native":
        # One record stands for the launch and the kernel: they start together.
        return trace.store.unlinked, 0
    launch_number, launch_start, operators = [], [], []
    device: list[Array] = []
    wanted = ["start_ns", "correlation", "external"]
    for events in trace.chunks():
        category = events["category"]
        host = events[category == Category.RUNTIME]
        host = host[host["correlation"] != 0]
        launch_number.append(host["correlation"].copy())
        launch_start.append(host["start_ns"].copy())
        linked = events["external"][(category > Category.COMMUNICATION) & (category != Category.MEMORY)]
        operators.append(np.unique(linked))
        device.append(events[(category == Category.KERNEL) | (category == Category.COPY)][wanted].copy())
    if not device:
        return 0, 0
    number, first = np.unique(np.concatenate(launch_number), return_index=True)
    start = np.concatenate(launch_start)[first]
    known = np.unique(np.concatenate(operators))
    work = np.concatenate(device)
    if len(number):
        position = np.minimum(np.searchsorted(number, work["correlation"]), len(number) - 1)
        launched = (number[position] == work["correlation"]) & (work["correlation"] != 0)
        early = launched & (work["start_ns"] < start[position])
    else:
        launched = early = np.zeros(len(work), bool)
    of_operator = (work["external"] != 0) & np.isin(work["external"], known)
    return int(np.count_nonzero(~launched & ~of_operator)), int(np.count_nonzero(early))


def _messages(trace: Trace, counts: dict[str, Any]) -> list[str]:
    texts = {
        "dropped": "records were lost: sums are too small",
        "unlinked": "kernels or copies have neither a launch nor an operator",
        "out_of_window": "events begin before or end after the recording",
        "before_launch": "kernels start before their launch: the clocks of host and device differ",
        "overlapping": "kernels start while another one of the same stream runs",
        "bad_times": "events end before they start, or lie days away from the recording: the clock was set; they "
        "are left out",
        "unknown_events": "events have numbers that this version does not know",
        "malformed": "elements of the file are not events; they are left out",
    }
    found = [f"{counts[name]} {text}" for name, text in texts.items() if counts[name]]
    if trace.meta.get("truncated"):
        found.append("the file ends too early or is damaged: what comes before that place is in the report")
    elif not trace.meta.get("complete", True):
        found.append(
            "the recording was never stopped, as if the process had been killed: what it had written is in the report"
        )
    return found
