"""What several subcommands share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer


def fail(message: str) -> NoReturn:
    """Prints an error and ends the command with exit code 1."""
    typer.echo(f"thresher: {message}", err=True)
    raise typer.Exit(1)


def engine() -> Any:
    """The native engine, or the end of the command with a message if it does not load."""
    from thresher.doctor.checks import load_engine

    native, finding = load_engine()
    if native is None:
        fail(f"{finding.found}; {finding.cure}")
    return native


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Within this block warnings are one line on standard error, without the place in our code that gave them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for warning in caught:
                typer.echo(f"thresher: warning: {warning.message}", err=True)


def write(path: Path, text: str) -> None:
    """Writes a file, or ends the command with a message if that is impossible."""
    from thresher.profiler.export import OutputError, write_text

    try:
        write_text(path, text, force=True)
    except OutputError as error:
        fail(str(error))
