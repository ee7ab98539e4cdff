"""``thresher preload``: fills the cache with kernels ahead of their first use."""

from __future__ import annotations

from typing import Annotated

import typer

from thresher.cli.common import Command, JsonFile, colored, fail, need_torch, plain_warnings, write_json
from thresher.cli.conv import SETTINGS, CommandsFile, Words, bar, commands_of

_EPILOG = """
Examples:

- `thresher preload --commands-file layers.txt -j 2` makes all kernels of a file, two processes at a time
- `thresher preload --commands-file layers.txt --json` prints what became of each
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="preload", cls=Command, epilog=_EPILOG, context_settings=SETTINGS)(colored(_preload))


def _preload(
    words: Words = None,
    commands_file: CommandsFile = None,
    jobs: Annotated[int, typer.Option("-j", "--jobs", metavar="N", min=1, help="Processes that work at it.")] = 1,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu: the device they are for.")] = "cpu",
    json_file: JsonFile = None,
) -> None:
    """Make kernels and keep them in the cache; exit code 1 if one cannot be made."""
    need_torch("preload")
    from thresher.signatures.preload import CachePopulator, Status

    if device != "cpu":
        fail(f"--device: expected cpu, got {device}; kernels from signatures run on CPUs only")
    populator = CachePopulator(commands=commands_of("preload", words, commands_file))
    with plain_warnings(), bar("preload", len(populator.signatures)) as advance:
        try:
            populator.run(jobs, progress=lambda done, total: advance())
        except ValueError as error:
            fail(str(error))
    states = populator.statuses()
    if not write_json(json_file, [state.to_dict() for state in states]):
        for state in states:
            if state.problem:
                typer.echo(f"{state.func_name}: {state.problem}", err=True)
        count = {status: sum(state.status is status for state in states) for status in Status}
        typer.echo(f"{count[Status.MADE]} made, {count[Status.KNOWN]} known before, {count[Status.FAILED]} failed")
    if populator.failures():
        raise typer.Exit(1)
