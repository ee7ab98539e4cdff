"""Thresher. The model stays in float32; the engine converts what a lower precision needs."""

from __future__ import annotations

from pathlib import Path

import thresher
from engines import eager


class Engine(eager.Engine):
    def __init__(self, model: Path, threads: int, precision: str) -> None:
        super().__init__(model, threads, "fp32")
        self._precision = precision

    def create(self) -> None:
        self._call = thresher.compile(self._call, precision=self._precision)
