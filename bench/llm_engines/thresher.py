"""Thresher, as its users call it: scheduler, sampling and text included."""

from __future__ import annotations

import random
import time
from typing import Any

from llm_engines import Model, Times
from thresher import _engine
from thresher.llm import LLM
from thresher.llm.bench import bench_gap

TOKENS = (100, 10000)
_ROOM = 64  # tokens that a prompt leaves for answers


class Engine:
    note = ""

    def __init__(self, model: Model, threads: int, batch: int, context: int, **options: Any) -> None:
        self._threads = threads
        options = {"prefix_cache": False, **options}
        if model.file.is_dir():
            options["precision"] = "bf16"  # as the others
        self._llm = LLM(model.file, num_threads=threads, max_batch=batch, max_length=context or None, **options)

    def run(self, prompts: list[list[int]], count: int) -> Times:
        begin = time.monotonic()
        outputs = self._llm.generate(prompts, temperature=0, max_tokens=count, ignore_eos=True)
        first = [output.stats.first_token - begin for output in outputs]
        return Times(min(first), max(first), max(output.stats.finished for output in outputs) - begin)

    # What is measured of Thresher alone; each gives what JSON can hold.

    def describe(self, length: int) -> dict[str, Any]:
        """What a step reads and multiplies: bytes and operations, and as what prompts meet weights in blocks."""
        config = self._llm.config
        heads = config.num_heads + config.num_kv_heads
        layer = config.hidden_size * (2 * heads * config.head_size + 3 * config.intermediate_size)
        own = config.hidden_size * 2 * config.num_kv_heads * config.head_size
        return {
            "decode_bytes": self._llm.decode_bytes(length),
            "weight_bytes": self._llm.runner.weight_bytes,
            # Of a prompt's token: it passes all layers but the last, which has its keys and values alone.
            "operations_per_token": 2 * ((config.num_layers - 1) * layer + own),
            "prompts_as": "bf16" if _engine.isa() == "amx" else "int8",
        }

    def roofs(self) -> dict[str, Any]:
        """What so many threads of this machine can now, at best: bytes read of memory and operations a second."""
        found: dict[str, Any] = _engine.measure_peaks([self._threads])["by_threads"][-1]
        names = {"read_bytes": "dram_read_gb_per_s", "int8": "int8_gops", "bf16": "bf16_gflops"}
        return {key: rate["median"] * 1e9 for key, name in names.items() if (rate := found[name])}

    def memory_asked(self) -> dict[str, float]:
        """Megabytes of packed weights, and of all pages of keys and values."""
        return {"weights_mb": self._llm.runner.weight_bytes / 1e6, "cache_mb": self._llm.runner.cache_bytes / 1e6}

    def long_context(self, count: int) -> dict[str, Any]:
        """Milliseconds a token at the beginning and behind a prompt that leaves room for just its answer."""
        length = self._llm.engine.max_length - count - 1
        found = {}
        for name, tokens in (("empty_ms", 16), ("full_ms", length)):
            times = self.run([_tokens(tokens, tokens)], count)
            found[name] = (times.end - times.prompts) / (count - 1) * 1e3
        return {"prompt": length, **found}

    def cached_prompt(self, length: int, seed: int) -> dict[str, Any]:
        """Milliseconds to the first token of a prompt, and of the same prompt once more."""
        length = min(length, self._llm.engine.max_length - _ROOM)
        prompt = _tokens(length, seed)
        first, again = (self.run([prompt], 2).first * 1e3 for _ in range(2))
        return {"prompt": length, "computed_ms": first, "cached_ms": again}

    def gap(self) -> dict[str, Any]:
        """What a prompt as long as the model takes does to an answer that is under way."""
        return bench_gap(self._llm, prompt_tokens=self._llm.engine.max_length * 39 // 40).to_dict()


def _tokens(count: int, seed: int) -> list[int]:
    choose = random.Random(seed)
    return [choose.randrange(*TOKENS) for _ in range(count)]
