"""ik_llama.cpp, by the same calls; its Python package computes one sequence at a time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from engines import Unavailable
from ik_llama_cpp import IkLlama
from ik_llama_cpp import _ctypes_api as api
from ik_llama_cpp._internals import make_batch_range, make_batch_single

from llm_engines import Model, Times

_CHUNK = 512


class Engine:
    def __init__(self, model: Model, threads: int, batch: int, context: int) -> None:
        if batch > 1:
            raise Unavailable("its Python package computes one sequence at a time")
        self._llama: Any = IkLlama(model.gguf(), n_ctx=context, n_threads=threads, verbose=False)
        self._context = self._llama._context
        self._vocab_size = self._llama._model.n_vocab
        self.note = "" if self._llama._has_vnni else "its package switches flash attention off on this processor"

    def run(self, prompts: list[list[int]], count: int) -> Times:
        (prompt,) = prompts
        self._context.kv_cache_clear()
        begin = time.monotonic()
        for start in range(0, len(prompt), _CHUNK):
            chunk = prompt[start : start + _CHUNK]
            self._decode(make_batch_range(chunk, pos_start=start, logits_last=start + len(chunk) == len(prompt)))
        token = self._likeliest()
        first = time.monotonic() - begin
        for position in range(len(prompt), len(prompt) + count - 1):
            self._decode(make_batch_single(token, position))
            token = self._likeliest()
        return Times(first, first, time.monotonic() - begin)

    def _decode(self, batch: Any) -> None:
        code = self._context.decode(batch)
        api.llama_batch_free(batch)
        if code:
            raise RuntimeError(f"llama_decode: {code}")

    def _likeliest(self) -> int:
        scores = self._context.get_logits(-1)
        return int(np.ctypeslib.as_array(scores, (self._vocab_size,)).argmax())
