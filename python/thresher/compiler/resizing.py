"""Resizing as one operator of the traced graph, where PyTorch would write it out in indices and sums."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._C import DispatchKey

aten: Any = torch.ops.aten

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


def _whole(overloads: Any, written_out: Callable[..., Any]) -> Callable[..., Any]:
    """Takes what torch.nn.functional.interpolate gives: sizes or factors."""

    def resize(x: torch.Tensor, size: Sequence[Any] | None, *rest: Any) -> Any:
        *corners, factors = rest
        before = x.shape[2:]
        if size is None and all(float(factor).is_integer() for factor in factors):
            size = [length * int(factor) for length, factor in zip(before, factors, strict=True)]
        elif size is None:  # positions are looked for by the factor, which need not be the ratio of the sizes
            return written_out(x, size, *rest)
        return overloads.default(x, size, *corners, *(factors or [None] * len(before)))

    return resize


_NAMES = (
    *(f"upsample_nearest{rank}d" for rank in (1, 2, 3)),
    *(f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
)
# By operator and key: what PyTorch traces, and what is traced here; None where the operator itself is.
_KERNELS: list[tuple[Any, DispatchKey, Any, Any]] = []
for _overloads in (getattr(aten, name) for name in _NAMES):
    for _key in _KEYS:
        if (_kernel := _overloads.vec.py_kernels.get(_key)) is not None:
            _KERNELS.append((_overloads.vec, _key, _kernel, _whole(_overloads, _kernel)))
        if (_kernel := _overloads.default.py_kernels.get(_key)) is not None:
            _KERNELS.append((_overloads.default, _key, _kernel, None))


@contextlib.contextmanager
def kept_whole() -> Iterator[None]:
    """Traces resizing as one operator. Another thread that traces meanwhile gets either form: both are right."""
    try:
        for operator, key, _, whole in _KERNELS:
            if whole is None:
                operator.py_kernels.pop(key, None)
            else:
                operator.py_kernels[key] = whole
            operator._dispatch_cache.clear()
        yield
    finally:
        for operator, key, written_out, _ in _KERNELS:
            operator.py_kernels[key] = written_out
            operator._dispatch_cache.clear()
