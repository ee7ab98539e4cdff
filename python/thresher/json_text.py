"""JSON from files that others may have written, and what stands in it."""

from __future__ import annotations

import json
from typing import Any

_LARGEST = 1 << 63


def parse(text: str | bytes) -> Any:
    """Reads JSON.

    Raises:
        ValueError: The text is no JSON, or nested so deeply that Python cannot read it.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def number(value: object) -> float:
    """The value, which must be a number that every computation can go on with.

    Raises:
        TypeError: It is none, not finite, or beyond what any measurement gives.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -_LARGEST < value < _LARGEST:
        raise TypeError(f"expected a number, got {_shown(value)}")
    return value


def integer(value: object) -> int:
    """The value, which must be an integer of 64 bits.

    Raises:
        TypeError: It is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not -_LARGEST < value < _LARGEST:
        raise TypeError(f"expected an integer, got {_shown(value)}")
    return value


def text(value: object) -> str:
    """The value, which must be a text.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {_shown(value)}")
    return value


def flag(value: object) -> bool:
    """The value, which must be true or false.

    Raises:
        TypeError: It is neither.
    """
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, got {_shown(value)}")
    return value


def _shown(value: object) -> str:
    if isinstance(value, int) and not -_LARGEST < value < _LARGEST:
        return "a number that is too large"  # its digits may be too many to print
    return repr(value) if isinstance(value, (bool, int, float)) else type(value).__name__
