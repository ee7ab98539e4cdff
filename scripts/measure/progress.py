"""Progress of long work: one line that is redrawn on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """Counts steps towards a known total and shows them with the time that is probably left."""

    BAR_WIDTH = 30
    LOG_INTERVAL_S = 10.0

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        """Starts at zero and shows nothing yet.

        Args:
          label: what is being done, a few words.
          total: number of steps, at least 1.
          stream: where to write; standard error by default, so that standard output holds results only.
        """
        self._label = label
        self._total = max(1, total)
        self._done = 0
        self._stream = stream if stream is not None else sys.stderr
        self._terminal = self._stream.isatty()
        self._start = time.monotonic()
        self._last_log = self._start

    def step(self, note: str = "") -> None:
        """One more step is done; `note` says which."""
        self._done += 1
        now = time.monotonic()
        finished = self._done >= self._total
        if not self._terminal and not finished and now - self._last_log < self.LOG_INTERVAL_S:
            return
        self._last_log = now
        spent = now - self._start
        left = spent / self._done * (self._total - self._done)
        times = f"{spent:.0f} s" if finished else f"{spent:.0f} s, about {left:.0f} s left"
        if self._terminal:
            filled = self.BAR_WIDTH * self._done // self._total
            bar = "#" * filled + "." * (self.BAR_WIDTH - filled)
            end = "\n" if finished else ""
            self._stream.write(f"\r\x1b[K{self._label} [{bar}] {self._done}/{self._total} {times} {note}{end}")
        else:
            self._stream.write(f"{self._label}: {self._done}/{self._total} ({times}) {note}".rstrip() + "\n")
        self._stream.flush()
