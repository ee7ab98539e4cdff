"""``thresher tune``: measure which blocking of matrix products is fastest on this machine."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thresher.cli.common import Command, JsonFile, colored, console, write_json

if TYPE_CHECKING:
    from thresher.tuning import Product, TuningReport

_EPILOG = """
Examples:

- `thresher tune script.py --batch 8` runs the script with its arguments, then tunes the products of its compiled models
- `thresher tune --shape 128x384x1536 --precision int8` tunes one product: 128 rows, 384 inputs, 1536 outputs
- `thresher tune --commands-file layers.txt` tunes the products of the kernels of driver commands
- `thresher tune -o tuning.json script.py` also writes a file for `THRESHER_TUNING_SPEC=tuning.json`
- `thresher tune --json --shape 1x768x768 --shape 8x768x768` prints JSON
"""

_SHAPE = re.compile(r"(\d+)x(\d+)x(\d+)")


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    # The script's own options are not ours to read.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command(name="tune", cls=Command, epilog=_EPILOG, context_settings=settings)(colored(_tune))


def _tune(
    context: typer.Context,
    script: Annotated[
        Path | None, typer.Argument(metavar="[SCRIPT]", help="Python script; what follows are its arguments.")
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="MxKxN", help="A product: rows x inputs x outputs. May be repeated."),
    ] = None,
    commands_file: Annotated[
        Path | None, typer.Option("--commands-file", metavar="FILE", help="Driver commands, as `thresher conv` has.")
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="Precision of --shape: fp32, bf16, int8 and so on.")
    ] = "fp32",
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, max=1024, help="Threads; by default those of plans.")
    ] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again what was measured before.")] = False,
    json_file: JsonFile = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Also write the JSON here.")
    ] = None,
) -> None:
    """Measure which blocking of matrix products is fastest here, for a script's models or for given shapes; keep it."""
    from thresher.cli.common import engine, fail, plain_warnings, write

    engine()
    from thresher.threads import get_num_threads, set_num_threads

    code = 0
    with plain_warnings():
        try:
            if threads is not None:
                set_num_threads(threads)
            given = [script is not None, bool(shapes), commands_file is not None]
            if sum(given) != 1:
                found = "several" if any(given) else "none"
                fail(f"tune: expected one of a script, --shape MxKxN and --commands-file FILE, got {found}")
            products: Iterable[Product] = [_product(shape, precision, get_num_threads()) for shape in shapes or ()]
            if script is not None:
                products, code = _products_of(script, context.args)
            elif commands_file is not None:
                products = _products_of_commands(commands_file)
            report = _measured(products, refresh)
        except (ValueError, MemoryError) as error:
            fail(str(error))
    if not write_json(json_file, report.to_dict()):
        _print(report)
    if output is not None:
        write(output, json.dumps(report.to_dict(), indent=2) + "\n")
    raise typer.Exit(code)


def _product(shape: str, precision: str, threads: int) -> Product:
    from thresher.tuning import Product

    match = _SHAPE.fullmatch(shape.lower())
    if match is None:
        raise ValueError(f"--shape: expected rows x inputs x outputs such as 128x384x1536, got {shape!r}")
    m, k, n = (int(size) for size in match.groups())
    return Product(precision, m, n, k, threads)


def _products_of(script: Path, arguments: list[str]) -> tuple[Iterable[Product], int]:
    from thresher.cli.common import fail
    from thresher.cli.script import run_script
    from thresher.tuning.collect import collected

    if not script.is_file():
        fail(f"tune: expected a Python script, got {'a folder' if script.is_dir() else 'nothing'} at {script}")
    with collected() as found:
        code = run_script(script, arguments)
    sys.stdout.flush()
    if not found:
        fail(
            "tune: expected a script that runs a model compiled with thresher.compile or "
            'torch.compile(backend="thresher"), got no matrix product in the engine'
        )
    return found, code


def _products_of_commands(commands_file: Path) -> Iterable[Product]:
    from thresher.cli.common import fail, need_torch
    from thresher.cli.conv import commands_of

    need_torch("tune")
    from thresher.compiler import UnsupportedOperatorError
    from thresher.signatures import command_to_signature, get_launchable
    from thresher.tuning.collect import collected

    with collected() as found:
        for command in commands_of("tune", None, commands_file):
            try:
                get_launchable(command_to_signature(command))
            except (ValueError, UnsupportedOperatorError) as error:
                typer.echo(f"thresher: {command}: {error}", err=True)
    if not found:
        fail(f"tune: expected commands with matrix products in the engine, got none in {commands_file}")
    return found


def _measured(products: Iterable[Product], refresh: bool) -> TuningReport:
    """Measures, with a bar on standard error where that is a terminal."""
    from thresher.tuning import tune_products

    if not sys.stderr.isatty():
        return tune_products(products, refresh=refresh)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (TextColumn("tuning"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # The bar is drawn between two measurements and by this thread: one that draws by itself would disturb them.
    with Progress(*columns, console=console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("tuning", total=None)

        def show(done: float, total: int) -> None:
            bar.update(task, completed=done, total=total, refresh=True)

        return tune_products(products, refresh=refresh, progress=show)


def _print(report: TuningReport) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    heading, *rows = report.rows()
    isa = report.products[0].isa
    table = Table(box=SIMPLE_HEAD, title=f"{report.cpu_model}, {isa}", title_justify="left")
    left = heading[:2]
    for name in heading[:-1]:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    table.add_column(heading[-1], min_width=15)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    screen = console()
    screen.print(table)
    screen.print(Text(report.summary()))
