"""The operator report as text, JSON, CSV and a rich table."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

from thresher.profiler.percentages import apportion
from thresher.profiler.report import OpReport, Phase

if TYPE_CHECKING:
    from rich.console import Group

_RULE = "-" * 95
_BANNER = "=" * 95
_COLUMNS = ("rank", "opname", "count", "min_ms", "max_ms", "ave_ms", "total_ms", "percentage")


def to_text(report: OpReport) -> str:
    """The report as a fixed-width text, 95 columns wide, ending in a line break."""
    lines: list[str] = []
    if not report.phases:
        lines += ["no records: was the profiler on (THRESHER_PROFILE=ON or thresher.profiler.start()) during a call?"]
    for phase in report.phases:
        lines += [_BANNER, f"phase {phase.name}: {_counts(phase)}", _BANNER]
        for section in phase.sections:
            lines += [f"*** {section.name} ***", _RULE, _line(*_COLUMNS), _RULE]
            lines += [
                _line(
                    str(row.rank),
                    row.opname,
                    str(row.count),
                    f"{row.min_ns / 1e6:.2f}",
                    f"{row.max_ns / 1e6:.2f}",
                    f"{row.ave_ns / 1e6:.2f}",
                    f"{row.total_ns / 1e6:.2f}",
                    f"{row.percentage:.2f}",
                )
                for row in section.rows
            ] or ["no records"]
            lines += [_RULE, ""]
        lines += ["*** summary ***", _RULE, _line("", "part", "", "", "", "", "total_ms", "percentage"), _RULE]
        *parts, wall = summary_lines(phase)
        lines += [_line("", name, "", "", "", "", total, share) for name, total, share in parts]
        lines += [_RULE, _line("", wall[0], "", "", "", "", wall[1], wall[2]), _RULE, ""]
    lines.append(_origin(report))
    return "\n".join(lines) + "\n"


def to_json(report: OpReport) -> str:
    """The report as indented JSON, ending in a line break; ``OpReport.from_json`` reads it."""
    return json.dumps(report.to_dict(), indent=2) + "\n"


def to_csv(report: OpReport) -> str:
    """The report as comma-separated values: a header, one line per row, and one "gap" and "wall" line per phase."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    more = ("median_ms", "flops", "bytes", "gflop_per_s", "percent_of_peak", "bound")
    writer.writerow(("phase", "section", *_COLUMNS, *more))
    data = report.to_dict()
    for phase in data["phases"]:
        for section in phase["sections"]:
            for row in section["rows"]:
                writer.writerow((phase["phase"], section["section"], *(row[name] for name in (*_COLUMNS, *more))))
        blank = ("",) * 4
        unknown = ("",) * (len(more) + 1)
        for name in ("gap", "wall"):
            total = phase[f"{name}_ms"]
            writer.writerow((phase["phase"], name, report.rank, "", *blank, total, *unknown))
    return out.getvalue()


def to_rich(report: OpReport) -> Group:
    """The report as something that a rich console prints, with the speed of each operator beside its time.

    Raises:
        ImportError: rich is not installed.
    """
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for phase in report.phases:
        parts.append(Text(f"phase {phase.name}: {_counts(phase)}", style="bold"))
        for section in phase.sections:
            table = Table(title=f"*** {section.name} ***", title_justify="left")
            for name in (*_COLUMNS, "GFLOP/s", "% of peak", "bound by"):
                table.add_column(
                    name, justify="left" if name in ("opname", "bound by") else "right", no_wrap=name != "opname"
                )
            for row in section.rows:
                speed = "not modelled" if row.gflops is None else f"{row.gflops:.2f}"
                peak = "-" if row.percent_of_peak is None else f"{row.percent_of_peak:.0f}"
                times = (f"{ns / 1e6:.2f}" for ns in (row.min_ns, row.max_ns, row.ave_ns, row.total_ns))
                table.add_row(
                    str(row.rank),
                    row.opname,
                    str(row.count),
                    *times,
                    f"{row.percentage:.2f}",
                    speed,
                    peak,
                    row.bound or "-",
                )
            parts.append(table)
        summary = Table(title="*** summary ***", title_justify="left")
        summary.add_column("part")
        summary.add_column("total_ms", justify="right")
        summary.add_column("percentage", justify="right")
        lines = summary_lines(phase)
        for index, line in enumerate(lines):
            summary.add_row(*line, end_section=index == len(lines) - 2)
        parts.append(summary)
    parts.append(Text(_origin(report)))
    return Group(*parts)


def summary_lines(phase: Phase) -> list[tuple[str, str, str]]:
    """The sections, the gap and the wall clock of a phase as (name, milliseconds, percentage).

    The printed parts add up to the printed wall clock, and their percentages to 100.00. Without a wall clock (operators
    ran, but neither a call nor an execution was recorded from start to end) there are no percentages.
    """
    names = [section.name for section in phase.sections] + ["gap"]
    exact = [section.total_ns for section in phase.sections] + [phase.gap_ns]
    wall_hundredths = round(phase.wall_ns / 1e4)
    totals = apportion([ns / 1e4 for ns in exact], wall_hundredths)
    if phase.wall_ns > 0:
        shares = [f"{s / 100:.2f}" for s in apportion([ns / phase.wall_ns * 10_000 for ns in exact], 10_000)]
    else:
        shares = ["-"] * len(exact)
    lines = [(name, f"{total / 100:.2f}", share) for name, total, share in zip(names, totals, shares, strict=True)]
    return [*lines, ("wall", f"{wall_hundredths / 100:.2f}", "100.00" if phase.wall_ns > 0 else "-")]


def _line(rank: str, name: str, count: str, low: str, high: str, mean: str, total: str, share: str) -> str:
    # A name too long for its column moves the rest of its line rather than losing its end.
    return f"{rank:<5}{name:<27} {count:>9}{low:>10}{high:>10}{mean:>10}{total:>12}{share:>11}".rstrip()


def _counts(phase: Phase) -> str:
    text = f"{phase.calls} calls, {phase.executions} executions, wall clock {phase.wall_ns / 1e6:.2f} ms"
    if phase.tokens_per_s is not None:
        roof = "" if phase.percent_of_peak is None else f", {phase.percent_of_peak:.1f} % of the roof"
        text += f"\n{phase.tokens} tokens, {phase.tokens_per_s:.1f} tokens/s{roof}"
    return text


def _origin(report: OpReport) -> str:
    machine = ", ".join(
        part
        for part in (
            f"thresher {report.version}" if report.version else "",
            report.isa,
            f"{report.num_threads} thread{'s' * (report.num_threads > 1)}" if report.num_threads else "",
            report.cpu,
        )
        if part
    )
    return f"{machine}; {report.records} records, {report.dropped} dropped" if machine else "no engine"
