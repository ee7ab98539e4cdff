"""The difference of two runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from thresher.profiler.compare.circumstances import differences

_FORMAT = "thresher-profile-diff"
_FORMAT_VERSION = 1


def diff_reports(a: dict[str, Any], b: dict[str, Any], *, accept: Collection[str] = ()) -> dict[str, Any]:
    """What differs between two runs, the largest differences first.

    Args:
        a: Data of the report of the run that is the base.
        b: That of the run that is compared with it.
        accept: Names of `CIRCUMSTANCES` that may differ.

    Returns:
        The data of the difference; docs/profiling/commands.md describes it.
    """
    found = differences(a, b, accept=accept)
    by_shape = bool(a.get("operators_by_shape")) and bool(b.get("operators_by_shape"))
    first, second = (_by_key(report, by_shape=by_shape) for report in (a, b))
    rows = [_row(key, first.get(key), second.get(key)) for key in {**first, **second}]
    rows.sort(key=lambda row: (-abs(row["delta_ns"]), row["name"], row["shapes"] or ""))
    a_wall, b_wall = (report["overview"]["total"]["wall_ns"] for report in (a, b))
    a_parts, b_parts = (report["overview"]["total"]["by_category"] for report in (a, b))
    return {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "a": _run(a),
        "b": _run(b),
        "comparable": not found,
        "differences": found,
        "wall": {"a_ns": a_wall, "b_ns": b_wall, "ratio": _ratio(a_wall, b_wall)},
        "by_category": {
            name: {"a_ns": a_parts.get(name, 0), "b_ns": b_parts.get(name, 0)} for name in {**a_parts, **b_parts}
        },
        "rows": rows,
    }


def _run(report: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": report["source"].get("file"),
        "machine": {name: report["machine"].get(name) for name in ("cpu", "isa", "num_threads")},
        "versions": report["versions"],
    }


def _by_key(report: dict[str, Any], *, by_shape: bool) -> dict[tuple[str, str | None], dict[str, Any]]:
    """Count and time of each operator; one that ran in several phases or modules is added up."""
    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for row in report["operators_by_shape" if by_shape else "operators"]:
        key = (row["name"], row.get("shapes") if by_shape else None)
        entry = found.setdefault(key, {"count": 0, "total_ns": 0, "median_ns": None, "largest": -1})
        entry["count"] += row["count"]
        entry["total_ns"] += row["total_ns"]
        if row["count"] > entry["largest"]:  # the middle of most of them
            entry["largest"], entry["median_ns"] = row["count"], row["median_ns"]
    for entry in found.values():
        del entry["largest"]
    return found


def _row(key: tuple[str, str | None], a: dict[str, Any] | None, b: dict[str, Any] | None) -> dict[str, Any]:
    a_ns, b_ns = (0 if entry is None else entry["total_ns"] for entry in (a, b))
    ratio = None if a is None or b is None else _ratio(a_ns, b_ns)
    return {"name": key[0], "shapes": key[1], "a": a, "b": b, "delta_ns": b_ns - a_ns, "ratio": ratio}


def _ratio(a: int, b: int) -> float | None:
    return b / a if a > 0 else None
