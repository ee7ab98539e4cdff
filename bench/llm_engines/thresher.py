"""Thresher, as its users call it: scheduler, sampling and text included."""

from __future__ import annotations

import time
from pathlib import Path

from llm_engines import Times
from thresher.llm import LLM


class Engine:
    note = ""

    def __init__(self, model: Path, threads: int, batch: int, context: int) -> None:
        self._llm = LLM(model, num_threads=threads, max_batch=batch, max_length=context, prefix_cache=False)

    def run(self, prompts: list[list[int]], count: int) -> Times:
        begin = time.monotonic()
        outputs = self._llm.generate(prompts, temperature=0, max_tokens=count, ignore_eos=True)
        first = [output.stats.first_token - begin for output in outputs]
        return Times(min(first), max(first), max(output.stats.finished for output in outputs) - begin)
