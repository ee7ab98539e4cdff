"""``thresher ops``: what the engine can compute."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

_EPILOG = """
Examples:

- `thresher ops` lists every operator of the engine
- `thresher ops --json` gives the same with the types of all attributes
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="ops", epilog=_EPILOG)(_ops)


def _ops(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """List the operators that the engine runs; a model's others run in PyTorch."""
    from thresher.cli.common import engine

    rows: list[dict[str, Any]] = engine().ops()
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{len(rows)} operators", title_justify="left")
    for name in ("operator", "operands", "attributes", "section", "meaning"):
        table.add_column(name, overflow="fold")
    for row in rows:
        attributes = ", ".join(_attribute(attribute) for attribute in row["attrs"])
        cells = (row["name"], ", ".join(row["operands"]), attributes, row["section"], row["doc"])
        table.add_row(*(Text(cell) for cell in cells))
    Console().print(table)


def _attribute(attribute: Any) -> str:
    return str(attribute["name"] if isinstance(attribute, dict) else attribute)
