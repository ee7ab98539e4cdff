"""PyTorch with torch.compile's own back end; needs a C++ compiler on the machine."""

from __future__ import annotations

import torch

from engines import eager


class Engine(eager.Engine):
    def create(self) -> None:
        self._call = torch.compile(self._call)
