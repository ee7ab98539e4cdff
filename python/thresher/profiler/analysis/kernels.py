"""The table of kernels: one row per kernel variant and precision."""

from __future__ import annotations

from typing import Any

from thresher.profiler.analysis.costs import CostModel
from thresher.profiler.analysis.rows import Group, table
from thresher.profiler.trace.model import Trace


def kernels(trace: Trace, groups: list[Group], costs: CostModel) -> list[dict[str, Any]]:
    """One row per kernel, phase, section and precision; copies are among them."""

    def key(group: Group) -> tuple[str, str]:
        return group.label, group.site.precision if group.site is not None else ""

    chosen = [group for group in groups if group.on_device]
    return table(trace, chosen, costs, key=key, name=lambda group: group.label)
