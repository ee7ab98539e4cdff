"""What many tensors look like at one moment, to be compared with another: in one call where the shim fits PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from thresher.torch_shim import library


def count_of_changes(tensor: torch.Tensor) -> int:
    """The same of one tensor; -1 for inference tensors, which do not count."""
    return -1 if tensor.is_inference() else tensor._version


def _places(tensors: list[torch.Tensor]) -> object:
    return [(t.data_ptr(), t.dtype, t.shape, t.stride(), t.requires_grad) for t in tensors]


def _versions(tensors: list[torch.Tensor]) -> object:
    return list(map(count_of_changes, tensors))


def _forms(values: list[Any]) -> object:
    return None


# Where the elements of tensors lie, their types, sizes and strides, and whether gradients are wanted.
places: Callable[[list[torch.Tensor]], object] = _places
# How often each was changed in place, as PyTorch counts it.
versions: Callable[[list[torch.Tensor]], object] = _versions
# What tells arguments apart for captures. None where it takes more to say it: they are not all tensors, say.
forms: Callable[[list[Any]], object] = _forms

with contextlib.suppress(library.ShimError):
    _shim: Any = library.find(torch.__version__, cxx11_abi=torch._C._GLIBCXX_USE_CXX11_ABI)
    places, versions, forms = _shim.places, _shim.versions, _shim.forms
