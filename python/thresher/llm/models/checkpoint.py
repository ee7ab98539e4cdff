"""The tensors and the configuration of a model on disk."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from thresher import _engine
from thresher.llm.models.decoder import StoredTensor


class ArrayTensor:
    """A tensor in memory as numpy has it: f32 or f16."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = np.ascontiguousarray(array)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, slowest first."""
        return self._array.shape

    def dequantized(self) -> npt.NDArray[np.float32]:
        """All elements as f32."""
        return self._array.astype(np.float32, copy=False)

    def add_to(self, graph: _engine.Graph, name: str) -> int:
        """Adds the tensor to a graph as a weight; the graph keeps its memory."""
        return graph.constant(name, self._array, True)


class ArrayTensors:
    """A checkpoint in memory."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        self._arrays = arrays

    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._arrays.keys()

    def get(self, name: str) -> StoredTensor:
        """One of them."""
        return ArrayTensor(self._arrays[name])


def read_folder(path: Path) -> tuple[dict[str, Any], ArrayTensors]:
    """Reads config.json and the safetensors files of a Hugging Face folder.

    Raises:
      FileNotFoundError: the folder, config.json or the tensors are not there.
      ValueError: config.json is no JSON object.
    """
    from safetensors.numpy import load_file

    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path / 'config.json'}: expected JSON, got {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path / 'config.json'}: expected an object, got a {type(config).__name__}")
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{path}: expected files *.safetensors, got none")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for file in files:
        arrays.update(load_file(file))
    return config, ArrayTensors(arrays)
