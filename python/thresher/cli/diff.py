"""``thresher diff A B``: what differs between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.common import Command, JsonFile, colored, write_json

if TYPE_CHECKING:
    from rich.console import Group

_EPILOG = """
Examples:

- `thresher diff old.thrtrace new.thrtrace` lists the operators whose time changed most
- `thresher diff fp32.thrtrace int8.thrtrace --html diff.html` makes a page of it
- `thresher diff old.json new.json --accept thresher --json` compares two versions of Thresher, for programs
"""


# Options that every command has which compares runs.
Accept = Annotated[
    list[str] | None,
    typer.Option(
        "--accept", metavar="NAME", help="May differ: cpu, isa, threads, thresher, torch, python. Repeatable."
    ),
]
Top = Annotated[int, typer.Option("--top", metavar="N", min=0, help="How many operators; 0 for all.")]
Force = Annotated[
    bool,
    typer.Option("--force", help="Compare runs of different machines and versions; write over a file that exists."),
]


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="diff", cls=Command, epilog=_EPILOG)(colored(_diff))


def _diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="The run to compare with: a trace, or a report as JSON.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The run that is compared.")],
    json_file: JsonFile = None,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the difference as one page for a browser.")
    ] = None,
    accept: Accept = None,
    top: Top = 25,
    force: Force = False,
) -> None:
    """Compare two runs: the wall clock, its parts, and every operator. Exit code 2 if they cannot be compared."""
    from thresher.cli.common import fail
    from thresher.cli.report import page_renderer, show, write_page
    from thresher.profiler.compare import diff_reports
    from thresher.profiler.export import OutputError, check_output

    accepted = checked_names(accept or [])
    if html is not None:
        page_renderer()
        try:
            check_output(html, force=force)
        except OutputError as error:
            fail(str(error))
    first, second = load_or_end(a), load_or_end(b)
    found = diff_reports(first, second, accept=accepted)
    if not found["comparable"] and not force:
        cannot_compare(f"{a} and {b} differ in more than what is compared: {'; '.join(found['differences'])}")
    if html is not None:
        try:
            write_page(second, html, diff=found, force=force)
        except OutputError as error:
            fail(str(error))
    if write_json(json_file, found):
        return
    if html is not None:
        typer.echo(f"wrote {html}")
    else:
        show(_tables(found, top))


def cannot_compare(message: str) -> None:
    """Ends a command that compares with a message and exit code 2."""
    typer.echo(
        f"thresher: {message}; --accept NAME allows one of them to differ, --force compares in any case", err=True
    )
    raise typer.Exit(2)


def checked_names(names: list[str]) -> set[str]:
    """What may differ, or the end of the command with a message and exit code 2 if a name is not known."""
    from thresher.profiler.compare import CIRCUMSTANCES

    for name in names:
        if name not in CIRCUMSTANCES:
            typer.echo(f"thresher: --accept: expected one of {', '.join(CIRCUMSTANCES)}, got {name!r}", err=True)
            raise typer.Exit(2)
    return set(names)


def load_or_end(path: Path) -> dict[str, Any]:
    """The report of a run, or the end of the command with a message and exit code 2 if it cannot be read."""
    from thresher.profiler.compare import load_report

    try:
        return load_report(path)
    except OSError as error:
        message = f"{path}: expected a file that can be read, got: {error.strerror or error}; check the path"
    except ValueError as error:
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
    typer.echo(f"thresher: {message}", err=True)
    raise typer.Exit(2)


def _tables(found: dict[str, Any], top: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    from thresher.profiler.export.tables import Look, milliseconds

    look = Look(top)
    head = Text(f"A  {found['a']['file']}\nB  {found['b']['file']}\n")
    for difference in found["differences"]:
        head.append(f"not alike: {difference}\n")
    parts = look.table("Wall clock and its parts", "part", "A ms", "B ms", "B - A ms", "B / A")
    lines = [*found["by_category"].items(), ("wall clock", found["wall"])]
    for name, line in lines:
        a, b = line["a_ns"], line["b_ns"]
        if a or b:
            parts.add_row(name, milliseconds(a), milliseconds(b), _signed(b - a), _ratio(b / a if a else None))
    rows = found["rows"]
    by_shape = any(row["shapes"] for row in rows)
    columns = (*(("<shapes",) if by_shape else ()), "A runs", "B runs", "A ms", "B ms", "B - A ms", "B / A")
    table = look.table("Operators, the largest differences first", "operator", *columns)
    for row in look.shown(rows):
        sides = [row["a"], row["b"]]
        counts = ["-" if side is None else str(side["count"]) for side in sides]
        times = ["-" if side is None else milliseconds(side["total_ns"]) for side in sides]
        shapes = [Text(row["shapes"] or "")] if by_shape else []
        table.add_row(Text(row["name"]), *shapes, *counts, *times, _signed(row["delta_ns"]), _ratio(row["ratio"]))
    hidden = len(rows) - len(look.shown(rows))
    rest = [Text(f"and {hidden} more; --top 0 lists them")] if hidden else []
    return Group(head, parts, Text(), table, *rest)


def _signed(ns: float) -> str:
    from thresher.profiler.export.tables import milliseconds

    return f"+{milliseconds(ns)}" if ns > 0 else milliseconds(ns)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
