"""The tensors of a checkpoint, as graphs take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from thresher.llm.formats import StoredTensor
from thresher.llm.models.names import Names


class MissingTensorError(ValueError):
    """The checkpoint lacks a tensor that the model wants, or has it in another shape."""


class Part(NamedTuple):
    """Of a tensor these of its rows (dim 0) or, of two dimensions, columns (dim 1)."""

    dim: int
    first: int
    end: int

    def __str__(self) -> str:
        """As it is said behind the name of the whole."""
        return f"[{', ' * self.dim}{self.first}:{self.end}]"


class Checkpoint:
    """Finds tensors by what they are for, and checks their shapes."""

    def __init__(self, architecture: str, tensors: Mapping[str, StoredTensor]) -> None:
        """Takes tensors, which must stay as they are.

        Args:
          architecture: `model_type` of config.json.
          tensors: by their names.

        Raises:
          ValueError: they are another model's.
        """
        self._tensors = tensors
        self._names = Names(architecture, tensors.keys())
        self._stored: dict[str, StoredTensor] = {}
        self._small: dict[str, npt.NDArray[np.float32]] = {}

    def stored(self, name: str, shape: Sequence[int] | None, part: Part | None = None) -> StoredTensor:
        """A tensor of the checkpoint.

        Args:
          name: what it is called there.
          shape: its own; None: any.
          part: what is wanted of it; default: all.

        Raises:
          MissingTensorError: there is none of that name and shape.
        """
        found = self._stored.get(name)
        if found is None:
            if name not in self._tensors:
                raise MissingTensorError(f"expected a tensor {name}, got none; the checkpoint is not complete")
            found = self._stored[name] = _readable(self._tensors[name])
        if shape is not None and tuple(found.shape) != tuple(shape):
            raise MissingTensorError(f"tensor {name}: expected shape {tuple(shape)}, got {tuple(found.shape)}")
        if part is None:
            return found
        if f"{name}{part}" not in self._stored:
            cut = found.columns if part.dim else found.rows
            self._stored[f"{name}{part}"] = cut([(part.first, part.end)])
        return self._stored[f"{name}{part}"]

    def small(self, name: str, shape: Sequence[int], offset: float = 0.0) -> npt.NDArray[np.float32]:
        """A bias or the weight of a norm as f32, plus `offset`."""
        if name not in self._small:
            elements = self.stored(name, shape).dequantized().astype(np.float32, copy=False)
            self._small[name] = np.ascontiguousarray(elements + np.float32(offset) if offset else elements)
        return self._small[name]

    def columns(self, name: str) -> npt.NDArray[np.int64]:
        """Which inputs the columns of a weight belong to."""
        return np.asarray(self._tensors[name].array(), np.int64)

    def has_tensor(self, name: str) -> bool:
        """Whether the checkpoint has a tensor of that name."""
        return name in self._tensors

    def name(self, role: str, *numbers: int) -> str:
        """What the checkpoint calls a tensor, or a linear, in that role."""
        return self._names.of(role, *numbers)

    def has(self, role: str, *numbers: int) -> bool:
        """Whether the checkpoint has it."""
        return self._names.has(role, *numbers)


def _readable(tensor: StoredTensor) -> StoredTensor:
    """The tensor where the engine can read it: at a whole multiple of its elements' size, as floats."""
    if tensor.encoding in ("f64", "i64", "i32", "i16", "i8", "u8", "bool"):
        return StoredTensor("f32", tensor.shape, tensor.dequantized().reshape(-1).view(np.uint8))
    if tensor.encoding in ("f32", "bf16", "f16") and tensor.data.ctypes.data % 4:
        return StoredTensor(tensor.encoding, tensor.shape, tensor.data.copy())
    return tensor
