"""``thresher conv``: run, time and verify kernels from driver commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.common import (
    STDOUT,
    Command,
    JsonFile,
    colored,
    console,
    fail,
    need_torch,
    plain_warnings,
    write,
    write_json,
)

if TYPE_CHECKING:
    from thresher.signatures.run import CommandResult

_EPILOG = """
Examples:

- `thresher conv convbfp16 -n 8 -c 64 -H 56 -W 56 -k 64 -p 1 -q 1 --in_layout NHWC --out_layout NHWC --fil_layout NHWC`
- `thresher conv gemm -m 128 -k 384 -n 1536 --iter 100 --backend thresher --backend torch --verify`
- `thresher conv --commands-file layers.txt --backend thresher --backend torch --csv times.csv --svg times.svg`
- `thresher conv --commands-file trace.json` takes the aten operators of a trace of torch.profiler with shapes
- `thresher conv --flags conv` lists the flags of a command

Commands are those of MIOpenDriver: `conv`, `gemm`, `layernorm`, `bnorm`, `sdpa`, with `fp16` or `bfp16` behind the name
for these types, and `aten::mm {"Input Dims": ...}` as a trace has it. Their flags go through as they are.
"""

CommandsFile = Annotated[
    Path | None,
    typer.Option("--commands-file", metavar="FILE", help="A command a line, # for comments; or a trace with shapes."),
]
Words = Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]...", help="A driver command with its flags.")]
# The flags of a driver command are not ours to read, and -h is one of them.
SETTINGS = {"ignore_unknown_options": True, "help_option_names": ["--help"]}


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="conv", cls=Command, epilog=_EPILOG, context_settings=SETTINGS)(colored(_conv))


def _conv(
    words: Words = None,
    commands_file: CommandsFile = None,
    backends: Annotated[
        list[str] | None, typer.Option("--backend", metavar="NAME", help="thresher or torch; may be repeated.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with float64 and with PyTorch.")] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, max=1024, help="Threads of every backend.")
    ] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the figures here.")] = None,
    svg_file: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the figures here.")] = None,
    flags: Annotated[
        str | None, typer.Option("--flags", metavar="NAME", help="List the flags of a command, and end.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Run kernels from driver commands: result, times of each backend, verdict."""
    need_torch("conv")
    from thresher.signatures import report, run
    from thresher.signatures.timing import backends as known_backends

    if flags is not None:
        _print_flags(flags)
        return
    names = list(dict.fromkeys(backends or ["thresher"]))
    known = known_backends()
    if wrong := [name for name in names if name not in known]:
        fail(f"--backend: expected {' or '.join(known)}, got {wrong[0]}")
    commands = commands_of("conv", words, commands_file)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)  # which the engine follows
    results: list[CommandResult] = []
    with plain_warnings(), bar("conv", len(commands)) as advance:
        for found in run.run(commands, names, verify=verify):
            results.append(found)
            if json_file != STDOUT:
                _print(found)
            advance()
    if not write_json(json_file, report.to_dict(results)) and len(results) > 1:
        for line in report.summary(results):
            typer.echo(line)
    if csv_file is not None:
        write(csv_file, report.to_csv(results))
    if svg_file is not None:
        write(svg_file, report.to_svg(results))
    if any(found.failed for found in results):
        raise typer.Exit(1)


def commands_of(name: str, words: list[str] | None, commands_file: Path | None) -> list[str]:
    """The commands that a command line names; ends the command where there are none."""
    from thresher.signatures.driver import read_commands

    if bool(words) == (commands_file is not None):
        fail(f"{name}: expected a driver command or --commands-file FILE, got {'both' if words else 'neither'}")
    if words:
        if Path(words[0]).is_file():
            fail(f"{name}: expected a driver command, got the file {words[0]}; use --commands-file {words[0]}")
        return [" ".join(words)]
    assert commands_file is not None
    try:
        return read_commands(commands_file)
    except (ValueError, OSError) as error:
        fail(f"--commands-file: {error}")


@contextmanager
def bar(name: str, total: int) -> Iterator[Any]:
    """A bar on standard error, where that is a terminal and there is more than one command; gives what advances it."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Drawn between two commands and by this thread: one that draws by itself would disturb measurements.
    with Progress(*columns, console=console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task(name, total=total)
        progress.refresh()
        yield lambda: progress.update(task, advance=1, refresh=True)


def _print(found: CommandResult) -> None:
    typer.echo(found.command)
    if found.problem:
        typer.echo(f"  failed: {found.problem}", err=True)
    for result in found.results:
        if result.problem:
            typer.echo(f"  {result.backend} failed: {result.problem}", err=True)
            continue
        typer.echo(f"  {result.backend}: {result.dtype}{list(result.shape)} on {result.device}")
        if result.timing is not None:
            typer.echo(f"    {result.timing}")
            rates = [
                f"{figure:.1f} {unit}"
                for figure, unit in (
                    (result.timing.gflops, "GFLOP/s"),
                    (result.timing.gbytes_per_s, "GB/s"),
                    (result.timing.percent_of_roof, "% of the roof"),
                )
                if figure is not None
            ]
            if rates:
                typer.echo(f"    {', '.join(rates)}")
    if found.ratio is not None:
        typer.echo(f"  thresher is {found.ratio:.2f} times as fast as torch, by medians")
    if found.verification is not None:
        typer.echo(f"  {found.verification.verdict}")


def _print_flags(name: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from thresher.signatures.driver import COMMANDS, OPERATORS

    if name not in COMMANDS:
        fail(f"--flags: expected one of {', '.join(COMMANDS)}, got {name}")
    table = Table()
    for column in ("long", "short", "default", "meaning"):
        table.add_column(column)
    for flag in OPERATORS[COMMANDS[name][0]].flags:
        meaning = f"not supported: {flag.refused}" if flag.refused else flag.help
        table.add_row(*(Text(cell) for cell in (f"--{flag.name}", f"-{flag.short}", str(flag.default), meaning)))
    console().print(table)
