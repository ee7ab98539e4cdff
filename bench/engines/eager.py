"""PyTorch without compiling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Engine:
    note = ""

    def __init__(self, model: Path, threads: int, precision: str) -> None:
        torch.set_num_threads(threads)
        self._call: Any = BertModel.from_pretrained(model / "pretrained", dtype=DTYPES[precision]).eval()

    def create(self) -> None:
        """Nothing: the model that a user has in memory is ready."""

    def prepare(self, case: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(array) for name, array in case.items()}

    def run(self, inputs: dict[str, torch.Tensor]) -> Any:
        with torch.no_grad():
            return self._call(**inputs)

    def output(self, answer: Any) -> np.ndarray:
        return np.asarray(answer.last_hidden_state.float())
