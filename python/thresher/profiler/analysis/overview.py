"""The overview: where each nanosecond of the wall clock went, in all and step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from thresher.profiler.analysis.accounts import CATEGORIES, Accounts
from thresher.profiler.trace.events import Array, Category
from thresher.profiler.trace.model import Trace

MAX_STEPS = 2000


@dataclass(frozen=True)
class Steps:
    """The parts of a run that are compared with each other.

    Attributes:
        names: One name a step.
        start: Begins.
        end: Ends.
        note: What a reader should know of them, "" for nothing.
    """

    names: list[str]
    start: Array
    end: Array
    note: str

    @property
    def edges(self) -> Array:
        """All begins and ends, ascending."""
        return np.unique(np.concatenate([self.start, self.end]))


def find_steps(trace: Trace) -> Steps:
    """The steps of a trace: those that the profiler was told of, else the calls of compiled models."""
    nothing = np.empty(0, np.int64)
    steps = trace.store.frames(Category.STEP)
    if steps is None:
        return Steps([], nothing, nothing, "there are too many steps to list them")
    if len(steps):
        names = [trace.names[index] for index in steps["name"].tolist()]
        return Steps(names, steps["start_ns"], steps["start_ns"] + steps["dur_ns"], "")
    calls = trace.store.frames(Category.CALL)
    if calls is None:
        return Steps([], nothing, nothing, "there are too many calls to list them")
    if not len(calls):
        return Steps([], nothing, nothing, "the trace has neither steps nor calls of compiled models")
    outer = calls[_outermost(calls)]
    names = [f"call {number}" for number in range(1, len(outer) + 1)]
    note = "the steps are the calls of compiled models; call step() of the profiler for steps of your own"
    return Steps(names, outer["start_ns"], outer["start_ns"] + outer["dur_ns"], note)


def _outermost(calls: Array) -> Array:
    end = calls["start_ns"] + calls["dur_ns"]
    keep = np.zeros(len(calls), bool)
    for lane in np.unique(calls["lane"]).tolist():
        mine = np.flatnonzero(calls["lane"] == lane)
        reached = np.r_[np.int64(0), np.maximum.accumulate(end[mine])[:-1]]
        keep[mine] = calls["start_ns"][mine] >= reached
    return keep


def overview(accounts: Accounts, steps: Steps) -> dict[str, Any]:
    """The part "overview" of the report, without its findings.

    Args:
        accounts: Made with `steps.edges`.
        steps: The steps.
    """
    edges = steps.edges
    by_step = (
        accounts.at_edges[np.searchsorted(edges, steps.end)] - accounts.at_edges[np.searchsorted(edges, steps.start)]
    )
    note = steps.note
    count = len(steps.names)
    together = -(-count // MAX_STEPS) if count else 1
    lines = []
    for first in range(0, count, together):
        last = min(first + together, count)
        # Gaps between the steps of one line belong to none of them.
        sums = by_step[first:last].sum(axis=0).tolist()
        name = steps.names[first] if last == first + 1 else f"{steps.names[first]} to {steps.names[last - 1]}"
        lines.append(
            {
                "name": name,
                "start_ns": int(steps.start[first]) - accounts.begin_ns,
                "wall_ns": sum(sums),
                "by_category": dict(zip(CATEGORIES, sums, strict=True)),
            }
        )
    if together > 1:
        note = f"{note}; " if note else ""
        note += f"{together} of the {count} steps are added up in each line"
    return {
        "categories": list(CATEGORIES),
        "total": {
            "wall_ns": accounts.wall_ns,
            "by_category": dict(zip(CATEGORIES, accounts.by_category.tolist(), strict=True)),
        },
        "steps": lines,
        "note": note,
        "findings": [],
    }
