"""llama.cpp, by its own server inside the process: slots for all prompts, answers streamed."""

from __future__ import annotations

import threading
import time
from typing import Any

import xllamacpp

from llm_engines import Model, Times


class Engine:
    def __init__(self, model: Model, threads: int, batch: int, context: int) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = model.gguf()
        params.n_parallel, params.n_ctx = batch, batch * context
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.n_gpu_layers = 0
        self._server: Any = xllamacpp.Server(params)
        self.note = f"built with {' '.join(xllamacpp.get_system_info().split())}"

    def run(self, prompts: list[list[int]], count: int) -> Times:
        times: list[list[float]] = [[] for _ in prompts]
        ends: list[Any] = []

        def answer(prompt: list[int], found: list[float]) -> None:
            asked = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}

            def take(chunk: Any) -> None:
                found.append(time.monotonic())
                if "error" in chunk or chunk["choices"][0]["finish_reason"] is not None:
                    ends.append(chunk)

            self._server.handle_completions({**asked, "stream": True, "cache_prompt": False}, take)

        threads = [threading.Thread(target=answer, args=each) for each in zip(prompts, times, strict=True)]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wrong = [end for end in ends if "error" in end or end["choices"][0]["finish_reason"] != "length"]
        if wrong or len(ends) != len(prompts):
            raise RuntimeError(f"expected {len(prompts)} whole answers, got {len(ends)}, {wrong[:1]}")
        first = [found[0] - begin for found in times]
        return Times(min(first), max(first), max(found[-1] for found in times) - begin)
