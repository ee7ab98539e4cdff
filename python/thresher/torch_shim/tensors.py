"""What many tensors look like at one moment, to be compared with another: in one call where the shim fits PyTorch."""

from __future__ import annotations

import contextlib
import itertools
import operator
from array import array
from collections.abc import Callable
from typing import Any

import torch

from thresher import _engine
from thresher.torch_shim import library

# Types as places name them, where there is no shim that has PyTorch's own numbers.
_DTYPES = tuple({value for value in vars(torch).values() if isinstance(value, torch.dtype)})
_NUMBER_OF = {dtype: number for number, dtype in enumerate(_DTYPES)}
_RANK_MASK = 0xFF
_DEVICE_SHIFT = 9  # 0: the CPU, else 1 more than the number of the CUDA device
_DEVICE_MASK = 0x7F
_TYPE_SHIFT = 16


def count_of_changes(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place, as PyTorch counts it; -1 for inference tensors, which do not count."""
    return -1 if tensor.is_inference() else tensor._version


def _place(tensor: torch.Tensor) -> tuple[int, ...]:
    place = tensor.device.index + 1 if tensor.is_cuda else 0
    form = _NUMBER_OF[tensor.dtype] << _TYPE_SHIFT | place << _DEVICE_SHIFT | tensor.requires_grad << 8 | tensor.dim()
    return tensor.data_ptr(), form, *tensor.shape, *tensor.stride()


def _places(tensors: list[torch.Tensor]) -> bytes:
    return array("q", itertools.chain.from_iterable(map(_place, tensors))).tobytes()


def _states(tensors: list[torch.Tensor]) -> bytes:
    words = itertools.chain.from_iterable((count_of_changes(tensor), *_place(tensor)) for tensor in tensors)
    return array("q", words).tobytes()


def _same_states(tensors: list[torch.Tensor], states: bytes) -> bool:
    return _states(tensors) == states


_look = operator.attrgetter("shape", "dtype", "requires_grad")
_version = operator.attrgetter("_version")


class _TensorWatch:
    """As TensorWatch, below: asked at every call, so that what it looks at is fetched without a line of Python each."""

    def __init__(
        self,
        tensors: list[torch.Tensor],
        states: bytes,
        others: list[torch.Tensor],
        places: bytes,
        addresses: bytes,
        words: bytes,
    ) -> None:
        self._tensors = [*tensors, *others]
        self._counted = [tensor for tensor in tensors if not tensor.is_inference()]
        self._seen = self._see()
        self._as_told = _states(tensors) == states and _places(others) == places
        self._addresses, self._words = addresses, words

    def _see(self) -> tuple[list[Any], ...]:
        tensors = self._tensors
        return (
            list(map(torch.Tensor.data_ptr, tensors)),
            list(map(_version, self._counted)),
            list(map(torch.Tensor.stride, tensors)),
            list(map(_look, tensors)),
        )

    def unchanged(self) -> bool:
        return self._as_told and self._see() == self._seen and _engine.same_words(self._addresses, self._words)


def _empty(places: bytes) -> tuple[list[torch.Tensor], bytes]:
    words = array("q", places)
    tensors = []
    start = 0
    while start < len(words):
        rank = words[start + 1] & _RANK_MASK
        shape, dtype = words[start + 2 : start + 2 + rank], _DTYPES[words[start + 1] >> _TYPE_SHIFT]
        device = words[start + 1] >> _DEVICE_SHIFT & _DEVICE_MASK
        where = torch.device("cuda", device - 1) if device else torch.device("cpu")
        tensors.append(torch.empty(tuple(shape), dtype=dtype, device=where))
        start += 2 + 2 * rank
    return tensors, _places(tensors)


def _ready(
    tensors: list[torch.Tensor], places: bytes, refuses_gaps: bool
) -> tuple[list[torch.Tensor], bytes, bytes] | None:
    if any(map(torch.Tensor.is_neg, tensors)) or (refuses_gaps and not all(map(torch.Tensor.is_contiguous, tensors))):
        return None
    return *_empty(places), _places(tensors)


def on_device(places: bytes, index: int) -> bytes:
    """The places with another device: the number of a CUDA device, or -1 for the CPU."""
    words = array("q", places)
    start = 0
    while start < len(words):
        words[start + 1] = words[start + 1] & ~(_DEVICE_MASK << _DEVICE_SHIFT) | index + 1 << _DEVICE_SHIFT
        start += 2 + 2 * (words[start + 1] & _RANK_MASK)
    return words.tobytes()


def _forms(values: list[Any]) -> bytes | None:
    return None


# Where the elements of tensors lie, their types, sizes and strides, and whether gradients are needed. Of each, in words
# of 64 bits: the address, one whose lowest 8 bits are the rank, sizes, strides.
places: Callable[[list[torch.Tensor]], bytes] = _places
# Their places, with how often each was changed in place.
states: Callable[[list[torch.Tensor]], bytes] = _states
# Whether tensors are in the states that were told of them.
same_states: Callable[[list[torch.Tensor], bytes], bool] = _same_states
# (tensors, their states, other tensors, their places, addresses, words): unchanged() of it says whether the tensors are
# in these states, the others in these places, and memory at the addresses, 64 bits each, holds these words of 32 bits.
# It keeps the tensors alive; who asks it sees to it that the addresses are those of something.
TensorWatch: Callable[..., Any] = _TensorWatch
# New row-major tensors of the types, sizes and devices of others, by these' places; and their own places.
empty: Callable[[bytes], tuple[list[torch.Tensor], bytes]] = _empty
# For a run: what empty() gives of places, and the places of the tensors that it reads. None where memory does not hold
# what one of these shows, the opposite of its elements, say; or, where that is refused, leaves gaps between elements.
ready: Callable[[list[torch.Tensor], bytes, bool], tuple[list[torch.Tensor], bytes, bytes] | None] = _ready
# What tells arguments apart for captures, and the settings of PyTorch. None where it takes more to say it: arguments
# are not all tensors, say, or a mode stands between the program and PyTorch's operators.
forms: Callable[[list[Any]], bytes | None] = _forms

# (slow, watch, entry, door, threads, inputs, outputs, orders, result, build, counts): call() of it is slow() without a
# line of Python, where the TensorWatch is unchanged, the weak reference's object alive, and PyTorch has such threads.
# `door`: PlanAtSizes.door(). `inputs`: of each of the plan's, a leaf's number or a tensor, and the order of its
# dimensions or None. `outputs`: places, `orders`: of their dimensions, or None. `result`: the number of the output that
# call() returns, or -1 for build(outputs, leaves). `counts`: arrays of an int64: a clock, when it ran, and how often.
# None where the shim does not fit PyTorch.
PreparedCall: Callable[..., Any] | None = None

with contextlib.suppress(library.ShimError):
    _shim: Any = library.find(torch.__version__, cxx11_abi=torch._C._GLIBCXX_USE_CXX11_ABI)
    places, states, same_states, TensorWatch, empty, ready, forms, PreparedCall = (
        _shim.places,
        _shim.states,
        _shim.same_states,
        _shim.TensorWatch,
        _shim.empty,
        _shim.ready,
        _shim.forms,
        _shim.PreparedCall,
    )
    _shim.set_result_memory(*_engine.result_memory())
