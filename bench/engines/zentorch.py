"""AMD's plug-in for PyTorch, with the weights frozen into the graph."""

from __future__ import annotations

from pathlib import Path

import torch
import torch._inductor.config
import zentorch

from engines import Unavailable, eager


class Engine(eager.Engine):
    note = "weights frozen"

    def __init__(self, model: Path, threads: int, precision: str) -> None:
        # It would load and then leave the graph to PyTorch, with a warning.
        if not zentorch._C.is_avx512_supported():
            raise Unavailable("zentorch optimises only where the processor has AVX-512")
        if precision == "bf16" and not zentorch._C.is_bf16_supported():
            raise Unavailable("zentorch needs AVX-512 BF16 for bf16")
        super().__init__(model, threads, precision)

    def create(self) -> None:
        torch._inductor.config.freezing = True
        self._call = torch.compile(self._call, backend="zentorch")
