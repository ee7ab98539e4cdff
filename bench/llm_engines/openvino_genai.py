"""OpenVINO GenAI, which reads GGUF files; one answer at a time, as it streams them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import openvino
import openvino_genai
from engines import Unavailable

from llm_engines import Model, Times


class Engine:
    note = ""

    def __init__(self, model: Model, threads: int, batch: int, context: int) -> None:
        if batch > 1:
            raise Unavailable("streams one answer at a time")
        try:
            self._pipe: Any = openvino_genai.LLMPipeline(model.gguf(), "CPU", INFERENCE_NUM_THREADS=threads)
        except RuntimeError as error:
            raise Unavailable(f"does not read {model.file.name}: {str(error)[-120:]}") from error

    def run(self, prompts: list[list[int]], count: int) -> Times:
        config = openvino_genai.GenerationConfig(max_new_tokens=count, ignore_eos=True, do_sample=False)
        ids = openvino.Tensor(np.array(prompts, np.int64))
        mask = openvino.Tensor(np.ones((1, len(prompts[0])), np.int64))
        begin = time.monotonic()
        made = self._pipe.generate(openvino_genai.TokenizedInputs(ids, mask), config)
        end = time.monotonic() - begin
        if len(made.tokens[0]) != count:
            raise RuntimeError(f"expected an answer of {count} tokens, got {len(made.tokens[0])}")
        first = made.perf_metrics.get_ttft().mean / 1e3
        return Times(first, first, end)
