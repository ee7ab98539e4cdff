"""Watches the parameters that a compiled graph keeps packed copies of."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from thresher import _engine
from thresher.fork_lock import ForkLock

# Elements looked at in every parameter, spread evenly, first and last included.
SAMPLES = 8

_WORD = 4  # bytes read at a time


class Store:
    """A WeightStore that weak references can point at."""

    __slots__ = ("__weakref__", "engine")

    def __init__(self) -> None:
        self.engine = _engine.WeightStore()

    @property
    def bytes(self) -> int:
        """Size of the packed weights."""
        return int(self.engine.bytes)


_stores: weakref.WeakValueDictionary[object, Store] = weakref.WeakValueDictionary()
_stores_lock = ForkLock()


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """State of some tensors at one moment.

    PyTorch counts in-place changes per tensor, which together with the address shows every ordinary change. Writing
    through ``tensor.data`` escapes the count, so a few elements are compared as well.

    Attributes:
      held: the tensors, so that no address is used again for something else.
      pointers: their addresses.
      versions: their counts of in-place changes; -1 for inference tensors, which do not count.
      window: the process's memory from the lowest sample on as words; only the samples are ever read.
      offsets: of the samples in `window`.
      samples: what they held.
    """

    held: tuple[torch.Tensor, ...]
    pointers: list[int]
    versions: list[int]
    window: npt.NDArray[np.uint32] | None
    offsets: npt.NDArray[np.int64]
    samples: bytes

    @staticmethod
    def take(tensors: Sequence[torch.Tensor]) -> Snapshot:
        """Describes `tensors` as they are now. All are on the CPU and strided."""
        words = sorted({word for tensor in tensors for word in _sampled_words(tensor)})
        window, offsets, samples = None, np.empty(0, np.int64), b""
        if words:
            # One array over the whole range, so that one call of numpy reads every sample.
            window = np.asarray(_Memory(words[0], (words[-1] - words[0]) // _WORD + 1))
            offsets = (np.asarray(words, dtype=np.int64) - words[0]) // _WORD
            samples = window.take(offsets).tobytes()
        held = tuple(tensor.detach() for tensor in tensors)
        return Snapshot(held, _pointers(tensors), _versions(tensors), window, offsets, samples)

    def unchanged(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether `tensors` are and hold what they were and held."""
        return (
            _pointers(tensors) == self.pointers
            and _versions(tensors) == self.versions
            and (self.window is None or self.window.take(self.offsets).tobytes() == self.samples)
        )

    def stable(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Which of `tensors` show no change by address and count; none where only samples tell of a change."""
        pairs = zip(self.pointers, self.versions, strict=True)
        now = zip(_pointers(tensors), _versions(tensors), strict=True)
        same = [i for i, (old, new) in enumerate(zip(pairs, now, strict=True)) if old == new]
        return same if len(same) < len(self.pointers) else []

    def store(self) -> Store:
        """The packed weights of tensors in this state, shared by all graphs of the same model."""
        key = (frozenset(zip(self.pointers, self.versions, strict=True)), self.samples)
        with _stores_lock:
            found = _stores.get(key)
            if found is None:
                found = _stores[key] = Store()
            return found


class _Memory:
    """Tells numpy of memory by its address."""

    def __init__(self, address: int, words: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "data": (address, True),
            "shape": (words,),
            "typestr": np.dtype(np.uint32).str,
        }


def _pointers(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [-1 if tensor.is_inference() else tensor._version for tensor in tensors]


def _sampled_words(tensor: torch.Tensor) -> set[int]:
    """Addresses of the aligned words that hold the samples."""
    count, size = tensor.numel(), tensor.element_size()
    words: set[int] = set()
    if count == 0:
        return words
    for sample in range(SAMPLES):
        index, offset = sample * (count - 1) // (SAMPLES - 1), 0
        for length, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
            index, position = divmod(index, length)
            offset += position * stride
        start = tensor.data_ptr() + offset * size
        words.update(range(start - start % _WORD, start + size, _WORD))
    return words
