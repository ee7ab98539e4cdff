"""The report of a trace as tables for a terminal, and as comma-separated values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

DEFAULT_TOP = 25
_FEW_STEPS = 10
_DEEPEST = 3
_COLUMNS = (
    *("name", "phase", "section", "shapes", "dtypes", "precision", "kernel", "module", "source", "count"),
    *("total_ns", "self_ns", "min_ns", "max_ns", "mean_ns", "median_ns", "share", "flops", "bytes", "gflops"),
    *("gbytes_per_s", "intensity", "percent_of_peak", "bound", "not_modelled", "device"),
)
_COSTS = {"gflops": "GFLOP/s", "gbytes_per_s": "GB/s", "percent_of_peak": "% of peak"}
_MODULE_COLUMNS = ("name", "count", "total_ns", "self_ns", "share", "source")
_STYLES = {"high": "bold red", "medium": "yellow", "info": "cyan"}


def to_csv(report: dict[str, Any], *, by_shape: bool = False, by_module: bool = False) -> str:
    """One table as comma-separated values: the operators, or those by shape, or the modules."""
    columns: Sequence[str] = _MODULE_COLUMNS if by_module else _COLUMNS
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in report[_part(by_shape=by_shape, by_module=by_module)]:
        writer.writerow(["" if row.get(name) is None else row[name] for name in columns])
    return out.getvalue()


def to_tables(
    report: dict[str, Any],
    *,
    by_shape: bool = False,
    by_module: bool = False,
    top: int = DEFAULT_TOP,
    framed: bool = False,
) -> Group:
    """The report as something that a rich console prints.

    Args:
        report: Data of the report.
        by_shape: Whether an operator has one line for each of its shapes.
        by_module: Whether every module is listed rather than the upper ones.
        top: How many lines of a table are shown, 0 for all.
        framed: Whether tables have frames.
    """
    look = Look(top, framed)
    parts = [
        _head(report),
        *_overview(report, look),
        *_findings(report),
        *_operators(
            "Operators by shape" if by_shape else "Operators", report[_part(by_shape=by_shape)], look, by_shape
        ),
        *_operators("Kernels", report["kernels"], look, False),
        *_runtime(report, look),
        *_modules(report, look, every=by_module),
        *_memory(report),
        *_health(report),
    ]
    return Group(*parts)


class Look:
    """How tables look.

    Attributes:
        top: How many lines of a table are shown, 0 for all.
    """

    def __init__(self, top: int = DEFAULT_TOP, framed: bool = False) -> None:
        """Chooses a look; `framed` tables have lines around them."""
        self.top = top
        self._box = box.HEAVY_HEAD if framed else box.SIMPLE_HEAD

    def table(self, title: str, *columns: str) -> Table:
        """An empty table; the first column is a name, the others are numbers unless they begin with "<"."""
        found = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            min_width=len(title),  # a narrow table would break its title
            box=self._box,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            show_edge=False,
        )
        for index, column in enumerate(columns):
            is_text = index == 0 or column.startswith("<")
            found.add_column(
                column.removeprefix("<"),
                justify="left" if is_text else "right",
                overflow="fold",
                no_wrap=not is_text or column == "<bound by",
            )
        return found

    def shown(self, rows: Sequence[Any]) -> Sequence[Any]:
        """The lines that are shown."""
        return rows[: self.top] if self.top else rows

    def rest(self, rows: Sequence[dict[str, Any]], key: str = "total_ns") -> list[RenderableType]:
        """What is said of the lines that are not shown."""
        hidden = rows[self.top :] if self.top else []
        if not hidden:
            return []
        total = sum(row[key] for row in hidden)
        return [Text(f"and {len(hidden)} more, together {milliseconds(total)} ms; --top 0 lists them", style="dim")]


def milliseconds(ns: float) -> str:
    """A time in milliseconds with two decimals, or as many as show that it is not zero."""
    value = ns / 1e6
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.005 else f"{value:.2g}"


def _part(*, by_shape: bool = False, by_module: bool = False) -> str:
    return "modules_flat" if by_module else "operators_by_shape" if by_shape else "operators"


def _head(report: dict[str, Any]) -> Text:
    machine, versions, source, energy = (report[name] for name in ("machine", "versions", "source", "energy"))
    threads = machine["num_threads"]
    runs_on = [machine["cpu"], machine["isa"], f"{threads} threads" if threads else None]
    made_by = [f"{name} {version}" for name, version in versions.items() if version]
    lines = [
        ("file", f"{source['file']}, {source['events']} events" + (f"; {source['note']}" if source["note"] else "")),
        ("machine", ", ".join(part for part in runs_on if part) or "not known"),
        ("versions", ", ".join(made_by) or "not known"),
        ("wall clock", f"{milliseconds(report['time']['wall_ns'])} ms"),
        ("energy", _energy(energy)),
    ]
    if machine["peaks_reason"]:
        lines.append(("peaks", f"not known: {machine['peaks_reason']}"))
    found = Text()
    for name, value in lines:
        found.append(f"{name:<11}", style="bold")
        found.append(f"{value}\n")
    return found


def _energy(energy: dict[str, Any]) -> str:
    domains = ", ".join(f"{domain['name']} {domain['joules']:.2f}" for domain in energy["domains"])
    if energy["joules"] is None:
        return f"not known: {energy['reason']}" + (f" (known: {domains} J)" if domains else "")
    return f"{energy['joules']:.2f} J ({domains})"


def _overview(report: dict[str, Any], look: Look) -> Iterator[RenderableType]:
    overview = report["overview"]
    total, steps = overview["total"], overview["steps"]
    shown = steps if len(steps) <= _FEW_STEPS else []
    categories = [name for name in overview["categories"] if total["by_category"].get(name)]
    table = look.table("Where the time went, in ms", "part", "total", "%", *(step["name"] for step in shown[:5]))
    for name in categories:
        ns = total["by_category"][name]
        cells = [milliseconds(step["by_category"].get(name, 0)) for step in shown[:5]]
        table.add_row(name, milliseconds(ns), _percent(ns, total["wall_ns"]), *cells)
    table.add_section()
    walls = [milliseconds(step["wall_ns"]) for step in shown[:5]]
    table.add_row("wall clock", milliseconds(total["wall_ns"]), "100.0" if total["wall_ns"] else "-", *walls)
    yield table
    if len(steps) > 5:
        times = sorted(step["wall_ns"] for step in steps)
        middle = times[len(times) // 2]
        yield Text(
            f"{len(steps)} steps: shortest {milliseconds(times[0])} ms, median {milliseconds(middle)} ms, "
            f"longest {milliseconds(times[-1])} ms"
        )
    if overview.get("note"):
        yield Text(overview["note"], style="dim")
    yield Text()


def _findings(report: dict[str, Any]) -> Iterator[RenderableType]:
    yield Text("Findings", style="bold italic")
    for finding in report["overview"]["findings"]:
        yield Text.assemble((f"{finding['severity']}: ", _STYLES.get(finding["severity"], "")), finding["title"])
        yield Padding(Text(f"{finding['detail']}\n{finding['advice']}"), (0, 0, 0, 2))
    if not report["overview"]["findings"]:
        yield Text("nothing stands out")
    yield Text()


def _operators(title: str, rows: list[dict[str, Any]], look: Look, by_shape: bool) -> Iterator[RenderableType]:
    sections = list(dict.fromkeys((row["phase"], row["section"]) for row in rows))
    for phase, section in sections:
        mine = [row for row in rows if (row["phase"], row["section"]) == (phase, section)]
        where = section if len({row["phase"] for row in rows}) == 1 else f"{phase}, {section}"
        # Of PyTorch's operators on the host no costs are known: columns of nothing would only take place.
        wanted = [name for name in _COSTS if not (by_shape and name == "gbytes_per_s")]  # shapes need its place
        costs = [name for name in wanted if any(row[name] is not None for row in mine)]
        columns = ["<shapes"] if by_shape else []
        columns += ["count", "total ms", "share %", "mean us", *(_COSTS[name] for name in costs)]
        table = look.table(f"{title}: {where}", "name", *columns, *(["<bound by"] if costs else []))
        for row in look.shown(mine):
            shapes = [row["shapes"] or ""] if by_shape else []
            table.add_row(
                *(Text(text) for text in (row["name"], *shapes)),
                str(row["count"]),
                milliseconds(row["self_ns"]),
                f"{row['share']:.2f}",
                f"{row['mean_ns'] / 1e3:.1f}",
                *(_number(row[name]) for name in costs),
                *([_bound(row)] if costs else []),
            )
        yield table
        yield from look.rest(mine, "self_ns")
        if not costs:
            reasons = {str(row["not_modelled"]) for row in mine if row["not_modelled"]}
            yield Text(f"costs not modelled: {'; '.join(sorted(reasons)[:1])}", style="dim")
        yield Text()
    if not sections:
        yield Text(f"{title}: none", style="bold")
        yield Text()


def _bound(row: dict[str, Any]) -> str:
    if row["bound"]:
        return str(row["bound"])
    return "not modelled" if row["not_modelled"] else "-"


def _runtime(report: dict[str, Any], look: Look) -> Iterator[RenderableType]:
    rows = report.get("runtime", [])
    if not rows:
        return
    table = look.table("Host events of the engine", "event", "count", "total ms", "self ms", "mean us")
    for row in look.shown(rows):
        times = (milliseconds(row["total_ns"]), milliseconds(row["self_ns"]), f"{row['mean_ns'] / 1e3:.1f}")
        table.add_row(Text(row["name"]), str(row["count"]), *times)
    yield table
    yield from look.rest(rows)
    yield Text()


def _modules(report: dict[str, Any], look: Look, *, every: bool) -> Iterator[RenderableType]:
    root = report["modules"]
    lines = [line for line in _tree(root, 0) if every or line[0] <= _DEEPEST]
    if len(lines) <= 1:
        yield Text("Modules: the trace names none", style="bold")
        yield Text()
        return
    table = look.table("Modules", "module", "runs", "total ms", "self ms", "%", "<source")
    shown = lines if every else look.shown(lines)
    for depth, node in shown:
        table.add_row(
            Text("  " * depth + node["name"]),
            str(node["count"]),
            milliseconds(node["total_ns"]),
            milliseconds(node["self_ns"]),
            _percent(node["total_ns"], root["total_ns"]),
            Text(node["source"] or ""),
        )
    yield table
    if not every:
        yield Text("the upper levels and the largest; --module lists every module", style="dim")
    yield Text()


def _tree(node: dict[str, Any], depth: int) -> Iterator[tuple[int, dict[str, Any]]]:
    pending = [(depth, node)]
    while pending:
        level, found = pending.pop()
        yield level, found
        children = [child for child in found["children"] if child["kind"] == "module"]
        pending += [(level + 1, child) for child in sorted(children, key=lambda child: child["total_ns"])]


def _memory(report: dict[str, Any]) -> Iterator[RenderableType]:
    memory = report["memory"]
    peak = memory["peak_bytes"]
    if peak is None:
        yield Text(f"Memory: not known: {memory['reason']}")
    else:
        at = milliseconds(memory["peak_time_ns"] or 0)
        yield Text(f"Memory: at most {peak / 1e6:.2f} MB, {at} ms after the start; {memory['total_events']} events")


def _health(report: dict[str, Any]) -> Iterator[RenderableType]:
    health = report["health"]
    counts = [(name.replace("_", " "), value) for name, value in health.items() if isinstance(value, int)]
    wrong = [f"{value} {name}" for name, value in counts if value]
    sound = not wrong and not health["messages"]
    yield Text.assemble("Health: ", ("good", "green") if sound else (", ".join(wrong) or "see below", "yellow"))
    if sound:
        yield Text(f"0 {', 0 '.join(name for name, _ in counts)}", style="dim")
    for message in health["messages"]:
        yield Padding(Text(message), (0, 0, 0, 2))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}" if whole else "-"
