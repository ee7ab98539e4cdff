"""One engine inside its environment: answers the benchmark's commands (see `measure.service`).

Usage: python engine_worker.py ENGINE FOLDER THREADS, where FOLDER is what export.py filled.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import numpy as np

from measure import environment, service


class EngineWorker:
    """An engine, the cases and the clock."""

    def __init__(self, name: str, folder: Path, threads: int) -> None:
        self._name = name
        self._folder = folder
        self._threads = threads
        self._engine: Any = None
        self._inputs: dict[str, Any] = {}

    def create(self, _: dict[str, Any]) -> dict[str, Any]:
        """Imports the engine's library (not timed) and makes the engine ready for its first call (timed)."""
        module = importlib.import_module(f"engines.{self._name}")
        self._engine = module.Engine(self._folder / "model.onnx", self._threads)
        begin = time.perf_counter()
        self._engine.create()
        return {"create_ms": (time.perf_counter() - begin) * 1e3, "environment": environment.describe()}

    def first(self, command: dict[str, Any]) -> dict[str, Any]:
        """First call of a shape, and its error against PyTorch's answer: {"case": "BATCH-SEQUENCE"}."""
        case = command["case"]
        with np.load(self._folder / "cases.npz") as arrays:
            prefix = f"{case}-"
            found = {name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)}
        expected = found.pop("expected")
        self._inputs[case] = self._engine.prepare(found)
        begin = time.perf_counter()
        answer = self._engine.run(self._inputs[case])
        first_ms = (time.perf_counter() - begin) * 1e3
        output = self._engine.output(answer)
        if output.shape != expected.shape:
            raise ValueError(f"case {case}: wanted an output of shape {expected.shape}, found {output.shape}")
        return {"first_ms": first_ms, "error": float(np.abs(output - expected).max())}

    def block(self, command: dict[str, Any]) -> dict[str, Any]:
        """One settling call, then {"calls": N} timed ones of a case."""
        inputs = self._inputs[command["case"]]
        gc.collect()
        samples: list[float] = []
        for _ in range(command["calls"] + 1):
            begin = time.perf_counter()
            self._engine.run(inputs)
            samples.append((time.perf_counter() - begin) * 1e3)
        return {"settle_ms": samples[0], "samples_ms": samples[1:]}


def main(arguments: list[str]) -> int:
    """Serves one engine."""
    name, folder, threads = arguments
    worker = EngineWorker(name, Path(folder), int(threads))
    return service.serve({"create": worker.create, "first": worker.first, "block": worker.block})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
