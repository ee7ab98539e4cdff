"""What a page can hold: more than that is left out, and the page says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TIMELINE_EVENTS = 60_000
TABLE_ROWS = 5_000
MEMORY_EVENTS = 20_000
CURVE_POINTS = 20_000
STEPS = 2_000
MODULES = 20_000
ROOFLINE_POINTS = 2_000
MESSAGES = 200

Json = dict[str, Any]


def shrink(report: Mapping[str, Any], diff: Mapping[str, Any] | None, scale: float = 1.0) -> tuple[Json, Json | None]:
    """Copies of both that fit a page; what was left out is listed under `page_notes` of the report.

    Args:
      report: the report data; it stays as it is.
      diff: the difference of two runs, or None.
      scale: below 1 for a page that came out too large even so.
    """
    out = dict(report)
    notes: list[str] = []

    def longest(rows: Any, limit: int, key: str, what: str) -> Any:
        """The rows that weigh most, in their old order."""
        limit = int(limit * scale)
        if not isinstance(rows, list) or len(rows) <= limit:
            return rows
        notes.append(f"{what}: {limit:,} of {len(rows):,} are on this page, those with the largest {key}.")
        ranked = sorted(range(len(rows)), key=lambda i: -abs(_number(rows[i], key)))
        return [rows[i] for i in sorted(ranked[:limit])]

    def first(rows: Any, limit: int, what: str) -> Any:
        limit = max(1, int(limit * scale))
        if not isinstance(rows, list) or len(rows) <= limit:
            return rows
        notes.append(f"{what}: the first {limit:,} of {len(rows):,} are on this page.")
        return rows[:limit]

    for name, what in (
        ("operators", "Operators"),
        ("operators_by_shape", "Operators by shape"),
        ("kernels", "Kernels"),
        ("runtime", "Runtime events"),
    ):
        if name in out:
            out[name] = longest(out[name], TABLE_ROWS, "total_ns", what)
    out.pop("modules_flat", None)  # the page shows the tree
    if isinstance(out.get("overview"), Mapping):
        overview = out["overview"] = dict(out["overview"])
        overview["steps"] = first(overview.get("steps"), STEPS, "Steps")
        overview["findings"] = first(overview.get("findings"), MESSAGES, "Findings")
    if isinstance(out.get("health"), Mapping):
        health = out["health"] = dict(out["health"])
        health["messages"] = first(health.get("messages"), MESSAGES, "Messages")
    if isinstance(out.get("timeline"), Mapping):
        out["timeline"] = _shrink_timeline(out["timeline"], int(TIMELINE_EVENTS * scale), notes)
    if isinstance(out.get("memory"), Mapping):
        memory = out["memory"] = dict(out["memory"])
        memory["events"] = longest(memory.get("events"), MEMORY_EVENTS, "bytes", "Memory events")
        memory["curve"] = _shrink_curve(memory.get("curve"), int(CURVE_POINTS * scale), notes)
    if isinstance(out.get("roofline"), Mapping):
        roofline = out["roofline"] = dict(out["roofline"])
        roofline["points"] = longest(roofline.get("points"), ROOFLINE_POINTS, "total_ns", "Roofline points")
    if isinstance(out.get("modules"), Mapping):
        out["modules"] = _shrink_modules(out["modules"], int(MODULES * scale), notes)
    compared = None
    if diff is not None:
        compared = dict(diff)
        compared["rows"] = longest(compared.get("rows"), TABLE_ROWS, "delta_ns", "Rows of the difference")
    out["page_notes"] = notes
    return out, compared


def _number(row: Any, key: str) -> float:
    value = row.get(key) if isinstance(row, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and value == value else 0.0


def _values(column: Any) -> list[Any]:
    return list(column.tolist() if hasattr(column, "tolist") else column or [])


def _shrink_timeline(timeline: Mapping[str, Any], limit: int, notes: list[str]) -> Json:
    out = dict(timeline)
    events = {name: _values(column) for name, column in (out.get("events") or {}).items()}
    # Columns of different lengths would shift everything after the gap: only what all of them have is an event.
    count = min((len(column) for column in events.values()), default=0)
    kept: Sequence[int] = range(count)
    if count > limit:
        durations = events.get("dur_ns") or [0] * count
        ranked = sorted(kept, key=lambda i: -(durations[i] or 0))
        kept = sorted(ranked[:limit])
        notes.append(f"Timeline: the longest {limit:,} of {count:,} events are on this page.")
    out["events"] = {name: [column[i] for i in kept] for name, column in events.items()}
    out["shown"] = len(kept)
    place = {old: new for new, old in enumerate(kept)}
    flows = out.get("flows") or {}
    pairs = [
        (place[a], place[b])
        for a, b in zip(_values(flows.get("from")), _values(flows.get("to")), strict=False)
        if a in place and b in place
    ]
    out["flows"] = {"from": [a for a, _ in pairs], "to": [b for _, b in pairs]}
    return out


def _shrink_curve(curve: Any, limit: int, notes: list[str]) -> Any:
    if not isinstance(curve, Mapping):
        return curve
    columns = {name: _values(column) for name, column in curve.items()}
    times, allocated = columns.get("time_ns") or [], columns.get("allocated") or []
    count = len(times)
    if count <= limit or len(allocated) != count:
        return columns
    # Of every group of points those with the least and the most memory stay, so no peak is lost.
    groups = max(1, limit // 2)
    kept: set[int] = set()
    for group in range(groups):
        members = range(group * count // groups, (group + 1) * count // groups)
        if members:
            kept.add(min(members, key=lambda i: allocated[i] or 0))
            kept.add(max(members, key=lambda i: allocated[i] or 0))
    notes.append(f"Memory curve: {len(kept):,} of {count:,} points are on this page, with every peak.")
    order = sorted(kept)
    return {name: [column[i] for i in order] for name, column in columns.items() if len(column) == count}


def _shrink_modules(tree: Mapping[str, Any], limit: int, notes: list[str]) -> Json:
    """Keeps the modules nearest to the root: whole levels first, then the longest."""
    root = dict(tree)
    left = limit - 1
    dropped = 0
    level = [root]
    while level:
        following: list[Json] = []
        for node in level:
            children = [child for child in node.get("children") or [] if isinstance(child, Mapping)]
            node["children"] = [dict(child) for child in children]
            following.extend(node["children"])
        if len(following) > left:
            ranked = sorted(following, key=lambda child: -_number(child, "total_ns"))
            kept = {id(child) for child in ranked[: max(left, 0)]}
            for node in level:
                node["children"] = [child for child in node["children"] if id(child) in kept]
            dropped += len(following) - len(kept)
            following = [child for child in following if id(child) in kept]
        left -= len(following)
        level = following
    if dropped:
        notes.append(f"Modules: {dropped:,} small entries of the tree are left out of this page.")
    return root
