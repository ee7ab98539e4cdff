"""Whether new runs are slower than old ones: a verdict for people and for build servers."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from thresher.profiler.compare.circumstances import differences

PASS, REGRESSION, CANNOT_COMPARE = "pass", "regression", "cannot compare"
EXIT_CODES = {PASS: 0, REGRESSION: 1, CANNOT_COMPARE: 2}
_FORMAT = "thresher-profile-check"
_FORMAT_VERSION = 1
# Of normally distributed values, the median absolute deviation times this is the standard deviation; few values give
# too little, which the second factor makes good (Croux and Rousseeuw, 1992).
_MAD_TO_SIGMA = 1.4826
_SMALL_SAMPLES = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
# The standard error of a median is this times that of a mean; three of them happen by chance once in 400 times.
_MEDIAN_ERROR = 1.2533
_SIGMAS = 3.0
_MERGED = re.compile(r"(?<!\d)(\d{1,18}) to \D*(\d{1,18})$")


@dataclass(frozen=True)
class Limits:
    """How much slower is too slow; all in percent.

    Attributes:
        wall: The wall clock of a step.
        operator: Each operator.
        by_operator: Particular operators by name.
        min_share: Operators below this share of the wall clock in all runs are shown, but not judged.
    """

    wall: float = 5.0
    operator: float = 10.0
    by_operator: Mapping[str, float] = field(default_factory=dict)
    min_share: float = 1.0


@dataclass
class _Run:
    """Times of one step of a run.

    Attributes:
        wall_ns: Its wall clock.
        steps: How many there were.
        operators: Per operator and shapes.
    """

    wall_ns: float
    steps: int
    operators: dict[tuple[str, str | None], float]


def check_reports(
    base: Sequence[dict[str, Any]],
    new: Sequence[dict[str, Any]],
    limits: Limits | None = None,
    *,
    force: bool = False,
    accept: Collection[str] = (),
) -> dict[str, Any]:
    """Judges whether new runs are slower than old ones.

    The times of a step of each run are compared by their medians over the runs. How far runs of one side differ from
    each other gives the noise; a difference counts where it exceeds both its limit and the noise.

    Args:
        base: Reports of the old runs.
        new: Reports of the new ones.
        limits: What is too slow.
        force: Whether runs are compared that cannot be.
        accept: Names of `CIRCUMSTANCES` that may differ.

    Returns:
        The verdict; docs/profiling/commands.md describes it.
    """
    limits = limits or Limits()
    reports = [*base, *new]
    found = _all_differences(reports, accept)
    result: dict[str, Any] = {
        "format": _FORMAT,
        "format_version": _FORMAT_VERSION,
        "verdict": CANNOT_COMPARE,
        "exit_code": EXIT_CODES[CANNOT_COMPARE],
        "reason": None,
        "differences": found,
        "forced": bool(force and found),
        "accepted": sorted(accept),
        "base": [report["source"].get("file") for report in base],
        "new": [report["source"].get("file") for report in new],
        "limits": {
            "wall_percent": limits.wall,
            "operator_percent": limits.operator,
            "by_operator_percent": dict(limits.by_operator),
            "min_share_percent": limits.min_share,
        },
        "notes": _notes(reports),
        "wall": None,
        "operators": [],
    }
    if found and not force:
        result["reason"] = "the runs differ in more than what is compared: " + "; ".join(found)
        return result
    by_shape = all(report.get("operators_by_shape") for report in reports)
    base_runs, new_runs = ([_run(report, by_shape=by_shape) for report in side] for side in (base, new))
    empty = [
        report["source"].get("file")
        for report, run in zip(reports, [*base_runs, *new_runs], strict=True)
        if run.wall_ns <= 0
    ]
    if empty:
        result["reason"] = f"expected runs with calls of a compiled model, got none in {', '.join(map(str, empty))}"
        return result
    result["wall"] = _wall(base_runs, new_runs, limits)
    result["operators"] = _operators(base_runs, new_runs, limits)
    unknown = sorted(set(limits.by_operator) - {row["name"] for row in result["operators"]})
    if unknown:
        result["reason"] = f"a limit was given for {', '.join(unknown)}, but no run has such an operator"
        return result
    if min(len(base), len(new)) < 2:
        result["notes"].append("one run on a side: its noise is not known; give several of each to learn it")
    rows = [result["wall"], *result["operators"]]
    blind = [row["name"] for row in rows if row["judged"] and (row["noise_percent"] or 0.0) > row["limit_percent"]]
    if blind:
        names = ", ".join(dict.fromkeys(blind))
        result["notes"].append(f"the runs differ among themselves by more than the limit, which hides less: {names}")
    slower = [row for row in rows if row["status"] == "regression"]
    result["verdict"] = REGRESSION if slower else PASS
    result["exit_code"] = EXIT_CODES[result["verdict"]]
    result["reason"] = "; ".join(_sentence(row) for row in slower[:5]) or None
    return result


def noise_percent(base: Sequence[float], new: Sequence[float]) -> float | None:
    """By how many percent medians of runs that are equally fast may differ by chance; None if it is not known.

    Args:
        base: Times of the old runs.
        new: Times of the new ones.
    """
    sigmas = [_relative_sigma(side) for side in (base, new) if len(side) > 1]
    if not sigmas:
        return None
    error = _MEDIAN_ERROR * max(sigmas) * math.sqrt(1 / len(base) + 1 / len(new))
    return 100 * _SIGMAS * error


def _relative_sigma(values: Sequence[float]) -> float:
    middle = median(values)
    if middle <= 0:
        return 0.0
    count = len(values)
    correction = _SMALL_SAMPLES.get(count, count / (count - 0.8))
    return _MAD_TO_SIGMA * correction * median(abs(value - middle) for value in values) / middle


def _all_differences(reports: Sequence[dict[str, Any]], accept: Collection[str]) -> list[str]:
    """What differs from the first run, each difference once."""
    first = reports[0]
    found = [text for other in reports[1:] for text in differences(first, other, accept=accept)]
    kinds = dict.fromkeys(_kind_of_steps(report) for report in reports)
    if len(kinds) > 1:
        found.append(f"what a step is: {' and '.join(kinds)}")
    return list(dict.fromkeys(found))


def _kind_of_steps(report: dict[str, Any]) -> str:
    overview = report["overview"]
    if overview["steps"]:
        return "calls" if overview["steps"][0]["name"].startswith("call ") else "steps of the profiler"
    return "calls" if overview.get("calls") else "the whole run"


def _notes(reports: Sequence[dict[str, Any]]) -> list[str]:
    found = []
    for report in reports:
        name, health = report["source"].get("file"), report.get("health", {})
        if health.get("dropped"):
            found.append(f"{name}: {health['dropped']} records were dropped: its sums are too small")
        if report["source"].get("truncated") or report["source"].get("complete") is False:
            found.append(f"{name}: the recording is not complete")
    return found


def _run(report: dict[str, Any], *, by_shape: bool) -> _Run:
    overview = report["overview"]
    counts = [_count(step) for step in overview["steps"]]
    if counts:
        steps = sum(counts)
        wall = median(step["wall_ns"] / count for step, count in zip(overview["steps"], counts, strict=True))
    else:
        steps = max(overview.get("calls", 1), 1)
        wall = overview["total"]["wall_ns"] / steps
    operators: dict[tuple[str, str | None], float] = {}
    for row in report["operators_by_shape" if by_shape else "operators"]:
        key = (row["name"], row.get("shapes") if by_shape else None)
        # Runs of one shape are alike, and their middle says more than their mean, which one slow run changes.
        is_alike = by_shape and row["self_ns"] == row["total_ns"]
        total = row["median_ns"] * row["count"] if is_alike else row["self_ns"]
        operators[key] = operators.get(key, 0.0) + total / steps
    return _Run(wall, steps, operators)


def _count(step: dict[str, Any]) -> int:
    """How many steps a line of the overview adds up: of very many, several share a line ("call 1 to call 3")."""
    merged = _MERGED.search(step["name"])
    return max(int(merged[2]) - int(merged[1]) + 1, 1) if merged else 1


def _wall(base: list[_Run], new: list[_Run], limits: Limits) -> dict[str, Any]:
    row = _metric("wall clock of a step", None, [run.wall_ns for run in base], [run.wall_ns for run in new])
    return _judge({**row, "share_percent": 100.0}, limits.wall, judged=True)


def _operators(base: list[_Run], new: list[_Run], limits: Limits) -> list[dict[str, Any]]:
    walls = [median(run.wall_ns for run in side) for side in (base, new)]
    found = []
    for key in {key: None for run in [*base, *new] for key in run.operators}:
        name, shapes = key
        row = _metric(name, shapes, *([run.operators.get(key, 0.0) for run in side] for side in (base, new)))
        medians = (row["base_median_ns"], row["new_median_ns"])
        share = max(100 * value / wall for value, wall in zip(medians, walls, strict=True))
        own = limits.by_operator.get(name)
        judged = own is not None or share >= limits.min_share
        found.append(_judge({**row, "share_percent": share}, limits.operator if own is None else own, judged=judged))
    found.sort(key=lambda row: (-row["share_percent"], row["name"], row["shapes"] or ""))
    return found


def _metric(name: str, shapes: str | None, base: list[float], new: list[float]) -> dict[str, Any]:
    old, now = median(base), median(new)
    return {
        "name": name,
        "shapes": shapes,
        "base_ns": base,
        "new_ns": new,
        "base_median_ns": old,
        "new_median_ns": now,
        "slowdown_percent": 100 * (now / old - 1) if old > 0 else None,
        "noise_percent": noise_percent(base, new),
    }


def _judge(row: dict[str, Any], limit: float, *, judged: bool) -> dict[str, Any]:
    slowdown, noise = row["slowdown_percent"], row["noise_percent"] or 0.0
    if row["new_median_ns"] <= 0:
        status = "gone"
    elif slowdown is None:
        status = "new"
    elif not judged:
        status = "not judged"
    elif slowdown > max(limit, noise):
        status = "regression"
    elif slowdown < -max(limit, noise):
        status = "faster"
    else:
        status = "pass"
    return {**row, "limit_percent": limit, "judged": judged, "status": status}


def _sentence(row: dict[str, Any]) -> str:
    name = row["name"] + (f" ({row['shapes']})" if row["shapes"] else "")
    limit = max(row["limit_percent"], row["noise_percent"] or 0.0)
    return f"{name}: {row['slowdown_percent']:.1f} % slower, limit {limit:.1f} %"
