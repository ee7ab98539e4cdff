"""``thresher doctor``: is this installation sound?"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

_EPILOG = """
Examples:

- `thresher doctor` checks the installation; exit code 1 if it cannot work
- `thresher doctor --json` gives the same for programs
- `thresher doctor --env` lists every environment variable with its meaning
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="doctor", epilog=_EPILOG)(_doctor)


def _doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    env: Annotated[bool, typer.Option("--env", help="List the THRESHER_* environment variables instead.")] = False,
) -> None:
    """Check the installation: cause and cure of everything that is wrong."""
    if env:
        _print_variables(as_json)
        return
    from thresher.doctor import Level, run_checks, verdict

    findings = run_checks()
    worst = verdict(findings)
    if as_json:
        data = {"verdict": worst.value, "checks": [finding.to_dict() for finding in findings]}
        typer.echo(json.dumps(data, indent=2))
    else:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title="thresher doctor", title_justify="left")
        for name in ("check", "result", "found"):
            table.add_column(name, overflow="fold")
        styles = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
        for finding in findings:
            found = Text(finding.found)
            if finding.cure:
                found.append(f"\ncure: {finding.cure}", style="bold")
            table.add_row(finding.name, Text(finding.level.value, style=styles[finding.level]), found)
        console = Console()
        console.print(table)
        sentence = {
            Level.OK: "All is well.",
            Level.WARN: "The installation works; see the warnings.",
            Level.FAIL: "The installation cannot work.",
        }[worst]
        console.print(Text(sentence, style=styles[worst]))
    if worst is Level.FAIL:
        raise typer.Exit(1)


def _print_variables(as_json: bool) -> None:
    from thresher.cli.common import engine

    native = engine()
    rows: list[dict[str, Any]] = native.env_vars()
    warnings: list[str] = native.check_env()
    if as_json:
        typer.echo(json.dumps({"variables": rows, "warnings": warnings}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Environment variables", title_justify="left")
    table.add_column("name", no_wrap=True)
    for name in ("value", "default", "meaning"):
        table.add_column(name, overflow="fold")
    for row in rows:
        meaning = f"{row['doc']} Wanted: {row['wanted']}."
        table.add_row(*(Text(text) for text in (row["name"], row["value"], row["default"], meaning)))
    console = Console()
    console.print(table)
    for warning in warnings:
        console.print(Text(f"warning: {warning}", style="yellow"))
