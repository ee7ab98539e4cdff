"""PyTorch, by transformers' model in bf16: one step of all answers after the other."""

from __future__ import annotations

import time
from typing import Any

import torch
import transformers

from llm_engines import Model, Times


class Engine:
    note = "bf16 weights"

    def __init__(self, model: Model, threads: int, batch: int, context: int) -> None:
        torch.set_num_threads(threads)
        found: Any = transformers.AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.bfloat16)
        self._model = found.eval()

    @torch.inference_mode()
    def run(self, prompts: list[list[int]], count: int) -> Times:
        begin = time.monotonic()
        tokens, cache = self._step(torch.tensor(prompts), None)
        first = time.monotonic() - begin
        for _ in range(count - 1):
            tokens, cache = self._step(tokens, cache)
        return Times(first, first, time.monotonic() - begin)

    def _step(self, tokens: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        made = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return made.logits[:, -1].argmax(-1, keepdim=True), made.past_key_values
