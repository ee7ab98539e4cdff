"""CTranslate2's encoder, converted once from the PyTorch model; int8 quantises the weights a row when it loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}


class Engine:
    note = ""

    def __init__(self, model: Path, threads: int, precision: str) -> None:
        self._folder = model / f"ctranslate2-{ctranslate2.__version__}"
        self._compute_type = COMPUTE_TYPES[precision]
        self._threads = threads
        self._encoder: Any = None
        if not self._folder.exists():
            from ctranslate2.converters import TransformersConverter

            partial = self._folder.with_name(f"{self._folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            TransformersConverter(str(model / "pretrained")).convert(str(partial))
            partial.replace(self._folder)

    def create(self) -> None:
        self._encoder = ctranslate2.Encoder(
            str(self._folder),
            device="cpu",
            inter_threads=1,
            intra_threads=self._threads,
            compute_type=self._compute_type,
        )
        self.note = f"compute type {self._encoder.compute_type}"

    def prepare(self, case: dict[str, np.ndarray]) -> tuple[Any, Any, Any]:
        lengths = case["attention_mask"].sum(axis=1).astype(np.int32)
        view = ctranslate2.StorageView.from_array
        types = case["token_type_ids"].tolist()
        # The arrays are kept with the views, which only point at them.
        ids = np.ascontiguousarray(case["input_ids"], dtype=np.int32)
        return view(ids), view(lengths), (types, ids, lengths)

    def run(self, inputs: tuple[Any, Any, Any]) -> Any:
        ids, lengths, (types, *_) = inputs
        return self._encoder.forward_batch(ids, lengths, types)

    def output(self, answer: Any) -> np.ndarray:
        return np.array(answer.last_hidden_state)
