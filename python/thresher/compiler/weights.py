"""Watches the parameters that a compiled graph keeps packed copies of."""

from __future__ import annotations

import ctypes
import dataclasses
import struct
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from thresher import _engine
from thresher.fork_lock import ForkLock
from thresher.torch_shim import tensors as shim

# Elements looked at in every parameter, spread evenly, first and last included.
SAMPLES = 8

_WORD = 4  # bytes read at a time


class Store:
    """A WeightStore that weak references can point at."""

    __slots__ = ("__weakref__", "_host", "_placed", "engine")

    def __init__(self) -> None:
        self.engine = _engine.WeightStore()
        self._host: dict[object, torch.Tensor] = {}
        self._placed: dict[object, _engine.DeviceConstant] = {}

    def on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor in the host's memory, made once."""
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in self._host:
            with unset_fake_temporarily():  # copying is no part of the program
                self._host[key] = tensor.detach().cpu()
        return self._host[key]

    def placed(self, tensor: torch.Tensor, device: _engine.Device) -> _engine.DeviceConstant:
        """A tensor without gaps of `device`, which its kernels read where it is; one constant for all graphs."""
        key = (tensor.data_ptr(), tensor.nbytes)
        if key not in self._placed:
            self._placed[key] = self.engine.place(device, tensor.data_ptr(), tensor.nbytes, tensor.detach())
        return self._placed[key]

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
      states: their addresses, types, sizes, strides and counts of in-place changes, to be compared.
      held: the tensors, so that no address is used again for something else.
      pointers: their addresses.
      versions: their counts of in-place changes; -1 for inference tensors, which do not count.
      sampled: addresses of some of their words.
      samples: what these held.
    """

    states: bytes
    held: tuple[torch.Tensor, ...]
    pointers: list[int]
    versions: list[int]
    sampled: bytes
    samples: bytes

    @staticmethod
    def take(tensors: list[torch.Tensor]) -> Snapshot:
        """Describes `tensors` as they are now. All are strided. Of those of a device no elements are compared."""
        words = sorted({word for tensor in tensors if tensor.is_cpu for word in _sampled_words(tensor)})
        samples = b"".join(ctypes.string_at(word, _WORD) for word in words)
        held = tuple(tensor.detach() for tensor in tensors)
        sampled = struct.pack(f"{len(words)}Q", *words)
        return Snapshot(shim.states(tensors), held, _pointers(tensors), _versions(tensors), sampled, samples)

    def unchanged(self, tensors: list[torch.Tensor]) -> bool:
        """Whether `tensors` are and hold what they were and held."""
        return shim.same_states(tensors, self.states) and _engine.same_words(self.sampled, self.samples)

    def watch(self, tensors: list[torch.Tensor], others: list[torch.Tensor]) -> Any:
        """What says for unchanged(), and of other tensors whether they lie where they lie now, at once.

        To be asked while the snapshot is alive.
        """
        return shim.TensorWatch(tensors, self.states, others, shim.places(others), self.sampled, self.samples)

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


def _pointers(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    return list(map(shim.count_of_changes, tensors))


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
