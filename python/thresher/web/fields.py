"""Reading the fields of a JSON object that a client sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from thresher.web.errors import ApiError

_SHOWN = 60  # characters of a wrong value in a message


class Fields:
    """The fields of an object; those that were read are ticked off, null stands for one that is missing."""

    def __init__(self, data: Any, where: str = "") -> None:
        """Takes an object.

        Args:
          data: the object.
          where: the field that holds it; "": the body.

        Raises:
          ApiError: it is none.
        """
        if not isinstance(data, dict):
            raise wrong(where or "body", "an object", data)
        self._data: dict[str, Any] = data
        self._where = where
        self._read: set[str] = set()

    def raw(self, name: str) -> Any:
        """A field as it is; None: it is missing."""
        self._read.add(name)
        return self._data.get(name)

    def place(self, name: str) -> str:
        """How messages call a field."""
        return f"{self._where}.{name}" if self._where else name

    def text(self, name: str, default: str | None = None) -> str | None:
        """A string."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong(self.place(name), "a string", value)
        return value

    def wanted_text(self, name: str) -> str:
        """A string that has to be there."""
        value = self.text(name)
        if value is None:
            raise wrong(self.place(name), "a string", None)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong(self.place(name), "true or false", value)
        return value

    def integer(self, name: str, least: int | None = None, most: int | None = None) -> int | None:
        """A whole number within limits; None: it is missing."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not _within(value, least, most):
            raise wrong(self.place(name), f"an integer{_limits(least, most)}", value)
        return value

    def number(self, name: str, least: float | None = None, most: float | None = None) -> float | None:
        """A number within limits; None: it is missing."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _within(value, least, most):
            raise wrong(self.place(name), f"a number{_limits(least, most)}", value)
        return float(value)

    def choice(self, name: str, choices: Sequence[str]) -> str | None:
        """One of several strings; None: it is missing."""
        value = self.text(name)
        if value is not None and value not in choices:
            raise wrong(self.place(name), f"one of {', '.join(choices)}", value)
        return value

    def objects(self, name: str) -> list[Fields] | None:
        """A list of objects; None: it is missing."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise wrong(self.place(name), "a list", value)
        return [Fields(each, f"{self.place(name)}[{number}]") for number, each in enumerate(value)]

    def object(self, name: str) -> Fields | None:
        """An object; None: it is missing."""
        value = self.raw(name)
        return None if value is None else Fields(value, self.place(name))

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """An object as it is; None: it is missing."""
        value = self.raw(name)
        if value is not None and not isinstance(value, dict):
            raise wrong(self.place(name), "an object", value)
        return value

    def ignore(self, *names: str) -> None:
        """These may be there, whatever they say."""
        self._read.update(names)

    def refuse(self, **reasons: str) -> None:
        """These must not be there (or be false, empty or null)."""
        for name, reason in reasons.items():
            if self.raw(name):
                raise ApiError(
                    400,
                    f"{self.place(name)}: expected none, got one; {reason}",
                    param=name,
                    code="unsupported_parameter",
                )

    def done(self) -> None:
        """Refuses what nobody has read."""
        for name in self._data:
            if name not in self._read:
                raise ApiError(
                    400,
                    f"Unrecognized request argument supplied: {name[:_SHOWN]}",
                    param=self.place(name)[:_SHOWN],
                    code="unknown_parameter",
                )


def wrong(place: str, wanted: str, value: Any) -> ApiError:
    """The error about a field with a wrong value."""
    if value is None:
        return ApiError(400, f"{place}: expected {wanted}, got none", param=place, code="missing_required_parameter")
    shown = json.dumps(value)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return ApiError(400, f"{place}: expected {wanted}, got {shown}", param=place, code="invalid_value")


def _within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _limits(least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return ""
    if most is None:
        return f" of at least {least}"
    return f" from {least} to {most}" if least is not None else f" of at most {most}"
