"""Reading what can be compared: traces, reports of traces, operator reports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thresher.json_text import integer, number, parse, text
from thresher.profiler.report import OpReport

if TYPE_CHECKING:
    import os

REPORT_FORMAT = "thresher-profile"
OP_REPORT_FORMAT = "thresher-op-report"
REPORT_VERSION = 1
_BEGIN = re.compile(rb'\s*\{\s*"format"\s*:\s*"([^"]*)"')


def format_of(path: Path) -> str | None:
    """What a JSON file says its format is, None if it says nothing: then it is a trace, or no file of ours.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        found = _BEGIN.match(file.read(4096))
    return None if found is None else found[1].decode("utf-8", "replace")


def load_report(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The data of the report of a run.

    Args:
        path: A trace (native or Chrome JSON), what `thresher report --json` prints, or an operator report.

    Raises:
        ValueError: The file is none of these.
        OSError: It cannot be read.
    """
    file = Path(path)
    format = format_of(file)
    if format == OP_REPORT_FORMAT:
        return _of_op_report(file)
    if format == REPORT_FORMAT:
        try:
            data = parse(file.read_bytes())
        except ValueError as error:
            raise ValueError(f"{file}: expected JSON, got a damaged file: {error}; write the report again") from error
        return _checked(file, data)
    if format is not None and format.startswith("thresher-"):
        raise ValueError(f"{file}: expected a trace or the report of a run, got a {format}; give the run's own file")
    from thresher.profiler.analysis import build_report
    from thresher.profiler.trace import read_trace

    report: dict[str, Any] = build_report(read_trace(file))
    return report


def _checked(path: Path, data: Any) -> dict[str, Any]:
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != REPORT_VERSION:
        raise ValueError(
            f"{path}: expected format version {REPORT_VERSION}, got {version}; read it with the version of Thresher "
            "that wrote it"
        )
    wanted = {"source", "machine", "versions", "overview", "operators"}
    if missing := sorted(wanted - data.keys()):
        raise ValueError(f"{path}: expected a report, got one without {', '.join(missing)}; the file is damaged")
    try:
        _check_content(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected a report, got a damaged one: {type(error).__name__} {error}; write the report again"
        ) from error
    found: dict[str, Any] = data
    return found


def _check_content(data: dict[str, Any]) -> None:
    """Whether what is compared is of the right types; anything else in a report may be as it likes."""
    for part in ("source", "machine", "versions"):
        data[part].keys()
    data.get("health", {}).keys()
    overview = data["overview"]
    number(overview["total"]["wall_ns"])
    for value in overview["total"]["by_category"].values():
        number(value)
    for step in _list(overview["steps"]):
        text(step["name"])
        number(step["wall_ns"])
    integer(overview.get("calls", 1))
    for row in (*_list(data["operators"]), *_list(data.get("operators_by_shape", []))):
        text(row["name"])
        if row.get("shapes") is not None:
            text(row["shapes"])
        integer(row["count"])
        for name in ("total_ns", "self_ns", "median_ns"):
            number(row[name])


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value


def _of_op_report(path: Path) -> dict[str, Any]:
    """An operator report in the form of a trace's; it has no shapes, and of the steps only their number."""
    report = OpReport.from_json(path.read_text(encoding="utf-8"))
    rows = [
        {
            "name": row.opname,
            "phase": phase.name,
            "section": section.name,
            "shapes": None,
            "count": row.count,
            "total_ns": row.total_ns,
            "self_ns": row.total_ns,
            "median_ns": row.median_ns,
        }
        for phase in report.phases
        for section in phase.sections
        for row in section.rows
    ]
    calls = sum(phase.calls or phase.executions for phase in report.phases)
    wall = sum(phase.wall_ns for phase in report.phases)
    by_category = {"kernel": sum(phase.rows_ns for phase in report.phases)}
    by_category["gap"] = wall - by_category["kernel"]
    return {
        "format": REPORT_FORMAT,
        "format_version": REPORT_VERSION,
        "source": {"file": path.name, "kind": "op report", "complete": True, "truncated": False},
        "machine": {"cpu": report.cpu or None, "isa": report.isa or None, "num_threads": report.num_threads or None},
        "versions": {"thresher": report.version or None, "torch": None, "python": None},
        "health": {"dropped": report.dropped},
        "overview": {"total": {"wall_ns": wall, "by_category": by_category}, "steps": [], "calls": calls},
        "operators": rows,
        "operators_by_shape": [],
    }
