"""The tables of operators: by name, by name and shapes."""

from __future__ import annotations

from typing import Any

from thresher.profiler.analysis.costs import CostModel
from thresher.profiler.analysis.rows import Group, table
from thresher.profiler.trace.event_names import EVENT_NAMES, NODE_COMPUTE
from thresher.profiler.trace.events import Category
from thresher.profiler.trace.model import Trace

_NODE_COMPUTE = EVENT_NAMES[NODE_COMPUTE]
_HOST = (Category.RUNTIME, Category.EXECUTION, Category.CALL, Category.OTHER)


def is_operator(group: Group) -> bool:
    """Whether a group belongs into the tables of operators: work of the engine's operators, and of PyTorch's."""
    work = (Category.KERNEL, Category.COPY, Category.COMMUNICATION, Category.HOST)
    return group.category in work or (group.section == "alloc" and group.label != _NODE_COMPUTE)


def operators(trace: Trace, groups: list[Group], costs: CostModel) -> list[dict[str, Any]]:
    """One row per operator, phase and section."""
    chosen = [group for group in groups if is_operator(group)]
    return table(trace, chosen, costs, key=lambda group: group.operator, name=lambda group: group.operator)


def operators_by_shape(trace: Trace, groups: list[Group], costs: CostModel) -> list[dict[str, Any]]:
    """One row per operator, phase, section, shapes, types and precision."""

    def key(group: Group) -> tuple[str, ...]:
        site = group.site
        return (group.operator, *((site.shapes, site.dtypes, site.precision) if site is not None else ("", "", "")))

    chosen = [group for group in groups if is_operator(group)]
    return table(trace, chosen, costs, key=key, name=lambda group: group.operator)


def runtime(trace: Trace, groups: list[Group], costs: CostModel) -> list[dict[str, Any]]:
    """One row per host event of the engine: calls, runs of plans, compilation, memory.

    The host rows of operators are left out where their hardware rows are among the operators.
    """
    twins = {_NODE_COMPUTE} if any(group.on_device for group in groups) else set()
    chosen = [g for g in groups if g.category in _HOST and not is_operator(g) and g.label not in twins]
    return table(trace, chosen, costs, key=lambda group: group.label, name=lambda group: group.label)
