"""``thresher doctor``: is this installation sound?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from thresher.cli.common import Command, JsonFile, colored, console, write_json

_EPILOG = """
Examples:

- `thresher doctor` checks the installation; exit code 1 if it cannot work
- `thresher doctor --json` gives the same for programs
- `thresher doctor --env` lists every environment variable with its meaning
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="doctor", cls=Command, epilog=_EPILOG)(colored(_doctor))


def _doctor(
    json_file: JsonFile = None,
    env: Annotated[bool, typer.Option("--env", help="List the THRESHER_* environment variables instead.")] = False,
) -> None:
    """Check the installation: cause and cure of everything that is wrong."""
    if env:
        _print_variables(json_file)
        return
    from thresher.doctor import Level, run_checks, topology, verdict

    findings = run_checks()
    worst = verdict(findings)
    document = {
        "verdict": worst.value,
        "checks": [finding.to_dict() for finding in findings],
        "topology": topology(),
    }
    if not write_json(json_file, document):
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
        screen = console()
        screen.print(table)
        sentence = {
            Level.OK: "All is well.",
            Level.WARN: "The installation works; see the warnings.",
            Level.FAIL: "The installation cannot work.",
        }[worst]
        screen.print(Text(sentence, style=styles[worst]))
    if worst is Level.FAIL:
        raise typer.Exit(1)


def _print_variables(json_file: str | None) -> None:
    from thresher.cli.common import engine

    native = engine()
    rows: list[dict[str, Any]] = native.env_vars()
    warnings: list[str] = native.check_env()
    if write_json(json_file, {"variables": rows, "warnings": warnings}):
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Environment variables", title_justify="left")
    table.add_column("name", no_wrap=True)
    for name in ("value", "default", "meaning"):
        table.add_column(name, overflow="fold")
    for row in rows:
        meaning = f"{row['doc']} Expected: {row['wanted']}."
        table.add_row(*(Text(text) for text in (row["name"], row["value"], row["default"], meaning)))
    screen = console()
    screen.print(table)
    for warning in warnings:
        screen.print(Text(f"warning: {warning}", style="yellow"))
