"""``thresher check BASE... --against NEW...``: whether new runs are slower than old ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.common import STDOUT, Command, JsonFile, colored
from thresher.cli.diff import Accept, Force, Top, checked_names, load_or_end

if TYPE_CHECKING:
    from rich.console import Group

_AGAINST = "--against"
_EPILOG = """
Examples:

- `thresher check old.thrtrace --against new.thrtrace` fails if a step became more than 5 % slower
- `thresher check old-*.thrtrace --against new-*.thrtrace` also learns the noise from the repeats: best five or more
- `thresher check old-*.json --against new-*.json --max-slowdown 2% --limit linear=4% --json=verdict.json` in a build
- `thresher check v1-*.thrtrace --against v2-*.thrtrace --accept thresher` compares two versions of Thresher

Exit codes: 0 pass, 1 regression, 2 the runs cannot be compared.
"""


class _Command(Command):
    """Lets `--against` take several files, as a shell's pattern gives them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        expanded: list[str] = []
        takes_files = False
        for position, argument in enumerate(args):
            if argument == "--":
                expanded += args[position:]
                break
            if argument.startswith("-") and argument != "-":
                takes_files = argument == _AGAINST
                expanded += [] if takes_files else [argument]
                following = args[position + 1 : position + 2]
                if takes_files and (not following or following[0].startswith("-")):
                    expanded.append(_AGAINST)  # without a file: click says so
            else:
                expanded += [_AGAINST, argument] if takes_files else [argument]
        return super().parse_args(ctx, expanded)


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="check", cls=_Command, epilog=_EPILOG)(colored(_check))


def _check(
    base: Annotated[list[Path], typer.Argument(metavar="BASE...", help="Old runs: traces, or reports as JSON.")],
    new: Annotated[
        list[Path], typer.Option(_AGAINST, metavar="NEW...", help="New runs; all names up to the next option.")
    ],
    max_slowdown: Annotated[
        str, typer.Option("--max-slowdown", metavar="PERCENT", help="How much slower a step may be.")
    ] = "5%",
    max_operator_slowdown: Annotated[
        str, typer.Option("--max-operator-slowdown", metavar="PERCENT", help="How much slower an operator may be.")
    ] = "10%",
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME=PERCENT", help="The same for one operator. Repeatable."),
    ] = None,
    min_share: Annotated[
        str,
        typer.Option("--min-share", metavar="PERCENT", help="Operators below this share of a step are not judged."),
    ] = "1%",
    json_file: JsonFile = None,
    accept: Accept = None,
    top: Top = 25,
    force: Force = False,
) -> None:
    """Judge whether new runs are slower than old ones, for people and build servers.

    A step or operator is too slow if the median of the new runs exceeds that of the old ones by more than its limit
    and by more than the noise, which is learned from how far runs of one side differ among themselves.
    """
    from thresher.cli.report import show
    from thresher.profiler.compare import Limits, check_reports
    from thresher.profiler.export import OutputError, check_output

    accepted = checked_names(accept or [])
    limits = Limits(
        wall=_percent("--max-slowdown", max_slowdown),
        operator=_percent("--max-operator-slowdown", max_operator_slowdown),
        by_operator=dict(_limit(text) for text in limit or []),
        min_share=_percent("--min-share", min_share),
    )
    if json_file not in (None, STDOUT):
        try:
            check_output(Path(str(json_file)), force=force)
        except OutputError as error:
            _end(str(error))
    reports = [[load_or_end(path) for path in side] for side in (base, new)]
    found = check_reports(reports[0], reports[1], limits, force=force, accept=accepted)
    if json_file == STDOUT:
        typer.echo(json.dumps(found, indent=2))
    else:
        show(_tables(found, top))
        if json_file is not None:
            _write(Path(json_file), found, force=force)
    raise typer.Exit(found["exit_code"])


def _write(path: Path, found: dict[str, Any], *, force: bool) -> None:
    from thresher.profiler.export import OutputError, write_text

    try:
        write_text(path, json.dumps(found, indent=2) + "\n", force=force)
    except OutputError as error:
        # A build that reads the file would find none: that is worse than a regression.
        _end(str(error))


def _end(message: str) -> None:
    typer.echo(f"thresher: {message}", err=True)
    raise typer.Exit(2)


def _percent(option: str, text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        _end(f"{option}: expected a percentage such as 5%, got {text!r}")
    return value


def _limit(text: str) -> tuple[str, float]:
    name, sign, value = text.rpartition("=")
    if not sign or not name:
        _end(f"--limit: expected the name of an operator and a percentage, such as linear=3%, got {text!r}")
    return name, _percent("--limit", value)


def _tables(found: dict[str, Any], top: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    from thresher.profiler.export.tables import Look, milliseconds

    look = Look(top)
    runs = Text(f"base  {', '.join(map(str, found['base']))}\nnew   {', '.join(map(str, found['new']))}\n")
    parts: list[Any] = [runs]
    rows = ([found["wall"]] if found["wall"] else []) + list(look.shown(found["operators"]))
    if rows:
        columns = ("base ms", "new ms", "slower %", "limit %", "noise %", "share %", "<verdict")
        by_shape = any(row["shapes"] for row in rows)
        table = look.table("Times of a step", "what", *(("<shapes",) if by_shape else ()), *columns)
        for row in rows:
            numbers = [row[name] for name in ("slowdown_percent", "limit_percent", "noise_percent", "share_percent")]
            table.add_row(
                Text(row["name"]),
                *([Text(row["shapes"] or "")] if by_shape else []),
                *(milliseconds(row[name]) for name in ("base_median_ns", "new_median_ns")),
                *("-" if number is None else f"{number:.1f}" for number in numbers),
                row["status"],
            )
        parts += [table, Text()]
    hidden = len(found["operators"]) - len(look.shown(found["operators"]))
    if hidden:
        parts.append(Text(f"and {hidden} operators more; --top 0 lists them\n"))
    parts += [Text(f"note: {note}") for note in found["notes"]]
    if found["forced"]:
        parts += [Text(f"not alike: {difference}") for difference in found["differences"]]
    reason = f": {found['reason']}" if found["reason"] else ""
    cure = (
        "; --accept NAME or --force compares them in any case" if found["differences"] and not found["forced"] else ""
    )
    parts.append(Text(f"verdict: {found['verdict']}{reason}{cure}", style="bold"))
    return Group(*parts)
