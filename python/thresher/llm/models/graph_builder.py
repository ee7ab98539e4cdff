"""One graph while it is built from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thresher import _engine
from thresher.llm.formats.tensors import BLOCKS
from thresher.llm.models.checkpoint import Checkpoint, Part


class GraphBuilder:
    """A graph, and what all models add to it.

    Attributes:
      graph: the graph.
      module: what nodes that are added belong to, in profiles.
      in_blocks: the weights that are stored in blocks.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.graph = _engine.Graph()
        self.module = ""
        self.in_blocks: set[int] = set()
        self._checkpoint = checkpoint
        self._weights: dict[str, int] = {}

    def add(self, op: str, *inputs: int | None, **attrs: Any) -> int:
        """A node with one output."""
        return self.graph.add(op, inputs, attrs, "", self.module)[0]

    def cast(self, x: int, dtype: str) -> int:
        """A value in this type; itself where it has it."""
        return x if self.graph.dtype(x) == dtype else self.add("cast", x, dtype=dtype)

    def number(self, value: float) -> int:
        """A scalar, f32."""
        return self.add("full", shape=[], value=float(value), dtype="f32")

    def weight(self, name: str, shape: Sequence[int] | None, part: Part | None = None) -> int:
        """A weight as the checkpoint stores it, or a part of it, once a graph."""
        own = f"{name}{part or ''}"
        if own not in self._weights:
            found = self._checkpoint.stored(name, shape, part)
            self._weights[own] = self.graph.weight(own, found.encoding, found.shape, found.data)
            if BLOCKS[found.encoding][0] > 1:
                self.in_blocks.add(self._weights[own])
        return self._weights[own]

    def small(self, name: str, shape: Sequence[int], offset: float = 0.0, part: Part | None = None) -> int:
        """A bias or the weight of a norm, f32, or a part of it, once a graph."""
        own = f"{name}{part or ''}"
        if own not in self._weights:
            numbers = self._checkpoint.small(name, shape, offset)
            if part is not None:
                numbers = numbers[part.first : part.end]
            self._weights[own] = self.graph.constant(own, numbers, True)
        return self._weights[own]
