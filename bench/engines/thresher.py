"""Thresher as a torch.compile back end."""

from __future__ import annotations

import torch

from engines import eager


class Engine(eager.Engine):
    def create(self) -> None:
        self._call = torch.compile(self._call, backend="thresher")
