"""How long each check took the last time, and so how long is left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolchain.process import note, write_json


class Pace:
    """The durations of a run, kept for the next one.

    Args:
        file: where they are kept.
        names: what will be done, in order.
    """

    def __init__(self, file: Path, names: Sequence[str]) -> None:
        self._file = file
        self._left = list(names)
        self._number, self._count = 0, len(names)
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            self._seconds = {str(name): float(value) for name, value in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self._seconds = {}

    def left(self) -> float | None:
        """Seconds that the rest will take, going by the last time; None where some of it was never done here."""
        known = [self._seconds.get(name) for name in self._left]
        return None if None in known else sum(value for value in known if value is not None)

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Says what begins and how long is left; keeps how long it took unless it is cut short."""
        self._number += 1
        seconds = self.left()
        rest = "its first time here" if seconds is None else f"about {_words(seconds)} left"
        note(f"{name}: {self._number} of {self._count}, {rest}")
        start = time.monotonic()
        yield
        self._left = [other for other in self._left if other != name]
        self._seconds[name] = round(time.monotonic() - start, 1)
        write_json(self._file, self._seconds)


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
