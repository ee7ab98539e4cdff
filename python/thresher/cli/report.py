"""``thresher report FILE``: print an operator report that a run has left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_EPILOG = """
Examples:

- `THRESHER_PROFILE=ON THRESHER_PROFILE_OUTPUT=run.json python script.py` writes a report
- `thresher report run.json` prints it
- `thresher report run.json --csv > run.csv` turns it into a table for a spreadsheet
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="report", epilog=_EPILOG)(_report)


def _report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON written by a profiled run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values instead of text.")] = False,
    rich: Annotated[bool, typer.Option("--rich", help="Print coloured tables instead of text.")] = False,
) -> None:
    """Print the operator report that a profiled run has written."""
    from thresher.cli.common import fail
    from thresher.profiler import OpReport, render

    if as_json + as_csv + rich > 1:
        fail("report: wanted one of --json, --csv and --rich, found several; choose one")
    try:
        report = OpReport.from_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"{file}: wanted a file that can be read, found: {error.strerror or error}; check the path")
    except ValueError as error:
        fail(f"{file}: {error}")
    if rich:
        from rich.console import Console

        Console().print(render(report, "rich"))
        return
    typer.echo(render(report, "json" if as_json else "csv" if as_csv else "text"), nl=False)
