"""``thresher cache``: look after the kept results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from thresher.cli.common import Command, JsonFile, colored, console, write_json

if TYPE_CHECKING:
    from thresher.cache import Entry

_EPILOG = """
Examples:

- `thresher cache list` shows every kept result; `thresher cache list --json` gives the same with all keys
- `thresher cache verify` checks every file; exit code 1 if one is damaged
- `thresher cache explain gemm -m 128 -k 384 -n 1536` says why the kernel of a driver command is kept, or is not
- `thresher cache prune --older-than 30` removes what this engine cannot use, and what is older than 30 days
- `rm -r "$(thresher cache path)"` removes the folder
"""

_group = typer.Typer(
    help="List, check and remove the results that are kept in files.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    app.add_typer(_group, name="cache", epilog=_EPILOG)


@_group.command(
    name="list",
    cls=Command,
    epilog="Examples: `thresher cache list`, `thresher cache list --json`, `thresher cache list --kind peaks`",
)
@colored
def _list(
    json_file: JsonFile = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only results of this kind.")] = None,
) -> None:
    """Show every kept result."""
    found = _entries(kind)
    if write_json(json_file, [entry.to_dict() for entry in found]):
        return
    _print(found, f"{_count(len(found))} in {_folder_name()}")


@_group.command(name="verify", cls=Command, epilog="Examples: `thresher cache verify`, `thresher cache verify --json`")
@colored
def _verify(json_file: JsonFile = None) -> None:
    """Check every file; exit code 1 if one is damaged."""
    from thresher.cache import State

    found = _entries(whole=True)
    damaged = [entry for entry in found if entry.state is State.DAMAGED]
    if not write_json(json_file, {"files": len(found), "damaged": [entry.to_dict() for entry in damaged]}):
        for entry in damaged:
            typer.echo(f"{entry.path}: {entry.problem}")
        cure = "; `thresher cache prune` removes them" if damaged else ""
        typer.echo(f"{len(damaged)} of {_count(len(found))} damaged in {_folder_name()}{cure}")
    if damaged:
        raise typer.Exit(1)


@_group.command(
    name="explain",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
    epilog="Examples: `thresher cache explain gemm -m 128 -k 384 -n 1536`, `thresher cache explain --json conv -n 1`",
)
@colored
def _explain(
    words: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="A driver command, as `thresher conv` has.")],
    json_file: JsonFile = None,
) -> None:
    """Say why the kernel of a driver command is in the cache, or is not; exit code 1 if it is not."""
    from thresher.cli.common import fail, need_torch

    need_torch("cache explain")
    from thresher.signatures import CommandError, command_to_signature, explain

    try:
        signature = command_to_signature(" ".join(words))
    except CommandError as error:
        fail(str(error))
    found = explain(signature)
    if not write_json(json_file, {"func_name": signature.func_name, **found.to_dict()}):
        typer.echo(f"{'hit' if found.hit else 'miss'}: {signature.func_name}: {found.reason}")
        if found.path is not None:
            typer.echo(f"  {found.path}")
    if not found.hit:
        raise typer.Exit(1)


@_group.command(
    name="prune", cls=Command, epilog="Examples: `thresher cache prune`, `thresher cache prune --older-than 30 --json`"
)
@colored
def _prune(
    json_file: JsonFile = None,
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Also remove results older than this.")
    ] = None,
) -> None:
    """Remove what this engine cannot use: damaged files, those of other versions, leftovers of ended processes."""
    from thresher.cache import prune
    from thresher.cli.common import engine

    engine()
    removed = prune(older_than)
    if write_json(json_file, {"removed": [entry.to_dict() for entry in removed]}):
        return
    _print(removed, f"{_count(len(removed))} removed from {_folder_name()}")


@_group.command(
    name="clear", cls=Command, epilog="Examples: `thresher cache clear`, `thresher cache clear --kind peaks --json`"
)
@colored
def _clear(
    json_file: JsonFile = None,
    kind: Annotated[str | None, typer.Option("--kind", metavar="NAME", help="Only results of this kind.")] = None,
) -> None:
    """Remove every kept result."""
    from thresher.cache import clear
    from thresher.cli.common import engine

    engine()
    removed = clear(kind)
    if not write_json(json_file, {"removed": removed}):
        typer.echo(f"{_count(removed)} removed from {_folder_name()}")


@_group.command(name="path", cls=Command, epilog="Examples: `thresher cache path`, `thresher cache path --json`")
@colored
def _path(json_file: JsonFile = None) -> None:
    """Print the folder, whether it exists or not."""
    from thresher import cache
    from thresher.cli.common import engine, fail

    engine()
    try:
        enabled = cache.enabled()
    except ValueError as error:
        fail(str(error))
    folder = cache.folder()
    if write_json(json_file, {"path": None if folder is None else str(folder), "enabled": enabled}):
        return
    if folder is None:
        fail("cache: expected a home folder, got none; set THRESHER_CACHE_DIR")
    typer.echo(folder)


def _entries(kind: str | None = None, *, whole: bool = False) -> list[Entry]:
    from thresher.cache import entries
    from thresher.cli.common import engine

    engine()
    return entries(kind, whole=whole)


def _count(files: int) -> str:
    return f"{files} file{'' if files == 1 else 's'}"


def _folder_name() -> str:
    from thresher.cache import folder

    return str(folder() or "no folder (there is no home folder; set THRESHER_CACHE_DIR)")


def _print(found: list[Entry], sentence: str) -> None:
    if found:
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for name in ("kind", "state", "bytes", "stored", "version", "file"):
            table.add_column(name, overflow="fold", justify="right" if name == "bytes" else "left")
        for entry in found:
            size = str(entry.size_bytes)
            cells = (entry.kind, entry.state.value, size, entry.stored_at, entry.engine_version, entry.path.name)
            table.add_row(*(Text(cell) for cell in cells))
        console().print(table)
    typer.echo(sentence)
