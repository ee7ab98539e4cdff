"""Rows of tables: groups of events added up."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from thresher.profiler.analysis.costs import CostModel, bound_of
from thresher.profiler.percentages import percentages
from thresher.profiler.trace.events import PHASES, Category
from thresher.profiler.trace.model import Site, Trace
from thresher.profiler.trace.totals import median_of


@dataclass(frozen=True)
class Group:
    """A group of events with equal category, phase, name and site.

    Attributes:
        index: Its index in the totals of the trace.
        category: Category.
        phase: "inference", "prefill" or "decode".
        label: Name of the events.
        operator: The operator, which a kernel's name may say more than.
        section: Section of the operator report; "host" for operators of PyTorch, "runtime" for the engine's host
        events.
        site: Its site.
        count: Events.
        total_ns: Their time.
        self_ns: Their time less what was called inside.
        min_ns: Shortest.
        max_ns: Longest.
        on_device: Whether it is work of a device.
    """

    index: int
    category: Category
    phase: str
    label: str
    operator: str
    section: str
    site: Site | None
    count: int
    total_ns: int
    self_ns: int
    min_ns: int
    max_ns: int
    on_device: bool


def groups_of(trace: Trace, self_ns: dict[int, int]) -> list[Group]:
    """All groups of a trace.

    Args:
        trace: The trace.
        self_ns: Self times of host work by key of group.
    """
    totals = trace.totals
    columns = zip(
        *(
            getattr(totals, name).tolist()
            for name in ("key", "category", "phase", "name", "site", "count", "total_ns", "min_ns", "max_ns")
        ),
        strict=True,
    )
    found = []
    for index, (key, number, phase, name, site_id, count, total, low, high) in enumerate(columns):
        category = Category(number)
        site = trace.sites.get(site_id) if site_id >= 0 else None
        label = trace.names[name]
        # Host barriers are communication, too; only they have self times.
        on_device = category in (Category.KERNEL, Category.COPY) or (
            category == Category.COMMUNICATION and key not in self_ns
        )
        found.append(
            Group(
                index=index,
                category=category,
                phase=PHASES[min(phase, len(PHASES) - 1)],
                label=label,
                operator=site.name if site is not None and category != Category.MEMORY else label,
                section=_section(category, site),
                site=site,
                count=count,
                total_ns=total,
                self_ns=total if on_device else self_ns.get(key, total),
                min_ns=low,
                max_ns=high,
                on_device=on_device,
            )
        )
    return found


def _section(category: Category, site: Site | None) -> str:
    if category == Category.HOST:
        return "host"
    if category == Category.COMMUNICATION:
        return "communication"
    if category == Category.RUNTIME and site is not None and site.section == "alloc":
        return "alloc"  # obtaining memory for outputs, which runs on the host
    if category not in (Category.KERNEL, Category.COPY):
        return "runtime"
    if site is not None and site.section in ("forward", "reshape", "alloc"):
        return site.section
    return "reshape" if category == Category.COPY else "forward"


def table(
    trace: Trace,
    groups: Iterable[Group],
    costs: CostModel,
    key: Callable[[Group], Hashable],
    name: Callable[[Group], str],
) -> list[dict[str, Any]]:
    """Rows, the most expensive first.

    Args:
        trace: The trace.
        groups: What the table is about.
        costs: The cost model.
        key: Groups of equal keys, phases and sections become one row.
        name: Name of a group's row.
    """
    parts: dict[Hashable, list[Group]] = {}
    for group in groups:
        parts.setdefault((group.phase, group.section, group.on_device, key(group)), []).append(group)
    rows = [_row(trace, members, costs, name(members[0])) for members in parts.values()]
    rows.sort(key=lambda row: (-row["self_ns"], row["name"]))
    # The printed shares of a section add up to 100.
    sections: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        sections.setdefault((row["phase"], row["section"]), []).append(row)
    for members_of_section in sections.values():
        shares = percentages([row["self_ns"] for row in members_of_section])
        for row, share in zip(members_of_section, shares, strict=True):
            row["share"] = share
    return rows


def _row(trace: Trace, members: list[Group], costs: CostModel, name: str) -> dict[str, Any]:
    count = sum(group.count for group in members)
    total = sum(group.total_ns for group in members)
    flops = _sum_of(members, lambda site: site.flops)
    traffic = _sum_of(members, lambda site: site.bytes)
    percent, bound, reason = _rated(members, costs, total)
    first = members[0]
    return {
        "name": name,
        "phase": first.phase,
        "section": first.section,
        "shapes": _common(members, lambda site: site.shapes),
        "dtypes": _common(members, lambda site: site.dtypes),
        "precision": _common(members, lambda site: site.precision),
        "kernel": _common(members, lambda site: site.kernel),
        "module": _common(members, lambda site: site.module),
        "source": _common(members, lambda site: site.source),
        "count": count,
        "total_ns": total,
        "self_ns": sum(group.self_ns for group in members),
        "min_ns": min(group.min_ns for group in members),
        "max_ns": max(group.max_ns for group in members),
        "mean_ns": total / count if count else 0.0,
        "median_ns": median_of(trace.totals, np.array([group.index for group in members])),
        "share": 0.0,
        "flops": flops,
        "bytes": traffic,
        "gflops": flops / total if flops is not None and total > 0 else None,
        "gbytes_per_s": traffic / total if traffic is not None and total > 0 else None,
        "intensity": flops / traffic if flops is not None and traffic else None,
        "percent_of_peak": percent,
        "bound": bound,
        "not_modelled": reason,
        "device": "device" if first.on_device else "host",
    }


def _sum_of(members: list[Group], amount: Callable[[Site], float | None]) -> float | None:
    result = 0.0
    for group in members:
        one = amount(group.site) if group.site is not None else None
        if one is None:
            return None
        result += one * group.count
    return result


def _common(members: list[Group], text: Callable[[Site], str]) -> str | None:
    found = {text(group.site) if group.site is not None else "" for group in members}
    return (found.pop() or None) if len(found) == 1 else None


def _rated(members: list[Group], costs: CostModel, total: int) -> tuple[float | None, str | None, str | None]:
    compute = memory = roof = 0.0
    reasons: dict[str, int] = {}
    for group in members:
        cost = costs.of(group.site, group.phase)
        if cost.compute_ns is None or cost.memory_ns is None:
            reason = cost.reason or "not modelled"
            reasons[reason] = reasons.get(reason, 0) + group.count
            continue
        roof += max(cost.compute_ns, cost.memory_ns) * group.count
        if cost.compute_ns >= cost.memory_ns:
            compute += cost.compute_ns * group.count
        else:
            memory += cost.memory_ns * group.count
    if reasons:
        reason = max(reasons, key=lambda text: reasons[text])
        count = sum(group.count for group in members)
        missing = sum(reasons.values())
        return None, None, reason if missing == count else f"{missing} of {count} runs: {reason}"
    if total <= 0:
        return None, None, "it took no measurable time"
    # What bounds several shapes together is what bounds most of their roof time.
    bound = bound_of(roof, 0.0, total) if compute >= memory else bound_of(0.0, roof, total)
    return 100.0 * roof / total, bound, None
