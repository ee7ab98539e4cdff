"""optimize_layout: tensors laid out once as the kernels read them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from thresher.compiler.errors import ConfigError
from thresher.fork_lock import ForkLock

_F = TypeVar("_F", bound=Callable[..., Any])


def optimize_layout(target: _F) -> _F:
    """Lays tensors out row by row before the engine is given them, each only once.

    >>> import torch, thresher
    >>> @thresher.optimize_layout
    ... @thresher.fuse_ops
    ... def scores(x, table):
    ...     return thresher.ops.softmax(thresher.ops.matmul(x, table))
    >>> x, table = torch.randn(4, 8), torch.randn(8, 32)[:, ::2]  # with gaps
    >>> torch.allclose(scores(x, table), torch.softmax(x @ table, -1), atol=1e-5)
    True

    The engine reads inputs whose dimensions lie in another order as they are, but copies those with gaps, or repeated
    elements, at every call, with one thread. With this decorator PyTorch's threads lay out whatever is not row-major,
    and once for a tensor that is passed again unchanged, such as a table. A module gets its parameters and buffers laid
    out where they are, and is returned itself: then there are no copies of them in memory beside the packed ones.

    Args:
      target: a function of tensors, which may be nested in lists and dicts; or a torch.nn.Module.

    Returns:
      A function that is called alike; or the module.

    Raises:
      ConfigError: it is neither.
    """
    if isinstance(target, torch.nn.Module):
        for tensor in [*target.parameters(), *target.buffers()]:
            if _is_scattered(tensor):
                with torch.no_grad():
                    tensor.data = tensor.data.contiguous()
        return target
    if not callable(target) or isinstance(target, type):
        raise ConfigError(
            f"optimize_layout: expected a function of tensors or a torch.nn.Module, got {target!r}; of a class, "
            "decorate forward or give it an object"
        )
    kept = _Kept()

    @functools.wraps(target)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return target(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, kept.of, (args, kwargs))
        return target(*args, **kwargs)

    return run  # type: ignore[return-value]


class _Kept:
    """Row-major copies of tensors, as long as those live and do not change."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[weakref.ref[torch.Tensor], tuple[Any, ...], torch.Tensor]] = {}
        self._lock = ForkLock()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself where it is row-major or has a gradient, else a copy that is."""
        if not _is_scattered(tensor):
            return tensor
        if tensor.requires_grad or tensor.is_inference():  # no copy may outlive the call; no changes are counted
            return tensor.contiguous()
        state = (tensor._version, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        key = id(tensor)
        with self._lock:
            found = self._copies.get(key)
            if found is not None and found[0]() is tensor and found[1] == state:
                return found[2]
        copy = tensor.contiguous()

        def forget(gone: weakref.ref[torch.Tensor]) -> None:
            held = self._copies.get(key)
            if held is not None and held[0] is gone:
                self._copies.pop(key, None)

        with self._lock:
            self._copies[key] = (weakref.ref(tensor, forget), state, copy)
        return copy


def _is_scattered(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_contiguous()
