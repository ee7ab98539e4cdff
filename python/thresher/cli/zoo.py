"""``thresher zoo``: models to try and to measure."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from thresher.cli.common import Command, JsonFile, colored, console, fail, plain_warnings, write_json

_group = typer.Typer(
    help="List, try, measure and export the models of the zoo.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_EPILOG = """
Examples:

- `thresher zoo list` says which models there are, and what is missing here
- `thresher zoo run minilm` lets one answer a task that you can judge
- `thresher zoo bench minilm --batch 1 --batch 8` measures it beside the other engines that are installed
- `thresher zoo export digits-vit digits.thrmodel` writes a file that `thresher run` runs without PyTorch
"""

_Name = Annotated[str, typer.Argument(metavar="NAME", help="One of `thresher zoo list`.")]


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    app.add_typer(_group, name="zoo", epilog=_EPILOG)


@contextmanager
def _failing() -> Iterator[None]:
    """Errors that a user can mend end the command with their message."""
    try:
        with plain_warnings():
            yield
    except (ValueError, ImportError, OSError) as error:
        fail(str(error))


def _zoo() -> Any:
    with _failing():
        import thresher

        return thresher.zoo


def _about(entry: Any) -> dict[str, Any]:
    data = {name: value for name, value in dataclasses.asdict(entry).items() if name != "make"}
    return {**data, "packages": [pip for _, pip in entry.packages], "missing": entry.obstacle()}


@_group.command(name="list", cls=Command, epilog="Examples: `thresher zoo list`, `thresher zoo list --kind vision`")
@colored
def _list(
    json_file: JsonFile = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only models of this kind.")] = None,
) -> None:
    """Show the models: what they do, whether their weights were trained, and whether they can be loaded here."""
    zoo = _zoo()
    with _failing():
        found = [_about(zoo.info(name)) for name in zoo.list(kind)]
    if write_json(json_file, found):
        return
    from rich.table import Table

    table = Table()
    for column in ("name", "kind", "parameters", "weights", "here"):
        table.add_column(column, justify="right" if column == "parameters" else "left")
    for one in found:
        here = "yes" if one["missing"] is None else f"pip install {' '.join(one['packages'])}"
        table.add_row(one["name"], one["kind"], f"{one['parameters']:,}", one["weights"], here)
    console().print(table)


@_group.command(name="info", cls=Command, epilog="Examples: `thresher zoo info minilm`")
@colored
def _info(name: _Name, json_file: JsonFile = None) -> None:
    """Show what a model is, where its weights come from and what it needs."""
    zoo = _zoo()
    with _failing():
        about = _about(zoo.info(name))
    if write_json(json_file, about):
        return
    typer.echo(f"{about['name']}: {about['description']}")
    typer.echo(f"  kind        {about['kind']}")
    typer.echo(f"  parameters  {about['parameters']:,}")
    typer.echo(f"  weights     {about['weights']}: {about['origin']}")
    typer.echo(f"  packages    {', '.join(about['packages'])}")
    typer.echo(f"  here        {about['missing'] or 'it can be loaded'}")


@_group.command(
    name="run", cls=Command, epilog="Examples: `thresher zoo run minilm`, `thresher zoo run digits-vit --eager`"
)
@colored
def _run(
    name: _Name,
    json_file: JsonFile = None,
    eager: Annotated[bool, typer.Option("--eager", help="Let PyTorch run it, to compare.")] = False,
) -> None:
    """Let a model answer a task that people can judge, and compare it with eager PyTorch."""
    zoo = _zoo()
    with _failing():
        found = zoo.load(name)
        if eager and found.is_language_model:
            raise ValueError(
                "--eager: expected a model of PyTorch, got a decoder, which only the engine runs; leave it out"
            )
        run = found.model if eager else found.compile()
        start = time.perf_counter()
        answer = found.answer(run)
        seconds = time.perf_counter() - start
        error = found.error(run)
    by = "PyTorch eager" if eager else "Thresher"
    data = {"name": name, "by": by, "weights": found.info.weights, "answer": answer, "seconds": seconds, "error": error}
    if write_json(json_file, data):
        return
    typer.echo(answer)
    compared = "" if error is None else f"; largest difference from eager PyTorch {error:.1e}"
    compiled = "" if eager else ", compilation included"
    typer.echo(f"(weights: {found.info.weights}; run by {by} in {seconds:.2f} s{compiled}{compared})")


@_group.command(name="bench", cls=Command, epilog="Examples: `thresher zoo bench minilm --batch 1 --batch 8`")
@colored
def _bench(
    name: _Name,
    json_file: JsonFile = None,
    batch: Annotated[list[int] | None, typer.Option("--batch", min=1, help="Rows of the inputs. Repeatable.")] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="Calls of each engine that are timed.")] = 50,
    engine: Annotated[
        list[str] | None, typer.Option("--engine", metavar="NAME", help="Only these engines. Repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FOLDER", help="Also write table, data and picture here.")
    ] = None,
) -> None:
    """Measure a model in eager PyTorch, in Thresher and in other engines that are installed."""
    zoo = _zoo()
    with _failing():
        result = zoo.benchmark(name, tuple(batch or (1, 8)), iterations, engines=engine, output_dir=output)
    if not write_json(json_file, result.to_dict()):
        typer.echo(str(result))


@_group.command(name="export", cls=Command, epilog="Examples: `thresher zoo export digits-vit digits.thrmodel`")
@colored
def _export(name: _Name, path: Annotated[Path, typer.Argument(metavar="FILE", help="A model file to write.")]) -> None:
    """Write a model to a file, which `thresher run` runs without PyTorch."""
    zoo = _zoo()
    with _failing():
        import thresher

        try:
            typer.echo(f"wrote {zoo.export(name, path)}")
        except thresher.ThresherError as error:
            fail(str(error))
