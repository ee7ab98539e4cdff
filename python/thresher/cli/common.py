"""What several subcommands share."""

from __future__ import annotations

import functools
import inspect
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand, TyperOption

if TYPE_CHECKING:
    from rich.console import Console

STDOUT = "-"

JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="[=FILE]", help="Print JSON instead; with =FILE write that and print as usual."),
]


class Color(str, Enum):
    """When output is coloured."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


_ColorOption = Annotated[
    Color, typer.Option("--color", help="When to colour: auto is on terminals, unless NO_COLOR is set.")
]


def colored(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the option `--color`, behind its own."""

    @functools.wraps(command)
    def run(*args: Any, color: Color = Color.AUTO, **options: Any) -> None:
        _state["color"] = color
        command(*args, **options)

    hints = {**get_type_hints(command, include_extras=True), "color": _ColorOption}
    own = inspect.Parameter("color", inspect.Parameter.KEYWORD_ONLY, default=Color.AUTO)
    parameters = [*inspect.signature(command).parameters.values(), own]
    run.__annotations__ = hints
    run.__signature__ = inspect.Signature([p.replace(annotation=hints[p.name]) for p in parameters])  # type: ignore[attr-defined]
    return run


class Command(TyperCommand):
    """A subcommand: `--json` may stand without a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Takes `--json` without a file for `--json=-`: what follows it is the next argument."""
        args = _with_standard_output(args, self._values(), stop=not ctx.allow_interspersed_args)
        return super().parse_args(ctx, args)

    def _values(self) -> set[str]:
        """The options that take the next argument as their value."""
        options = [param for param in self.params if isinstance(param, TyperOption)]
        return {name for option in options if not option.is_flag for name in option.opts} - {"--json"}


def _with_standard_output(args: list[str], values: set[str], *, stop: bool) -> list[str]:
    done: list[str] = []
    rest = iter(args)
    for arg in rest:
        done.append("--json=-" if arg == "--json" else arg)
        if arg == "--" or (stop and not arg.startswith("-")):
            break  # what follows is somebody else's
        if arg in values:
            done.extend(value for value in [next(rest, None)] if value is not None)
    return [*done, *rest]


_state = {"color": Color.AUTO}


def console(*, stderr: bool = False) -> Console:
    """What tables and bars are printed on: coloured as `--color` and NO_COLOR say."""
    from rich.console import Console

    when = _state["color"]
    if when is Color.NEVER or (when is Color.AUTO and os.environ.get("NO_COLOR")):
        return Console(stderr=stderr, highlight=False, color_system=None)
    return Console(stderr=stderr, force_terminal=True if when is Color.ALWAYS else None)


def write_json(target: str | None, data: Any, *, indent: int | None = 2) -> bool:
    """Prints or writes what `--json` asks for.

    Args:
        target: its value: None without it, STDOUT without a file.
        data: what JSON can hold.
        indent: of each level, None for one line.

    Returns:
        Whether standard output is JSON, so that nothing else may be printed there.
    """
    if target is None:
        return False
    text = json.dumps(data, indent=indent) + "\n"
    if target == STDOUT:
        typer.echo(text, nl=False)
        return True
    write(Path(target), text)
    return False


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


def need_torch(command: str) -> None:
    """Ends the command with a message where the engine or PyTorch is missing."""
    engine()
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        fail(f"{command}: expected PyTorch, got none in this environment; install torch 2.13 beside thresher")


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Within this block warnings are one line on standard error, each once, without the place that gave them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # from library to library: nothing a user can mend
        try:
            yield
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                typer.echo(f"thresher: warning: {text}", err=True)


def write(path: Path, text: str) -> None:
    """Writes a file, or ends the command with a message if that is impossible."""
    from thresher.profiler.export import OutputError, write_text

    try:
        write_text(path, text, force=True)
    except OutputError as error:
        fail(str(error))
