"""Gradients of convolutions as convolutions: what the engine has an operator for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten: Any = torch.ops.aten


def _backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """aten.convolution_backward: the gradients of input, weights and bias, where the mask asks for them."""
    settings = (stride, padding, dilation)
    made_x = _of_input(gradient, x, w, settings, transposed, groups) if output_mask[0] else None
    made_w = None
    if output_mask[1]:
        # Weights of a transposed convolution meet input and gradient with exchanged roles.
        windows, steps = (gradient, x) if transposed else (x, gradient)
        made_w = _of_weights(windows, steps, w, settings, groups)
    made_b = gradient.sum([0, *range(2, gradient.dim())]) if output_mask[2] else None
    return made_x, made_w, made_b


def _of_input(
    gradient: torch.Tensor,
    x: torch.Tensor,
    w: torch.Tensor,
    settings: tuple[Sequence[int], Sequence[int], Sequence[int]],
    transposed: bool,
    groups: int,
) -> torch.Tensor:
    stride, padding, dilation = settings
    sizes = list(zip(x.shape[2:], gradient.shape[2:], w.shape[2:], *settings, strict=True))
    # What strides left over at the end of the input has no window: the gradient is zero there.
    rest = [
        0 if transposed else size - ((steps - 1) * s - 2 * p + d * (window - 1) + 1)
        for size, steps, window, s, p, d in sizes
    ]
    made = aten.convolution.default(gradient, w, None, stride, padding, dilation, not transposed, rest, groups)
    return _narrowed(made, x.shape[2:])


def _of_weights(
    windows: torch.Tensor,
    steps: torch.Tensor,
    w: torch.Tensor,
    settings: tuple[Sequence[int], Sequence[int], Sequence[int]],
    groups: int,
) -> torch.Tensor:
    """A convolution whose batch are channels and whose channels are the batch, with stride and dilation exchanged."""
    stride, padding, dilation = settings
    batch, channels, *sizes = windows.shape
    rest = range(3, 3 + len(sizes))
    inner = windows.reshape(batch, groups, channels // groups, *sizes).permute(2, 1, 0, *rest)
    x = inner.reshape(channels // groups, groups * batch, *sizes)
    kernel = steps.transpose(0, 1)
    none = [0] * len(sizes)
    made = aten.convolution.default(x, kernel, None, dilation, padding, stride, False, none, groups)
    return _narrowed(made, w.shape[2:]).transpose(0, 1)


def _narrowed(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    for axis, size in enumerate(sizes, start=2):
        if tensor.shape[axis] != size:
            tensor = tensor.narrow(axis, 0, size)
    return tensor


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {aten.convolution_backward.default: _backward}
