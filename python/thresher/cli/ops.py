"""``thresher ops``: what the engine can compute."""

from __future__ import annotations

from typing import Any

import typer

from thresher.cli.common import Command, JsonFile, colored, console, write_json

_EPILOG = """
Examples:

- `thresher ops` lists every operator of the engine
- `thresher ops --json` gives the same with the types of all attributes
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="ops", cls=Command, epilog=_EPILOG)(colored(_ops))


def _ops(json_file: JsonFile = None) -> None:
    """List the operators that the engine runs, and those of installed packages; a model's others run in PyTorch."""
    from thresher import packages
    from thresher.cli.common import engine, plain_warnings

    with plain_warnings():
        packages.installed()
    rows: list[dict[str, Any]] = engine().ops()
    if write_json(json_file, rows):
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{len(rows)} operators", title_justify="left")
    for name in ("operator", "operands", "attributes", "section", "meaning"):
        table.add_column(name, overflow="fold")
    for row in rows:
        attributes = ", ".join(_attribute(attribute) for attribute in row["attrs"])
        cells = (row["name"], ", ".join(row["operands"]), attributes, row["section"], row["doc"])
        table.add_row(*(Text(cell) for cell in cells))
    console().print(table)


def _attribute(attribute: Any) -> str:
    return str(attribute["name"] if isinstance(attribute, dict) else attribute)
