"""One engine of language models inside its environment: answers the commands of llm_turns.py (see `measure.service`).

Usage: python llm_worker.py ENGINE FILE FOLDER THREADS BATCH CONTEXT
"""

from __future__ import annotations

import importlib
import random
import resource
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from engines import unavailable_reason
from llm_engines import Model

from measure import environment, service

TOKENS = (100, 10000)  # of prompts: every vocabulary has them, and none ends an answer


class LlmWorker:
    """An engine, its prompts and the clock."""

    def __init__(self, name: str, model: Model, threads: int, batch: int, context: int) -> None:
        self._name, self._sizes = name, (model, threads, batch, context)
        self._engine: Any = None

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        """Imports the engine's library (not timed) and loads the model with these options (timed)."""
        try:
            module = importlib.import_module(f"llm_engines.{self._name}")
            imported_mb = self.memory({})["peak_mb"]
            begin = time.perf_counter()
            self._engine = module.Engine(*self._sizes, **options)
        except Exception as error:
            reason = unavailable_reason(error)
            if reason is None:
                raise
            return {"unavailable": reason}
        start_s = time.perf_counter() - begin
        told = {"start_s": start_s, "imported_mb": imported_mb, "note": self._engine.note}
        return {**told, "environment": environment.describe(), **self.memory({})}

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """Answers prompts of random tokens: {"seed": N, "batch": PROMPTS, "prompt": TOKENS, "output": TOKENS}."""
        choose = random.Random(command["seed"])
        prompts = [[choose.randrange(*TOKENS) for _ in range(command["prompt"])] for _ in range(command["batch"])]
        return asdict(self._engine.run(prompts, command["output"])) | self.memory({})

    def call(self, command: dict[str, Any]) -> dict[str, Any]:
        """What one of the engine's own methods gives: {"method": NAME, ...}."""
        found: dict[str, Any] = getattr(self._engine, command.pop("method"))(**command)
        return found

    def memory(self, _: dict[str, Any]) -> dict[str, float]:
        """The most memory that this process has had."""
        return {"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6}


if __name__ == "__main__":
    worker = LlmWorker(sys.argv[1], Model(Path(sys.argv[2]), Path(sys.argv[3])), *map(int, sys.argv[4:7]))
    sys.exit(service.serve({"create": worker.create, "run": worker.run, "call": worker.call}))
