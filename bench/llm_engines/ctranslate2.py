"""CTranslate2: weights in int8, a scale a row, activations a token."""

from __future__ import annotations

import json
import time
from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter

from llm_engines import Model, Times


class Engine:
    def __init__(self, model: Model, threads: int, batch: int, context: int) -> None:
        folder = model.folder / "ctranslate2"
        if not (folder / "model.bin").exists():
            TransformersConverter(str(model.folder)).convert(str(folder), quantization="int8", force=True)
        self._words: list[str] = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
        self._generator: Any = ctranslate2.Generator(str(folder), "cpu", compute_type="int8", intra_threads=threads)
        self.note = f"{self._generator.compute_type} weights"

    def run(self, prompts: list[list[int]], count: int) -> Times:
        times: list[float] = []

        def take(_: Any) -> bool:
            times.append(time.monotonic())
            return False

        words = [[self._words[token] for token in prompt] for prompt in prompts]
        options = {"min_length": count, "max_length": count, "beam_size": 1, "include_prompt_in_result": False}
        begin = time.monotonic()
        results = self._generator.generate_batch(words, callback=take, max_batch_size=len(prompts), **options)
        end = time.monotonic() - begin
        if any(len(result.sequences_ids[0]) != count for result in results):
            raise RuntimeError(f"expected answers of {count} tokens, got others")
        return Times(times[0] - begin, times[len(prompts) - 1] - begin, end)
