"""The phases of a language model: tokens a second and the share of the roof, of prompts and of answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thresher.profiler.analysis.costs import DECODE, CostModel
from thresher.profiler.analysis.rows import Group
from thresher.profiler.trace.events import PHASES, Category
from thresher.profiler.trace.model import Trace


def set_decoding(trace: Trace, groups: Iterable[Group], costs: CostModel) -> None:
    """Tells the cost model what the steps of answers in a trace move."""
    calls = trace.store.frames(Category.CALL)
    if calls is None:
        return
    own = (group for group in groups if group.phase == DECODE and group.category in (Category.KERNEL, Category.COPY))
    runs = [(group.site.bytes, group.count) for group in own if group.site is not None and group.site.bytes is not None]
    costs.set_decoding(runs, int((calls["phase"] == PHASES.index(DECODE)).sum()))


def phases(trace: Trace, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The part "phases" of the overview: one entry a phase whose calls computed tokens.

    Args:
        trace: The trace; with too many calls to list them there are no entries.
        rows: The operators by shape.
    """
    calls = trace.store.frames(Category.CALL)
    found: list[dict[str, Any]] = []
    if calls is None:
        return found
    for number, name in enumerate(PHASES):
        own = calls[(calls["phase"] == number) & (calls["value"] > 0)]
        tokens, wall_ns = int(own["value"].sum()), int(own["dur_ns"].sum())
        if not tokens or not wall_ns:
            continue
        modelled = [row for row in rows if row["phase"] == name and row["percent_of_peak"] is not None]
        least_ns = sum(row["total_ns"] * row["percent_of_peak"] / 100 for row in modelled)
        found.append(
            {
                "phase": name,
                "calls": len(own),
                "wall_ns": wall_ns,
                "tokens": tokens,
                "tokens_per_s": tokens / wall_ns * 1e9,
                "percent_of_peak": 100 * least_ns / wall_ns if modelled else None,
            }
        )
    return found
