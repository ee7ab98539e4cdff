"""``thresher passes``: what the compiler does to a graph."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from thresher.cli.common import Command, JsonFile, colored, console, write_json

_EPILOG = """
Examples:

- `thresher passes` lists the passes of the engine and where they stand at the default level
- `thresher passes --level O1` shows the places at another level
- `thresher passes --json` gives the same for programs
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="passes", cls=Command, epilog=_EPILOG)(colored(_passes))


def _passes(
    level: Annotated[str, typer.Option("--level", metavar="LEVEL", help="Optimisation level, O0 to O3.")] = "O2",
    json_file: JsonFile = None,
) -> None:
    """List the passes and their order."""
    from thresher.cli.common import engine, fail

    native = engine()
    rows: list[dict[str, Any]] = native.all_passes()
    try:
        order: list[str] = native.passes(level)
    except ValueError as error:
        fail(f"passes: {error}")
    for row in rows:
        row["places"] = [i + 1 for i, name in enumerate(order) if name == row["name"]]
    if write_json(json_file, {"level": level, "order": order, "passes": rows}):
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{len(rows)} passes, {len(order)} places at {level}", title_justify="left")
    for name in ("pass", "places", "what it does"):
        table.add_column(name, overflow="fold")
    for row in rows:
        places = ", ".join(map(str, row["places"])) or "-"
        table.add_row(*(Text(text) for text in (row["name"], places, row["doc"])))
    console().print(table)
