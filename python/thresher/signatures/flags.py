"""Flags of driver commands, long and short, with values behind them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class CommandError(ValueError):
    """A driver command that cannot be understood."""


@dataclass(frozen=True)
class Flag:
    """A flag of a driver command.

    Attributes:
        name: Long, without dashes.
        short: One letter.
        default: Its value where it is not given; the type of all its values.
        help: What it means.
        refused: Why it cannot be given; empty where it can.
    """

    name: str
    short: str
    default: int | float | str
    help: str
    refused: str = ""

    def __str__(self) -> str:
        return f"--{self.name} (-{self.short})" if self.short else f"--{self.name}"

    def parse(self, text: str) -> int | float | str:
        """The value that a text stands for.

        Raises:
            CommandError: It is none of the flag's type.
        """
        kind = type(self.default)
        try:
            return kind(text)
        except ValueError:
            wanted = "an integer" if kind is int else "a number"
            raise CommandError(f"{self}: expected {wanted}, got {text!r}") from None


def parse_flags(flags: Sequence[Flag], words: Iterable[str]) -> dict[str, Any]:
    """The values of all flags.

    Args:
        flags: Those there are.
        words: `--name value`, `--name=value` or `-n value`, in any order.

    Returns:
        By long name, defaults filled in.

    Raises:
        CommandError: A flag is unknown, refused or given twice, or its value is missing or wrong.
    """
    known = {f"--{flag.name}": flag for flag in flags} | {f"-{flag.short}": flag for flag in flags if flag.short}
    values: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        flag = known.get(name)
        if flag is None:
            raise CommandError(f"expected a flag, got {word!r}; {_nearest(name, known)}")
        if flag.refused:
            raise CommandError(f"{flag} is not supported: {flag.refused}; leave it out")
        if not equals:
            value = next(rest, "")
        if not value:
            raise CommandError(f"{flag}: expected a value, got none")
        if flag.name in values:
            raise CommandError(f"{flag}: expected it once, got it twice")
        values[flag.name] = flag.parse(value)
    return {flag.name: values.get(flag.name, flag.default) for flag in flags if not flag.refused}


def choose(flag: str, given: object, choices: Mapping[Any, str]) -> Any:
    """The value itself.

    Raises:
        CommandError: It is none of the choices, which are explained.
    """
    if given not in choices:
        told = ", ".join(f"{value} ({meaning})" if meaning else str(value) for value, meaning in choices.items())
        raise CommandError(f"{flag}: expected {told}, got {given}")
    return given


def _nearest(name: str, known: Mapping[str, Flag]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return (
        f"did you mean {near[0]}?"
        if near
        else f"there are {', '.join(str(flag) for flag in dict.fromkeys(known.values()))}"
    )
