"""``thresher verify``: compares kernels with float64 and with PyTorch."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.common import STDOUT, Command, JsonFile, colored, fail, need_torch, plain_warnings, write, write_json
from thresher.cli.conv import SETTINGS, CommandsFile, Words, bar, commands_of

if TYPE_CHECKING:
    from thresher.signatures.run import CommandResult

_EPILOG = """
Examples:

- `thresher verify convbfp16 -n 1 -c 64 -H 56 -W 56 -k 64 -p 1 -q 1` verifies one kernel
- `thresher verify --commands-file layers.txt --output verdicts.csv` verifies many; .json holds everything
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="verify", cls=Command, epilog=_EPILOG, context_settings=SETTINGS)(colored(_verify))


def _verify(
    words: Words = None,
    commands_file: CommandsFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write all statistics here: .json or .csv.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare kernels with float64 and with PyTorch: PASS or FAIL, and why; exit code 1 if one fails."""
    need_torch("verify")
    from thresher.signatures.run import run

    if output is not None and output.suffix not in (".json", ".csv"):
        fail(f"--output: expected a name that ends in .json or .csv, got {output}")
    commands = commands_of("verify", words, commands_file)
    results: list[CommandResult] = []
    with plain_warnings(), bar("verify", len(commands)) as advance:
        for found in run(commands, [], verify=True):
            results.append(found)
            if json_file != STDOUT:
                _print(found)
            advance()
    data = [
        {"command": one.command, "problem": one.problem, **(one.verification.to_dict() if one.verification else {})}
        for one in results
    ]
    failed = sum(one.failed for one in results)
    if not write_json(json_file, data) and len(results) > 1:
        typer.echo(f"{len(results)} commands, {failed} failed")
    if output is not None:
        write(output, json.dumps(data, indent=2) + "\n" if output.suffix == ".json" else _csv(data))
    if failed:
        raise typer.Exit(1)


def _print(found: CommandResult) -> None:
    typer.echo(found.command)
    if found.verification is None:
        typer.echo(f"  FAIL: {found.problem}")
        return
    for check in found.verification.checks:
        typer.echo(f"  {check.name:<6}  {'PASS' if check.passed else 'FAIL'}: {check.reason}")


def _csv(data: list[dict[str, Any]]) -> str:
    statistics = ("max_abs", "max_rel", "mean", "stddev")
    columns = ["command", "func_name", "check", "passed", "reason", *statistics]
    columns += [*(f"torch_{name}" for name in statistics), "limit"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for entry in data:
        if entry["problem"]:
            writer.writerow({**entry, "passed": False, "reason": entry["problem"]})
        for check in entry.get("checks", ()):
            torchs = {f"torch_{name}": check["torch_errors"][name] for name in statistics}
            writer.writerow({**entry, **check, "check": check["name"], **check["errors"], **torchs})
    return text.getvalue()
