"""One engine inside its environment: answers the benchmark's commands (see `measure.service`).

Usage: python engine_worker.py ENGINE PRECISION MODEL FOLDER THREADS, where MODEL and FOLDER are what export.py filled.
A command answers {"unavailable": REASON} where the engine cannot do what is asked for here.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import accuracy
import numpy as np
from engines import unavailable_reason

from measure import environment, service


class EngineWorker:
    """An engine, the cases and the clock."""

    def __init__(self, name: str, precision: str, model: Path, folder: Path, threads: int) -> None:
        self._name = name
        self._precision = precision
        self._model = model
        self._folder = folder
        self._threads = threads
        self._engine: Any = None
        self._inputs: dict[str, Any] = {}

    def create(self, _: dict[str, Any]) -> dict[str, Any]:
        """Imports the engine's library (not timed) and makes the engine ready for its first call (timed)."""
        module = importlib.import_module(f"engines.{self._name}")
        self._engine = module.Engine(self._model, self._threads, self._precision)
        begin = time.perf_counter()
        self._engine.create()
        create_ms = (time.perf_counter() - begin) * 1e3
        return {"create_ms": create_ms, "note": self._engine.note, "environment": environment.describe()}

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
            raise ValueError(f"case {case}: expected an output of shape {expected.shape}, got {output.shape}")
        error = float(np.abs(output - expected).max())
        if not np.isfinite(error):
            raise ValueError(f"case {case}: expected finite numbers, got a largest difference of {error}")
        return {"first_ms": first_ms, "error": error}

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

    def embed(self, command: dict[str, Any]) -> dict[str, Any]:
        """Sentence embeddings of all texts of {"corpus": KEY}, written to {"file": PATH}."""
        with np.load(self._folder / "accuracy.npz") as arrays:
            batches = accuracy.batches_of(dict(arrays.items()), command["corpus"])
        found: list[np.ndarray] = []
        for rows, inputs in batches:
            hidden = self._engine.output(self._engine.run(self._engine.prepare(inputs)))
            found.append(np.column_stack([rows, accuracy.pool(hidden, inputs["attention_mask"])]))
        stacked = np.concatenate(found)
        if not np.isfinite(stacked).all():
            raise ValueError(f"{command['corpus']}: expected finite numbers in the embeddings, got others")
        # The first column says which text it is; the batches have the texts in another order.
        np.save(command["file"], stacked[np.argsort(stacked[:, 0]), 1:].astype(np.float32))
        return {"texts": len(stacked)}


def _or_reason(handler: service.Handler) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def call(command: dict[str, Any]) -> dict[str, Any]:
        try:
            return handler(command)
        except Exception as error:
            reason = unavailable_reason(error)
            if reason is None:
                raise
            return {"unavailable": reason}

    return call


def main(arguments: list[str]) -> int:
    """Serves one engine."""
    name, precision, model, folder, threads = arguments
    worker = EngineWorker(name, precision, Path(model), Path(folder), int(threads))
    handlers = {"create": worker.create, "first": worker.first, "embed": worker.embed}
    return service.serve({**{key: _or_reason(call) for key, call in handlers.items()}, "block": worker.block})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
